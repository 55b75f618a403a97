#include "quant/int4.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"
#include "tensor/number.h"

namespace tern {
namespace {

constexpr float kMinScale = 1e-10f;
constexpr float kCodesPerMagnitude = 7.5f;  // half of the 15 steps between -8 and 7
// Adding it rounds a float of magnitude below 2^22 to an integer, ties to even.
constexpr float kRounder = 0x1.8p23f;

// Candidate scales of one pass of the search.
constexpr int kCandidates = 16;
constexpr float kFirstDivisor = 6.5f, kDivisorStep = 0.25f;

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

// One set of candidates: error[c] is that of scales[c], both in units of the group's largest
// magnitude. Candidates are the inner loop: no sum is reordered.
struct Candidates {
  float scale[kCandidates];
  float error[kCandidates];

  void Evaluate(const float* weights, int64_t count, float unit, const float* importance) {
    float inverse[kCandidates];
    for (int c = 0; c < kCandidates; ++c) inverse[c] = 1.0f / scale[c];
    float sum[kCandidates] = {};
    for (int64_t i = 0; i < count; ++i) {
      const float w = weights[i] * unit;
      const float weight = importance == nullptr ? 1.0f : importance[i];
      for (int c = 0; c < kCandidates; ++c) {
        const float code = std::min(
            std::max((w * inverse[c] + kRounder) - kRounder, float{kInt4Min}), float{kInt4Max});
        const float e = w - code * scale[c];
        sum[c] += weight * (e * e);
      }
    }
    std::copy(sum, sum + kCandidates, error);
  }
};

uint16_t SearchScale(const float* weights, int64_t count, float amax, const float* importance) {
  const uint16_t start = RoundToNearestScale(amax);
  // Scales near the floor, or whose reciprocal is no float, are not worth a search.
  if (amax < 16 * kMinScale || amax > 1e37f) return start;
  const float unit = 1.0f / amax;
  // First divisors of the largest magnitude in steps of 2 to 4 %; 7.5 is among them, so the result
  // is never worse than rounding to nearest. Then every BF16 number near the best.
  Candidates candidates;
  uint16_t bf16[kCandidates];
  const auto evaluate = [&] {
    for (int c = 0; c < kCandidates; ++c) candidates.scale[c] = FloatFromBf16(bf16[c]) * unit;
    candidates.Evaluate(weights, count, unit, importance);
  };
  uint16_t best = start;
  float least = 0;
  for (int c = 0; c < kCandidates; ++c) {
    bf16[c] = Bf16FromFloat(amax / (kFirstDivisor + kDivisorStep * static_cast<float>(c)));
  }
  evaluate();
  for (int c = 0; c < kCandidates; ++c) {
    if (c == 0 || candidates.error[c] < least) best = bf16[c], least = candidates.error[c];
  }
  const uint16_t around = best;
  for (int c = 0; c < kCandidates; ++c) {
    bf16[c] = static_cast<uint16_t>(around - kCandidates / 2 + c);
  }
  evaluate();
  for (int c = 0; c < kCandidates; ++c) {
    if (candidates.error[c] < least) best = bf16[c], least = candidates.error[c];
  }
  return best;
}

}  // namespace

uint16_t Int4Scale(const float* weights, int64_t count, ScaleMethod method,
                   const float* importance) {
  const float amax = LargestMagnitude(weights, count);
  if (method == ScaleMethod::kRoundToNearest) return RoundToNearestScale(amax);
  return SearchScale(weights, count, amax, importance);
}

void Int4Codes(const float* weights, int64_t count, uint16_t scale, int8_t* codes) {
  const float s = FloatFromBf16(scale);
  for (int64_t i = 0; i < count; ++i) {
    // Clamped first: the rounder needs small numbers, and the result is the same.
    const float steps = std::min(std::max(weights[i] / s, float{kInt4Min}), float{kInt4Max});
    codes[i] = static_cast<int8_t>(static_cast<int32_t>((steps + kRounder) - kRounder));
  }
}

void QuantizeInt4Row(const float* weights, int64_t columns, int64_t group, ScaleMethod method,
                     const float* importance, int8_t* codes, uint16_t* scales) {
  for (int64_t begin = 0; begin < columns; begin += group) {
    const uint16_t scale = Int4Scale(weights + begin, group, method,
                                     importance == nullptr ? nullptr : importance + begin);
    scales[begin / group] = scale;
    Int4Codes(weights + begin, group, scale, codes + begin);
  }
}

Int4Matrix QuantizeInt4(const float* weights, int64_t rows, int64_t columns, int64_t group,
                        ScaleMethod method, const float* importance) {
  TERN_CHECK(group > 0 && columns % group == 0);
  Int4Matrix matrix{.rows = rows, .columns = columns, .group = group};
  matrix.codes.resize(static_cast<size_t>(rows * columns));
  matrix.scales.resize(static_cast<size_t>(rows * (columns / group)));
  for (int64_t row = 0; row < rows; ++row) {
    QuantizeInt4Row(weights + row * columns, columns, group, method, importance,
                    matrix.codes.data() + row * columns,
                    matrix.scales.data() + row * (columns / group));
  }
  return matrix;
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
