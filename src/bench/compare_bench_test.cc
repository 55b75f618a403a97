#include "bench/compare_bench.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tern {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

double FindIn(const std::string& spec, const std::string& out, const std::string& err = "") {
  const auto finder = NumberFinder::Make(spec);
  EXPECT_TRUE(finder.ok()) << finder.status().message();
  const Result<double> value = finder->Find({.out = out, .err = err});
  EXPECT_TRUE(value.ok()) << value.status().message();
  return value.ok() ? *value : -1;
}

TEST(CompareBenchTest, NumbersAreFoundByPointerAndByExpression) {
  EXPECT_EQ(FindIn("/0/avg_ts", R"([{"avg_ts": 81.5}])", "noise {"), 81.5);
  EXPECT_EQ(FindIn("/a~1b/c", R"({"a/b": {"c": 3}})"), 3);
  // llama-bench's table; the last line that matches counts.
  EXPECT_EQ(FindIn(R"(pp512 \| +([0-9.]+))", "| pp512 | 10.5 |\n| pp512 |   888.12 ± 3 |\n"),
            888.12);
  EXPECT_EQ(FindIn(R"(t=(\d+e\d))", "", "t=5e2\r\n"), 500);
  EXPECT_EQ(FindIn(R"(\d+)", "n 7"), 7);
}

TEST(CompareBenchTest, WhatIsWrongIsNamed) {
  EXPECT_THAT(NumberFinder::Make("(a").status().message(), HasSubstr("'(a' is no regular"));
  EXPECT_THAT(NumberFinder::Make("/a~2").status().message(),
              HasSubstr("'/a~2' is no JSON pointer"));
  EXPECT_FALSE(NumberFinder::Make("").ok());
  const auto message = [](const std::string& spec, const std::string& out) {
    return NumberFinder::Make(spec)->Find({.out = out}).status().message();
  };
  EXPECT_THAT(message("/a", R"({"b": 1})"), HasSubstr("not in the output"));
  EXPECT_THAT(message("/a", R"({"a": "x"})"), HasSubstr("no number"));
  EXPECT_THAT(message("/a", "no JSON"), HasSubstr("standard output"));
  EXPECT_THAT(message("(x)", "x"), HasSubstr("finds 'x'"));
  EXPECT_THAT(message("y", "x"), HasSubstr("matches no line"));
  // A line that is far too long is passed over, not searched.
  EXPECT_THAT(message("(a|b)*c", std::string(1 << 20, 'a')), HasSubstr("matches no line"));
}

CompareOptions TwoCommands() {
  CompareOptions options{.a = {"A"}, .b = {"B"}, .runs = 4, .warm_ups = 1};
  options.figures.push_back({"n", *NumberFinder::Make(R"(\d+)"), *NumberFinder::Make("/n")});
  return options;
}

TEST(CompareBenchTest, CommandsTakeTurnsAndWarmUpsDoNotCount) {
  std::string order;
  int a = 0, b = 0;
  const auto run = [&](const std::vector<std::string>& argv) -> Result<CommandOutput> {
    order += argv[0];
    if (argv[0] == "A") return CommandOutput{.out = fmt::format("{}", 100 + a++)};
    return CommandOutput{.out = fmt::format("{{\"n\": {}}}", 50 + b++)};
  };
  const auto results = RunCompare(TwoCommands(), run, [](int64_t, int64_t) {});
  ASSERT_TRUE(results.ok()) << results.status().message();
  EXPECT_EQ(order, "ABBAABBAAB");
  EXPECT_THAT((*results)[0].a, ElementsAre(101, 102, 103, 104));
  EXPECT_THAT((*results)[0].b, ElementsAre(51, 52, 53, 54));
  EXPECT_THAT((*results)[0].ratios(), ElementsAre(DoubleEq(101. / 51), DoubleEq(102. / 52),
                                                  DoubleEq(103. / 53), DoubleEq(104. / 54)));
  const Json json = CompareJson({}, TwoCommands(), *results);
  EXPECT_EQ(json["results"][0]["a_median"], 102.5);
  EXPECT_DOUBLE_EQ(json["results"][0]["ratio"].get<double>(), (102. / 52 + 103. / 53) / 2);
  EXPECT_EQ(json["results"][0]["ratio_coverage"], 0.875);  // [min, max] of four: 1 - 2 / 2^4
}

TEST(CompareBenchTest, FailuresEndTheRunAndNameTheCommand) {
  const auto message = [](const CommandOutput& output) {
    return RunCompare(
               TwoCommands(), [&](const auto&) -> Result<CommandOutput> { return output; },
               [](int64_t, int64_t) {})
        .status()
        .message();
  };
  EXPECT_THAT(message({.out = "1", .err = "no such model", .exit_code = 3}),
              HasSubstr("A: exit code 3: no such model"));
  EXPECT_THAT(message({.out = "none"}), HasSubstr("A: "));
  EXPECT_THAT(message({.out = "0"}), HasSubstr("has no ratio"));
}

TEST(CompareBenchTest, CommandsRunWithoutAShell) {
  const auto ran =
      RunCommand({"sh", "-c", "printf '%s' \"$1\"; echo oops >&2; exit 5", "x", "a b"}, 10'000'000);
  ASSERT_TRUE(ran.ok()) << ran.status().message();
  EXPECT_EQ(ran->out, "a b");
  EXPECT_EQ(ran->err, "oops\n");
  EXPECT_EQ(ran->exit_code, 5);
  EXPECT_EQ(RunCommand({"sh", "-c", "kill -9 $$"}, 10'000'000)->exit_code, 137);
  EXPECT_EQ(RunCommand({"sleep", "20"}, 200'000).status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(RunCommand({"/no/such/program"}, 1'000'000).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(RunCommand({"yes"}, 60'000'000).status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace tern
