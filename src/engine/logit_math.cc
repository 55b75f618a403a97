#include "engine/logit_math.h"

#include <algorithm>
#include <cstring>

namespace tern {
namespace {

// Four lanes, which every machine of today has; the compiler's own vectors, so that no loop depends
// on its mood.
constexpr size_t kLanes = 4;
using Floats = float __attribute__((vector_size(16)));
using Ints = int32_t __attribute__((vector_size(16)));
using Doubles = double __attribute__((vector_size(32)));

inline Floats Load(const float* p) {
  Floats x;
  std::memcpy(&x, p, sizeof(x));
  return x;
}
inline Floats Set(float x) { return Floats{x, x, x, x}; }

// exp(x) for -87 <= x <= 0: 2^n exp(r) with n = round(x / ln 2), ln 2 in two parts (Cody and
// Waite), exp(r) = 1 + r + r^2 p(r) with p as in kernels/cpu/vec_math.h.
inline Floats ExpOfNegative(Floats x) {
  const Floats shifted = x * 0x1.715476p+0f + 0x1.8p23f;  // n in the low bits
  const Floats n = shifted - 0x1.8p23f;
  const Floats r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
  Floats p = Set(0x1.68a466p-10f);
  p = p * r + 0x1.123c0ep-7f;
  p = p * r + 0x1.555b1ep-5f;
  p = p * r + 0x1.55548ep-3f;
  p = p * r + 0x1.fffff8p-2f;
  const Floats y = r * r * p + r + 1.0f;
  return reinterpret_cast<Floats>(reinterpret_cast<Ints>(y) +
                                  (reinterpret_cast<Ints>(shifted) << 23));
}

inline Floats WeightsOf(Floats logits, float largest, float scale) {
  const Floats lowest = Set(-87.0f);
  const Floats x = (logits - largest) * scale;
  const Ints kept = x > lowest;
  const Floats weights = ExpOfNegative(kept ? x : lowest);
  return reinterpret_cast<Floats>(reinterpret_cast<Ints>(weights) & kept);
}

}  // namespace

LogitSurvey SurveyLogits(std::span<const float> logits) {
  constexpr float kLowest = -3.402823466e+38f;
  // Four results side by side: their latencies overlap.
  Floats largest[4] = {Set(kLowest), Set(kLowest), Set(kLowest), Set(kLowest)};
  Ints infinite[4] = {};
  const auto look = [&](Floats x, size_t at) {
    largest[at] = x > largest[at] ? x : largest[at];
    infinite[at] |= (reinterpret_cast<Ints>(x) & 0x7FFFFFFF) > 0x7F7FFFFF;
  };
  size_t i = 0;
  for (; i + 4 * kLanes <= logits.size(); i += 4 * kLanes) {
    for (size_t at = 0; at < 4; ++at) look(Load(logits.data() + i + at * kLanes), at);
  }
  for (; i < logits.size(); ++i) look(Set(logits[i]), 0);
  LogitSurvey survey{.finite = true, .largest = kLowest};
  for (size_t at = 0; at < 4; ++at) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      survey.finite &= infinite[at][lane] == 0;
      survey.largest = std::max(survey.largest, largest[at][lane]);
    }
  }
  return survey;
}

size_t FirstEqual(std::span<const float> logits, float x) {
  size_t i = 0;
  for (; i + 4 * kLanes <= logits.size(); i += 4 * kLanes) {
    Ints equal = {};
    for (size_t at = 0; at < 4; ++at) equal |= Load(logits.data() + i + at * kLanes) == Set(x);
    if ((equal[0] | equal[1] | equal[2] | equal[3]) != 0) break;
  }
  while (i < logits.size() && logits[i] != x) ++i;
  return i;
}

void SoftmaxWeights(std::span<const float> logits, float largest, double scale, float* weights) {
  // Beyond float's range a scale only tells equal from unequal: this one does too.
  const float factor = static_cast<float>(std::min(scale, 1e37));
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    const Floats x = WeightsOf(Load(logits.data() + i), largest, factor);
    std::memcpy(weights + i, &x, sizeof(x));
  }
  for (; i < logits.size(); ++i) weights[i] = WeightsOf(Set(logits[i]), largest, factor)[0];
}

double SumWeights(std::span<const float> weights, double* block_sums) {
  double total = 0;
  for (size_t begin = 0, block = 0; begin < weights.size(); begin += kWeightBlock, ++block) {
    const size_t end = std::min(begin + kWeightBlock, weights.size());
    Doubles sum = {};
    size_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      sum += __builtin_convertvector(Load(weights.data() + i), Doubles);
    }
    for (; i < end; ++i) sum[0] += double{weights[i]};
    block_sums[block] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    total += block_sums[block];
  }
  return total;
}

}  // namespace tern
