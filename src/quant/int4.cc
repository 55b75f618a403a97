#include "quant/int4.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "tensor/number.h"

namespace tern {
namespace {

constexpr float kMinScale = 1e-10f;
constexpr float kCodesPerMagnitude = 7.5f;  // half of the 15 steps between -8 and 7
// Adding it rounds a float of magnitude below 2^22 to an integer, ties to even.
constexpr float kRounder = 0x1.8p23f;
constexpr uint32_t kInfinityBits = 0x7F800000;

constexpr int64_t kMaxGroup = 128;

// Candidate scales of one pass of the search: as many as fit a core's registers.
constexpr int kCandidates = 8;
constexpr float kFirstDivisor = 6.5f, kDivisorStep = 0.5f;

float LargestMagnitude(const float* weights, int64_t count) {
  // Magnitudes order like their bits, and integers need no care for NaN, so this vectorizes.
  int32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<int32_t>(weights[i]) & 0x7FFFFFFF);
  }
  return std::bit_cast<float>(largest);
}

uint16_t RoundToNearestScale(float amax) {
  return Bf16FromFloat(std::max(amax / kCodesPerMagnitude, kMinScale));
}

// Four candidates, in one register of any 64-bit machine: left to itself the compiler takes four
// weights instead, and adds them up one by one to keep their order.
using Lanes = float __attribute__((vector_size(16)));
constexpr int kLanes = 4, kVectors = kCandidates / kLanes;

Lanes Nearest(Lanes steps) {
  const Lanes low = Lanes{} + float{kInt4Min}, high = Lanes{} + float{kInt4Max};
  const Lanes code = (steps + kRounder) - kRounder;
  const Lanes above = code > low ? code : low;
  return above < high ? above : high;
}

// For each scale whose reciprocal is given, with code the nearest codes: sum of importance * w *
// code and of importance * code^2.
template <bool kWeighted>
void CodeMoments(const float* weights, int64_t count, const float* importance,
                 const float (&reciprocals)[kCandidates], float (&products)[kCandidates],
                 float (&squares)[kCandidates]) {
  Lanes reciprocal[kVectors], product[kVectors] = {}, square[kVectors] = {};
  std::memcpy(reciprocal, reciprocals, sizeof(reciprocal));
  for (int64_t i = 0; i < count; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      const Lanes code = Nearest(weights[i] * reciprocal[v]);
      const Lanes weighted = kWeighted ? importance[i] * code : code;
      product[v] += weighted * weights[i];
      square[v] += weighted * code;
    }
  }
  std::memcpy(products, product, sizeof(product));
  std::memcpy(squares, square, sizeof(square));
}

// The best scale for a group of magnitudes up to 1, as a pass over candidates: each one's codes
// have an error of (sum of w^2) - 2 s products + s^2 squares with the scale s, least at
// s = products / squares.
struct CandidateScales {
  const float* weights;
  int64_t count;
  const float* importance;
  float scale[kCandidates];
  float products[kCandidates], squares[kCandidates];

  void Evaluate() {
    float reciprocal[kCandidates];
    for (int c = 0; c < kCandidates; ++c) reciprocal[c] = 1.0f / scale[c];
    if (importance == nullptr) {
      CodeMoments<false>(weights, count, importance, reciprocal, products, squares);
    } else {
      CodeMoments<true>(weights, count, importance, reciprocal, products, squares);
    }
  }
  // The error with candidate c's scale, up to the sum of w^2.
  float Error(int c) const { return scale[c] * (scale[c] * squares[c] - 2 * products[c]); }
};

uint16_t SearchScale(const float* weights, int64_t count, float amax, const float* importance) {
  const uint16_t start = RoundToNearestScale(amax);
  // Scales near the floor, or whose reciprocal is no float, are not worth a search.
  if (amax < 16 * kMinScale || amax > 1e37f) return start;
  // In units of the largest magnitude, sums neither overflow nor vanish.
  float scaled[kMaxGroup];
  const float unit = 1.0f / amax;
  for (int64_t i = 0; i < count; ++i) scaled[i] = weights[i] * unit;
  CandidateScales candidates{scaled, count, importance, {}, {}, {}};
  uint16_t bf16[kCandidates];
  uint16_t best = start;
  float least = 0, ideal = 0;
  // First the largest magnitude divided by 6.5, 7 ... 10. 7.5 is among them, so the result is never
  // worse than rounding to nearest.
  for (int c = 0; c < kCandidates; ++c) {
    bf16[c] = Bf16FromFloat(amax / (kFirstDivisor + kDivisorStep * static_cast<float>(c)));
    candidates.scale[c] = FloatFromBf16(bf16[c]) * unit;
  }
  candidates.Evaluate();
  float least_ideal = 0;
  for (int c = 0; c < kCandidates; ++c) {
    if (const float error = candidates.Error(c); error < least) best = bf16[c], least = error;
    if (candidates.squares[c] <= 0) continue;
    const float error = -candidates.products[c] * candidates.products[c] / candidates.squares[c];
    if (error < least_ideal) {
      least_ideal = error;
      ideal = candidates.products[c] / candidates.squares[c];
    }
  }
  if (ideal <= 0) return best;
  // Then the BF16 numbers around the least squares of the best codes.
  const uint16_t around = Bf16FromFloat(ideal * amax);
  for (int c = 0; c < kCandidates; ++c) {
    bf16[c] = static_cast<uint16_t>(around - kCandidates / 2 + c);
    candidates.scale[c] = FloatFromBf16(bf16[c]) * unit;
  }
  candidates.Evaluate();
  for (int c = 0; c < kCandidates; ++c) {
    if (const float error = candidates.Error(c); error < least) best = bf16[c], least = error;
  }
  return best;
}

uint16_t ScaleOf(const float* weights, int64_t count, float amax, ScaleMethod method,
                 const float* importance) {
  if (method == ScaleMethod::kRoundToNearest) return RoundToNearestScale(amax);
  return SearchScale(weights, count, amax, importance);
}

// Clamped first: the rounder needs small numbers, and the result is the same.
float NearestCode(float steps) {
  const float clamped = std::min(std::max(steps, float{kInt4Min}), float{kInt4Max});
  return (clamped + kRounder) - kRounder;
}

}  // namespace

uint16_t Int4Scale(const float* weights, int64_t count, ScaleMethod method,
                   const float* importance) {
  TERN_CHECK(count <= kMaxGroup);
  return ScaleOf(weights, count, LargestMagnitude(weights, count), method, importance);
}

void Int4Codes(const float* weights, int64_t count, uint16_t scale, int8_t* codes) {
  const float s = FloatFromBf16(scale);
  for (int64_t i = 0; i < count; ++i) {
    codes[i] = static_cast<int8_t>(static_cast<int32_t>(NearestCode(weights[i] / s)));
  }
}

bool QuantizeInt4Row(const float* weights, int64_t columns, int64_t group, ScaleMethod method,
                     const float* importance, int8_t* codes, uint16_t* scales, QuantError* sums) {
  TERN_CHECK(group <= kMaxGroup);
  float nearest[kMaxGroup];
  for (int64_t begin = 0; begin < columns; begin += group) {
    const float* const w = weights + begin;
    const float amax = LargestMagnitude(w, group);
    if (std::bit_cast<uint32_t>(amax) >= kInfinityBits) return false;
    const uint16_t scale =
        ScaleOf(w, group, amax, method, importance == nullptr ? nullptr : importance + begin);
    const float s = FloatFromBf16(scale);
    scales[begin / group] = scale;
    for (int64_t i = 0; i < group; ++i) nearest[i] = NearestCode(w[i] / s);
    for (int64_t i = 0; i < group; ++i) {
      codes[begin + i] = static_cast<int8_t>(static_cast<int32_t>(nearest[i]));
    }
    if (sums == nullptr) continue;
    for (int64_t i = 0; i < group; ++i) nearest[i] *= s;
    AddQuantError(w, nearest, group, sums);
  }
  return true;
}

Int4Matrix QuantizeInt4(const float* weights, int64_t rows, int64_t columns, int64_t group,
                        ScaleMethod method, const float* importance) {
  TERN_CHECK(group > 0 && columns % group == 0);
  Int4Matrix matrix{.rows = rows, .columns = columns, .group = group};
  matrix.codes.resize(static_cast<size_t>(rows * columns));
  matrix.scales.resize(static_cast<size_t>(rows * (columns / group)));
  for (int64_t row = 0; row < rows; ++row) {
    TERN_CHECK(QuantizeInt4Row(weights + row * columns, columns, group, method, importance,
                               matrix.codes.data() + row * columns,
                               matrix.scales.data() + row * (columns / group)));
  }
  return matrix;
}

void AddInt4Error(const float* weights, int64_t columns, int64_t group, const int8_t* codes,
                  const uint16_t* scales, QuantError* sums) {
  TERN_CHECK(group <= kMaxGroup);
  float values[kMaxGroup];
  for (int64_t begin = 0; begin < columns; begin += group) {
    const float scale = FloatFromBf16(scales[begin / group]);
    for (int64_t i = 0; i < group; ++i) values[i] = static_cast<float>(codes[begin + i]) * scale;
    AddQuantError(weights + begin, values, group, sums);
  }
}

void PackInt4Row(const int8_t* codes, int64_t columns, uint32_t* words) {
  for (int64_t word = 0; word < columns / 8; ++word) {
    uint32_t packed = 0;
    for (int i = 0; i < 8; ++i) {
      packed |= static_cast<uint32_t>((codes[word * 8 + i] - kInt4Min) & 15) << (4 * i);
    }
    words[word] = packed;
  }
}

void UnpackInt4Row(const uint32_t* words, int64_t columns, int8_t* codes) {
  for (int64_t i = 0; i < columns; ++i) {
    codes[i] = static_cast<int8_t>(static_cast<int>(words[i / 8] >> (i % 8 * 4) & 15) + kInt4Min);
  }
}

}  // namespace tern
