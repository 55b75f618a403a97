#include "engine/logit_math.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/env.h"

namespace tern {
namespace {

constexpr LogitLevel kLevels[] = {LogitLevel::kBaseline, LogitLevel::kAvx2, LogitLevel::kAvx512};

class LogitMath : public ::testing::TestWithParam<LogitLevel> {
 protected:
  void SetUp() override {
    if (GetParam() > BestLogitLevel()) GTEST_SKIP() << "this machine lacks the level";
    before_ = SetLogitLevelForTest(GetParam());
  }
  void TearDown() override {
    if (before_) SetLogitLevelForTest(*before_);
  }

  static std::vector<float> Logits(size_t n, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> law(0, 8);
    std::vector<float> logits(n);
    for (float& x : logits) x = law(random);
    return logits;
  }

  std::optional<LogitLevel> before_;
};

TEST(LogitLevels, NamesChooseAndTheMachineLimits) {
  const LogitLevel best = BestLogitLevel();
  EXPECT_EQ(LogitLevelFor(std::nullopt), best);
  EXPECT_EQ(LogitLevelFor("avx512"), best);
  EXPECT_EQ(LogitLevelFor("avx2"), std::min(best, LogitLevel::kAvx2));
  for (const char* other : {"generic", "ref", "mmx"}) {
    EXPECT_EQ(LogitLevelFor(other), LogitLevel::kBaseline) << other;
  }
}

// A process of its own is started with each value: the variable is read before main.
TEST(LogitLevels, TheProcessTakesTheLevelOfItsEnvironment) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::optional<std::string> before = EnvIsa();
  for (const char* isa : {"generic", "avx2", "avx512"}) {
    ::setenv("TERN_ISA", isa, 1);
    EXPECT_EXIT(std::exit(static_cast<int>(SetLogitLevelForTest(LogitLevel::kBaseline))),
                ::testing::ExitedWithCode(static_cast<int>(LogitLevelFor(isa))), "");
  }
  before ? ::setenv("TERN_ISA", before->c_str(), 1) : ::unsetenv("TERN_ISA");
}

// Sizes with and without rests behind whole vectors and whole blocks.
constexpr size_t kSizes[] = {1, 2, 15, 16, 17, 33, 255, 256, 257, 1000, 4097};

TEST_P(LogitMath, SurveysFindTheLargestAndWhatIsNotFinite) {
  for (const size_t n : kSizes) {
    std::vector<float> logits = Logits(n, 1);
    for (const size_t at : {size_t{0}, n / 2, n - 1}) {
      const float kept = logits[at];
      logits[at] = 100;
      EXPECT_TRUE(SurveyLogits(logits).finite);
      EXPECT_EQ(SurveyLogits(logits).largest, 100);
      EXPECT_EQ(FirstEqual(logits, 100), at);
      for (const float bad : {std::nanf(""), INFINITY, -INFINITY}) {
        logits[at] = bad;
        EXPECT_FALSE(SurveyLogits(logits).finite) << n << " " << at;
      }
      logits[at] = kept;
    }
    EXPECT_EQ(FirstEqual(logits, 100), n);
    EXPECT_TRUE(SurveyLogits(std::vector<float>(n, std::numeric_limits<float>::max())).finite);
  }
}

// Equal ones in one vector, in the rest behind the last vector, and far apart; zeros of both signs.
TEST_P(LogitMath, FirstEqualTakesTheLowestIndex) {
  std::vector<float> logits = Logits(4097, 5);
  for (const size_t at : {0, 3, 17, 2000, 4095}) {
    for (const size_t other : {at + 1, size_t{4096}}) {
      std::vector<float> marked = logits;
      marked[at] = marked[other] = 100;
      EXPECT_EQ(FirstEqual(marked, 100), at);
      marked[at] = 0;
      marked[other] = -0.0f;
      EXPECT_EQ(FirstEqual(marked, -0.0f), at);
      std::swap(marked[at], marked[other]);
      EXPECT_EQ(FirstEqual(marked, 0), at);
    }
  }
}

TEST_P(LogitMath, WeightsAreExponentialsWithinThreeUlp) {
  for (const size_t n : kSizes) {
    const std::vector<float> logits = Logits(n, 2);
    std::vector<float> weights(n);
    std::vector<double> blocks(WeightBlocks(n));
    SoftmaxWeights(logits, 60, 1.25, weights.data(), blocks.data());
    for (size_t i = 0; i < n; ++i) {
      const float x = (logits[i] - 60) * 1.25f;  // from -110 to -40
      if (x <= -87) {
        EXPECT_EQ(weights[i], 0);
        continue;
      }
      const double exact = std::exp(double{x});
      const auto rounded = static_cast<float>(exact);
      const double ulp = std::nextafter(rounded, 2.0f) - rounded;
      EXPECT_LE(std::abs(weights[i] - exact), 3 * ulp) << x;
    }
  }
}

// The border of what is kept, in a vector and in the rest behind one.
TEST_P(LogitMath, WeightsBelowTheBorderAreNothing) {
  for (const size_t n : {5, 16, 21}) {
    const std::vector<float> low = {0, -86.9f, -87.1f, -1e4f, -3e38f};
    std::vector<float> logits(n), weights(n);
    double sum;  // of one block
    for (size_t i = 0; i < n; ++i) logits[i] = low[i % low.size()];
    SoftmaxWeights(logits, 0, 1, weights.data(), &sum);
    for (size_t i = 0; i < n; ++i) {
      const double want = i % 5 == 0 ? 1 : i % 5 == 1 ? std::exp(double{-86.9f}) : 0;
      EXPECT_NEAR(weights[i], want, want * 1e-6) << n << " " << i;
    }
    SoftmaxWeights(logits, 0, 1e300, weights.data(), &sum);
    for (size_t i = 0; i < n; ++i) EXPECT_EQ(weights[i], i % 5 == 0 ? 1 : 0) << n << " " << i;
  }
}

TEST_P(LogitMath, SumsDropsAndBucketsAreThoseOfTheirDefinitions) {
  for (const size_t n : kSizes) {
    const std::vector<float> logits = Logits(n, 3);
    std::vector<float> weights(n);
    std::vector<double> blocks(WeightBlocks(n)), again(WeightBlocks(n));
    std::vector<double> sums(kWeightBuckets), counts(kWeightBuckets);
    const float largest = *std::max_element(logits.begin(), logits.end());
    const double total = SoftmaxWeights(logits, largest, 1, weights.data(), blocks.data());
    double exact = 0;
    for (const float w : weights) exact += w;
    EXPECT_NEAR(total, exact, exact * 1e-13);
    EXPECT_EQ(SumWeights(weights, again.data()), total);
    EXPECT_EQ(again, blocks);
    SumBuckets(weights, sums.data());
    CountBuckets(weights, counts.data());
    double all = 0, number = 0;
    for (size_t bucket = 0; bucket < kWeightBuckets; ++bucket) {
      double sum = 0;
      ForEachInBucket(weights, bucket, [&](size_t i) { sum += weights[i]; });
      EXPECT_NEAR(sums[bucket], sum, sum * 1e-13);
      all += sums[bucket];
      number += counts[bucket];
    }
    EXPECT_NEAR(all, exact, exact * 1e-13);
    EXPECT_EQ(number, static_cast<double>(n));
    const float least = weights[n / 2];
    std::vector<float> kept = weights;
    DropWeights(kept, least);
    for (size_t i = 0; i < n; ++i) EXPECT_EQ(kept[i], weights[i] < least ? 0 : weights[i]);
  }
  EXPECT_EQ(BucketOf(1.0f), kWeightBuckets - 1);
  EXPECT_LT(BucketOf(0x1p-20f), BucketOf(0x1.2p-20f));
}

// Few, many, all and none of them, and the one that equals the border.
TEST_P(LogitMath, KeptWeightsAreInOrderWithTheirIndices) {
  for (const size_t n : kSizes) {
    const std::vector<float> weights = Logits(n, 6);
    for (const float least : {weights[n / 2], -100.0f, -8.0f, 0.0f, 16.0f, 100.0f}) {
      std::vector<float> kept = weights, want;
      std::vector<int32_t> indices(n), want_indices;
      for (size_t i = 0; i < n; ++i) {
        if (weights[i] < least) continue;
        want.push_back(weights[i]);
        want_indices.push_back(static_cast<int32_t>(i));
      }
      const size_t number = KeepWeights(kept, least, indices.data());
      kept.resize(number);
      indices.resize(number);
      EXPECT_EQ(kept, want) << n << " " << least;
      EXPECT_EQ(indices, want_indices) << n << " " << least;
    }
  }
}

// A draw must not depend on the machine.
TEST_P(LogitMath, BitsAreThoseOfTheBaseline) {
  const std::vector<float> logits = Logits(4097, 4);
  const auto run = [&](LogitLevel level) {
    SetLogitLevelForTest(level);
    std::vector<float> weights(logits.size());
    std::vector<double> blocks(WeightBlocks(logits.size()));
    // Half of them are nothing.
    blocks.push_back(SoftmaxWeights(logits, 60, 1 / 0.7, weights.data(), blocks.data()));
    std::string bits(weights.size() * sizeof(float) + blocks.size() * sizeof(double), '\0');
    std::memcpy(bits.data(), weights.data(), weights.size() * sizeof(float));
    std::memcpy(bits.data() + weights.size() * sizeof(float), blocks.data(),
                blocks.size() * sizeof(double));
    return bits;
  };
  EXPECT_EQ(run(GetParam()), run(LogitLevel::kBaseline));
}

INSTANTIATE_TEST_SUITE_P(Levels, LogitMath, ::testing::ValuesIn(kLevels), [](const auto& level) {
  return level.param == LogitLevel::kBaseline ? "Baseline"
         : level.param == LogitLevel::kAvx2   ? "Avx2"
                                              : "Avx512";
});

}  // namespace
}  // namespace tern
