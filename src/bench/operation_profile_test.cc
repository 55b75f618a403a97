#include "bench/operation_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>

#include "base/clock.h"
#include "bench/work_counter.h"

namespace tern {
namespace {

using ::testing::ElementsAre;

class OperationProfileTest : public testing::Test {
 protected:
  OperationProfileTest() : ops_(std::move(Ops::Create("ref", pool_)).value()) {
    limits_.read.best = 1e6;  // one byte a microsecond: float32 weights of small products
    limits_.f32.best = 1e12;
  }

  PackedMatrix Weight(int64_t rows, int64_t columns) {
    const std::vector<float> values(static_cast<size_t>(rows * columns), 1.0f);
    return std::move(
               ops_->Pack({DType::kF32, Shape{rows, columns}, std::as_bytes(std::span(values))},
                          Precision::kReference))
        .value();
  }
  static std::vector<std::string> Names(const std::vector<OperationTime>& operations) {
    std::vector<std::string> names;
    for (const OperationTime& o : operations) names.push_back(o.name);
    return names;
  }

  ThreadPool pool_{1};
  std::unique_ptr<Ops> ops_;
  MachineLimits limits_;
  ManualClock clock_;
  const OperationProfile::NowNs now_ns_ = [this] { return clock_.NowUs() * 1000; };
};

TEST_F(OperationProfileTest, AnOperationLastsUntilTheNextBegins) {
  OperationProfile profile(*ops_, limits_, false, now_ns_);
  for (int pass = 0; pass < 2; ++pass) {
    clock_.AdvanceUs(1000);  // between passes
    profile.BeginPass();
    clock_.AdvanceUs(1);
    ops_->Begin(Operation::kNorm);
    clock_.AdvanceUs(20);
    ops_->Begin(Operation::kIndexer);
    clock_.AdvanceUs(30);
    ops_->Begin(Operation::kAttention);
    clock_.AdvanceUs(pass == 0 ? 400 : 500);
    ops_->Begin(Operation::kNorm);
    clock_.AdvanceUs(4);
    profile.EndPass();
  }
  const auto operations = profile.Operations();
  ASSERT_THAT(Names(operations), ElementsAre("attention", "norm", "embedding"));
  EXPECT_DOUBLE_EQ(operations[0].seconds, 480e-6);  // 30 and 450
  EXPECT_DOUBLE_EQ(operations[0].calls, 2);
  EXPECT_DOUBLE_EQ(operations[1].seconds, 24e-6);
  EXPECT_DOUBLE_EQ(operations[1].calls, 2);
  EXPECT_DOUBLE_EQ(PassSeconds(operations), 505e-6);
}

TEST_F(OperationProfileTest, ProductsAreToldApartByFormatAndRows) {
  const PackedMatrix small = Weight(16, 32), large = Weight(48, 32);
  const std::vector<float> x(8 * 32);
  OperationProfile profile(*ops_, limits_, false, now_ns_);
  profile.BeginPass();
  // In one region: three quarters of its time are the larger one's.
  profile.OnInput(small, x.data(), 32, 1);
  profile.OnInput(large, x.data(), 32, 5);
  clock_.AdvanceUs(100);
  ops_->Begin(Operation::kAdd);
  clock_.AdvanceUs(7);
  profile.OnInput(large, x.data(), 32, 8);  // its bytes have been read
  clock_.AdvanceUs(60);
  profile.EndPass();
  auto operations = profile.Operations();
  ASSERT_THAT(Names(operations),
              ElementsAre("FP32 product, M 5-8", "FP32 product, M 1", "residual", "embedding"));
  const auto small_bytes = static_cast<double>(small.size_bytes());
  const auto large_bytes = static_cast<double>(large.size_bytes());
  EXPECT_DOUBLE_EQ(large_bytes, 3 * small_bytes);
  EXPECT_NEAR(operations[0].seconds, 75e-6 + 60e-6, 1e-12);
  EXPECT_NEAR(operations[1].seconds, 25e-6, 1e-12);
  EXPECT_DOUBLE_EQ(operations[0].work.bytes, large_bytes);
  EXPECT_DOUBLE_EQ(operations[0].work.f32_ops, 2.0 * (5 + 8) * 48 * 32);
  EXPECT_DOUBLE_EQ(operations[1].work.bytes, small_bytes);
  EXPECT_DOUBLE_EQ(operations[1].work.f32_ops, 2.0 * 16 * 32);
  EXPECT_FALSE(operations[2].counted());

  ApplyLimits(limits_, operations);
  EXPECT_STREQ(operations[1].bound(), "memory");
  EXPECT_DOUBLE_EQ(operations[1].share(), small_bytes / 25);
}

// The weight that expands latent rows is multiplied inside attention, in the prefill form alone.
TEST_F(OperationProfileTest, ExpandingWeightsAreAttentions) {
  const PackedMatrix kv_b = Weight(16, 32);
  const std::vector<float> x(4 * 32);
  for (const bool expands : {false, true}) {
    const double operations = expands ? 2.0 * 4 * 16 * 32 : 0;
    const double bytes = expands ? static_cast<double>(kv_b.size_bytes()) : 0;
    {
      OperationProfile profile(*ops_, limits_, expands, now_ns_);
      profile.BeginPass();
      ops_->ShowAttentionInput(kv_b, x.data(), 4);
      ops_->Begin(Operation::kAttention);
      clock_.AdvanceUs(9);
      profile.EndPass();
      ASSERT_THAT(Names(profile.Operations()), ElementsAre("attention", "embedding"));
      EXPECT_DOUBLE_EQ(profile.Operations()[0].work.f32_ops, operations);
      EXPECT_DOUBLE_EQ(profile.Operations()[0].work.bytes, bytes);
    }
    WorkCounter counter(*ops_, expands);
    ops_->ShowAttentionInput(kv_b, x.data(), 4);
    counter.EndPass();
    EXPECT_DOUBLE_EQ(counter.Mean().work.f32_ops, operations);
    EXPECT_DOUBLE_EQ(counter.Mean().work.bytes, bytes);
  }
}

// Every operation of a layer is heard of.
TEST_F(OperationProfileTest, OpsTellWhatBegins) {
  const PackedMatrix weight = Weight(32, 32);
  std::vector<float> x(32), y(32, 1.0f), angles(32, 0.5f);
  OperationProfile profile(*ops_, limits_, false, now_ns_);
  profile.BeginPass();
  ops_->RmsNorm(x.data(), 1, 32, y.data(), 1e-5f, x.data());
  ops_->LayerNorm(x.data(), 1, 32, y.data(), y.data(), 1e-5f, x.data());
  ops_->Rope(x.data(), 1, 1, 32, 32, RopeStyle::kHalfSplit, angles.data(), angles.data());
  ops_->SiluMul(x.data(), y.data(), 32, x.data());
  ops_->Add(x.data(), y.data(), 32);
  ops_->Hadamard(x.data(), 1, 32);
  const MatMulTarget target{&weight, y.data()};
  ops_->MatMul(x.data(), 1, {&target, 1});
  profile.EndPass();
  std::map<std::string, double> calls;
  for (const OperationTime& o : profile.Operations()) calls[o.name] = o.calls;
  EXPECT_EQ(calls, (std::map<std::string, double>{{"embedding", 1},
                                                  {"norm", 2},
                                                  {"rope", 1},
                                                  {"activation", 1},
                                                  {"residual", 1},
                                                  {"attention", 1},
                                                  {"FP32 product, M 1", 1}}));
}

}  // namespace
}  // namespace tern
