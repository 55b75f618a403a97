#include "engine/local_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tern {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kGib = uint64_t{1} << 30;

// 61 latent layers of 512 + 64 numbers: a token is 70,272 bytes in BF16, 61 * 584 in fp8_tiled.
ModelInfo Kimi(uint64_t weight_bytes) {
  ModelInfo info;
  info.vocab_size = 163'840;
  info.context_length = 1 << 17;
  info.kv_layers.assign(61, {.kind = KvLayerSpec::Kind::kMla, .latent = 512, .rope = 64});
  info.weight_bytes = weight_bytes;
  info.workspace_bytes_per_row = 100'000;
  return info;
}

EngineOptions Prefill() {
  EngineOptions options;
  options.kv_format = KvFormat::kBf16;
  options.max_total_tokens = 8192;
  return options;
}

EngineOptions Decode() {
  EngineOptions options;
  options.kv_format = KvFormat::kFp8Tiled;
  options.mem_fraction_static = 0.5;
  return options;
}

TEST(LocalPlan, SharedWeightsCountOnce) {
  ModelInfo prefill = Kimi(14 * kGib);
  prefill.shared_weight_bytes = 4 * kGib;
  const auto plan = PlanLocal(prefill, Prefill(), Kimi(10 * kGib), Decode(), 60 * kGib);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  // 64 requests' logits and 64 of prompts, activations of 512 rows; 8192 tokens in pages of 64.
  const uint64_t workspace = (64u + 64) * 163'840 * 4 + 512 * 100'000;
  const uint64_t prefill_kv = 128 * (64 + 64 * 70'272);
  EXPECT_EQ(plan->prefill.weight_bytes, 10 * kGib);
  EXPECT_EQ(plan->prefill.kv_bytes, prefill_kv);
  EXPECT_EQ(plan->prefill.workspace_bytes, workspace);
  // Half of what prefill leaves, less decode's weights.
  const uint64_t left = 60 * kGib - 10 * kGib - prefill_kv - workspace;
  const uint64_t page = 64 + 61 * (64 * 584);
  EXPECT_EQ(plan->decode.page_bytes, page);
  EXPECT_EQ(plan->decode.pages, static_cast<int64_t>((left / 2 - 10 * kGib) / page));
  EXPECT_EQ(plan->total_bytes(), 20 * kGib + 2 * workspace + prefill_kv + plan->decode.kv_bytes);
  EXPECT_LE(plan->total_bytes(), plan->available_bytes);
  EXPECT_THAT(plan->Summary(), HasSubstr("4.00 GiB of decode's weights are prefill's too"));
}

TEST(LocalPlan, OneWeightSet) {
  ModelInfo both = Kimi(10 * kGib);
  both.shared_weight_bytes = both.weight_bytes;
  const auto plan = PlanLocal(both, Prefill(), Kimi(10 * kGib), Decode(), 40 * kGib);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(plan->prefill.weight_bytes, 0u);
  EXPECT_EQ(plan->decode.weight_bytes, 10 * kGib);
}

TEST(LocalPlan, SaysWhichEngineDoesNotFit) {
  const auto prefill = PlanLocal(Kimi(14 * kGib), Prefill(), Kimi(10 * kGib), Decode(), 24 * kGib);
  EXPECT_THAT(prefill.status().message(), HasSubstr("prefill: not enough memory"));
  EngineOptions much = Decode();
  much.max_total_tokens = 1'000'000;
  const auto decode = PlanLocal(Kimi(14 * kGib), Prefill(), Kimi(10 * kGib), much, 40 * kGib);
  EXPECT_THAT(decode.status().message(), HasSubstr("decode: not enough memory"));
}

}  // namespace
}  // namespace tern
