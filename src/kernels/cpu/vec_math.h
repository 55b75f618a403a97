// Functions over Vec that every level has: partial loads, reductions in one order, exp, BF16.
// See kernels/cpu/isa_common.h for the rules of this file; vec.h of a level comes first.
#pragma once

#include "kernels/cpu/isa_common.h"

namespace tern {
namespace {

// n lanes, 0 <= n <= 16; the others are zero. Reads exactly n numbers.
[[maybe_unused]] inline Vec LoadPartial(const float* p, int64_t n) {
  if (n >= kLanes) return Load(p);
  float lanes[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
  return Load(lanes);
}
[[maybe_unused]] inline void StorePartial(float* p, Vec a, int64_t n) {
  if (n >= kLanes) return Store(p, a);
  float lanes[kLanes];
  Store(lanes, a);
  for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
}

// Halves are folded: lanes i and i + 8, then i + 4, i + 2, i + 1.
[[maybe_unused]] inline float ReduceAdd(Vec a) {
  float lanes[kLanes];
  Store(lanes, a);
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}
// NaN loses to any number.
[[maybe_unused]] inline float ReduceMax(Vec a) {
  float lanes[kLanes];
  Store(lanes, a);
  float largest = -__builtin_inff();
  for (const float lane : lanes) largest = lane > largest ? lane : largest;
  return largest;
}

// exp(x) = 2^n exp(r), n = round(x / ln 2), |r| <= ln(2)/2 (Cody and Waite, ln 2 in two parts).
// exp(r) = 1 + r + r^2 p(r); p is a weighted least-squares fit of degree 4 at Chebyshev nodes, with
// relative error 0.07 * 2^-24. With the roundings, within 2 ulp. NaN gives NaN, overflow infinity,
// underflow subnormals and zero. 2^n is applied in two steps so that neither leaves the exponent's
// range.
[[maybe_unused]] inline Vec Exp(Vec x) {
  const Vec clamped = Max(Set(-104.0f), Min(Set(89.0f), x));
  const Vec shift = Set(0x1.8p23f);  // adding it leaves round(x) in the low mantissa bits
  const Vec shifted = MulAdd(clamped, Set(0x1.715476p+0f), shift);
  const Vec n = Sub(shifted, shift);
  Vec r = MulAdd(n, Set(-0x1.62e4p-1f), clamped);
  r = MulAdd(n, Set(-0x1.7f7d1cp-20f), r);
  Vec p = Set(0x1.68a466p-10f);
  p = MulAdd(p, r, Set(0x1.123c0ep-7f));
  p = MulAdd(p, r, Set(0x1.555b1ep-5f));
  p = MulAdd(p, r, Set(0x1.55548ep-3f));
  p = MulAdd(p, r, Set(0x1.fffff8p-2f));
  const Vec y = Add(MulAdd(Mul(r, r), p, r), Set(1.0f));
  const VecI exponent = AddI(AsInt(shifted), SetI(-0x4B400000));
  const VecI first = ShiftRightSigned<1>(exponent);
  const VecI rest = SubI(exponent, first);
  const Vec scale1 = AsFloat(ShiftLeft<23>(AddI(first, SetI(127))));
  const Vec scale2 = AsFloat(ShiftLeft<23>(AddI(rest, SetI(127))));
  return Mul(Mul(y, scale1), scale2);
}

// Bits of round-to-nearest-even BF16 in the low half of each lane: Bf16FromFloat (tensor/number.h).
[[maybe_unused]] inline VecI RoundBf16(Vec x) {
  const VecI bits = AsInt(x);
  const VecI odd = And(ShiftRight<16>(bits), SetI(1));
  const VecI rounded = ShiftRight<16>(AddI(bits, AddI(odd, SetI(0x7FFF))));
  const VecI quiet = Or(ShiftRight<16>(bits), SetI(0x40));
  return Select(IsNan(x), quiet, rounded);
}
[[maybe_unused]] inline Vec FloatOfBf16(VecI low_half) { return AsFloat(ShiftLeft<16>(low_half)); }

}  // namespace
}  // namespace tern
