#include "engine/memory_plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tern {
namespace {

constexpr uint64_t kGib = uint64_t{1} << 30;

// 10 GiB of weights; 61 MLA layers of 512 + 64 numbers: 61 * 1152 = 70272 bytes a token in BF16.
ModelInfo Kimi() {
  ModelInfo info;
  info.vocab_size = 163'840;
  info.context_length = 1 << 17;
  info.kv_layers.assign(61, {.kind = KvLayerSpec::Kind::kMla, .latent = 512, .rope = 64});
  info.weight_bytes = 10 * kGib;
  info.workspace_bytes_per_row = 100'000;
  return info;
}

TEST(MemoryPlan, GivesKvTheStaticFractionLessTheWeights) {
  const auto plan = PlanMemory(Kimi(), {.mem_fraction_static = 0.5, .available_bytes = 40 * kGib});
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(plan->bytes_per_token, 70'272u);
  EXPECT_EQ(plan->page_bytes, 64u + 64 * 70'272);
  EXPECT_EQ(plan->pages, int64_t(10 * kGib / (64 + 64 * 70'272)));
  EXPECT_EQ(plan->total_tokens, plan->pages * 64);
  EXPECT_EQ(plan->kv_bytes, uint64_t(plan->pages) * plan->page_bytes);
  // 64 requests' logits in float32 and the activations of 512 rows.
  EXPECT_EQ(plan->workspace_bytes, (64u + 64) * 163'840 * 4 + 512 * 100'000);
  EXPECT_EQ(plan->full_contexts, plan->total_tokens / (1 << 17));
  EXPECT_LE(plan->total_bytes(), plan->available_bytes);
}

TEST(MemoryPlan, WorkspaceCoversTheLargestBatch) {
  const auto plan = PlanMemory(
      Kimi(),
      {.available_bytes = 40 * kGib, .max_running_requests = 64, .chunked_prefill_size = 8});
  EXPECT_EQ(plan->workspace_bytes, (64u + 64) * 163'840 * 4 + 65 * 100'000);
}

// Who is computed anew derives its tokens again: their logits take room where that can be.
TEST(MemoryPlan, WorkspaceCoversWhatIsDerivedAgain) {
  const auto plan = PlanMemory(Kimi(), {.available_bytes = 40 * kGib, .recompute = true});
  EXPECT_EQ(plan->workspace_bytes, (64u + 64 + 32) * 163'840 * 4 + 512 * 100'000);
}

TEST(MemoryPlan, WorkspaceCoversKernelsScratch) {
  ModelInfo info = Kimi();
  const auto without = PlanMemory(info, {.available_bytes = 40 * kGib});
  info.scratch_bytes = 3 * kGib;
  const auto with = PlanMemory(info, {.available_bytes = 40 * kGib});
  EXPECT_EQ(with->workspace_bytes, without->workspace_bytes + 3 * kGib);
}

TEST(MemoryPlan, TakesNoMoreThanAllRequestsCouldUse) {
  ModelInfo small = Kimi();
  small.context_length = 100;
  const auto plan = PlanMemory(small, {.available_bytes = 400 * kGib, .max_running_requests = 3});
  EXPECT_EQ(plan->pages, 3 * 2);  // 100 tokens are two pages of 64
  EXPECT_EQ(plan->full_contexts, 3);
}

TEST(MemoryPlan, MaxTotalTokensRoundsDownToPages) {
  const auto plan = PlanMemory(Kimi(), {.max_total_tokens = 1000, .available_bytes = 40 * kGib});
  EXPECT_EQ(plan->total_tokens, 960);
}

TEST(MemoryPlan, SaysWhyItDoesNotFit) {
  const auto fails = [](MemoryPlanInput input) {
    const Status status = PlanMemory(Kimi(), input).status();
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_NE(status.message().find("weights 10.00 GiB"), std::string::npos) << status.message();
    return status.message();
  };
  EXPECT_NE(fails({.available_bytes = 9 * kGib}).find("one page"), std::string::npos);
  EXPECT_NE(
      fails({.mem_fraction_static = 0.2, .available_bytes = 40 * kGib}).find("mem_fraction_static"),
      std::string::npos);
  for (const int64_t tokens : {int64_t{1} << 20, std::numeric_limits<int64_t>::max()}) {
    const std::string message = fails({.max_total_tokens = tokens, .available_bytes = 40 * kGib});
    EXPECT_NE(message.find("max_total_tokens"), std::string::npos) << message;
  }
  fails({.available_bytes = 40 * kGib, .max_running_requests = int64_t{1} << 60});
}

TEST(MemoryPlan, BadOptionsAreNamed) {
  const auto expect = [](MemoryPlanInput input, const char* field) {
    input.available_bytes = 40 * kGib;
    const Status status = PlanMemory(Kimi(), input).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << field;
    EXPECT_NE(status.message().find(field), std::string::npos) << status.message();
  };
  expect({.mem_fraction_static = 0}, "mem_fraction_static");
  expect({.mem_fraction_static = 1.01}, "mem_fraction_static");
  expect({.mem_fraction_static = std::nan("")}, "mem_fraction_static");
  expect({.max_total_tokens = -1}, "max_total_tokens");
  expect({.max_total_tokens = 63}, "max_total_tokens");
  expect({.max_running_requests = 0}, "max_running_requests");
  expect({.chunked_prefill_size = 0}, "chunked_prefill_size");
  expect({.context_length = (1 << 17) + 1}, "context_length");
  expect({.page_tokens = 48}, "page size");
}

}  // namespace
}  // namespace tern
