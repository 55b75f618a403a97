// Passes over a row of logits, over vectors of the compiler's own where it has what they need, with
// copies for AVX2 and AVX-512. They are no kernels of the op table: the simulator and the sampler's
// other callers have none, and bits depend on the numbers alone, whichever copy runs, which kernels
// don't promise across levels. Thread: pure functions.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace tern {

// Which copy runs: LogitLevelFor(TERN_ISA), read before main.
enum class LogitLevel { kBaseline, kAvx2, kAvx512 };
LogitLevel BestLogitLevel();  // of this machine
// "avx512" and "avx2" name theirs, or the best below that the machine has; any other name the
// baseline. Nullopt: the best.
LogitLevel LogitLevelFor(std::optional<std::string_view> isa);
// Returns the level until now. REQUIRES: the machine has `level`.
LogitLevel SetLogitLevelForTest(LogitLevel level);

struct LogitSurvey {
  bool finite = true;  // no NaN, no infinity
  float largest = 0;   // REQUIRES for its use: finite, not empty
};
LogitSurvey SurveyLogits(std::span<const float> logits);

// The lowest index of a number that equals x; logits.size() when there is none.
size_t FirstEqual(std::span<const float> logits, float x);

// Weights are summed in blocks, so that a draw finds its place without adding all of them anew.
inline constexpr size_t kWeightBlock = 256;
inline constexpr size_t WeightBlocks(size_t n) { return (n + kWeightBlock - 1) / kWeightBlock; }

// block_sums [WeightBlocks(n)]: of 256 weights each; returns their sum.
double SumWeights(std::span<const float> weights, double* block_sums);
// weights[i] = exp((logits[i] - largest) * scale), within 3 ulp; 0 below e^-87. scale >= 0. Sums
// them as SumWeights does.
double SoftmaxWeights(std::span<const float> logits, float largest, double scale, float* weights,
                      double* block_sums);
// Moves the weights that are at least `least` to the front, in order, and writes the index that
// each had to `indices` [n]; returns how many they are.
size_t KeepWeights(std::span<float> weights, float least, int32_t* indices);
// Weights below `least` become 0.
void DropWeights(std::span<float> weights, float least);

// Buckets of weights in [0, 1] of like size, sixteen to an octave: a larger weight is in no smaller
// bucket.
inline constexpr size_t kWeightBuckets = (0x3F800000u >> 19) + 1;
inline size_t BucketOf(float weight) { return std::bit_cast<uint32_t>(weight) >> 19; }
// buckets [kWeightBuckets]: the sum, or the number, of the weights in each. REQUIRES: weights in
// [0, 1].
void SumBuckets(std::span<const float> weights, double* buckets);
void CountBuckets(std::span<const float> weights, double* buckets);
// Calls visit(index) for the weights of one bucket, in order.
template <typename Visit>
void ForEachInBucket(std::span<const float> weights, size_t bucket, Visit&& visit) {
  for (size_t i = 0; i < weights.size(); ++i) {
    if (BucketOf(weights[i]) == bucket) visit(i);
  }
}

}  // namespace tern
