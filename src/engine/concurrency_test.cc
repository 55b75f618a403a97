// How many requests run at once in a number of bytes, by the cache's format: the bytes of eight
// BF16 requests, and a tenth of a percent for page headers, hold sixteen in fp8_e4m3; fp8_tiled has
// scales besides, which take two and a half percent at most where rows are wide.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "engine/engine_core.h"
#include "models/registry.h"

namespace tern {
namespace {

// A prompt takes three pages and its answer grows into a fourth. Admission keeps a page for each
// running sequence to grow by (docs/decisions/004-admission-and-prefix.md): here, the one it needs.
constexpr int64_t kPromptTokens = 150, kNewTokens = 100, kPagesEach = 4, kPageTokens = 64;

struct CountingSink final : TokenSink {
  void OnToken(TokenEvent) override { ++tokens; }
  void OnFinish(FinishEvent event) override { finishes.push_back(std::move(event)); }
  int64_t tokens = 0;
  std::vector<FinishEvent> finishes;
};

struct Crowd {
  int64_t most_running = 0, retractions = 0, finished = 0;
};

class Concurrency : public testing::Test {
 protected:
  void SetUp() override {
    ops_ = Ops::Create("", pool_).value();
    // Rows of 576 numbers, as Kimi K2 has them.
    model_ = LoadModel(TERN_SOURCE_DIR "/tests/data/golden/kimi-k2-wide", *ops_, {}).value();
  }

  int64_t PageBytes(KvFormat format) {
    return PageFormat::Make(model_->info().kv_layers, format, kPageTokens)->page_bytes();
  }

  // `requests` with nothing in common, all at once, in a pool of at most `bytes`.
  Crowd Run(KvFormat format, double bytes, int requests) {
    const auto pages = static_cast<int64_t>(bytes / static_cast<double>(PageBytes(format)));
    EngineOptions options;
    options.kv_format = format;
    options.page_tokens = kPageTokens;
    options.max_total_tokens = pages * kPageTokens;
    options.random_seed = 1;
    const MemoryPlan plan =
        PlanMemory(model_->info(), MemoryPlanInputOf(options, uint64_t{1} << 33)).value();
    EXPECT_LE(static_cast<double>(plan.kv_bytes), bytes);
    ManualClock clock;
    const auto core = EngineCore::Create(*model_, pool_, options, plan, 1, clock, nullptr).value();
    std::vector<std::shared_ptr<CountingSink>> sinks;
    for (int i = 0; i < requests; ++i) {
      GenerateRequest request;
      for (int64_t t = 0; t < kPromptTokens; ++t) {
        request.tokens.push_back(static_cast<int32_t>(3 + (i * 31 + t * 7 + t * t * i) % 97));
      }
      request.tokens[0] = 3 + i;
      request.sampling.temperature = 0;
      request.sampling.max_new_tokens = kNewTokens;
      request.sampling.ignore_eos = true;
      EXPECT_TRUE(core->Validate(request).ok()) << core->Validate(request).ToString();
      sinks.push_back(std::make_shared<CountingSink>());
      core->Submit(static_cast<RequestId>(i + 1), std::move(request), sinks.back(), 0);
    }
    Crowd crowd;
    while (core->Step()) {
      crowd.most_running = std::max(crowd.most_running, core->Stats().running_requests);
    }
    EXPECT_TRUE(core->CheckInvariants().ok());
    crowd.retractions = core->Stats().retractions;
    for (const auto& sink : sinks) {
      EXPECT_EQ(sink->tokens, kNewTokens);
      for (const FinishEvent& finish : sink->finishes) {
        crowd.finished += finish.reason == FinishEvent::Reason::kLength;
      }
    }
    return crowd;
  }

  double EightBf16() { return 8.0 * kPagesEach * static_cast<double>(PageBytes(KvFormat::kBf16)); }

  ThreadPool pool_{1};
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Model> model_;
};

TEST_F(Concurrency, EightInBf16) {
  const Crowd crowd = Run(KvFormat::kBf16, EightBf16() * 1.001, 16);
  EXPECT_EQ(crowd.most_running, 8);
  EXPECT_EQ(crowd.finished, 16);
}

TEST_F(Concurrency, SixteenInFp8InTheSameBytes) {
  const Crowd crowd = Run(KvFormat::kFp8E4m3, EightBf16() * 1.001, 16);
  EXPECT_EQ(crowd.most_running, 16);
  EXPECT_EQ(crowd.retractions, 0);
  EXPECT_EQ(crowd.finished, 16);
}

TEST_F(Concurrency, SixteenInTiledFp8InTwoAndAHalfPercentMore) {
  const Crowd crowd = Run(KvFormat::kFp8Tiled, EightBf16() * 1.025, 16);
  EXPECT_EQ(crowd.most_running, 16);
  EXPECT_EQ(crowd.retractions, 0);
  EXPECT_EQ(crowd.finished, 16);
  // The scales are not free: without the two and a half percent, the sixteenth gives way.
  const Crowd tight = Run(KvFormat::kFp8Tiled, EightBf16() * 1.001, 16);
  EXPECT_GT(tight.retractions, 0);
}

}  // namespace
}  // namespace tern
