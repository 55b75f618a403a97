// Products in registers alone: PeakLoops of kernels/isa_table.h.
// See kernels/cpu/isa_common.h for the rules of this file.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/peak.h"

namespace tern {
namespace {

constexpr int kPeakChains = 20;  // latency up to 6, two a cycle; with two factors, of 32 registers

double PeakF32(int64_t rounds, float* sink) {
  __m512 sum[kPeakChains] = {};
  __m512 a = _mm512_set1_ps(1.0f);
  const __m512 b = _mm512_set1_ps(0x1p-30f);
  for (int64_t round = 0; round < rounds; ++round) {
    for (__m512& chain : sum) chain = _mm512_fmadd_ps(a, b, chain);
    __asm__ volatile("" : "+v"(a));
  }
  for (int i = 1; i < kPeakChains; ++i) sum[0] = _mm512_add_ps(sum[0], sum[i]);
  _mm512_storeu_ps(sink, sum[0]);
  return static_cast<double>(rounds) * kPeakChains * 16 * 2;
}

double PeakBf16(int64_t rounds, float* sink) {
  __m512 sum[kPeakChains] = {};
  __m512i a = _mm512_set1_epi32(0x3F803F80);        // 1, 1
  const __m512i b = _mm512_set1_epi32(0x30803080);  // 2^-30, 2^-30
  for (int64_t round = 0; round < rounds; ++round) {
    for (__m512& chain : sum) {
      chain = _mm512_dpbf16_ps(chain, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
    }
    __asm__ volatile("" : "+v"(a));
  }
  for (int i = 1; i < kPeakChains; ++i) sum[0] = _mm512_add_ps(sum[0], sum[i]);
  _mm512_storeu_ps(sink, sum[0]);
  return static_cast<double>(rounds) * kPeakChains * 32 * 2;
}

// Unsigned by signed bytes in fours, added up in 32 bits.
double PeakInt8(int64_t rounds, float* sink) {
  __m512i sum[kPeakChains] = {};
  __m512i a = _mm512_set1_epi8(3);
  const __m512i b = _mm512_set1_epi8(5);
  for (int64_t round = 0; round < rounds; ++round) {
    for (__m512i& chain : sum) chain = _mm512_dpbusd_epi32(chain, a, b);
    __asm__ volatile("" : "+v"(a));
  }
  for (int i = 1; i < kPeakChains; ++i) sum[0] = _mm512_add_epi32(sum[0], sum[i]);
  _mm512_storeu_si512(sink, sum[0]);
  return static_cast<double>(rounds) * kPeakChains * 64 * 2;
}

constexpr PeakLoops kPeakLoops = {
    .f32 = PeakF32, .bf16 = PeakBf16, .int8 = PeakInt8, .read = PeakRead};

}  // namespace
}  // namespace tern
