// Vec: sixteen float lanes as four vectors of the compiler's own, for any CPU.
// See kernels/cpu/isa_common.h for the rules of this file.
#pragma once

#include "kernels/cpu/isa_common.h"

namespace tern {
namespace {

// Register tiles that fit 16 registers of 4 lanes.
constexpr int kMatMulRows = 2;
constexpr int kInt8Rows = 1;
constexpr int kScoreQueries = 1;
constexpr int kValueQueries = 1, kValueVecs = 2;

using Float4 = float __attribute__((vector_size(16)));
using Int4 = int32_t __attribute__((vector_size(16)));
using UInt4 = uint32_t __attribute__((vector_size(16)));

struct Vec {
  Float4 v[4];
};
struct VecI {
  Int4 v[4];
};

inline Vec Set(float x) {
  Vec r;
  for (auto& lane : r.v) lane = Float4{x, x, x, x};
  return r;
}
inline Vec Zero() { return Set(0.0f); }
inline Vec Load(const float* p) {
  Vec r;
  __builtin_memcpy(&r, p, sizeof(r));
  return r;
}
inline void Store(float* p, Vec a) { __builtin_memcpy(p, &a, sizeof(a)); }
inline VecI LoadI(const void* p) {
  VecI r;
  __builtin_memcpy(&r, p, sizeof(r));
  return r;
}

#define TERN_VEC_BINARY(name, op)                          \
  inline Vec name(Vec a, Vec b) {                          \
    for (int i = 0; i < 4; ++i) a.v[i] = a.v[i] op b.v[i]; \
    return a;                                              \
  }
TERN_VEC_BINARY(Add, +)
TERN_VEC_BINARY(Sub, -)
TERN_VEC_BINARY(Mul, *)
TERN_VEC_BINARY(Div, /)
#undef TERN_VEC_BINARY

// a * b + c, rounded twice at this level.
inline Vec MulAdd(Vec a, Vec b, Vec c) { return Add(Mul(a, b), c); }
inline VecI AsInt(Vec a) { return __builtin_bit_cast(VecI, a); }
inline Vec AsFloat(VecI a) { return __builtin_bit_cast(Vec, a); }
// b where the comparison with a NaN is unordered, as the x86 instructions.
inline Vec Max(Vec a, Vec b) {
  for (int i = 0; i < 4; ++i) {
    const Int4 take = a.v[i] > b.v[i];
    a.v[i] = (Float4)((take & (Int4)a.v[i]) | (~take & (Int4)b.v[i]));
  }
  return a;
}
inline Vec Min(Vec a, Vec b) {
  for (int i = 0; i < 4; ++i) {
    const Int4 take = a.v[i] < b.v[i];
    a.v[i] = (Float4)((take & (Int4)a.v[i]) | (~take & (Int4)b.v[i]));
  }
  return a;
}

inline VecI SetI(int32_t x) {
  VecI r;
  for (auto& lane : r.v) lane = Int4{x, x, x, x};
  return r;
}
inline VecI AddI(VecI a, VecI b) {
  for (int i = 0; i < 4; ++i) a.v[i] = (Int4)((UInt4)a.v[i] + (UInt4)b.v[i]);
  return a;
}
inline VecI SubI(VecI a, VecI b) {
  for (int i = 0; i < 4; ++i) a.v[i] = (Int4)((UInt4)a.v[i] - (UInt4)b.v[i]);
  return a;
}
inline VecI And(VecI a, VecI b) {
  for (int i = 0; i < 4; ++i) a.v[i] &= b.v[i];
  return a;
}
inline VecI Or(VecI a, VecI b) {
  for (int i = 0; i < 4; ++i) a.v[i] |= b.v[i];
  return a;
}
template <int kBits>
inline VecI ShiftLeft(VecI a) {
  for (auto& lane : a.v) lane = (Int4)((UInt4)lane << kBits);
  return a;
}
template <int kBits>
inline VecI ShiftRight(VecI a) {
  for (auto& lane : a.v) lane = (Int4)((UInt4)lane >> kBits);
  return a;
}
template <int kBits>
inline VecI ShiftRightSigned(VecI a) {
  for (auto& lane : a.v) lane = lane >> kBits;
  return a;
}
inline Vec ToFloat(VecI a) {
  Vec r;
  for (int i = 0; i < 4; ++i) r.v[i] = __builtin_convertvector(a.v[i], Float4);
  return r;
}
// Lanes that hold a NaN.
inline VecI IsNan(Vec a) {
  VecI r;
  for (int i = 0; i < 4; ++i) r.v[i] = (Int4)(a.v[i] != a.v[i]);
  return r;
}
inline VecI Select(VecI mask, VecI a, VecI b) {
  for (int i = 0; i < 4; ++i) a.v[i] = (mask.v[i] & a.v[i]) | (~mask.v[i] & b.v[i]);
  return a;
}

template <typename T>
inline VecI Widen(const void* p) {
  T narrow[kLanes];
  __builtin_memcpy(narrow, p, sizeof(narrow));
  int32_t wide[kLanes];
  for (int i = 0; i < kLanes; ++i) wide[i] = narrow[i];
  return LoadI(wide);
}
inline VecI LoadU16(const void* p) { return Widen<uint16_t>(p); }
inline VecI LoadU8(const void* p) { return Widen<uint8_t>(p); }
inline VecI LoadI8(const void* p) { return Widen<int8_t>(p); }
// The low 16 bits of each lane.
inline void StoreU16(uint16_t* p, VecI a) {
  int32_t wide[kLanes];
  __builtin_memcpy(wide, &a, sizeof(wide));
  uint16_t narrow[kLanes];
  for (int i = 0; i < kLanes; ++i) narrow[i] = static_cast<uint16_t>(wide[i]);
  __builtin_memcpy(p, narrow, sizeof(narrow));
}

// binary16: shift exponent and mantissa into place and scale by 2^112, which also normalizes
// subnormals; all-ones exponents (infinity, NaN) are put back.
inline Vec LoadF16(const void* p) {
  const VecI x = LoadU16(p);
  const VecI magnitude = ShiftLeft<13>(And(x, SetI(0x7FFF)));
  const VecI sign = ShiftLeft<16>(And(x, SetI(0x8000)));
  VecI special;
  for (int i = 0; i < 4; ++i) special.v[i] = (Int4)(magnitude.v[i] >= 0x0F800000);
  const VecI scaled = AsInt(Mul(AsFloat(magnitude), Set(0x1.0p112f)));
  const VecI infinite = Or(magnitude, SetI(0x7F800000));
  return AsFloat(Or(sign, Select(special, infinite, scaled)));
}

inline void Transpose(Vec rows[kLanes]) {
  float in[kLanes][kLanes], out[kLanes][kLanes];
  __builtin_memcpy(in, rows, sizeof(in));
  for (int i = 0; i < kLanes; ++i) {
    for (int j = 0; j < kLanes; ++j) out[i][j] = in[j][i];
  }
  __builtin_memcpy(rows, out, sizeof(out));
}

// To the nearest integer, ties to even, for |a| < 2^22: adding 1.5 * 2^23 leaves the integer in the
// low bits.
inline VecI RoundToInt(Vec a) { return SubI(AsInt(Add(a, Set(0x1.8p23f))), SetI(0x4B400000)); }
// Bytes 0 4 1 5 2 6 3 7 of each eight integers: where nibbles of a panel's words meet them.
inline void StoreQuads(int8_t* p, VecI a) {
  for (int half = 0; half < 4; half += 2) {
    for (int i = 0; i < 4; ++i) {
      *p++ = static_cast<int8_t>(a.v[half][i]);
      *p++ = static_cast<int8_t>(a.v[half + 1][i]);
    }
  }
}
// The low and the high nibbles of 64 bytes, as bytes.
inline VecI LowNibbles(const std::byte* p) { return And(LoadI(p), SetI(0x0F0F0F0F)); }
inline VecI HighNibbles(const std::byte* p) {
  return And(ShiftRight<4>(LoadI(p)), SetI(0x0F0F0F0F));
}
// Sums, from `offset` on, of products of four unsigned bytes of each lane and four activations.
struct QuadSums {
  VecI sum;
};
inline QuadSums BeginQuads(int32_t offset) { return {SetI(offset)}; }
inline QuadSums AddQuads(QuadSums sum, VecI bytes, const int8_t* x) {
  for (int i = 0; i < 4; ++i) {
    // Products of 8 bits and 4 are exact in 16.
    const Int4 even = bytes.v[i] & 0x00FF00FF, odd = (bytes.v[i] >> 8) & 0x00FF00FF;
    sum.sum.v[i] +=
        (even & 0xFFFF) * x[0] + (odd & 0xFFFF) * x[1] + (even >> 16) * x[2] + (odd >> 16) * x[3];
  }
  return sum;
}
inline VecI EndQuads(QuadSums sum, int32_t /*offset*/) { return sum.sum; }

// Each lane, from 0 to 255, as a byte.
inline void StoreU8(uint8_t* p, VecI a) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<uint8_t>(a.v[i / 4][i % 4]);
}

}  // namespace
}  // namespace tern
