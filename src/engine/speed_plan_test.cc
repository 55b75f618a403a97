// Expected values are worked out by hand in the comments, from the published shapes.
#include "engine/speed_plan.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tern {
namespace {

constexpr SpeedMachine kMachine = {.bytes_per_s = 1e9, .operations_per_s = 1e12};

TEST(SpeedPlan, ExpertsAreThoseThatSomeRowMeets) {
  EXPECT_NEAR(ExpectedExperts(384, 8, 1), 8, 1e-9);
  EXPECT_EQ(ExpectedExperts(0, 0, 5), 0);
  // Two rows meet 8 + 8 less those in common, 8 * 8 / 384 on average.
  EXPECT_NEAR(ExpectedExperts(384, 8, 2), 16 - 64.0 / 384, 1e-9);
  EXPECT_NEAR(ExpectedExperts(64, 6, 1e6), 64, 1e-9);
  EXPECT_DOUBLE_EQ(ExpectedExperts(8, 8, 1), 8);
}

TEST(SpeedPlan, DenseDecodeOfOneIsItsBytesOverTheBandwidth) {
  // 1 GB of layers and 0.5 GB of head at 1 GB/s; 100 positions of 1 MB.
  const SpeedModel model = {.weight_bytes = 1e9,
                            .weight_products = 0.5e9,
                            .head_bytes = 0.5e9,
                            .head_products = 0.25e9,
                            .decode_products = 1e3,
                            .row_bytes = 1e6};
  const StepCost one = DecodeStep(model, kMachine, 1, 100);
  EXPECT_DOUBLE_EQ(one.weight_bytes, 1.5e9);
  EXPECT_DOUBLE_EQ(one.weight_operations, 1.5e9);
  EXPECT_DOUBLE_EQ(one.attention_bytes, 1e8);
  EXPECT_DOUBLE_EQ(one.seconds, 1.6);
  EXPECT_TRUE(one.weights_bound_by_memory);
  // Weights are read once for all rows; cache rows are not shared.
  const StepCost ten = DecodeStep(model, kMachine, 10, 100);
  EXPECT_DOUBLE_EQ(ten.seconds, 1.5 + 1.0);
  // 2000 rows: 3e12 operations take 3 s, reading 1.5 s.
  const StepCost many = DecodeStep(model, kMachine, 2000, 1);
  EXPECT_FALSE(many.weights_bound_by_memory);
  EXPECT_DOUBLE_EQ(many.seconds, 3.0 + 2.0);
}

TEST(SpeedPlan, EfficienciesDivideTheLimits) {
  const SpeedModel model = {.weight_bytes = 1e9, .weight_products = 1};
  SpeedMachine machine = kMachine;
  machine.bandwidth_efficiency = 0.5;
  EXPECT_DOUBLE_EQ(DecodeStep(model, machine, 1, 1).seconds, 2.0);
}

// Kimi K2's attention: 61 layers, 64 heads, latent 512, rope 64, nope 128, value 128.
SpeedModel KimiAttention(double bytes_per_number) {
  return {.kv_up_products = 61.0 * 64 * (128 + 128) * 512,
          .kv_up_bytes = 61.0 * 64 * (128 + 128) * 512 * 2,
          .absorbed_bytes = 61.0 * 64 * (128 + 128) * 512 * 2,
          .decode_products = 61.0 * 64 * (2 * 512 + 64),
          .prefill_products = 61.0 * 64 * (128 + 64 + 128),
          .row_bytes = 61 * 576 * bytes_per_number};
}

TEST(SpeedPlan, LatentDecodeIsBoundByArithmeticWhereBytesAreFew) {
  // 64 heads share a row of 1152 bytes: 2 * 64 * 1088 / 1152 = 120.9 operations a byte.
  const StepCost cost = DecodeStep(KimiAttention(2), kMachine, 4, 1000);
  EXPECT_NEAR(cost.attention_operations / cost.attention_bytes, 2.0 * 64 * 1088 / 1152, 1e-9);
  const double balance = 2.0 * 64 * 1088 / 1152;  // of a machine that both limits fit exactly
  const SpeedMachine wide = {.bytes_per_s = 1e9, .operations_per_s = 1.01e9 * balance};
  const SpeedMachine narrow = {.bytes_per_s = 1e9, .operations_per_s = 0.99e9 * balance};
  EXPECT_TRUE(DecodeStep(KimiAttention(2), wide, 1, 1000).attention_bound_by_memory);
  EXPECT_FALSE(DecodeStep(KimiAttention(2), narrow, 1, 1000).attention_bound_by_memory);
  // There, half the bytes buy no speed.
  EXPECT_DOUBLE_EQ(DecodeStep(KimiAttention(1), narrow, 1, 1000).seconds,
                   DecodeStep(KimiAttention(2), narrow, 1, 1000).seconds);
}

TEST(SpeedPlan, PrefillExpandsEveryPositionOncePerChunk) {
  const SpeedModel model = KimiAttention(2);
  // Chunks of 4 over 10 tokens end at 4, 8 and 10: 22 positions; rows attend 1 + ... + 10 = 55.
  const StepCost cost = PrefillPrompt(model, kMachine, 10, 4);
  EXPECT_DOUBLE_EQ(cost.weight_operations, 2 * 22 * model.kv_up_products);
  EXPECT_DOUBLE_EQ(cost.attention_operations, 2 * 55 * model.prefill_products);
  EXPECT_DOUBLE_EQ(cost.attention_bytes, 22 * model.row_bytes);
  EXPECT_DOUBLE_EQ(cost.weight_bytes, 3 * model.kv_up_bytes);
  // Reading takes 1.02 s of each pass; 2 * 10 * 512 million operations take 10 ms.
  EXPECT_NEAR(cost.weight_seconds, 3 * model.kv_up_bytes / 1e9, 1e-9);
  EXPECT_GT(cost.attention_seconds, 0);
  EXPECT_NEAR(cost.weight_seconds + cost.attention_seconds, cost.seconds, 1e-9);
}

TEST(SpeedPlan, SparseAttentionStopsGrowingAtItsLimit) {
  SpeedModel model = KimiAttention(2);
  model.most_attended = 6;
  model.index_products = 10;
  model.index_bytes = 3;
  const StepCost decode = DecodeStep(model, kMachine, 2, 100);
  EXPECT_DOUBLE_EQ(decode.attention_bytes, 2 * (6 * model.row_bytes + 100 * 3));
  EXPECT_DOUBLE_EQ(decode.attention_operations, 2 * 2 * (6 * model.decode_products + 100 * 10));
  // One chunk of 10 rows: 6 dense ones attend 1 + ... + 6 = 21, 4 absorbed ones 6 each; the
  // indexer sees 55.
  const StepCost prefill = PrefillPrompt(model, kMachine, 10, 10);
  EXPECT_DOUBLE_EQ(prefill.attention_operations,
                   2 * (21 * model.prefill_products + 24 * model.decode_products + 55 * 10));
}

TEST(SpeedPlan, OnlyTheLastRowOfAPromptWantsLogits) {
  const SpeedModel model = {
      .weight_bytes = 1e6, .weight_products = 1e6, .head_bytes = 5e5, .head_products = 7e6};
  const StepCost cost = PrefillPrompt(model, kMachine, 100, 50);
  EXPECT_DOUBLE_EQ(cost.weight_operations, 2 * (100 * 1e6 + 7e6));
  EXPECT_DOUBLE_EQ(cost.weight_bytes, 2 * 1e6 + 5e5);
}

// Kernels of which each use of weights and attention have one known speed.
struct FakeKernels final : KernelSpeeds {
  double MatMul(const WeightGroup& weights, double rows) override {
    if (weights.use == WeightGroup::Use::kExpert) expert_rows = rows;
    return weights.format == "fast" ? 1e15 : 5e8;
  }
  double Attention(int64_t batch, int64_t positions) override {
    EXPECT_EQ(positions, 100);
    return batch == 1 ? 1e5 : 2e5;
  }
  double RestOfLayer(int64_t rows) override { return 0.02 * static_cast<double>(rows); }
  double RegionSeconds() override { return 0.01; }
  double expert_rows = 0;
};

TEST(SpeedPlan, EachGroupOfWeightsWaitsForMemoryOrItsKernel) {
  using Use = WeightGroup::Use;
  const SpeedModel model = {
      .weight_bytes = 1.1e9,
      .weight_products = 0.5e9,
      .head_bytes = 0.5e9,
      .head_products = 0.25e9,
      .decode_products = 1e3,
      .row_bytes = 1e6,
      .groups = {{.use = Use::kRow, .format = "slow", .bytes = 1e9, .products = 0.5e9},
                 {.use = Use::kHead, .format = "fast", .bytes = 0.5e9, .products = 0.25e9}},
      .layers = 5,
      .regions = 10};
  FakeKernels kernels;
  SpeedMachine machine = kMachine;
  machine.kernels = &kernels;
  // 1e9 operations at 5e8 a second take longer than 1 GB at 1 GB/s; the head is read in 0.5 s, what
  // belongs to no group in 0.1 s. 2 * 100 * 1e3 operations at 1e5 take 2 s, 100 MB of rows 0.1 s.
  const StepCost one = DecodeStep(model, machine, 1, 100);
  EXPECT_NEAR(one.weight_seconds, 2.0 + 0.5 + 0.1, 1e-9);
  EXPECT_NEAR(one.attention_seconds, 2.0, 1e-9);
  EXPECT_NEAR(one.other_seconds, 0.1 + 5 * 0.02, 1e-9);
  EXPECT_NEAR(one.seconds, 4.8, 1e-9);
  EXPECT_FALSE(one.attention_bound_by_memory);
  EXPECT_FALSE(one.weights_bound_by_memory);  // 2 s of 2.6
  // Two rows: twice the operations of the first group; attention's are twice as fast.
  EXPECT_NEAR(DecodeStep(model, machine, 2, 100).seconds, 4.0 + 0.5 + 0.1 + 2.0 + 0.1 + 0.2, 1e-9);
  // Half of the bandwidth: the head takes a second.
  machine.bandwidth_efficiency = 0.5;
  EXPECT_NEAR(DecodeStep(model, machine, 1, 100).weight_seconds, 2.0 + 1.0 + 0.2, 1e-9);
  // Half of the kernels' speeds.
  machine.arithmetic_efficiency = 0.5;
  EXPECT_NEAR(DecodeStep(model, machine, 1, 100).weight_seconds, 4.0 + 1.0 + 0.2, 1e-9);
  EXPECT_NEAR(DecodeStep(model, machine, 1, 100).attention_seconds, 4.0, 1e-9);
}

TEST(SpeedPlan, WeightsAreBoundByWhatMostOfTheirTimeIsSpentOn) {
  // A kernel takes 1.2 s for what is read in one; reading the rest takes 0.3 s.
  const SpeedModel model = {.weight_bytes = 1.3e9,
                            .groups = {{.format = "slow", .bytes = 1e9, .products = 0.3e9},
                                       {.format = "fast", .bytes = 0.3e9, .products = 0.25e9}}};
  FakeKernels kernels;
  SpeedMachine machine = kMachine;
  machine.kernels = &kernels;
  const StepCost cost = DecodeStep(model, machine, 1, 100);
  EXPECT_NEAR(cost.weight_seconds, 1.2 + 0.3, 1e-9);
  EXPECT_FALSE(cost.weights_bound_by_memory);
}

TEST(SpeedPlan, AnExpertMeetsTheRowsThatChoseIt) {
  SpeedModel model = {.expert_layers = 5,
                      .experts = 64,
                      .experts_per_token = 6,
                      .expert_bytes = 1e6,
                      .expert_products = 1e6};
  model.groups = {
      {.use = WeightGroup::Use::kExpert, .format = "fast", .bytes = 1e6, .products = 1e6}};
  FakeKernels kernels;
  SpeedMachine machine = kMachine;
  machine.kernels = &kernels;
  const StepCost cost = DecodeStep(model, machine, 16, 100);
  // 64 (1 - (58 / 64)^16) = 50.7521 experts are met, by 96 rows in all.
  EXPECT_NEAR(kernels.expert_rows, 96 / 50.7521, 1e-4);
  EXPECT_NEAR(cost.weight_seconds, 5 * 50.7521e6 / 1e9, 1e-6);
}

TEST(SpeedPlan, MoneyPerMillionTokens) {
  // 1,000 tokens a second are 3.6 million an hour.
  EXPECT_DOUBLE_EQ(CostPerMillionTokens(36, 1000), 10);
  EXPECT_TRUE(std::isinf(CostPerMillionTokens(1, 0)));
}

}  // namespace
}  // namespace tern
