// Passes over a row of logits, in plain C++ that compilers turn into vectors: the simulator, which
// has no kernels, samples too. Bits depend on the numbers alone. Thread: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tern {

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

// weights[i] = exp((logits[i] - largest) * scale), within 3 ulp; 0 below e^-87. scale >= 0.
void SoftmaxWeights(std::span<const float> logits, float largest, double scale, float* weights);
// block_sums [WeightBlocks(n)]: of 256 weights each; returns their sum.
double SumWeights(std::span<const float> weights, double* block_sums);

}  // namespace tern
