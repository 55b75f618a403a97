// Vec: sixteen float lanes in one AVX-512 register.
// See kernels/cpu/isa_common.h for the rules of this file.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/isa_common.h"

namespace tern {
namespace {

// Register tiles that fit 32 registers.
constexpr int kMatMulRows = 8;
constexpr int kInt8Rows = 12;
constexpr int kScoreQueries = 8;
constexpr int kValueQueries = 5, kValueVecs = 4;

struct Vec {
  __m512 v;
};
struct VecI {
  __m512i v;
};

inline Vec Set(float x) { return {_mm512_set1_ps(x)}; }
inline Vec Zero() { return {_mm512_setzero_ps()}; }
inline Vec Load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void Store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
inline VecI LoadI(const void* p) { return {_mm512_loadu_si512(p)}; }

inline Vec Add(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec Sub(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec Mul(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec Div(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
// a * b + c, rounded once.
inline Vec MulAdd(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// b where the comparison with a NaN is unordered.
inline Vec Max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Vec Min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
inline VecI AsInt(Vec a) { return {_mm512_castps_si512(a.v)}; }
inline Vec AsFloat(VecI a) { return {_mm512_castsi512_ps(a.v)}; }

inline VecI SetI(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline VecI AddI(VecI a, VecI b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline VecI SubI(VecI a, VecI b) { return {_mm512_sub_epi32(a.v, b.v)}; }
inline VecI And(VecI a, VecI b) { return {_mm512_and_si512(a.v, b.v)}; }
inline VecI Or(VecI a, VecI b) { return {_mm512_or_si512(a.v, b.v)}; }
template <int kBits>
inline VecI ShiftLeft(VecI a) {
  return {_mm512_slli_epi32(a.v, kBits)};
}
template <int kBits>
inline VecI ShiftRight(VecI a) {
  return {_mm512_srli_epi32(a.v, kBits)};
}
template <int kBits>
inline VecI ShiftRightSigned(VecI a) {
  return {_mm512_srai_epi32(a.v, kBits)};
}
inline Vec ToFloat(VecI a) { return {_mm512_cvtepi32_ps(a.v)}; }
// Lanes that hold a NaN.
inline VecI IsNan(Vec a) { return {_mm512_movm_epi32(_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q))}; }
inline VecI Select(VecI mask, VecI a, VecI b) {
  return {_mm512_mask_blend_epi32(_mm512_movepi32_mask(mask.v), b.v, a.v)};
}

inline VecI LoadU16(const void* p) {
  return {_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}
inline VecI LoadU8(const void* p) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
}
inline VecI LoadI8(const void* p) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
}
// The low 16 bits of each lane.
inline void StoreU16(uint16_t* p, VecI a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a.v));
}
inline Vec LoadF16(const void* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}

// Pairs of lanes, then pairs of pairs within 128 bits, then the 128-bit quarters.
inline void Transpose(Vec rows[kLanes]) {
  __m512i t[kLanes];
  for (int i = 0; i < kLanes; i += 4) {
    const __m512 a = _mm512_unpacklo_ps(rows[i].v, rows[i + 1].v);
    const __m512 b = _mm512_unpackhi_ps(rows[i].v, rows[i + 1].v);
    const __m512 c = _mm512_unpacklo_ps(rows[i + 2].v, rows[i + 3].v);
    const __m512 d = _mm512_unpackhi_ps(rows[i + 2].v, rows[i + 3].v);
    t[i] = _mm512_unpacklo_epi64(_mm512_castps_si512(a), _mm512_castps_si512(c));
    t[i + 1] = _mm512_unpackhi_epi64(_mm512_castps_si512(a), _mm512_castps_si512(c));
    t[i + 2] = _mm512_unpacklo_epi64(_mm512_castps_si512(b), _mm512_castps_si512(d));
    t[i + 3] = _mm512_unpackhi_epi64(_mm512_castps_si512(b), _mm512_castps_si512(d));
  }
  // t[4 g + c] holds columns c, c + 4, c + 8, c + 12 of rows 4 g .. 4 g + 3, one per quarter.
  for (int c = 0; c < 4; ++c) {
    const __m512i low01 = _mm512_shuffle_i32x4(t[c], t[4 + c], 0x88);
    const __m512i high01 = _mm512_shuffle_i32x4(t[c], t[4 + c], 0xDD);
    const __m512i low23 = _mm512_shuffle_i32x4(t[8 + c], t[12 + c], 0x88);
    const __m512i high23 = _mm512_shuffle_i32x4(t[8 + c], t[12 + c], 0xDD);
    rows[c].v = _mm512_castsi512_ps(_mm512_shuffle_i32x4(low01, low23, 0x88));
    rows[c + 8].v = _mm512_castsi512_ps(_mm512_shuffle_i32x4(low01, low23, 0xDD));
    rows[c + 4].v = _mm512_castsi512_ps(_mm512_shuffle_i32x4(high01, high23, 0x88));
    rows[c + 12].v = _mm512_castsi512_ps(_mm512_shuffle_i32x4(high01, high23, 0xDD));
  }
}

// To the nearest integer, ties to even.
inline VecI RoundToInt(Vec a) { return {_mm512_cvtps_epi32(a.v)}; }
// Bytes 0 4 1 5 2 6 3 7 of each eight integers: where nibbles of a panel's words meet them.
inline void StoreQuads(int8_t* p, VecI a) {
  const __m128i order = _mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_shuffle_epi8(_mm512_cvtsepi32_epi8(a.v), order));
}
// The low and the high nibbles of 64 bytes, as bytes.
inline VecI LowNibbles(const std::byte* p) {
  return {_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi8(15))};
}
inline VecI HighNibbles(const std::byte* p) {
  return {_mm512_and_si512(_mm512_srli_epi16(_mm512_loadu_si512(p), 4), _mm512_set1_epi8(15))};
}
// Sums, from `offset` on, of products of four unsigned bytes of each lane and four activations. At
// most 8 products are added between Begin and End, of bytes below 16.
struct QuadSums {
  __m512i v;
};
inline QuadSums BeginQuads(int32_t offset) { return {_mm512_set1_epi32(offset)}; }
inline QuadSums AddQuads(QuadSums sum, VecI bytes, const int8_t* x) {
  int32_t quad;
  __builtin_memcpy(&quad, x, sizeof(quad));
  return {_mm512_dpbusd_epi32(sum.v, bytes.v, _mm512_set1_epi32(quad))};
}
inline VecI EndQuads(QuadSums sum, int32_t /*offset*/) { return {sum.v}; }

// The low byte of each lane.
inline void StoreU8(uint8_t* p, VecI a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}

}  // namespace
}  // namespace tern
