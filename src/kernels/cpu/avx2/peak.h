// Products in registers alone: PeakLoops of kernels/isa_table.h.
// See kernels/cpu/isa_common.h for the rules of this file.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/peak.h"

namespace tern {
namespace {

constexpr int kPeakChains = 12;  // latency 4, two a cycle; with two factors, of 16 registers

double PeakF32(int64_t rounds, float* sink) {
  __m256 sum[kPeakChains] = {};
  __m256 a = _mm256_set1_ps(1.0f);
  const __m256 b = _mm256_set1_ps(0x1p-30f);
  for (int64_t round = 0; round < rounds; ++round) {
    for (__m256& chain : sum) chain = _mm256_fmadd_ps(a, b, chain);
    __asm__ volatile("" : "+x"(a));
  }
  for (int i = 1; i < kPeakChains; ++i) sum[0] = _mm256_add_ps(sum[0], sum[i]);
  _mm256_storeu_ps(sink, sum[0]);
  return static_cast<double>(rounds) * kPeakChains * 8 * 2;
}

// Unsigned by signed bytes in pairs, added up in 16 bits. The sums wrap around: only time counts.
double PeakInt8(int64_t rounds, float* sink) {
  __m256i sum[kPeakChains] = {};
  __m256i a = _mm256_set1_epi8(3);
  const __m256i b = _mm256_set1_epi8(5);
  for (int64_t round = 0; round < rounds; ++round) {
    for (__m256i& chain : sum) {
      __asm__ volatile("" : "+x"(a));  // the compiler must not know that products repeat
      chain = _mm256_add_epi16(chain, _mm256_maddubs_epi16(a, b));
    }
  }
  for (int i = 1; i < kPeakChains; ++i) sum[0] = _mm256_add_epi16(sum[0], sum[i]);
  _mm256_storeu_ps(sink, _mm256_castsi256_ps(sum[0]));
  return static_cast<double>(rounds) * kPeakChains * 32 * 2;
}

constexpr PeakLoops kPeakLoops = {.f32 = PeakF32, .int8 = PeakInt8, .read = PeakRead};

}  // namespace
}  // namespace tern
