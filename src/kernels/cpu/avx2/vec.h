// Vec: sixteen float lanes in two AVX2 registers.
// See kernels/cpu/isa_common.h for the rules of this file.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/isa_common.h"

namespace tern {
namespace {

// Register tiles that fit 16 registers of 8 lanes.
constexpr int kMatMulRows = 5;
constexpr int kInt8Rows = 4;
constexpr int kScoreQueries = 3;
constexpr int kValueQueries = 2, kValueVecs = 2;

struct Vec {
  __m256 lo, hi;
};
struct VecI {
  __m256i lo, hi;
};

inline Vec Set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Vec Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Vec Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void Store(float* p, Vec a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
inline VecI LoadI(const void* p) {
  const auto* words = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(words), _mm256_loadu_si256(words + 1)};
}

inline Vec Add(Vec a, Vec b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline Vec Sub(Vec a, Vec b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline Vec Mul(Vec a, Vec b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline Vec Div(Vec a, Vec b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
// a * b + c, rounded once.
inline Vec MulAdd(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
// b where the comparison with a NaN is unordered.
inline Vec Max(Vec a, Vec b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline Vec Min(Vec a, Vec b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
inline VecI AsInt(Vec a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
inline Vec AsFloat(VecI a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }

inline VecI SetI(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline VecI AddI(VecI a, VecI b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
inline VecI SubI(VecI a, VecI b) {
  return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
inline VecI And(VecI a, VecI b) {
  return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
inline VecI Or(VecI a, VecI b) {
  return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
template <int kBits>
inline VecI ShiftLeft(VecI a) {
  return {_mm256_slli_epi32(a.lo, kBits), _mm256_slli_epi32(a.hi, kBits)};
}
template <int kBits>
inline VecI ShiftRight(VecI a) {
  return {_mm256_srli_epi32(a.lo, kBits), _mm256_srli_epi32(a.hi, kBits)};
}
template <int kBits>
inline VecI ShiftRightSigned(VecI a) {
  return {_mm256_srai_epi32(a.lo, kBits), _mm256_srai_epi32(a.hi, kBits)};
}
inline Vec ToFloat(VecI a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
// Lanes that hold a NaN.
inline VecI IsNan(Vec a) {
  return {_mm256_castps_si256(_mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q)),
          _mm256_castps_si256(_mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q))};
}
inline VecI Select(VecI mask, VecI a, VecI b) {
  return {_mm256_blendv_epi8(b.lo, a.lo, mask.lo), _mm256_blendv_epi8(b.hi, a.hi, mask.hi)};
}

inline VecI LoadU16(const void* p) {
  const auto* words = static_cast<const __m128i*>(p);
  return {_mm256_cvtepu16_epi32(_mm_loadu_si128(words)),
          _mm256_cvtepu16_epi32(_mm_loadu_si128(words + 1))};
}
inline VecI LoadU8(const void* p) {
  const __m128i bytes = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))};
}
inline VecI LoadI8(const void* p) {
  const __m128i bytes = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))};
}
// The low 16 bits of each lane, whose high bits are zero.
inline void StoreU16(uint16_t* p, VecI a) {
  const __m256i packed = _mm256_packus_epi32(a.lo, a.hi);  // quarters in the order 0 2 1 3
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xD8));
}
inline Vec LoadF16(const void* p) {
  const auto* words = static_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(words)), _mm256_cvtph_ps(_mm_loadu_si128(words + 1))};
}

// Eight rows of eight lanes, in place.
inline void Transpose8(__m256 rows[8]) {
  __m256 t[8];
  for (int i = 0; i < 8; i += 4) {
    const __m256 a = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
    const __m256 b = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    const __m256 c = _mm256_unpacklo_ps(rows[i + 2], rows[i + 3]);
    const __m256 d = _mm256_unpackhi_ps(rows[i + 2], rows[i + 3]);
    t[i] = _mm256_shuffle_ps(a, c, 0x44);
    t[i + 1] = _mm256_shuffle_ps(a, c, 0xEE);
    t[i + 2] = _mm256_shuffle_ps(b, d, 0x44);
    t[i + 3] = _mm256_shuffle_ps(b, d, 0xEE);
  }
  for (int c = 0; c < 4; ++c) {
    rows[c] = _mm256_permute2f128_ps(t[c], t[4 + c], 0x20);
    rows[c + 4] = _mm256_permute2f128_ps(t[c], t[4 + c], 0x31);
  }
}

// Four blocks of 8x8; the two off the diagonal change places.
inline void Transpose(Vec rows[kLanes]) {
  __m256 low[2][8], high[2][8];
  for (int i = 0; i < kLanes; ++i) {
    low[i / 8][i % 8] = rows[i].lo;
    high[i / 8][i % 8] = rows[i].hi;
  }
  for (int half = 0; half < 2; ++half) {
    Transpose8(low[half]);
    Transpose8(high[half]);
  }
  for (int i = 0; i < 8; ++i) {
    rows[i] = {low[0][i], low[1][i]};
    rows[i + 8] = {high[0][i], high[1][i]};
  }
}

// To the nearest integer, ties to even.
inline VecI RoundToInt(Vec a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
// Bytes 0 4 1 5 2 6 3 7 of each eight integers: where nibbles of a panel's words meet them.
inline void StoreQuads(int8_t* p, VecI a) {
  const __m256i words = _mm256_packs_epi32(a.lo, a.hi);  // quarters in the order 0 2 1 3
  const __m256i bytes = _mm256_packs_epi16(words, words);
  // Integers 0-3, 8-11 and 4-7, 12-15, by quarters.
  const __m128i low = _mm256_castsi256_si128(bytes), high = _mm256_extracti128_si256(bytes, 1);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(p),
      _mm_shuffle_epi8(_mm_unpacklo_epi64(low, high),
                       _mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15)));
}
// The low and the high nibbles of 64 bytes, as bytes.
inline VecI LowNibbles(const std::byte* p) {
  const VecI words = LoadI(p);
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(words.lo, mask), _mm256_and_si256(words.hi, mask)};
}
inline VecI HighNibbles(const std::byte* p) {
  const VecI words = LoadI(p);
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(_mm256_srli_epi16(words.lo, 4), mask),
          _mm256_and_si256(_mm256_srli_epi16(words.hi, 4), mask)};
}
// Sums, from `offset` on, of products of four unsigned bytes of each lane and four activations. At
// most 8 products are added between Begin and End, of bytes below 16: 8 * 2 * 15 * 127 fits the
// 16-bit sums of two products each.
struct QuadSums {
  __m256i lo, hi;
};
inline QuadSums BeginQuads(int32_t /*offset*/) {
  return {_mm256_setzero_si256(), _mm256_setzero_si256()};
}
inline QuadSums AddQuads(QuadSums sum, VecI bytes, const int8_t* x) {
  int32_t quad;
  __builtin_memcpy(&quad, x, sizeof(quad));
  const __m256i four = _mm256_set1_epi32(quad);
  sum.lo = _mm256_add_epi16(sum.lo, _mm256_maddubs_epi16(bytes.lo, four));
  sum.hi = _mm256_add_epi16(sum.hi, _mm256_maddubs_epi16(bytes.hi, four));
  // GCC would add all products of a group in an order of its own, and spill them until then.
  __asm__("" : "+x"(sum.lo), "+x"(sum.hi));
  return sum;
}
inline VecI EndQuads(QuadSums sum, int32_t offset) {
  const __m256i ones = _mm256_set1_epi16(1), start = _mm256_set1_epi32(offset);
  return {_mm256_add_epi32(_mm256_madd_epi16(sum.lo, ones), start),
          _mm256_add_epi32(_mm256_madd_epi16(sum.hi, ones), start)};
}

// Each lane, from 0 to 255, as a byte.
inline void StoreU8(uint8_t* p, VecI a) {
  const __m256i words = _mm256_packus_epi32(a.lo, a.hi);  // quarters in the order 0 2 1 3
  const __m256i bytes = _mm256_packus_epi16(words, words);
  // Integers 0-3, 8-11 and 4-7, 12-15, by quarters.
  const __m128i low = _mm256_castsi256_si128(bytes), high = _mm256_extracti128_si256(bytes, 1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_unpacklo_epi32(low, high));
}

}  // namespace
}  // namespace tern
