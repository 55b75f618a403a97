// EngineCore with the toy model: what a client sees, case by case. Random schedules are in
// simulator_test.cc.
#include "engine/engine_core.h"

#include <gtest/gtest.h>

#include <new>

#include "base/log.h"
#include "engine/engine_metrics.h"
#include "sim/recording_sink.h"
#include "sim/toy_reference.h"

namespace tern {
namespace {

using Recorder = RecordingSink;

// Passes calls on, or throws as a container in a model does when memory runs out.
struct NoMemoryModel final : Model {
  explicit NoMemoryModel(Model& model) : inner(model) {}
  const ModelInfo& info() const override { return inner.info(); }
  Status Forward(const ForwardBatch& batch, float* logits) override {
    if (throws) throw std::bad_alloc();
    return inner.Forward(batch, logits);
  }
  Model& inner;
  bool throws = false;
};

class EngineCoreTest : public testing::Test {
 protected:
  void Make(int64_t total_tokens = 256, EngineOptions options = {}, ToyOptions toy = {}) {
    toy_ = toy;
    model_ = std::make_unique<ToyModel>(toy);
    front_ = std::make_unique<NoMemoryModel>(*model_);
    options.page_tokens = 4;
    options.random_seed = 1;
    const auto plan =
        PlanMemory(model_->info(), {.page_tokens = 4,
                                    .max_total_tokens = total_tokens,
                                    .available_bytes = 1 << 30,
                                    .max_running_requests = options.max_running_requests,
                                    .chunked_prefill_size = options.chunked_prefill_size});
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    core_ = EngineCore::Create(*front_, pool_, options, *plan, 1, clock_, nullptr).value();
  }
  void TearDown() override {
    if (core_ != nullptr) {
      EXPECT_TRUE(core_->CheckInvariants().ok()) << core_->CheckInvariants().ToString();
    }
  }

  RequestId Submit(GenerateRequest request, std::shared_ptr<Recorder> sink) {
    EXPECT_TRUE(core_->Validate(request).ok()) << core_->Validate(request).ToString();
    core_->Submit(next_id_, std::move(request), std::move(sink), clock_.NowUs());
    return next_id_++;
  }
  std::shared_ptr<Recorder> Generate(GenerateRequest request) {
    auto sink = std::make_shared<Recorder>();
    Submit(std::move(request), sink);
    RunAll();
    return sink;
  }
  void RunAll() {
    for (int i = 0; i < 10'000 && core_->Step(); ++i) {
    }
    EXPECT_TRUE(core_->idle());
  }
  GenerateRequest Greedy(std::vector<int32_t> tokens, int64_t max_new = 8) const {
    return {.tokens = std::move(tokens),
            .sampling = {.temperature = 0, .max_new_tokens = max_new, .ignore_eos = true}};
  }
  std::vector<int32_t> Want(const GenerateRequest& request) const {
    return AnswerOf(toy_, request.tokens, request.sampling, toy_.context_length).tokens;
  }

  ToyOptions toy_;
  std::unique_ptr<ToyModel> model_;
  std::unique_ptr<NoMemoryModel> front_;
  ThreadPool pool_{1};
  ManualClock clock_;
  std::unique_ptr<EngineCore> core_;
  RequestId next_id_ = 1;
};

TEST_F(EngineCoreTest, AnswersAndCounts) {
  Make();
  const GenerateRequest request = Greedy({1, 2, 3, 4, 5});
  const auto first = Generate(request);
  EXPECT_EQ(first->tokens(), Want(request));
  EXPECT_EQ(first->finish().reason, FinishEvent::Reason::kLength);
  EXPECT_EQ(first->finish().prompt_tokens, 5);
  EXPECT_EQ(first->finish().completion_tokens, 8);
  EXPECT_EQ(first->finish().cached_tokens, 0);
  const auto second = Generate(request);
  EXPECT_EQ(second->tokens(), first->tokens());
  EXPECT_EQ(second->finish().cached_tokens, 4);
  const EngineStats stats = core_->Stats();
  EXPECT_EQ(stats.finished_requests, 2);
  EXPECT_EQ(stats.prompt_tokens, 10);
  EXPECT_EQ(stats.cached_prompt_tokens, 4);
  EXPECT_EQ(stats.generated_tokens, 16);
  EXPECT_EQ(stats.used_tokens, 0);
  EXPECT_EQ(stats.total_tokens, 256);
  EXPECT_EQ(stats.cached_tokens + stats.free_tokens, 256);
}

// A conversation's next turn finds the prompt and the answer of the last one.
TEST_F(EngineCoreTest, TheNextTurnFindsTheLastAnswer) {
  Make();
  GenerateRequest request = Greedy({1, 2, 3, 4, 5, 6}, 7);
  const auto first = Generate(request);
  for (const int32_t token : first->tokens()) request.tokens.push_back(token);
  request.tokens.push_back(9);
  const auto second = Generate(request);
  EXPECT_EQ(second->finish().cached_tokens, 12);  // 6 + 7 tokens, the last row was never needed
  EXPECT_EQ(second->tokens(), Want(request));
}

// Only the last token of a prompt that comes again is computed; of one that parts from it within a
// page, the rows from there on.
TEST_F(EngineCoreTest, OnlyWhatDiffersIsComputed) {
  Make();
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 15; ++i) prompt.push_back(1 + i % 7);
  Generate(Greedy(prompt, 1));
  const int64_t before = core_->Stats().prefill_tokens;
  EXPECT_EQ(before, 15);
  EXPECT_EQ(Generate(Greedy(prompt, 1))->finish().cached_tokens, 14);
  EXPECT_EQ(core_->Stats().prefill_tokens - before, 1);
  for (const size_t at : {13, 9, 6, 1}) {
    GenerateRequest other = Greedy(prompt, 4);
    other.tokens[at] = 20;
    const auto sink = Generate(other);
    EXPECT_EQ(sink->finish().cached_tokens, static_cast<int64_t>(at));
    EXPECT_EQ(sink->tokens(), Want(other));
  }
  EXPECT_EQ(core_->Stats().cached_prompt_tokens, 14 + 13 + 9 + 6 + 1);
}

// A conversation's pages outlast others' in a cache that is too small for all, and never keep
// anybody out.
TEST_F(EngineCoreTest, ASessionKeepsItsPagesLonger) {
  for (const double fraction : {0.0, 0.5}) {
    Make(48, {.kv_session_fraction = fraction});
    GenerateRequest named = Greedy({1, 2, 3, 4, 5, 6, 7, 8, 9}, 2);
    named.session = "talk";
    Generate(named);
    EXPECT_EQ(core_->Stats().protected_tokens, fraction > 0 ? 12 : 0);
    for (int32_t i = 10; i < 20; ++i) Generate(Greedy({i, 2, 3, 4, 5, 6, 7, 8, 9}, 2));
    EXPECT_EQ(Generate(named)->finish().cached_tokens, fraction > 0 ? 8 : 0);
    // The same name with another salt is another conversation.
    named.cache_salt = "other";
    named.tokens.resize(5);
    Generate(named);
    EXPECT_EQ(core_->Stats().protected_tokens, fraction > 0 ? 12 + 8 : 0);
    const std::vector<int32_t> all(47, 3);
    EXPECT_EQ(Generate(Greedy(all, 1))->finish().reason, FinishEvent::Reason::kLength);
  }
}

TEST_F(EngineCoreTest, SaltsSeparateTenants) {
  Make();
  GenerateRequest request = Greedy({1, 2, 3, 4, 5});
  Generate(request);
  request.cache_salt = "other";
  EXPECT_EQ(Generate(request)->finish().cached_tokens, 0);
  request.extra_key = "adapter";
  EXPECT_EQ(Generate(request)->finish().cached_tokens, 0);
  EXPECT_EQ(Generate(request)->finish().cached_tokens, 4);
}

// Alone, or in a crowd of 32 that joins and leaves, with any chunk: the same tokens and the same
// bits of the log-probabilities.
TEST_F(EngineCoreTest, BatchMatesAndChunksChangeNothing) {
  std::vector<std::vector<TokenEvent>> alone;
  for (const int64_t chunk : {512, 7, 1}) {
    for (const int64_t crowd : {0, 31}) {
      Make(1024, {.max_running_requests = 32, .chunked_prefill_size = chunk});
      GenerateRequest request = Greedy({5, 6, 7, 8, 9, 10, 11}, 12);
      request.sampling.temperature = 0.9;
      request.sampling.seed = 42;
      request.return_logprobs = true;
      request.top_logprobs = 3;
      auto sink = std::make_shared<Recorder>();
      for (int64_t i = 0; i < crowd; ++i) {
        if (i == crowd / 2) Submit(request, sink);
        Submit(Greedy({static_cast<int32_t>(i % 24), 6, 7}, 1 + i % 9),
               std::make_shared<Recorder>());
        if (i % 4 == 0) core_->Step();
      }
      if (crowd == 0) Submit(request, sink);
      RunAll();
      if (alone.empty()) alone.push_back(sink->events);
      ASSERT_EQ(sink->events.size(), alone[0].size());
      for (size_t i = 0; i < alone[0].size(); ++i) {
        EXPECT_EQ(sink->events[i].token, alone[0][i].token);
        EXPECT_EQ(sink->events[i].logprob->logprob, alone[0][i].logprob->logprob);
        ASSERT_EQ(sink->events[i].top_logprobs.size(), 3u);
        EXPECT_EQ(sink->events[i].top_logprobs[2].logprob, alone[0][i].top_logprobs[2].logprob);
      }
    }
  }
}

TEST_F(EngineCoreTest, RetractionChangesNothing) {
  for (const bool two_forms : {false, true}) {
    Make(48, {.max_running_requests = 4}, {.two_forms = two_forms});
    std::vector<std::shared_ptr<Recorder>> sinks;
    std::vector<GenerateRequest> requests;
    for (int32_t i = 0; i < 4; ++i) {
      requests.push_back(Greedy({i, 1, 2, 3, 4}, 20));
      requests.back().sampling.temperature = 0.7;
      requests.back().sampling.seed = uint64_t(i);
      sinks.push_back(std::make_shared<Recorder>());
      Submit(requests.back(), sinks.back());
    }
    RunAll();
    int64_t retractions = 0;
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(sinks[i]->tokens(), Want(requests[i])) << i;
      retractions += sinks[i]->finish().retractions;
    }
    EXPECT_GT(retractions, 0);
    EXPECT_EQ(core_->Stats().retractions, retractions);
    EXPECT_EQ(core_->Stats().prompt_tokens, 20);  // counted once
  }
}

TEST_F(EngineCoreTest, StopsAtStopTokensAndEos) {
  Make();
  GenerateRequest request = Greedy({1, 2, 3}, 16);
  const std::vector<int32_t> free_run = Want(request);
  request.sampling.stop_token_ids = {free_run[4]};
  const auto stopped = Generate(request);
  const size_t first =
      size_t(std::find(free_run.begin(), free_run.end(), free_run[4]) - free_run.begin());
  EXPECT_EQ(stopped->tokens(),
            std::vector<int32_t>(free_run.begin(), free_run.begin() + long(first)));
  EXPECT_EQ(stopped->finish().reason, FinishEvent::Reason::kStop);
  EXPECT_EQ(stopped->finish().matched_token, free_run[4]);
  EXPECT_EQ(stopped->finish().completion_tokens, int64_t(first) + 1);

  // The same token as the model's EOS; ignore_eos lets it pass, an explicit stop id does not.
  Make(256, {}, {.eos_token = free_run[4]});
  request.sampling.stop_token_ids.clear();
  EXPECT_EQ(Generate(request)->tokens(), free_run);
  request.sampling.ignore_eos = false;
  EXPECT_EQ(Generate(request)->finish().matched_token, free_run[4]);
  request.sampling.ignore_eos = true;
  request.sampling.stop_token_ids = {free_run[4]};
  EXPECT_EQ(Generate(request)->finish().matched_token, free_run[4]);
}

TEST_F(EngineCoreTest, LengthIsCappedByContextAndCache) {
  Make(256, {}, {.context_length = 10});
  const auto by_context = Generate(Greedy({1, 2, 3, 4}, 1'000'000'000'000));
  EXPECT_EQ(by_context->tokens().size(), 6u);
  EXPECT_EQ(by_context->finish().reason, FinishEvent::Reason::kLength);
  EXPECT_EQ(core_->Validate(Greedy({1, 2, 3, 4, 5, 6, 7, 8, 9}, 1)).code(), StatusCode::kOk);
  EXPECT_EQ(core_->Validate(Greedy(std::vector<int32_t>(10, 1), 1)).code(),
            StatusCode::kInvalidArgument);

  Make(8);
  EXPECT_EQ(Generate(Greedy({1, 2, 3}, 100))->tokens().size(), 5u);
  EXPECT_NE(core_->Validate(Greedy(std::vector<int32_t>(8, 1), 1)).message().find("KV cache 8"),
            std::string::npos);
}

TEST_F(EngineCoreTest, NoNewTokensComputesThePromptOnly) {
  Make();
  const auto sink = Generate(Greedy({1, 2, 3, 4, 5}, 0));
  EXPECT_TRUE(sink->events.empty());
  EXPECT_EQ(sink->finish().reason, FinishEvent::Reason::kLength);
  EXPECT_EQ(Generate(Greedy({1, 2, 3, 4, 5}, 1))->finish().cached_tokens, 4);
}

TEST_F(EngineCoreTest, RefusesBadRequests) {
  Make();
  const auto refused = [&](GenerateRequest request, const char* what) {
    const Status status = core_->Validate(request);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << what;
    EXPECT_NE(status.message().find(what), std::string::npos) << status.message();
  };
  refused(Greedy({}), "prompt is empty");
  refused(Greedy({1, 24}), "token id 24");
  refused(Greedy({-1}), "token id -1");
  GenerateRequest request = Greedy({1});
  request.top_logprobs = 21;
  refused(request, "top_logprobs");
  request = Greedy({1});
  request.sampling.temperature = -1;
  refused(request, "temperature");
}

TEST_F(EngineCoreTest, CancelFreesPagesAtEveryStage) {
  Make(256, {.chunked_prefill_size = 2});
  for (int steps = 0; steps < 8; ++steps) {
    auto sink = std::make_shared<Recorder>();
    const GenerateRequest request = Greedy({1, 2, 3, 4, 5, 6, 7}, 12);
    const RequestId id = Submit(request, sink);
    for (int i = 0; i < steps; ++i) core_->Step();
    core_->Cancel(id, -1);
    EXPECT_EQ(sink->finish().reason, FinishEvent::Reason::kAborted);
    EXPECT_TRUE(core_->idle());
    EXPECT_EQ(core_->Stats().used_tokens, 0);
    core_->Cancel(id, -1);  // unknown by now
    EXPECT_EQ(sink->finishes.size(), 1u);
    core_->FlushCache();
  }
  EXPECT_EQ(core_->Stats().aborted_requests, 8);
}

TEST_F(EngineCoreTest, CancelAtATokenDiscardsTheRest) {
  Make();
  const GenerateRequest request = Greedy({1, 2, 3, 4, 5}, 16);
  auto sink = std::make_shared<Recorder>();
  const RequestId id = Submit(request, sink);
  for (int i = 0; i < 10; ++i) core_->Step();
  const std::vector<TokenEvent> all = sink->events;
  ASSERT_EQ(all.size(), 10u);
  core_->Cancel(id, 4);
  EXPECT_EQ(sink->finish().reason, FinishEvent::Reason::kStop);
  EXPECT_FALSE(sink->finish().matched_token.has_value());
  EXPECT_EQ(sink->finish().completion_tokens, 4);
  EXPECT_EQ(core_->Stats().generated_tokens, 4);  // the other six don't count
  // 5 + 4 tokens are cached, in two whole pages and a third, and nothing behind them.
  EXPECT_EQ(core_->Stats().cached_tokens, 12);

  const RequestId more = Submit(request, sink = std::make_shared<Recorder>());
  core_->Step();
  core_->Cancel(more, 100);  // more than there are
  EXPECT_EQ(sink->finish().completion_tokens, 1);
  EXPECT_EQ(core_->Stats().generated_tokens, 5);

  GenerateRequest next = request;
  for (const TokenEvent& event : all) next.tokens.push_back(event.token);
  EXPECT_EQ(Generate(next)->finish().cached_tokens, 5 + 4);
}

// realtime_tokens_total is about now, the totals about requests that have ended.
TEST_F(EngineCoreTest, TokensCountInRealTimeWhileARequestRuns) {
  Make();
  MetricRegistry registry;
  EngineMetrics metrics(registry);
  const Counter& now =
      registry.AddCounter("sglang:realtime_tokens_total", "", {{"mode", "decode"}});
  const Counter& ended = registry.AddCounter("sglang:generation_tokens_total", "");
  const RequestId id = Submit(Greedy({1, 2, 3, 4, 5}, 16), std::make_shared<Recorder>());
  for (int tokens = 1; tokens <= 3; ++tokens) {
    core_->Step();
    metrics.Publish(core_->Stats(), 0);
    EXPECT_EQ(now.value(), tokens);
    EXPECT_EQ(ended.value(), 0);
  }
  core_->Cancel(id, 2);
  metrics.Publish(core_->Stats(), 0);
  EXPECT_EQ(now.value(), 3);
  EXPECT_EQ(ended.value(), 2);
}

TEST_F(EngineCoreTest, AbortRidMatchesExactly) {
  Make();
  std::vector<std::shared_ptr<Recorder>> sinks;
  for (const char* rid : {"a", "ab", "a", ""}) {
    GenerateRequest request = Greedy({1, 2, 3}, 30);
    request.rid = rid;
    sinks.push_back(std::make_shared<Recorder>());
    Submit(request, sinks.back());
  }
  core_->Step();
  core_->AbortRid("", false);
  core_->AbortRid("a", false);
  for (const size_t i : {0, 2}) EXPECT_EQ(sinks[i]->finish().reason, FinishEvent::Reason::kAborted);
  for (const size_t i : {1, 3}) EXPECT_TRUE(sinks[i]->finishes.empty());
  core_->AbortRid("", true);
  for (const auto& sink : sinks) EXPECT_EQ(sink->finishes.size(), 1u);
}

TEST_F(EngineCoreTest, AFailedForwardEndsItsBatchOnly) {
  Make();
  auto hit = std::make_shared<Recorder>();
  Submit(Greedy({1, 2, 3}), hit);
  model_->FailWith(ResourceExhausted("no workspace"));
  core_->Step();
  EXPECT_EQ(hit->finish().reason, FinishEvent::Reason::kError);
  EXPECT_EQ(hit->finish().status, ResourceExhausted("no workspace"));
  model_->FailWith(OkStatus());
  const GenerateRequest request = Greedy({1, 2, 3});
  const auto next = Generate(request);
  EXPECT_EQ(next->tokens(), Want(request));
  EXPECT_EQ(next->finish().cached_tokens, 0);
}

TEST_F(EngineCoreTest, NoMemoryInTheForwardPassEndsItsBatchOnly) {
  Make();
  auto hit = std::make_shared<Recorder>();
  Submit(Greedy({1, 2, 3, 4, 5}), hit);
  front_->throws = true;
  core_->Step();
  EXPECT_EQ(hit->finish().status.code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(core_->idle());
  front_->throws = false;
  const GenerateRequest request = Greedy({1, 2, 3, 4, 5});
  EXPECT_EQ(Generate(request)->tokens(), Want(request));
}

TEST_F(EngineCoreTest, LogitsThatAreNotFiniteEndThatRequestOnly) {
  Make();
  model_->PoisonToken(7);
  auto bad = std::make_shared<Recorder>(), good = std::make_shared<Recorder>();
  Submit(Greedy({7, 2, 3, 4, 5}), bad);
  const GenerateRequest request = Greedy({1, 2, 3});
  Submit(request, good);
  RunAll();
  EXPECT_EQ(bad->finish().status.code(), StatusCode::kInternal);
  EXPECT_EQ(good->tokens(), Want(request));
  // Nothing of the bad one is kept.
  EXPECT_EQ(Generate(Greedy({7, 2, 3, 4, 5}))->finish().cached_tokens, 0);
}

// A tag that is not the expected one ends the requests that hold the page, and no other.
TEST_F(EngineCoreTest, ADamagedPageEndsItsHoldersOnly) {
  SetLogLevel(LogLevel::kError);
  Make();
  Generate(Greedy({1, 2, 3, 4, 5}, 1));  // leaves a page to share
  auto a = std::make_shared<Recorder>(), b = std::make_shared<Recorder>(),
       c = std::make_shared<Recorder>();
  Submit(Greedy({1, 2, 3, 4, 6}, 30), a);
  Submit(Greedy({1, 2, 3, 4, 7}, 30), b);
  const GenerateRequest other = Greedy({2, 3, 4, 5, 6}, 30);
  Submit(other, c);
  core_->Step();
  core_->Step();
  const PageRef shared = core_->queues().running[0]->lease.expected()[0];
  ASSERT_EQ(core_->queues().running[1]->lease.expected()[0], shared);
  core_->kv().MutablePage(shared.id)[2] ^= std::byte{1};
  core_->Step();
  for (const auto& sink : {a, b}) {
    EXPECT_EQ(sink->finish().reason, FinishEvent::Reason::kError);
    EXPECT_EQ(sink->finish().status.code(), StatusCode::kDataLoss);
  }
  RunAll();
  EXPECT_EQ(c->tokens(), Want(other));
  EXPECT_EQ(core_->kv().usable_pages(), 63);
  EXPECT_EQ(Generate(Greedy({1, 2, 3, 4, 5}, 1))->finish().cached_tokens, 0);
  SetLogLevel(LogLevel::kInfo);
}

// When quarantine leaves too few pages for a request, it gets an error, not an endless wait.
TEST_F(EngineCoreTest, QuarantineThatLeavesTooLittleEndsRequests) {
  SetLogLevel(LogLevel::kError);
  Make(16);
  auto a = std::make_shared<Recorder>(), b = std::make_shared<Recorder>();
  Submit(Greedy({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, 2), a);
  Submit(Greedy({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}, 2), b);
  core_->Step();
  ASSERT_EQ(core_->queues().waiting.size(), 1u);
  core_->kv().MutablePage(core_->queues().running[0]->lease.expected()[0].id)[0] ^= std::byte{1};
  RunAll();
  EXPECT_EQ(a->finish().status.code(), StatusCode::kDataLoss);
  EXPECT_EQ(b->finish().status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(b->finish().status.message().find("quarantine"), std::string::npos);
  // A request that still fits is served, up to what is left.
  EXPECT_EQ(Generate(Greedy({1, 2, 3}, 100))->tokens().size(), 9u);
  SetLogLevel(LogLevel::kInfo);
}

// Allows one token at a time: 1, 2, 3, ...
struct Counting final : TokenMask {
  void Fill(std::span<uint32_t> bits) override { bits[0] |= 1u << next; }
  void Accept(int32_t token) override {
    EXPECT_EQ(token, next);
    ++next;
  }
  int32_t next = 1;
};

TEST_F(EngineCoreTest, TheMaskDecidesAlsoThroughRetraction) {
  Make(24, {.max_running_requests = 2});
  std::vector<std::shared_ptr<Recorder>> sinks;
  for (int i = 0; i < 2; ++i) {
    GenerateRequest request = Greedy({1, 2, 3, int32_t(i)}, 12);
    request.mask = std::make_shared<Counting>();
    sinks.push_back(std::make_shared<Recorder>());
    Submit(request, sinks.back());
  }
  RunAll();
  for (const auto& sink : sinks) {
    EXPECT_EQ(sink->tokens(), (std::vector<int32_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}));
  }
  EXPECT_GT(sinks[1]->finish().retractions, 0);
}

TEST_F(EngineCoreTest, FlushNeedsIdleAndEmptiesTheCache) {
  Make();
  const GenerateRequest request = Greedy({1, 2, 3, 4, 5}, 4);
  Generate(request);
  auto sink = std::make_shared<Recorder>();
  Submit(request, sink);
  EXPECT_FALSE(core_->FlushCache());
  RunAll();
  EXPECT_TRUE(core_->FlushCache());
  EXPECT_EQ(core_->Stats().cached_tokens, 0);
  EXPECT_EQ(Generate(request)->finish().cached_tokens, 0);
}

TEST_F(EngineCoreTest, TheDisabledCacheKeepsNothing) {
  Make(256, {.disable_radix_cache = true});
  const GenerateRequest request = Greedy({1, 2, 3, 4, 5}, 4);
  Generate(request);
  EXPECT_EQ(core_->Stats().cached_tokens, 0);
  EXPECT_EQ(Generate(request)->finish().cached_tokens, 0);
}

TEST_F(EngineCoreTest, EndAllEndsEverybodyOnce) {
  Make(16);
  std::vector<std::shared_ptr<Recorder>> sinks;
  for (int i = 0; i < 4; ++i) {
    sinks.push_back(std::make_shared<Recorder>());
    Submit(Greedy({1, 2, 3, 4, 5}, 8), sinks.back());
  }
  core_->Step();
  core_->EndAll(Unavailable("bye"));
  EXPECT_TRUE(core_->idle());
  for (const auto& sink : sinks) EXPECT_EQ(sink->finish().status, Unavailable("bye"));
  EXPECT_FALSE(core_->Step());
}

}  // namespace
}  // namespace tern
