// A token allocates nothing: the steps of a full batch are run under a counting operator new.
// What may allocate: lists that double as contexts grow, and a thread's memory when it first
// samples so; a few calls for two thousand tokens. Sinks are the server's; what TokenEvent itself
// holds (logprobs) is asked for by a request.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "base/rng.h"
#include "base/test_allocation.h"
#include "engine/engine_core.h"
#include "models/registry.h"

namespace tern {
namespace {

struct CountingSink final : TokenSink {
  void OnToken(TokenEvent) override { ++tokens; }
  void OnFinish(FinishEvent) override {}
  int64_t tokens = 0;
};

TEST(Allocation, TheCounterCounts) {
  TestAllocation::counting = true;
  TestAllocation::calls = 0;
  const auto p = std::make_unique<int>(1);
  TestAllocation::counting = false;
  EXPECT_EQ(TestAllocation::calls, 1);
}

class AllocationOfModel : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, AllocationOfModel,
                         testing::Values("llama", "kimi-k2-wide-int4", "deepseek-v3-groups",
                                         "glm5-dsa", "glm4-moe"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(AllocationOfModel, NoTokenAllocates) {
  constexpr int64_t kBatch = 32, kWarmSteps = 24, kSteps = 64;
  ThreadPool pool(2);
  const auto ops = Ops::Create("", pool).value();
  ops->set_activations(Activations::kInt8);
  const auto model =
      LoadModel(TERN_SOURCE_DIR "/tests/data/golden/" + std::string(GetParam()), *ops, {}).value();
  EngineOptions options;
  options.page_tokens = 16;
  options.random_seed = 1;
  const MemoryPlan plan = PlanMemory(model->info(), {.page_tokens = 16,
                                                     .max_total_tokens = 1 << 14,
                                                     .available_bytes = uint64_t{1} << 33})
                              .value();
  MetricRegistry registry;
  EngineMetrics metrics(registry);
  const auto core =
      EngineCore::Create(*model, pool, options, plan, 1, SystemClock(), &metrics).value();
  // A page in quarantine costs no step anything.
  core->kv().QuarantinePage(PageId{static_cast<uint32_t>(plan.pages - 1)});
  Rng rng(3);
  const auto sink = std::make_shared<CountingSink>();
  for (int64_t i = 0; i < kBatch; ++i) {
    GenerateRequest request;
    for (int j = 0; j < 8; ++j) request.tokens.push_back(3 + static_cast<int32_t>(rng.Below(200)));
    request.sampling = {.temperature = i % 4 == 0 ? 0.0 : 0.8,
                        .top_p = i % 4 == 1 ? 0.9 : 1.0,
                        .max_new_tokens = kWarmSteps + kSteps + 8,
                        .ignore_eos = true};
    if (i % 8 == 2) request.sampling.top_k = 20;
    if (i % 8 == 3) request.sampling.repetition_penalty = 1.1;
    if (i % 8 == 7) {
      request.sampling.min_new_tokens = request.sampling.max_new_tokens;
      request.sampling.stop_token_ids = {5};
    }
    core->Submit(static_cast<RequestId>(i + 1), std::move(request), sink, 0);
  }
  while (sink->tokens < kBatch * kWarmSteps) ASSERT_TRUE(core->Step());

  const int64_t before = sink->tokens;
  int64_t steps_that_allocate = 0, all = 0;
  for (int64_t step = 0; step < kSteps; ++step) {
    TestAllocation::calls = 0;
    TestAllocation::counting = true;
    ASSERT_TRUE(core->Step());
    TestAllocation::counting = false;
    all += TestAllocation::calls;
    steps_that_allocate += TestAllocation::calls > 0 ? 1 : 0;
  }
  ASSERT_EQ(sink->tokens - before, kBatch * kSteps);
  std::printf("%s: %ld allocations in %ld of %ld steps of %ld tokens\n", GetParam(), long(all),
              long(steps_that_allocate), long(kSteps), long(kBatch));
  EXPECT_LE(all, 32);
}

}  // namespace
}  // namespace tern
