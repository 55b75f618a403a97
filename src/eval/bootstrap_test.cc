// Against numpy's bootstrap of the same blocks (tests/data/eval/make_statistics.py): other random
// numbers, so limits agree within the noise of 10,000 resamples, a few percent of the spread.
#include "eval/bootstrap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/json.h"
#include "base/rng.h"

namespace tern {
namespace {

constexpr double kNoise = 0.08;  // of the resampled values' standard deviation

Json Reference() { return *ParseJsonFile(TERN_SOURCE_DIR "/tests/data/eval/statistics.json"); }

TEST(BootstrapRatio, AgreesWithNumpy) {
  const Json reference = Reference();
  for (const Json& row : reference["bootstrap"]) {
    std::vector<Block> blocks;
    for (size_t i = 0; i < row["sums"].size(); ++i) {
      blocks.push_back({row["sums"][i].get<double>(), row["weights"][i].get<double>()});
    }
    // Differences of items are whole numbers: their mean moves in steps of 1 / n.
    const double step = blocks[0].weight == 1 ? 1.001 / static_cast<double>(blocks.size()) : 0;
    const double noise = std::max(kNoise * row["spread"].get<double>(), step);
    EXPECT_NEAR(RatioOf(blocks), row["ratio"].get<double>(), 1e-12);
    const Interval interval = BootstrapRatio(blocks);
    EXPECT_NEAR(interval.low, row["low"].get<double>(), noise) << blocks.size();
    EXPECT_NEAR(interval.high, row["high"].get<double>(), noise) << blocks.size();
    EXPECT_EQ(BootstrapRatio(blocks), interval) << "seeded";
  }
}

TEST(BootstrapQuantiles, AgreeWithNumpy) {
  const Json reference = Reference();
  const Json& q = reference["quantiles"];
  const auto values = q["values"].get<std::vector<double>>();
  const auto block_of = q["block_of"].get<std::vector<int32_t>>();
  EXPECT_EQ(QuantileOf(values, 50), q["value"][0].get<double>());
  EXPECT_EQ(QuantileOf(values, 99), q["value"][1].get<double>());
  const int64_t percents[] = {50, 99};
  const auto intervals = BootstrapQuantiles(values, block_of, 30, percents);
  const char* names[] = {"median", "p99"};
  for (size_t i = 0; i < 2; ++i) {
    const double noise = kNoise * q["spread"][i].get<double>();
    EXPECT_NEAR(intervals[i].low, q[names[i]][0].get<double>(), noise) << names[i];
    EXPECT_NEAR(intervals[i].high, q[names[i]][1].get<double>(), noise) << names[i];
  }
}

TEST(BootstrapRatio, CoversTheTruthAsOftenAsItSays) {
  // Skewed block losses with 20 blocks each, a known mean: coverage of 95 % intervals over 400
  // runs. The binomial noise of 400 runs is 1.1 points; skewness costs up to three.
  Rng rng(3);
  int covered = 0;
  for (int run = 0; run < 400; ++run) {
    std::vector<Block> blocks;
    for (int i = 0; i < 20; ++i) {
      double sum = 0;  // Gamma(4, 1): mean 4
      for (int k = 0; k < 4; ++k) sum -= std::log(1 - rng.Uniform());
      blocks.push_back({sum, 1});
    }
    const Interval interval = BootstrapRatio(blocks, {.resamples = 1000, .seed = rng.Next()});
    covered += interval.low <= 4 && 4 <= interval.high;
  }
  EXPECT_GE(covered, 366);
  EXPECT_LE(covered, 394);
}

TEST(BootstrapRatio, TenThousandResamplesOfSixThousandItemsTakeUnderASecondOrTwo) {
  std::vector<Block> blocks(6000, Block{0, 1});
  for (size_t i = 0; i < blocks.size(); i += 50) blocks[i].sum = i % 100 == 0 ? 1 : -1;
  const auto start = std::chrono::steady_clock::now();
  const Interval interval = BootstrapRatio(blocks);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  // 120 of 6000 differ: standard error sqrt(120) / 6000.
  EXPECT_NEAR(interval.high, 1.96 * std::sqrt(120.0) / 6000, 2e-4);
  EXPECT_LT(took.count(), 5);
}

TEST(Quantile, CountsFromOne) {
  EXPECT_EQ(QuantileOf({3, 1, 2}, 50), 2);
  EXPECT_EQ(QuantileOf({3, 1, 2}, 0), 1);
  EXPECT_EQ(QuantileOf({3, 1, 2}, 100), 3);
}

}  // namespace
}  // namespace tern
