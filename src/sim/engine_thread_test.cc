// The Engine's thread with the toy model: many clients at once, drain, stop.
#include "engine/engine_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <new>
#include <thread>

#include "base/rng.h"
#include "sim/toy_reference.h"

namespace tern {
namespace {

// A sink that any thread may wait on.
class WaitingSink final : public TokenSink {
 public:
  void OnToken(TokenEvent event) override {
    MutexLock lock(mutex_);
    tokens_.push_back(event.token);
    changed_.NotifyAll();
  }
  void OnFinish(FinishEvent event) override {
    MutexLock lock(mutex_);
    finish_ = std::move(event);
    ++finishes_;
    changed_.NotifyAll();
  }

  FinishEvent Wait() {
    MutexLock lock(mutex_);
    while (finishes_ == 0) changed_.Wait(mutex_);
    return finish_;
  }
  void WaitForTokens(size_t n) {
    MutexLock lock(mutex_);
    while (tokens_.size() < n && finishes_ == 0) changed_.Wait(mutex_);
  }
  std::vector<int32_t> tokens() {
    MutexLock lock(mutex_);
    return tokens_;
  }
  int finishes() {
    MutexLock lock(mutex_);
    return finishes_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<int32_t> tokens_ TERN_GUARDED_BY(mutex_);
  FinishEvent finish_ TERN_GUARDED_BY(mutex_);
  int finishes_ TERN_GUARDED_BY(mutex_) = 0;
};

// Holds every forward pass while closed.
class GatedModel final : public Model {
 public:
  explicit GatedModel(ToyOptions options) : toy_(options) {}
  const ModelInfo& info() const override { return toy_.info(); }
  Status Forward(const ForwardBatch& batch, float* logits) override {
    {
      MutexLock lock(mutex_);
      while (closed_) opened_.Wait(mutex_);
    }
    return toy_.Forward(batch, logits);
  }
  void Close() {
    MutexLock lock(mutex_);
    closed_ = true;
  }
  void Open() {
    MutexLock lock(mutex_);
    closed_ = false;
    opened_.NotifyAll();
  }

 private:
  ToyModel toy_;
  Mutex mutex_;
  CondVar opened_;
  bool closed_ TERN_GUARDED_BY(mutex_) = false;
};

class EngineThreadTest : public testing::Test {
 protected:
  void Start(EngineOptions options = {}, ToyOptions toy = {}) {
    toy_ = toy;
    model_ = std::make_unique<GatedModel>(toy);
    options.page_tokens = 4;
    const int64_t total = options.max_total_tokens > 0 ? options.max_total_tokens : 512;
    const auto plan =
        PlanMemory(model_->info(), {.page_tokens = 4,
                                    .max_total_tokens = total,
                                    .available_bytes = 1 << 30,
                                    .max_running_requests = options.max_running_requests})
            .value();
    auto metrics = std::make_unique<EngineMetrics>(registry_);
    metrics->SetPlan(plan, 4);
    auto core = EngineCore::Create(*model_, pool_, options, plan, 1, SystemClock(), metrics.get());
    engine_ = std::make_unique<EngineThread>(std::move(core).value(), std::move(metrics),
                                             SystemClock(), options.max_queued_requests);
  }
  static GenerateRequest Greedy(std::vector<int32_t> tokens, int64_t max_new = 8) {
    return {.tokens = std::move(tokens),
            .sampling = {.temperature = 0, .max_new_tokens = max_new, .ignore_eos = true}};
  }

  ToyOptions toy_;
  std::unique_ptr<GatedModel> model_;
  ThreadPool pool_{2};
  MetricRegistry registry_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineThreadTest, AnswersManyClientsAtOnce) {
  Start({.max_total_tokens = 256, .max_running_requests = 8, .chunked_prefill_size = 16});
  std::vector<std::thread> clients;
  std::atomic<int> wrong{0}, cancelled{0};
  for (int c = 0; c < 4; ++c) {
    clients.emplace_back([&, c] {
      Rng rng{uint64_t(c)};
      for (int i = 0; i < 40; ++i) {
        GenerateRequest request = Greedy({}, 1 + int64_t(rng.Below(12)));
        for (uint64_t n = 1 + rng.Below(12); n > 0; --n) {
          request.tokens.push_back(int32_t(rng.Below(3)));
        }
        const auto want =
            AnswerOf(toy_, request.tokens, request.sampling, toy_.context_length).tokens;
        auto sink = std::make_shared<WaitingSink>();
        const auto id = engine_->Submit(request, sink);
        if (!id.ok()) {
          ++wrong;
          continue;
        }
        if (rng.Chance(0.3)) {
          sink->WaitForTokens(rng.Below(6));
          engine_->Cancel(*id);
          ++cancelled;
        }
        const FinishEvent finish = sink->Wait();
        const std::vector<int32_t> got = sink->tokens();
        if (!std::equal(got.begin(), got.end(), want.begin())) ++wrong;
        if (finish.reason == FinishEvent::Reason::kLength && got != want) ++wrong;
        if (finish.reason == FinishEvent::Reason::kError) ++wrong;
        engine_->Stats();
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(cancelled, 10);
  engine_->Drain(10'000'000);
  const EngineStats stats = engine_->Stats();
  EXPECT_EQ(stats.finished_requests + stats.aborted_requests, 160);
  EXPECT_EQ(stats.used_tokens, 0);
  EXPECT_EQ(engine_->Submit(Greedy({1}), std::make_shared<WaitingSink>()).status().code(),
            StatusCode::kUnavailable);
}

TEST_F(EngineThreadTest, AFullQueueRefuses) {
  Start({.max_running_requests = 1, .max_queued_requests = 2});
  model_->Close();
  auto first = std::make_shared<WaitingSink>();
  ASSERT_TRUE(engine_->Submit(Greedy({1, 2}), first).ok());
  // Until the engine has taken it into a batch, the first one counts as waiting.
  std::vector<std::shared_ptr<WaitingSink>> waiting;
  Status refused;
  for (int i = 0; i < 4; ++i) {
    waiting.push_back(std::make_shared<WaitingSink>());
    refused = engine_->Submit(Greedy({1, 2}), waiting.back()).status();
    if (!refused.ok()) break;
  }
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(refused.message().find("queue is full"), std::string::npos);
  EXPECT_EQ(waiting.back()->finishes(), 0);  // refused: its sink hears nothing
  waiting.pop_back();
  model_->Open();
  first->Wait();
  for (const auto& sink : waiting) EXPECT_EQ(sink->Wait().reason, FinishEvent::Reason::kLength);
  EXPECT_TRUE(engine_->Submit(Greedy({1, 2}), std::make_shared<WaitingSink>()).ok());
}

TEST_F(EngineThreadTest, CancellationTakesEffectWithinOneStep) {
  Start({}, {.context_length = 512});
  model_->Close();
  auto sink = std::make_shared<WaitingSink>();
  const RequestId id = *engine_->Submit(Greedy({1, 2}, 500), sink);
  engine_->Cancel(id);
  model_->Open();
  EXPECT_EQ(sink->Wait().reason, FinishEvent::Reason::kAborted);
  EXPECT_LE(sink->tokens().size(), 1u);  // the step that was running
}

TEST_F(EngineThreadTest, BadRequestsAreRefusedAtOnce) {
  Start();
  EXPECT_EQ(engine_->Submit(Greedy({99}), std::make_shared<WaitingSink>()).status().code(),
            StatusCode::kInvalidArgument);
  engine_->Cancel(12345);  // unknown: ignored
  engine_->AbortRid("nobody", false);
  std::promise<bool> flushed;
  engine_->FlushCache([&](bool done) { flushed.set_value(done); });
  EXPECT_TRUE(flushed.get_future().get());
}

TEST_F(EngineThreadTest, DrainGivesUpAtItsTimeoutAndFinishesOtherwise) {
  Start();
  model_->Close();
  auto sink = std::make_shared<WaitingSink>();
  ASSERT_TRUE(engine_->Submit(Greedy({1, 2}), sink).ok());
  const int64_t start = SystemClock().NowUs();
  engine_->Drain(20'000);
  EXPECT_GE(SystemClock().NowUs() - start, 20'000);
  EXPECT_EQ(sink->finishes(), 0);
  model_->Open();
  engine_->Drain(10'000'000);
  EXPECT_EQ(sink->finishes(), 1);
}

TEST_F(EngineThreadTest, StoppingEndsRequestsInFlight) {
  Start({.max_total_tokens = 32, .max_running_requests = 2});
  model_->Close();
  std::vector<std::shared_ptr<WaitingSink>> sinks;
  for (int i = 0; i < 6; ++i) {
    sinks.push_back(std::make_shared<WaitingSink>());
    ASSERT_TRUE(engine_->Submit(Greedy({1, 2, 3}, 20), sinks.back()).ok());
  }
  std::thread opener([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    model_->Open();
  });
  engine_.reset();
  opener.join();
  for (const auto& sink : sinks) {
    ASSERT_EQ(sink->finishes(), 1);
    const FinishEvent finish = sink->Wait();
    if (finish.reason == FinishEvent::Reason::kError) {
      EXPECT_EQ(finish.status.code(), StatusCode::kUnavailable);
    }
  }
}

// std::bad_alloc where the engine runs somebody else's code: in a mask and in a sink.
struct ThrowingMask final : TokenMask {
  void Fill(std::span<uint32_t>) override { throw std::bad_alloc(); }
  void Accept(int32_t) override {}
};
class ThrowingSink final : public TokenSink {
 public:
  void OnToken(TokenEvent) override { throw std::bad_alloc(); }
  void OnFinish(FinishEvent event) override { inner.OnFinish(std::move(event)); }
  WaitingSink inner;
};

TEST_F(EngineThreadTest, NoMemoryEndsRequestsAndTheEngineLivesOn) {
  Start();
  const GenerateRequest request = Greedy({1, 2, 3, 4, 5, 6}, 20);
  const auto want = AnswerOf(toy_, request.tokens, request.sampling, toy_.context_length).tokens;
  for (int round = 0; round < 3; ++round) {
    GenerateRequest masked = request;
    masked.mask = std::make_shared<ThrowingMask>();
    auto by_mask = std::make_shared<WaitingSink>();
    ASSERT_TRUE(engine_->Submit(masked, by_mask).ok());
    EXPECT_EQ(by_mask->Wait().status.code(), StatusCode::kResourceExhausted);
    auto by_sink = std::make_shared<ThrowingSink>();
    ASSERT_TRUE(engine_->Submit(request, by_sink).ok());
    EXPECT_EQ(by_sink->inner.Wait().status.code(), StatusCode::kResourceExhausted);
    EXPECT_EQ(by_sink->inner.finishes(), 1);
    auto next = std::make_shared<WaitingSink>();
    ASSERT_TRUE(engine_->Submit(request, next).ok());
    EXPECT_EQ(next->Wait().reason, FinishEvent::Reason::kLength);
    EXPECT_EQ(next->tokens(), want);
  }
  engine_->Drain(10'000'000);
  EXPECT_EQ(engine_->Stats().used_tokens, 0);
  EXPECT_EQ(engine_->Stats().aborted_requests, 6);
}

TEST_F(EngineThreadTest, MetricsHaveSglangsNames) {
  Start();
  auto sink = std::make_shared<WaitingSink>();
  ASSERT_TRUE(engine_->Submit(Greedy({1, 2, 3, 4, 5}, 3), sink).ok());
  sink->Wait();
  engine_->Drain(10'000'000);
  const std::string text = registry_.Render();
  for (const char* line :
       {"sglang:num_running_reqs 0", "sglang:num_queue_reqs 0", "sglang:max_total_num_tokens 512",
        "sglang:page_size 4", "sglang:prompt_tokens_total 5", "sglang:generation_tokens_total 3",
        "sglang:num_requests_total 1", "sglang:num_aborted_requests_total 0",
        "sglang:time_to_first_token_seconds_count 1", "sglang:inter_token_latency_seconds_count 2",
        "sglang:e2e_request_latency_seconds_count 1", "sglang:queue_time_seconds_count 1"}) {
    EXPECT_NE(text.find(std::string("\n") + line), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace tern
