// Products in registers alone: PeakLoops of kernels/isa_table.h.
// See kernels/cpu/isa_common.h for the rules of this file.
#pragma once

#include "kernels/cpu/peak.h"

namespace tern {
namespace {

// Latency up to 6, two a cycle.
#define TERN_CHAINS "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19"
#define TERN_CLOBBERS                                                                           \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",      \
      "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm30", \
      "xmm31"

// 1 and 2^-30.
TERN_PEAK_LOOP(PeakF32, 0x3F800000, 0x30800000, TERN_CHAINS, 20, 16 * 2,
               "vpxord %%zmm\\r, %%zmm\\r, %%zmm\\r",
               "vpbroadcastd %[a], %%zmm30\n\tvpbroadcastd %[b], %%zmm31",
               "vfmadd231ps %%zmm30, %%zmm31, %%zmm\\r", TERN_CLOBBERS)

TERN_PEAK_LOOP(PeakBf16, 0x3F803F80, 0x30803080, TERN_CHAINS, 20, 32 * 2,
               "vpxord %%zmm\\r, %%zmm\\r, %%zmm\\r",
               "vpbroadcastd %[a], %%zmm30\n\tvpbroadcastd %[b], %%zmm31",
               "vdpbf16ps %%zmm30, %%zmm31, %%zmm\\r", TERN_CLOBBERS)

// Unsigned by signed bytes in fours, added up in 32 bits.
TERN_PEAK_LOOP(PeakInt8, 0x03030303, 0x05050505, TERN_CHAINS, 20, 64 * 2,
               "vpxord %%zmm\\r, %%zmm\\r, %%zmm\\r",
               "vpbroadcastd %[a], %%zmm30\n\tvpbroadcastd %[b], %%zmm31",
               "vpdpbusd %%zmm30, %%zmm31, %%zmm\\r", TERN_CLOBBERS)

#undef TERN_CHAINS
#undef TERN_CLOBBERS

constexpr PeakLoops kPeakLoops = {PeakF32, PeakBf16, PeakInt8, PeakRead};

}  // namespace
}  // namespace tern
