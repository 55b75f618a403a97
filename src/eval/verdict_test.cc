#include "eval/verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"

namespace tern {
namespace {

using ::testing::HasSubstr;

// n items of which `right` are correct in the baseline; the last `gained` wrong ones are right in
// the candidate, the first `lost` right ones wrong.
std::vector<PairedItem> Items(const std::string& kind, int n, int right, int gained, int lost) {
  std::vector<PairedItem> items;
  for (int i = 0; i < n; ++i) {
    const bool baseline = i < right;
    const bool candidate = baseline ? i >= lost : i >= n - gained;
    items.push_back({kind, baseline, candidate});
  }
  return items;
}

// 40 blocks of 500 tokens whose mean difference is log(ratio), with noise of the given size.
std::optional<PerplexityComparison> Perplexity(double ratio, double noise) {
  std::vector<PairedBlock> blocks;
  for (int i = 0; i < 40; ++i) {
    const double shift = i % 2 == 0 ? noise : -noise;
    blocks.push_back({2000, 2000 + 500 * (std::log(ratio) + shift), 500});
  }
  return ComparePerplexity(blocks);
}

std::vector<PairedItem> operator+(std::vector<PairedItem> a, const std::vector<PairedItem>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(Verdict, EquivalentNeedsBothIntervalsWithinTheMargins) {
  const Verdict v = Judge(Items("words", 6000, 4800, 30, 30), Perplexity(1.001, 1e-3));
  EXPECT_EQ(v.equivalence, Equivalence::kEquivalent) << v.why;
  ASSERT_TRUE(v.counted);
  // Standard error sqrt(60) / 6000 = 0.00129.
  EXPECT_NEAR(v.counted->interval.high, 1.96 * std::sqrt(60.0) / 6000, 2e-4);
  EXPECT_NEAR(*v.detectable_accuracy, 2.8016 * std::sqrt(60.0) / 6000, 4e-4);
  EXPECT_EQ(v.counted->mcnemar, 1);
}

TEST(Verdict, NoDifferenceOnFewItemsIsNotEquivalence) {
  const Verdict few = Judge(Items("words", 100, 80, 0, 0), Perplexity(1, 0));
  EXPECT_EQ(few.equivalence, Equivalence::kUndecided);
  const Verdict enough = Judge(Items("words", 400, 320, 0, 0), Perplexity(1, 0));
  EXPECT_EQ(enough.equivalence, Equivalence::kEquivalent);
}

TEST(Verdict, ABigDropIsNotEquivalentAndSaysTheSide) {
  const Verdict v = Judge(Items("words", 6000, 4800, 10, 310), Perplexity(1.0, 1e-4));
  EXPECT_EQ(v.equivalence, Equivalence::kNotEquivalent);
  EXPECT_THAT(v.why, HasSubstr("accuracy is lower"));
  EXPECT_LT(v.counted->mcnemar, 1e-9);
  const Verdict better = Judge(Items("words", 6000, 4800, 310, 10), Perplexity(1.0, 1e-4));
  EXPECT_THAT(better.why, HasSubstr("accuracy is higher"));
  const Verdict text = Judge(Items("words", 6000, 4800, 0, 0), Perplexity(1.02, 1e-3));
  EXPECT_EQ(text.equivalence, Equivalence::kNotEquivalent);
  EXPECT_THAT(text.why, HasSubstr("perplexity is higher"));
}

TEST(Verdict, ASignificantDropWithinTheMarginIsStillEquivalent) {
  const Verdict v = Judge(Items("words", 20'000, 16'000, 10, 60), Perplexity(1.0, 1e-4));
  EXPECT_EQ(v.equivalence, Equivalence::kEquivalent);
  EXPECT_LT(v.counted->mcnemar, 0.001);
}

TEST(Verdict, AnIntervalAcrossTheMarginIsUndecided) {
  const Verdict v = Judge(Items("words", 500, 400, 10, 12), Perplexity(1.0, 1e-4));
  EXPECT_EQ(v.equivalence, Equivalence::kUndecided);
  EXPECT_THAT(v.why, HasSubstr("accuracy"));
  const Verdict text = Judge(Items("words", 6000, 4800, 0, 0), Perplexity(1.005, 1e-2));
  EXPECT_EQ(text.equivalence, Equivalence::kUndecided);
  EXPECT_THAT(text.why, HasSubstr("perplexity"));
}

TEST(Verdict, KindsOutsideTheUsefulRangeDoNotCount) {
  // 100 % and 20 % kinds, both unchanged, dilute nothing: only `add` counts.
  const Verdict v = Judge(Items("count", 6000, 6000, 0, 0) + Items("recall", 6000, 1200, 0, 0) +
                              Items("add", 1000, 900, 0, 60),
                          Perplexity(1.0, 1e-4));
  ASSERT_EQ(v.kinds.size(), 3u);
  EXPECT_FALSE(v.kinds[0].counts);
  EXPECT_FALSE(v.kinds[1].counts);
  EXPECT_TRUE(v.kinds[2].counts);
  EXPECT_EQ(v.counted->items, 1000);
  EXPECT_EQ(v.all->items, 13'000);
  EXPECT_EQ(v.equivalence, Equivalence::kNotEquivalent);
}

TEST(Verdict, TheRangeIncludesItsEnds) {
  EXPECT_TRUE(Judge(Items("a", 100, 60, 0, 0), {}).kinds[0].counts);
  EXPECT_TRUE(Judge(Items("a", 100, 98, 0, 0), {}).kinds[0].counts);
  EXPECT_FALSE(Judge(Items("a", 100, 59, 0, 0), {}).kinds[0].counts);
  EXPECT_FALSE(Judge(Items("a", 100, 99, 0, 0), {}).kinds[0].counts);
}

TEST(Verdict, WhenNothingCountsThereIsNone) {
  const Verdict v = Judge(Items("count", 6000, 6000, 0, 0), Perplexity(1.0, 1e-4));
  EXPECT_EQ(v.equivalence, Equivalence::kNoVerdict);
  EXPECT_THAT(v.why, HasSubstr("no task kind counts"));
  EXPECT_TRUE(v.detectable_accuracy);
  EXPECT_EQ(Judge({}, Perplexity(1.0, 1e-4)).equivalence, Equivalence::kNoVerdict);
  const Verdict half = Judge(Items("words", 6000, 4800, 0, 0), std::nullopt);
  EXPECT_EQ(half.equivalence, Equivalence::kNoVerdict);
  EXPECT_THAT(half.why, HasSubstr("perplexity was not compared"));
}

TEST(ComparePerplexity, NeedsBlocks) {
  EXPECT_FALSE(ComparePerplexity({{1, 1, 1}, {1, 1, 1}}).has_value());
  const auto p = Perplexity(1.02, 0);
  EXPECT_NEAR(p->ratio, 1.02, 1e-12);
  EXPECT_NEAR(p->interval.low, 1.02, 1e-12);
  EXPECT_EQ(p->tokens, 20'000);
}

}  // namespace
}  // namespace tern
