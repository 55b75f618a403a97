// Products in registers alone, four lanes at a time: PeakLoops of kernels/isa_table.h.
// See kernels/cpu/isa_common.h for the rules of this file.
#pragma once

#include "kernels/cpu/peak.h"

namespace tern {
namespace {

constexpr int kPeakChains = 10;

// A product and a sum each: this level fuses nothing.
double PeakF32(int64_t rounds, float* sink) {
  Float4 sum[kPeakChains] = {};
  Float4 a = {1.0f, 1.0f, 1.0f, 1.0f};
  const Float4 b = {0x1p-30f, 0x1p-30f, 0x1p-30f, 0x1p-30f};
  for (int64_t round = 0; round < rounds; ++round) {
    for (Float4& chain : sum) {
#if defined(__x86_64__)
      __asm__ volatile("" : "+x"(a));  // the compiler must not know that products repeat
#endif
      chain += a * b;
    }
  }
  for (int i = 1; i < kPeakChains; ++i) sum[0] += sum[i];
  for (int i = 0; i < 4; ++i) sink[i] = sum[0][i];
  return static_cast<double>(rounds) * kPeakChains * 4 * 2;
}

constexpr PeakLoops kPeakLoops = {.f32 = PeakF32, .read = PeakRead};

}  // namespace
}  // namespace tern
