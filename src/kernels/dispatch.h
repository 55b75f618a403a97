// Which instruction-set levels this machine runs, and their tables. A level is offered only when
// the CPU has its instructions and the operating system saves its registers. Thread: any; the
// answer does not change while the process runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "kernels/isa_table.h"

namespace tern {

// The words that decide: CPUID registers and XCR0 (zero when the OS does not use XSAVE).
struct CpuState {
  uint32_t leaf1_ecx = 0;
  uint32_t leaf7_ebx = 0, leaf7_ecx = 0;
  uint32_t leaf7_1_eax = 0;
  uint64_t xcr0 = 0;
};

CpuState ReadCpuState();

// Names of the levels that a machine in this state runs, best first; "generic" and "ref" always.
std::vector<std::string> IsasOf(const CpuState& state);

// The table of `name` ("" = the best). Errors: kInvalidArgument for an unknown name or a level that
// this machine can't run, listing those it can.
Result<const IsaTable*> FindIsa(const std::string& name);

}  // namespace tern
