// Products in registers alone, four lanes at a time: PeakLoops of kernels/isa_table.h.
// See kernels/cpu/isa_common.h for the rules of this file.
#pragma once

#include "kernels/cpu/peak.h"

namespace tern {
namespace {

#if defined(__x86_64__)

// A product and a sum each: this level fuses nothing. 1 and 2^-30.
TERN_PEAK_LOOP(PeakF32, 0x3F800000, 0x30800000, "0,1,2,3,4,5,6,7,8,9", 10, 4 * 2,
               "xorps %%xmm\\r, %%xmm\\r",
               "movss %[a], %%xmm14\n\tshufps $0, %%xmm14, %%xmm14\n\t"
               "movss %[b], %%xmm15\n\tshufps $0, %%xmm15, %%xmm15",
               "movaps %%xmm14, %%xmm13\n\tmulps %%xmm15, %%xmm13\n\taddps %%xmm13, %%xmm\\r",
               "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
               "xmm13", "xmm14", "xmm15")

constexpr PeakLoops kPeakLoops = {PeakF32, nullptr, nullptr, PeakRead};

#else

constexpr PeakLoops kPeakLoops = {nullptr, nullptr, nullptr, PeakRead};

#endif

}  // namespace
}  // namespace tern
