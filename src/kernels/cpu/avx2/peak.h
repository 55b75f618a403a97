// Products in registers alone: PeakLoops of kernels/isa_table.h.
// See kernels/cpu/isa_common.h for the rules of this file.
#pragma once

#include "kernels/cpu/peak.h"

namespace tern {
namespace {

// Latency 4, two a cycle: eight chains and more keep the units busy. 1 and 2^-30.
TERN_PEAK_LOOP(PeakF32, 0x3F800000, 0x30800000, "0,1,2,3,4,5,6,7,8,9,10,11", 12, 8 * 2,
               "vpxor %%ymm\\r, %%ymm\\r, %%ymm\\r",
               "vbroadcastss %[a], %%ymm14\n\tvbroadcastss %[b], %%ymm15",
               "vfmadd231ps %%ymm14, %%ymm15, %%ymm\\r", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4",
               "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm14", "xmm15")

// Unsigned by signed bytes in pairs, added up in 16 bits: two instructions.
TERN_PEAK_LOOP(PeakInt8, 0x03030303, 0x05050505, "0,1,2,3,4,5,6,7,8,9,10,11", 12, 32 * 2,
               "vpxor %%ymm\\r, %%ymm\\r, %%ymm\\r",
               "vpbroadcastd %[a], %%ymm14\n\tvpbroadcastd %[b], %%ymm15",
               "vpmaddubsw %%ymm14, %%ymm15, %%ymm13\n\tvpaddw %%ymm13, %%ymm\\r, %%ymm\\r", "xmm0",
               "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
               "xmm11", "xmm13", "xmm14", "xmm15")

constexpr PeakLoops kPeakLoops = {PeakF32, nullptr, PeakInt8, PeakRead};

}  // namespace
}  // namespace tern
