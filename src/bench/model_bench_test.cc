#include "bench/model_bench.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "kernels/weight_info.h"

namespace tern {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

TEST(ModelWorkTest, ListsAreParsedAndWhatIsWrongIsQuoted) {
  const auto prefill = PrefillWorks("512,2048");
  ASSERT_TRUE(prefill.ok());
  EXPECT_EQ((*prefill)[1].Name(), "prefill 2048");
  const auto decode = DecodeWorks("1@0,32@4096", 7);
  ASSERT_TRUE(decode.ok());
  EXPECT_EQ((*decode)[1].Name(), "decode 32 at 4096");
  EXPECT_EQ((*decode)[1].tokens, 7);
  EXPECT_TRUE(PrefillWorks("")->empty());
  for (const char* wrong : {"0", "512,", "x", "-1", "5 12", "99999999999"}) {
    EXPECT_THAT(PrefillWorks(wrong).status().message(), HasSubstr(wrong)) << wrong;
  }
  for (const char* wrong : {"1", "0@5", "1@-5", "1@2@3", "@", "1@0,"}) {
    EXPECT_THAT(DecodeWorks(wrong, 1).status().message(), HasSubstr(wrong)) << wrong;
  }
}

// One BF16 matrix [16, 32] of every row; each sequence's length is checked.
class FakeModel final : public BenchModel {
 public:
  explicit FakeModel(Ops& ops) : ops_(ops) {
    facts_.vocab_size = 10;
    facts_.kv_bytes_per_token = 100;
    facts_.kv_format = "bf16";
    const std::vector<uint16_t> values(16 * 32, 0x3F80);
    weight_ = std::move(ops.Pack({DType::kBF16, Shape{16, 32}, std::as_bytes(std::span(values))},
                                 Precision::kProduction))
                  .value();
  }

  const BenchModelFacts& facts() const override { return facts_; }
  Status Reserve(int64_t sequences, int64_t positions) override {
    lengths_.assign(static_cast<size_t>(sequences), 0);
    room_ = positions;
    calls_.push_back(fmt::format("reserve {}x{}", sequences, positions));
    return OkStatus();
  }
  Status Prefill(int64_t sequence, std::span<const int32_t> tokens) override {
    lengths_[static_cast<size_t>(sequence)] += static_cast<int64_t>(tokens.size());
    calls_.push_back(fmt::format("prefill {}", tokens.size()));
    return Multiply(tokens);
  }
  void Spread(int64_t positions) override {
    if (*std::min_element(lengths_.begin(), lengths_.end()) != lengths_[0]) calls_.push_back("?");
    calls_.push_back(fmt::format("spread {} to {}", lengths_[0], positions));
    Rewind(positions);
  }
  Status Decode(std::span<const int32_t> tokens) override {
    if (tokens.size() != lengths_.size()) return Internal("not one token for each sequence");
    for (int64_t& length : lengths_) ++length;
    return Multiply(tokens);
  }
  void Rewind(int64_t positions) override {
    std::fill(lengths_.begin(), lengths_.end(), positions);
  }
  double DecodeAttentionBytes(int64_t positions) const override {
    return static_cast<double>(100 * positions);
  }
  double DecodeAttentionOps(int64_t positions) const override {
    return static_cast<double>(8 * positions);
  }
  double PrefillAttentionOps(int64_t first, int64_t rows) const override {
    return static_cast<double>(1000 * first + rows);
  }

  std::vector<std::string> calls_;

  const PackedMatrix& weight() const { return weight_; }

 private:
  Status Multiply(std::span<const int32_t> tokens) {
    if (*std::max_element(lengths_.begin(), lengths_.end()) > room_) return Internal("no room");
    for (const int32_t token : tokens) {
      if (token < 0 || token >= 10) return Internal("no such token");
    }
    const auto rows = static_cast<int64_t>(tokens.size());
    const std::vector<float> x(static_cast<size_t>(rows * 32));
    std::vector<float> out(static_cast<size_t>(rows * 16));
    const MatMulTarget targets[] = {{&weight_, out.data()}, {&weight_, out.data()}};
    ops_.MatMul(x.data(), rows, targets);
    ops_.Begin(Operation::kAttention);
    return OkStatus();
  }

  Ops& ops_;
  PackedMatrix weight_;
  BenchModelFacts facts_;
  std::vector<int64_t> lengths_;
  int64_t room_ = 0;
};

class ModelBenchTest : public testing::Test {
 protected:
  ModelBenchTest() : ops_(std::move(Ops::Create("", pool_)).value()), model_(*ops_) {}

  ModelResult Run(const ModelWork& work) {
    options_.works = {work};
    auto results =
        RunModelBench(model_, *ops_, options_, [](const std::string&, int64_t, int64_t) {});
    EXPECT_TRUE(results.ok()) << results.status().message();
    return results.ok() ? std::move((*results)[0]) : ModelResult{};
  }
  static double Ops2(const ModelResult& r) { return r.total.operations(); }

  ThreadPool pool_{1};
  std::unique_ptr<Ops> ops_;
  FakeModel model_;
  ModelBenchOptions options_{.chunk = 8, .repetitions = 2, .real_context = 6};
};

TEST_F(ModelBenchTest, PrefillCountsProductsWeightsAndRows) {
  const ModelResult r = Run({.kind = ModelWork::Kind::kPrefill, .tokens = 20});
  EXPECT_EQ(r.tokens_per_s.size(), 2u);
  EXPECT_EQ(model_.calls_.front(), "reserve 1x20");
  EXPECT_THAT(std::vector(model_.calls_.begin() + 1, model_.calls_.begin() + 4),
              ElementsAre("prefill 8", "prefill 8", "prefill 4"));
  EXPECT_EQ(model_.calls_.size(), 1u + 3 * 3);  // one that counts work, two that are timed
  // Each row meets the matrix twice; attention as the model says.
  EXPECT_DOUBLE_EQ(Ops2(r), 20 * 2 * 2.0 * 16 * 32 + (8 + (8000 + 8) + (16000 + 4)));
  // A matrix is read once in each of three passes, however often it is used; and 20 rows are
  // cached.
  EXPECT_DOUBLE_EQ(r.total.bytes,
                   3.0 * static_cast<double>(model_.weight().size_bytes()) + 20 * 100);
  EXPECT_EQ(r.weight_format, "BF16");
}

TEST_F(ModelBenchTest, DecodeHoldsItsContextAndGrowsIt) {
  const ModelResult r =
      Run({.kind = ModelWork::Kind::kDecode, .tokens = 3, .batch = 4, .context = 16});
  EXPECT_EQ(r.tokens_per_s.size(), 2u);
  EXPECT_THAT(model_.calls_, ElementsAre("reserve 4x19", "prefill 6", "prefill 6", "prefill 6",
                                         "prefill 6", "spread 6 to 16"));
  // Steps see 17, 18 and 19 positions.
  EXPECT_DOUBLE_EQ(Ops2(r), 3 * 4 * 2 * 2.0 * 16 * 32 + 4 * 8 * (17 + 18 + 19));
  EXPECT_DOUBLE_EQ(r.total.bytes, 3.0 * static_cast<double>(model_.weight().size_bytes()) +
                                      4 * 100 * (17 + 18 + 19));
}

// Two products and attention, each pass: what they are counted to be adds up to the whole.
TEST_F(ModelBenchTest, AProfileCountsTheWholeByOperation) {
  options_.profile = MachineLimits();
  options_.profile->read.best = options_.profile->f32.best = 1e9;
  const ModelResult r =
      Run({.kind = ModelWork::Kind::kDecode, .tokens = 3, .batch = 4, .context = 16});
  EXPECT_EQ(r.tokens_per_s.size(), 2u);
  std::map<std::string, OperationTime> by_name;
  Work sum;
  for (const OperationTime& o : r.operations) {
    by_name[o.name] = o;
    sum += o.work;
    EXPECT_GT(o.seconds, 0) << o.name;
  }
  ASSERT_THAT(by_name, SizeIs(3));
  const OperationTime& products = by_name["BF16 product, M 4"];
  EXPECT_EQ(products.calls, 2);
  EXPECT_DOUBLE_EQ(products.work.bytes, static_cast<double>(model_.weight().size_bytes()));
  EXPECT_DOUBLE_EQ(products.work.operations(), 2 * 4 * 2.0 * 16 * 32);
  // A mean step sees 18 positions.
  EXPECT_DOUBLE_EQ(by_name["attention"].work.bytes, 4 * 100 * 18);
  EXPECT_DOUBLE_EQ(by_name["attention"].work.operations(), 4 * 8 * 18);
  EXPECT_FALSE(by_name["embedding"].counted());
  EXPECT_DOUBLE_EQ(3 * sum.bytes, r.total.bytes);
  EXPECT_DOUBLE_EQ(3 * sum.operations(), r.total.operations());

  options_.profile.reset();
  EXPECT_THAT(Run({.kind = ModelWork::Kind::kPrefill, .tokens = 20}).operations, IsEmpty());
}

TEST_F(ModelBenchTest, TheNearerLimitCounts) {
  ModelResult r;
  r.work = {.kind = ModelWork::Kind::kPrefill, .tokens = 100};
  r.tokens_per_s = {50};  // 2 s
  r.total = {.bytes = 10e9, .bf16_ops = 60e9, .int8_ops = 80e9};
  MachineLimits limits;
  limits.read.best = 10e9;
  limits.f32.best = 50e9;
  limits.bf16.best = 100e9;
  limits.int8.best = 400e9;
  std::vector<ModelResult> results = {r};
  ApplyLimits(limits, results);
  EXPECT_DOUBLE_EQ(results[0].memory_s, 1);
  EXPECT_DOUBLE_EQ(results[0].arithmetic_s, 0.8);
  EXPECT_DOUBLE_EQ(results[0].share(), 0.5);
  EXPECT_STREQ(results[0].bound(), "memory");
  limits.bf16.best = 0;  // a level without such products does them in float32
  ApplyLimits(limits, results);
  EXPECT_DOUBLE_EQ(results[0].arithmetic_s, 1.4);
  EXPECT_STREQ(results[0].bound(), "arithmetic");
}

// A rate over no time is left out: null, an empty cell, no point.
TEST(ModelReportTest, WhatTheClockCannotTellHasNoRate) {
  const Work work = {.bytes = 4e6, .f32_ops = 2e6};
  ModelResult r;
  r.work = {.kind = ModelWork::Kind::kPrefill, .tokens = 3};
  r.tokens_per_s = {1};
  r.operations = {{"long", 2.5, 1e-3, work, 5e-4, 1e-5}, {"short", 2, 0, work, 5e-4, 1e-5}};
  MachineLimits limits;
  limits.read.best = limits.f32.best = 8e9;

  const Json json = ModelBenchJson({}, limits, {}, {r})["results"][0]["operations"];
  EXPECT_DOUBLE_EQ(json[0]["bytes_per_s"].get<double>(), 4e9);
  EXPECT_DOUBLE_EQ(json[0]["ops_per_s"].get<double>(), 2e9);
  EXPECT_DOUBLE_EQ(json[0]["limit"]["share"].get<double>(), 0.5);
  EXPECT_EQ(json[1]["bytes"], 4e6);
  for (const Json& rate :
       {json[1]["bytes_per_s"], json[1]["ops_per_s"], json[1]["limit"]["share"]}) {
    EXPECT_TRUE(rate.is_null()) << rate;
  }
  const std::string table = OperationsTable({r});
  EXPECT_THAT(table, ContainsRegex(
                         "long +2\\.5 +1\\.000 +100\\.0 % +4\\.00 +2\\.0 +4\\.0 +2 +50 % +memory"));
  EXPECT_THAT(table, ContainsRegex("short +2 +0\\.000 +0\\.0 % +4\\.00 +2\\.0 +memory"));
  const std::string svg = ModelBenchPicture({}, limits, {r}).ToSvg();
  EXPECT_THAT(svg, HasSubstr("long, 100 %"));
  EXPECT_THAT(svg, Not(HasSubstr("short, ")));
}

// Every level that the host has; figures only have to be there.
TEST(MachineLimitsTest, EveryLevelIsMeasured) {
  ThreadPool pool(2);
  const LimitOptions quick{
      .slices = 2, .slice_us = 200, .read_bytes = 8 << 20, .read_slice_bytes = 2 << 20};
  for (const std::string& isa : Ops::SupportedIsas()) {
    const auto limits = MeasureLimits(isa, pool, quick);
    ASSERT_TRUE(limits.ok()) << limits.status().message();
    EXPECT_EQ(limits->isa, isa);
    EXPECT_GT(limits->read.best, 0);
    EXPECT_EQ(limits->f32.best > 0, isa != "ref");
    EXPECT_EQ(limits->bf16.best > 0, isa == "avx512");
    EXPECT_EQ(limits->int8.best > 0, isa == "avx512" || isa == "avx2");
    EXPECT_GE(limits->f32.best, limits->f32.median);
  }
  EXPECT_FALSE(MeasureLimits("avx9000", pool, quick).ok());
}

}  // namespace
}  // namespace tern
