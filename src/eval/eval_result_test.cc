// Results, their JSON, comparisons and what is shown of them.
#include "eval/eval_result.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "eval/comparison.h"
#include "eval/eval_report.h"

namespace tern {
namespace {

using ::testing::HasSubstr;

// 1000 items of kind "add", the first `correct` right, and 40 blocks of 500 tokens of this loss.
EvalResult MakeRun(int correct, double loss) {
  EvalResult result;
  result.model = "tiny";
  TextResult text;
  text.file = "text.txt";
  text.text_hash = 5;
  text.tokens_hash = 0xffffffffffffffffu;
  text.window = 512;
  for (int i = 0; i < 40; ++i) text.losses.push_back({500 * (loss + 0.01 * (i % 5)), 500});
  result.text = std::move(text);
  TaskResult tasks;
  tasks.max_new_tokens = 64;
  for (int i = 0; i < 1000; ++i) {
    tasks.items.push_back({.id = std::to_string(i),
                           .kind = "add",
                           .hash = static_cast<uint64_t>(i) << 40,
                           .correct = i < correct,
                           .answer = {.text = i < correct ? "right" : "wrong"}});
  }
  result.tasks = std::move(tasks);
  return result;
}

TEST(EvalResult, AccuracyByKind) {
  EvalResult run = MakeRun(900, 3);
  run.tasks->items[0].kind = "other";
  const auto kinds = AccuracyByKind(*run.tasks);
  ASSERT_EQ(kinds.size(), 2u);
  EXPECT_EQ(kinds[1].items, 999);
  EXPECT_EQ(kinds[1].correct, 899);
  EXPECT_EQ(kinds[1].interval, WilsonInterval(899, 999));
  EXPECT_EQ(AccuracyOfAll(*run.tasks).correct, 900);
}

TEST(EvalResult, JsonHoldsWhatComparingNeeds) {
  const EvalResult run = MakeRun(900, 3);
  const Json json = *ParseJson(DumpJson(EvalResultToJson(run)));
  EXPECT_NEAR(json["perplexity"]["value"].get<double>(), std::exp(3.02), 1e-9);
  EXPECT_EQ(json["tasks"]["kinds"]["add"]["accuracy"].get<double>(), 0.9);
  const auto read = EvalResultFromJson(json);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->text->tokens_hash, 0xffffffffffffffffu);
  EXPECT_EQ(read->text->tokens(), 20'000);
  EXPECT_EQ(read->tasks->items.size(), 1000u);
  EXPECT_EQ(read->tasks->items[999].hash, uint64_t{999} << 40);
  const auto same = Compare(*read, run);
  ASSERT_TRUE(same.ok()) << same.status().message();
  EXPECT_EQ(same->verdict.equivalence, Equivalence::kEquivalent) << same->verdict.why;
  EXPECT_EQ(same->same_answers, 1000);
  EXPECT_EQ(same->verdict.perplexity->ratio, 1);
}

TEST(EvalResult, BadJsonIsNamed) {
  const auto error = [](const char* text) {
    return EvalResultFromJson(*ParseJson(text)).status().message();
  };
  EXPECT_THAT(error("[]"), HasSubstr("no result of tern eval"));
  EXPECT_THAT(error(R"({"tern_eval":2})"), HasSubstr("format 2"));
  EXPECT_THAT(error(R"({"tern_eval":1,"tasks":{"items":[{"hash":"zz"}]}})"),
              HasSubstr("tasks.items[0].hash"));
  EXPECT_THAT(error(R"({"tern_eval":1,"tasks":{}})"), HasSubstr("tasks.items"));
  EXPECT_THAT(error(R"({"tern_eval":1,"perplexity":{"text_hash":"0000000000000000",)"
                    R"("tokens_hash":"0000000000000000","blocks":[[1,0]]}})"),
              HasSubstr("perplexity.blocks"));
}

TEST(Compare, RefusesABaselineOfSomethingElse) {
  const EvalResult run = MakeRun(900, 3);
  const auto error = [&](auto change) {
    EvalResult baseline = MakeRun(900, 3);
    change(baseline);
    const auto compared = Compare(baseline, run);
    return compared.ok() ? "" : compared.status().message();
  };
  EXPECT_THAT(error([](EvalResult& b) { b.tasks->items[7].hash ^= 1; }),
              HasSubstr("number 8 there is id 7"));
  EXPECT_THAT(error([](EvalResult& b) { b.tasks->items.pop_back(); }), HasSubstr("it has 999"));
  EXPECT_THAT(error([](EvalResult& b) { b.tasks->max_new_tokens = 8; }), HasSubstr("8 new tokens"));
  EXPECT_THAT(error([](EvalResult& b) { b.text->text_hash ^= 1; }), HasSubstr("another text"));
  EXPECT_THAT(error([](EvalResult& b) { b.text->tokens_hash ^= 1; }), HasSubstr("--window"));
  EXPECT_THAT(error([](EvalResult& b) { b.complete = false; }), HasSubstr("not complete"));
  EXPECT_THAT(error([](EvalResult& b) {
                b.text.reset();
                b.tasks.reset();
              }),
              HasSubstr("nothing in common"));
}

TEST(EvalReport, ShowsFiguresAndVerdict) {
  EvalResult baseline = MakeRun(900, 3), run = MakeRun(850, 3.05);
  DivergenceFigures d;
  d.mean = {0.05, Interval{0.04, 0.06}};
  d.max = 2;
  run.text->reference = ReferenceResult{"base <model>", baseline.text->losses, d, 1};
  const auto comparison = Compare(baseline, run);
  ASSERT_TRUE(comparison.ok());
  const std::string table = EvalTable(run, *comparison);
  EXPECT_THAT(table, HasSubstr("accuracy add, %"));
  EXPECT_THAT(table, HasSubstr("KL mean, nats"));
  EXPECT_THAT(table, HasSubstr("perplexity ratio 1.05127"));  // exp(0.05)
  EXPECT_THAT(table, HasSubstr("verdict: not equivalent: accuracy is lower"));
  EXPECT_THAT(table, HasSubstr("smallest difference that this could have seen"));
  const Json json = ComparisonToJson(*comparison);
  EXPECT_EQ(json["verdict"], "not equivalent");
  EXPECT_EQ(json["counted"]["lost"], 50);
  const std::string svg = EvalPicture(run, *comparison).ToSvg();
  EXPECT_THAT(svg, HasSubstr("Task accuracy"));
  EXPECT_THAT(svg, HasSubstr("KL divergence from base &lt;model&gt;"));
  EXPECT_FALSE(EvalPicture(MakeRun(1, 3), std::nullopt).empty());
}

}  // namespace
}  // namespace tern
