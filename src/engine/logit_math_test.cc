#include "engine/logit_math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/rng.h"

namespace tern {
namespace {

std::vector<float> RandomLogits(size_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> logits(n);
  for (float& x : logits) x = static_cast<float>(rng.Uniform() * 40 - 20);
  return logits;
}

TEST(LogitMath, SurveyFindsTheLargestAndWhatIsNotFinite) {
  for (size_t n : {1u, 3u, 15u, 16u, 17u, 63u, 1000u}) {
    std::vector<float> logits = RandomLogits(n, n);
    const LogitSurvey survey = SurveyLogits(logits);
    EXPECT_TRUE(survey.finite);
    EXPECT_EQ(survey.largest, *std::max_element(logits.begin(), logits.end()));
    for (size_t at = 0; at < n; at += 1 + n / 7) {
      for (const float bad :
           {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
            std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN()}) {
        std::vector<float> broken = logits;
        broken[at] = bad;
        EXPECT_FALSE(SurveyLogits(broken).finite) << n << " " << at << " " << bad;
      }
    }
    EXPECT_TRUE(SurveyLogits(std::vector<float>(n, std::numeric_limits<float>::max())).finite);
  }
}

TEST(LogitMath, FirstEqualTakesTheLowestIndex) {
  std::vector<float> logits = RandomLogits(100, 1);
  for (size_t at : {0u, 1u, 15u, 16u, 50u, 95u, 99u}) {
    std::vector<float> marked = logits;
    marked[at] = 30;
    marked[99] = 30;
    EXPECT_EQ(FirstEqual(marked, 30), at);
  }
  EXPECT_EQ(FirstEqual(logits, 30), logits.size());
  EXPECT_EQ(FirstEqual(std::vector<float>{-1, -0.0f, 0.0f}, 0.0f), 1u);
}

TEST(LogitMath, WeightsAreTheExponential) {
  const size_t n = 10'007;
  std::vector<float> logits = RandomLogits(n, 2), weights(n);
  logits[77] = 20;
  for (const double temperature : {0.5, 1.0, 3.0}) {
    SoftmaxWeights(logits, 20, 1 / temperature, weights.data());
    EXPECT_EQ(weights[77], 1.0f);
    for (size_t i = 0; i < n; ++i) {
      // The argument is rounded to float32 before: half a unit of it in the last place.
      const double x = (double{logits[i]} - 20) / temperature;
      const double want = std::exp(x);
      EXPECT_NEAR(weights[i], want, want * (3 + std::abs(x)) * 0x1p-23) << x;
    }
  }
  const std::vector<float> low = {0, -86.9f, -87.1f, -1e4f, -3e38f};
  weights.resize(low.size());
  SoftmaxWeights(low, 0, 1, weights.data());
  EXPECT_GT(weights[1], 0);
  EXPECT_EQ(weights[2], 0);
  EXPECT_EQ(weights[3], 0);
  EXPECT_EQ(weights[4], 0);
  SoftmaxWeights(low, 0, 1e300, weights.data());
  EXPECT_EQ(weights[0], 1);
  EXPECT_EQ(weights[1], 0);
}

TEST(LogitMath, BlocksSumToTheWhole) {
  for (size_t n : {1u, 255u, 256u, 257u, 5000u}) {
    std::vector<float> weights = RandomLogits(n, 3);
    std::vector<double> blocks(WeightBlocks(n), -1);
    const double total = SumWeights(weights, blocks.data());
    double sum = 0, from_blocks = 0;
    for (const float w : weights) sum += w;
    for (const double b : blocks) from_blocks += b;
    EXPECT_NEAR(total, sum, 1e-9 * static_cast<double>(n));
    EXPECT_EQ(total, from_blocks);
  }
}

}  // namespace
}  // namespace tern
