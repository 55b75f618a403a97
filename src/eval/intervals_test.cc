// Against statsmodels and scipy (tests/data/eval/make_statistics.py) and closed forms.
#include "eval/intervals.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/json.h"

namespace tern {
namespace {

Json Reference() { return *ParseJsonFile(TERN_SOURCE_DIR "/tests/data/eval/statistics.json"); }

TEST(WilsonInterval, IsThatOfStatsmodels) {
  const Json reference = Reference();
  for (const Json& row : reference["wilson"]) {
    const Interval interval = WilsonInterval(row[0], row[1]);
    EXPECT_NEAR(interval.low, row[2].get<double>(), 1e-12) << row;
    EXPECT_NEAR(interval.high, row[3].get<double>(), 1e-12) << row;
  }
}

TEST(PairedScoreInterval, IsTheRootOfTheRestrictedLikelihood) {
  const Json reference = Reference();
  for (const Json& row : reference["paired_score"]) {
    const Interval interval = PairedScoreInterval(row[0], row[1], row[2]);
    EXPECT_NEAR(interval.low, row[3].get<double>(), 1e-6) << row;
    EXPECT_NEAR(interval.high, row[4].get<double>(), 1e-6) << row;
  }
}

TEST(PairedScoreInterval, HasAWidthWhenNothingDiffers) {
  const double z2 = kNormal975 * kNormal975;
  for (const int64_t n : {1, 10, 370, 100'000}) {
    const Interval interval = PairedScoreInterval(0, 0, n);
    EXPECT_NEAR(interval.high, z2 / (static_cast<double>(n) + z2), 1e-9);
    EXPECT_NEAR(interval.low, -interval.high, 1e-9);
  }
}

TEST(PairedScoreInterval, EndsAtTheBorder) {
  EXPECT_NEAR(PairedScoreInterval(5, 0, 5).high, 1, 1e-9);
  EXPECT_NEAR(PairedScoreInterval(0, 5, 5).low, -1, 1e-9);
}

TEST(McNemarExact, IsThatOfStatsmodels) {
  const Json reference = Reference();
  for (const Json& row : reference["mcnemar"]) {
    EXPECT_NEAR(McNemarExact(row[0], row[1]), row[2].get<double>(), 1e-10) << row;
  }
  EXPECT_EQ(McNemarExact(0, 0), 1);
  EXPECT_GE(McNemarExact(100'000, 100'000), 0.99);
}

TEST(Student975, IsThatOfScipy) {
  const Json reference = Reference();
  for (const Json& row : reference["student"]) {
    EXPECT_NEAR(Student975(row[0]), row[1].get<double>(), 5e-3) << row;
  }
}

TEST(DetectableDifference, FollowsFromTheStandardError) {
  // Standard error 0.01: 2.8016 of it, the textbook (1.96 + 0.84).
  EXPECT_NEAR(DetectableDifference({-0.01 * kNormal975, 0.01 * kNormal975}), 0.028016, 1e-6);
}

TEST(Interval, HullAndWithin) {
  EXPECT_EQ(Hull({1, 3}, {0, 2}), (Interval{0, 3}));
  EXPECT_TRUE((Interval{-1, 1}).Within(-1, 1));
  EXPECT_FALSE((Interval{-1, 1.01}).Within(-1, 1));
}

}  // namespace
}  // namespace tern
