#include "server/stop_matcher.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "base/rng.h"

namespace tern {
namespace {

// The naive twin: looks at the whole text, end by end.
struct Naive {
  std::string text;
  std::optional<std::string> match;
};
Naive NaiveMatch(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    const std::string_view seen = std::string_view(text).substr(0, end);
    std::optional<std::string> best;
    for (const std::string& stop : stops) {
      if (seen.size() >= stop.size() && seen.substr(end - stop.size()) == stop &&
          (!best || stop.size() > best->size())) {
        best = stop;
      }
    }
    if (best) return {text.substr(0, end - best->size()), best};
  }
  return {text, std::nullopt};
}

rc::Gen<std::string> SmallText(int max) {
  return rc::gen::mapcat(rc::gen::inRange(0, max), [](int n) {
    return rc::gen::container<std::string>(static_cast<size_t>(n),
                                           rc::gen::elementOf(std::string("aab")));
  });
}

RC_GTEST_PROP(StopMatcherProperty, EqualsTheNaiveMatcherForAnyCuts, ()) {
  const auto text = *SmallText(60);
  const auto stops = *rc::gen::container<std::vector<std::string>>(
      rc::gen::suchThat(SmallText(6), [](const std::string& s) { return !s.empty(); }));
  Rng cuts(*rc::gen::arbitrary<uint64_t>());
  StopMatcher matcher(stops);
  std::string released;
  for (size_t at = 0; at < text.size();) {
    const size_t n = cuts.Below(5);
    released += matcher.Push(std::string_view(text).substr(at, n));
    at += n;
    // Never releases what a longer text could still turn into a stop.
    const Naive so_far = NaiveMatch(text.substr(0, std::min(at, text.size())), stops);
    RC_ASSERT(released.size() <= so_far.text.size());
  }
  released += matcher.Flush();
  const Naive naive = NaiveMatch(text, stops);
  RC_ASSERT(released == naive.text);
  RC_ASSERT(matcher.matched() == naive.match.has_value());
  if (naive.match) RC_ASSERT(matcher.match() == *naive.match);
}

RC_GTEST_PROP(StopMatcherProperty, HoldsBackNoMoreThanItMust, ()) {
  const auto text = *SmallText(30);
  const auto stop =
      *rc::gen::suchThat(SmallText(6), [](const std::string& s) { return !s.empty(); });
  StopMatcher matcher({stop});
  const std::string released = matcher.Push(text);
  if (matcher.matched()) return;
  const std::string held = text.substr(released.size());
  RC_ASSERT(stop.substr(0, held.size()) == held);  // what is held begins the stop string
}

TEST(StopMatcherTest, AcrossPiecesAndNothingAfter) {
  StopMatcher matcher({"\n\nUser:", "END"});
  EXPECT_EQ(matcher.Push("Paris.\n"), "Paris.");
  EXPECT_EQ(matcher.Push("\nUs"), "");
  EXPECT_EQ(matcher.Push("a.\n"), "\n\nUsa.");
  EXPECT_EQ(matcher.Push("\nUser: more"), "");
  EXPECT_TRUE(matcher.matched());
  EXPECT_EQ(matcher.match(), "\n\nUser:");
  EXPECT_EQ(matcher.Push("END"), "");
  EXPECT_EQ(matcher.Flush(), "");
}

TEST(StopMatcherTest, HeldTextComesOutAtTheEnd) {
  StopMatcher matcher({"stop"});
  EXPECT_EQ(matcher.Push("it is sto"), "it is ");
  EXPECT_EQ(matcher.Flush(), "sto");
  EXPECT_FALSE(matcher.matched());
}

}  // namespace
}  // namespace tern
