#include "bench/kv_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace tern {
namespace {

using ::testing::HasSubstr;

class FakeModel final : public BenchModel {
 public:
  explicit FakeModel(const std::string& format) {
    facts_.kv_format = format;
    facts_.vocab_size = 10;
  }
  const BenchModelFacts& facts() const override { return facts_; }
  Status Reserve(int64_t sequences, int64_t positions) override {
    reserved_sequences = sequences;
    reserved_positions = positions;
    return OkStatus();
  }
  Status Prefill(int64_t, std::span<const int32_t> tokens) override {
    prefilled += static_cast<int64_t>(tokens.size());
    return OkStatus();
  }
  void Spread(int64_t positions) override { context = positions; }
  Status Decode(std::span<const int32_t> tokens) override {
    ++steps[static_cast<int64_t>(tokens.size())];
    if (static_cast<int64_t>(tokens.size()) > reserved_sequences ||
        ++context > reserved_positions) {
      return Internal("no room");
    }
    return OkStatus();
  }
  void Rewind(int64_t positions) override { context = positions; }
  double DecodeAttentionBytes(int64_t) const override { return 0; }
  double DecodeAttentionOps(int64_t) const override { return 0; }
  double PrefillAttentionOps(int64_t, int64_t) const override { return 0; }

  int64_t reserved_sequences = 0, reserved_positions = 0, prefilled = 0, context = 0;
  std::map<int64_t, int64_t> steps;  // by batch

 private:
  BenchModelFacts facts_;
};

TEST(KvBench, FormatsGetTheMemoryOfTheFirstOneAndBothNumbersOfRequests) {
  FakeModel wide("bf16"), narrow("fp8_e4m3");
  const KvBenchFormat formats[] = {
      {.model = &wide, .page_tokens = 64, .page_bytes = 64 + 2 * 64000},
      {.model = &narrow, .page_tokens = 64, .page_bytes = 64 + 64000, .slack = 0.001}};
  KvBenchOptions options{.contexts = {1000}, .requests = 4, .steps = 3, .turns = 6};
  const auto results = RunKvBench(
      {formats[0], formats[1]}, options,
      [](const BenchModelFacts& model, int64_t batch, int64_t) {
        // Twice as fast per sequence.
        return static_cast<double>(batch) * (model.kv_format == "bf16" ? 2.0 : 1.0);
      },
      [](int64_t done, int64_t total) { EXPECT_LT(done, total); });
  ASSERT_TRUE(results.ok()) << results.status().ToString();
  ASSERT_EQ(results->size(), 3u);
  const KvBenchResult &base = (*results)[0], &same = (*results)[1], &equal = (*results)[2];
  EXPECT_EQ(base.batch, 4);
  EXPECT_EQ(base.memory, 4 * 16 * (64 + 2 * 64000));
  EXPECT_EQ(base.ratio(), 1);
  // 1003 positions are 16 pages; headers take more than half of the BF16 ones, hence the slack.
  EXPECT_EQ(same.fits, 8);
  EXPECT_TRUE(same.same_memory());
  EXPECT_EQ(equal.batch, 4);
  EXPECT_FALSE(equal.same_memory());
  EXPECT_EQ(same.plan_ratio, 2);
  EXPECT_EQ(same.tokens_per_s.size(), 6u);
  // Seven turns of three steps each, the one that is not counted among them.
  EXPECT_EQ(wide.steps, (std::map<int64_t, int64_t>{{4, 21}}));
  EXPECT_EQ(narrow.steps, (std::map<int64_t, int64_t>{{4, 21}, {8, 21}}));
  EXPECT_EQ(narrow.reserved_sequences, 8);
  EXPECT_EQ(narrow.reserved_positions, 1003);
  EXPECT_EQ(narrow.prefilled, 8 * 64);

  const std::string table = KvBenchTable(*results);
  EXPECT_THAT(table, HasSubstr("fp8_e4m3"));
  const Json json = KvBenchJson({}, options, wide.facts(), *results);
  EXPECT_EQ(json["results"][1]["requests_that_fit"], 8);
  EXPECT_EQ(json["results"][2]["batch"], 4);
  EXPECT_THAT(KvBenchPicture({}, wide.facts(), *results).ToSvg(), HasSubstr("1000 positions"));
}

TEST(KvBench, WithoutSlackOneRequestLessFits) {
  FakeModel model("fp8_e4m3");
  const KvBenchFormat format = {.model = &model, .page_tokens = 64, .page_bytes = 64 + 64000};
  EXPECT_EQ(RequestsThatFit(format, 1024, 4 * 16 * (64 + 2 * 64000)), 7);
  EXPECT_EQ(RequestsThatFit(format, 1025, 17 * (64 + 64000)), 1);
  EXPECT_EQ(RequestsThatFit(format, 1025, 17 * (64 + 64000) - 1), 0);
}

TEST(KvBench, OneFormatIsNoComparison) {
  FakeModel model("bf16");
  EXPECT_FALSE(RunKvBench({{.model = &model, .page_tokens = 64, .page_bytes = 100}}, {}, {},
                          [](int64_t, int64_t) {})
                   .ok());
}

}  // namespace
}  // namespace tern
