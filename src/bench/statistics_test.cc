#include "bench/statistics.h"

#include <gtest/gtest.h>

namespace tern {
namespace {

TEST(StatisticsTest, MedianAndPercentiles) {
  EXPECT_EQ(MedianOf({3, 1, 2}), 2);
  EXPECT_EQ(MedianOf({4, 1, 2, 3}), 2.5);
  std::vector<double> hundred;
  for (int i = 100; i >= 1; --i) hundred.push_back(i);
  EXPECT_EQ(PercentileOf(hundred, 50), 50);
  EXPECT_EQ(PercentileOf(hundred, 99), 99);
  EXPECT_EQ(PercentileOf(hundred, 100), 100);
  EXPECT_EQ(PercentileOf({7}, 1), 7);
}

std::vector<double> Counted(int n) {
  std::vector<double> values;
  for (int i = 1; i <= n; ++i) values.push_back(i);
  return values;
}

// Ranks and coverage from the binomial distribution: 1 - 2 / 2^n for the outermost pair; others as
// in tables of the sign test (Conover, Practical Nonparametric Statistics, A3).
TEST(StatisticsTest, MedianIntervals) {
  const struct {
    int n;
    double low, high, coverage;
  } cases[] = {{2, 1, 2, 0.5},       {5, 1, 5, 0.9375},       {6, 1, 6, 0.96875},
               {8, 1, 8, 0.9921875}, {10, 2, 9, 0.978515625}, {20, 6, 15, 0.958610534667969}};
  for (const auto& c : cases) {
    const MedianInterval interval = MedianIntervalOf(Counted(c.n));
    EXPECT_EQ(interval.low, c.low) << c.n;
    EXPECT_EQ(interval.high, c.high) << c.n;
    EXPECT_NEAR(interval.coverage, c.coverage, 1e-12) << c.n;
  }
  EXPECT_EQ(MedianIntervalOf({5}).coverage, 0);
}

}  // namespace
}  // namespace tern
