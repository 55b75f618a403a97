// Norms, rotary embedding, activations and reductions over rows, written once over Vec. An
// element's bits depend on its row alone: the last lanes of a row go through the same vector
// operations. See kernels/cpu/isa_common.h for the rules of this file; vec.h of a level comes
// first.
#pragma once

#include "kernels/cpu/vec_math.h"

namespace tern {
namespace {

[[maybe_unused]] void ToBf16(const float* x, int64_t n, uint16_t* out) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) StoreU16(out + i, RoundBf16(Load(x + i)));
  if (i == n) return;
  uint16_t lanes[kLanes];
  StoreU16(lanes, RoundBf16(LoadPartial(x + i, n - i)));
  for (int64_t j = 0; i + j < n; ++j) out[i + j] = lanes[j];
}

// Codes of e4m3 in the low byte: numbers from 2^-6 on round their float32 bits to three bits of
// mantissa, smaller ones are multiples of 2^-9.
[[maybe_unused]] inline VecI E4m3Code(Vec x) {
  const VecI bits = AsInt(x);
  const Vec magnitude = Min(AsFloat(And(bits, SetI(0x7FFFFFFF))), Set(448.0f));
  const VecI m = AsInt(magnitude);
  const VecI tie = And(ShiftRight<20>(m), SetI(1));
  const VecI normal = SubI(ShiftRight<20>(AddI(AddI(m, SetI(0x7FFFF)), tie)), SetI(120 << 3));
  const VecI small = RoundToInt(Mul(magnitude, Set(512.0f)));
  const VecI is_small = ShiftRightSigned<31>(SubI(m, SetI(0x3C800000)));
  const VecI code = Or(Select(is_small, small, normal), And(ShiftRight<24>(bits), SetI(0x80)));
  return Select(IsNan(x), SetI(0x7F), code);
}

[[maybe_unused]] void ToE4m3(const uint16_t* x, int64_t n, float divisor, uint8_t* out) {
  const Vec by = Set(divisor);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    StoreU8(out + i, E4m3Code(Div(FloatOfBf16(LoadU16(x + i)), by)));
  }
  if (i == n) return;
  uint16_t lanes[kLanes] = {};
  uint8_t codes[kLanes];
  __builtin_memcpy(lanes, x + i, static_cast<size_t>(n - i) * 2);
  StoreU8(codes, E4m3Code(Div(FloatOfBf16(LoadU16(lanes)), by)));
  for (int64_t j = 0; i + j < n; ++j) out[i + j] = codes[j];
}

[[maybe_unused]] void RoundRow(const float* x, int64_t k, int64_t padded, uint16_t* out,
                               float* sums) {
  for (int64_t group = 0; group * 32 < k; ++group) {
    const int64_t begin = group * 32;
    const VecI low = RoundBf16(LoadPartial(x + begin, MinOf(k - begin, kLanes)));
    const VecI high =
        RoundBf16(LoadPartial(x + begin + kLanes, MaxOf(0, MinOf(k - begin - kLanes, kLanes))));
    uint16_t lanes[32];
    StoreU16(lanes, low);
    StoreU16(lanes + kLanes, high);
    for (int64_t i = 0; i < 32 && begin + i < padded; ++i) out[begin + i] = lanes[i];
    sums[group] = ReduceAdd(Add(FloatOfBf16(low), FloatOfBf16(high)));
  }
}

[[maybe_unused]] void RmsNorm(const float* x, int64_t rows, int64_t columns, const float* weight,
                              float eps, float* y) {
  for (int64_t row = 0; row < rows; ++row, x += columns, y += columns) {
    Vec squares = Zero();
    for (int64_t i = 0; i < columns; i += kLanes) {
      const Vec lanes = LoadPartial(x + i, columns - i);
      squares = MulAdd(lanes, lanes, squares);
    }
    const float mean = ReduceAdd(squares) / static_cast<float>(columns);
    const Vec inverse = Set(1.0f / __builtin_sqrtf(mean + eps));
    for (int64_t i = 0; i < columns; i += kLanes) {
      const Vec scaled = Mul(LoadPartial(x + i, columns - i), inverse);
      StorePartial(y + i, Mul(scaled, LoadPartial(weight + i, columns - i)), columns - i);
    }
  }
}

// Lanes past the row's end are zero before the mean is subtracted, and again after.
[[maybe_unused]] void LayerNorm(const float* x, int64_t rows, int64_t columns, const float* weight,
                                const float* bias, float eps, float* y) {
  const auto count = static_cast<float>(columns);
  for (int64_t row = 0; row < rows; ++row, x += columns, y += columns) {
    Vec sum = Zero(), squares = Zero();
    for (int64_t i = 0; i < columns; i += kLanes) {
      sum = Add(sum, LoadPartial(x + i, columns - i));
    }
    const Vec mean = Set(ReduceAdd(sum) / count);
    for (int64_t i = 0; i < columns; i += kLanes) {
      float lanes[kLanes];
      Store(lanes, Sub(LoadPartial(x + i, columns - i), mean));
      const Vec centered = LoadPartial(lanes, columns - i);
      squares = MulAdd(centered, centered, squares);
    }
    const Vec inverse = Set(1.0f / __builtin_sqrtf(ReduceAdd(squares) / count + eps));
    for (int64_t i = 0; i < columns; i += kLanes) {
      const int64_t n = columns - i;
      const Vec scaled = Mul(Sub(LoadPartial(x + i, n), mean), inverse);
      StorePartial(y + i, MulAdd(scaled, LoadPartial(weight + i, n), LoadPartial(bias + i, n)), n);
    }
  }
}

[[maybe_unused]] void Rope(float* x, int64_t rows, int64_t heads, int64_t head_dim,
                           int64_t rotary_dims, bool interleaved, const float* cos,
                           const float* sin) {
  const int64_t half = rotary_dims / 2;
  const int64_t second = interleaved ? 1 : half;
  const int64_t step = interleaved ? 2 : 1;
  for (int64_t row = 0; row < rows; ++row, cos += half, sin += half) {
    for (int64_t head = 0; head < heads; ++head, x += head_dim) {
      for (int64_t i = 0; i < half; ++i) {
        float& a = x[i * step];
        float& b = x[i * step + second];
        const float a0 = a, b0 = b;
        a = a0 * cos[i] - b0 * sin[i];
        b = b0 * cos[i] + a0 * sin[i];
      }
    }
  }
}

[[maybe_unused]] void SiluMul(const float* gate, const float* up, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const Vec g = LoadPartial(gate + i, n - i);
    const Vec silu = Div(g, Add(Set(1.0f), Exp(Sub(Zero(), g))));
    StorePartial(out + i, Mul(silu, LoadPartial(up + i, n - i)), n - i);
  }
}

[[maybe_unused]] void AddTo(float* x, const float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] += y[i];
}

[[maybe_unused]] float Largest(const float* x, int64_t n) {
  Vec largest = Set(-__builtin_inff());
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) largest = Max(Load(x + i), largest);
  float result = ReduceMax(largest);
  for (; i < n; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

// The first that equals the largest number; 0 when all are NaN.
[[maybe_unused]] int64_t ArgMax(const float* x, int64_t n) {
  const float largest = Largest(x, n);
  for (int64_t i = 0; i < n; ++i) {
    if (x[i] == largest) return i;
  }
  return 0;
}

// Blocks of 1024 are summed in float32, the blocks in float64.
[[maybe_unused]] double SumExp(const float* x, int64_t n, float largest) {
  double total = 0.0;
  for (int64_t begin = 0; begin < n; begin += 1024) {
    const int64_t end = MinOf(begin + 1024, n);
    Vec sum = Zero();
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) sum = Add(sum, Exp(Sub(Load(x + i), Set(largest))));
    float block = ReduceAdd(sum);
    if (i < end) {
      float lanes[kLanes];
      Store(lanes, Exp(Sub(LoadPartial(x + i, end - i), Set(largest))));
      for (int64_t j = 0; j < end - i; ++j) block += lanes[j];
    }
    total += block;
  }
  return total;
}

}  // namespace
}  // namespace tern
