// A prefill and a decode EngineCore of the toy model, hand-offs in memory: answers are those of the
// toy reference, which knows neither engines nor pages; and what happens when a half goes away.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/rng.h"
#include "engine/disaggregation.h"
#include "engine/engine_core.h"
#include "engine/engine_metrics.h"
#include "pd/memory_transfer.h"
#include "sim/recording_sink.h"
#include "sim/toy_reference.h"

namespace tern {
namespace {

using Recorder = RecordingSink;

struct Half {
  std::unique_ptr<ToyModel> model;
  std::unique_ptr<EngineMetrics> metrics;
  std::unique_ptr<EngineCore> core;
};

struct Setting {
  int64_t prefill_tokens = 256, decode_tokens = 256;
  int64_t prefill_page = 4, decode_page = 8;
  int64_t reserved = 0;
  int64_t running = 64;
  ToyOptions toy;
};

class HandoffTest : public testing::Test {
 protected:
  void Make(Setting setting = {}) {
    setting_ = setting;
    PdHello hellos[2];
    Disaggregation halves[2];
    for (const EngineRole role : {EngineRole::kPrefill, EngineRole::kDecode}) {
      const int i = role == EngineRole::kDecode;
      Disaggregation& d = halves[i];
      d.role = role;
      d.boot_nonce = 7 + static_cast<uint64_t>(i);
      d.waker = std::make_shared<EngineWaker>();
      d.ops = ops_.get();
      d.num_reserved_decode_tokens = setting.reserved;
      half(role).model = std::make_unique<ToyModel>(setting.toy);
      hellos[i] =
          MakePdHello(role, half(role).model->info(), OptionsOf(role), ModelId{}, d.boot_nonce)
              .value();
    }
    MemoryTransports ends = MakeMemoryTransports(hellos[1], hellos[0]);
    halves[0].transport = std::move(ends.sender);
    halves[1].transport = std::move(ends.receiver);
    for (const EngineRole role : {EngineRole::kPrefill, EngineRole::kDecode}) {
      const EngineOptions options = OptionsOf(role);
      Half& h = half(role);
      const auto plan = PlanMemory(h.model->info(), MemoryPlanInputOf(options, 1 << 30));
      ASSERT_TRUE(plan.ok()) << plan.status().ToString();
      Disaggregation& d = halves[role == EngineRole::kDecode];
      h.metrics = std::make_unique<EngineMetrics>(registry_, role);
      h.core =
          EngineCore::Create(*h.model, pool_, options, *plan, d.boot_nonce, clock_, h.metrics.get())
              .value();
      h.core->SetDisaggregation(std::move(d), [this] { return next_id_++; });
    }
  }
  EngineOptions OptionsOf(EngineRole role) const {
    const bool decode = role == EngineRole::kDecode;
    EngineOptions options;
    options.page_tokens = decode ? setting_.decode_page : setting_.prefill_page;
    options.max_total_tokens = decode ? setting_.decode_tokens : setting_.prefill_tokens;
    options.max_running_requests = setting_.running;
    options.chunked_prefill_size = 16;
    options.random_seed = 1;
    options.disable_radix_cache = decode;
    return options;
  }
  Half& half(EngineRole role) { return role == EngineRole::kPrefill ? prefill_ : decode_; }

  struct Sinks {
    std::shared_ptr<Recorder> prefill = std::make_shared<Recorder>();
    std::shared_ptr<Recorder> decode = std::make_shared<Recorder>();
    RequestId prefill_id = 0, decode_id = 0;
  };
  Sinks Submit(GenerateRequest request, uint64_t room) {
    Sinks sinks;
    request.rendezvous = Rendezvous{.host = "memory", .room = room};
    sinks.prefill_id = next_id_++;
    prefill_.core->Submit(sinks.prefill_id, request, sinks.prefill, clock_.NowUs());
    sinks.decode_id = next_id_++;
    decode_.core->Submit(sinks.decode_id, std::move(request), sinks.decode, clock_.NowUs());
    return sinks;
  }
  bool StepBoth() {
    const bool a = prefill_.core != nullptr && prefill_.core->Step();
    const bool b = decode_.core->Step();
    Check();
    clock_.AdvanceUs(1000);
    return a || b;
  }
  void Check() {
    for (const Half* h : {&prefill_, &decode_}) {
      if (h->core == nullptr) continue;
      const Status status = h->core->CheckInvariants();
      ASSERT_TRUE(status.ok()) << status.ToString();
    }
  }
  // Until all is done; where nothing moves, time does. Then nobody holds anything.
  void RunAll() {
    const auto idle = [](const Half& h) { return h.core == nullptr || h.core->idle(); };
    for (int i = 0; i < 20'000 && !(idle(prefill_) && idle(decode_)); ++i) {
      if (!StepBoth()) clock_.AdvanceUs(1'000'000);
    }
    for (const Half* h : {&prefill_, &decode_}) {
      if (h->core == nullptr) continue;
      EXPECT_TRUE(h->core->idle());
      EXPECT_EQ(h->core->Stats().used_tokens, 0);
    }
  }
  std::vector<int32_t> Want(const GenerateRequest& request) const {
    return AnswerOf(setting_.toy, request.tokens, request.sampling, setting_.toy.context_length)
        .tokens;
  }
  static GenerateRequest Greedy(std::vector<int32_t> tokens, int64_t max_new = 8) {
    return {.tokens = std::move(tokens),
            .sampling = {.temperature = 0, .max_new_tokens = max_new, .ignore_eos = true}};
  }
  std::vector<GenerateRequest> RandomRequests(int count, uint64_t seed) const {
    Rng rng(seed);
    std::vector<GenerateRequest> requests;
    for (int i = 0; i < count; ++i) {
      std::vector<int32_t> tokens;
      const auto size = 1 + rng.Below(24);
      for (uint64_t j = 0; j < size; ++j) tokens.push_back(1 + static_cast<int32_t>(rng.Below(22)));
      GenerateRequest request = Greedy(std::move(tokens), 1 + int64_t(rng.Below(16)));
      if (rng.Below(2) == 0) {
        request.sampling.temperature = 1;
        request.sampling.seed = rng.Next();
      }
      request.sampling.ignore_eos = rng.Below(2) == 0;
      requests.push_back(std::move(request));
    }
    return requests;
  }

  Setting setting_;
  ThreadPool pool_{1};
  std::unique_ptr<Ops> ops_ = Ops::Create("", pool_).value();
  ManualClock clock_;
  RequestId next_id_ = 1;
  MetricRegistry registry_;
  Half prefill_, decode_;
};

class HandoffForms : public HandoffTest, public testing::WithParamInterface<bool> {};

TEST_P(HandoffForms, AnswersAreTheReferences) {
  Make({.toy = {.two_forms = GetParam()}});
  const std::vector<GenerateRequest> requests = RandomRequests(200, 5);
  std::vector<Sinks> sinks;
  for (size_t i = 0; i < requests.size(); ++i) {
    sinks.push_back(Submit(requests[i], 100 + i));
    if (i % 3 == 0) StepBoth();
  }
  RunAll();
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_TRUE(sinks[i].decode->ended() && sinks[i].prefill->ended());
    EXPECT_EQ(sinks[i].decode->tokens(), Want(requests[i])) << i;
    EXPECT_LE(sinks[i].prefill->events.size(), 1u);  // none if the first is a stop token
    EXPECT_NE(sinks[i].prefill->finishes[0].reason, FinishEvent::Reason::kError);
  }
  const HandoffStats stats = decode_.core->Stats().handoff;
  EXPECT_GE(stats.transfers, 200);
  EXPECT_EQ(stats.transfer_failures + stats.local_recomputes, 0);
}

TEST_P(HandoffForms, RetractedRequestsAskAgain) {
  Make({.decode_tokens = 64, .toy = {.two_forms = GetParam()}});
  const std::vector<GenerateRequest> requests = RandomRequests(60, 9);
  std::vector<Sinks> sinks;
  for (size_t i = 0; i < requests.size(); ++i) sinks.push_back(Submit(requests[i], 100 + i));
  RunAll();
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(sinks[i].decode->tokens(), Want(requests[i])) << i;
  }
  const EngineStats stats = decode_.core->Stats();
  EXPECT_GT(stats.retractions, 0);
  EXPECT_EQ(stats.handoff.asked_again, stats.retractions);
  EXPECT_EQ(stats.handoff.local_recomputes, 0);
}

// The prefill worker is gone when a retracted request asks again: its prompt is computed here. Rows
// of one format have the bits they had.
TEST_P(HandoffForms, WithoutPrefillARetractedPromptIsComputedHere) {
  Make({.decode_tokens = 48, .toy = {.two_forms = GetParam()}});
  std::vector<GenerateRequest> requests;
  std::vector<Sinks> sinks;
  for (int32_t i = 0; i < 3; ++i) {
    requests.push_back(Greedy({i + 1, 2, 3, 4, 5, 6, 7}, 20));
    sinks.push_back(Submit(requests.back(), uint64_t(i) + 1));
  }
  for (int i = 0; i < 1000 && decode_.core->Stats().handoff.transfers < 3; ++i) StepBoth();
  ASSERT_EQ(decode_.core->Stats().handoff.transfers, 3);
  prefill_.core = nullptr;
  RunAll();
  const EngineStats stats = decode_.core->Stats();
  EXPECT_GT(stats.handoff.local_recomputes, 0);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(sinks[i].decode->tokens(), Want(requests[i])) << i;
}

TEST_F(HandoffTest, FirstTokenCanEndTheAnswer) {
  Make();
  GenerateRequest one = Greedy({1, 2, 3}, 1);
  const Sinks length = Submit(one, 1);
  RunAll();
  EXPECT_EQ(length.decode->tokens(), Want(one));
  EXPECT_EQ(length.decode->finishes[0].reason, FinishEvent::Reason::kLength);
  EXPECT_EQ(length.prefill->tokens(), Want(one));
  EXPECT_EQ(length.prefill->finishes[0].reason, FinishEvent::Reason::kLength);
  EXPECT_EQ(length.prefill->finishes[0].completion_tokens, 1);

  GenerateRequest stop = Greedy({1, 2, 3}, 5);
  stop.sampling.stop_token_ids = Want(one);
  const Sinks stopped = Submit(stop, 2);
  RunAll();
  EXPECT_TRUE(stopped.decode->tokens().empty());
  EXPECT_EQ(stopped.decode->finishes[0].reason, FinishEvent::Reason::kStop);
  EXPECT_EQ(stopped.decode->finishes[0].matched_token, Want(one)[0]);
}

TEST_F(HandoffTest, CachedTokensArePrefills) {
  Make();
  const GenerateRequest request = Greedy({1, 2, 3, 4, 5, 6, 7, 8, 9}, 3);
  EXPECT_EQ((Submit(request, 1), RunAll(), decode_.core->Stats().cached_prompt_tokens), 0);
  const Sinks again = Submit(request, 2);
  RunAll();
  EXPECT_EQ(again.decode->finishes[0].cached_tokens, 8);
  EXPECT_EQ(again.decode->finishes[0].prompt_tokens, 9);
  EXPECT_EQ(again.decode->tokens(), Want(request));
}

// The second waits for the pages of the first, on virtual time.
TEST_F(HandoffTest, WaitingForPagesIsMeasured) {
  Make({.decode_tokens = 24, .decode_page = 8});
  const Sinks first = Submit(Greedy({1, 2, 3, 4, 5, 6, 7, 8, 9}, 7), 1);
  while (first.decode->events.empty()) StepBoth();
  const int64_t start_us = clock_.NowUs();
  const Sinks second = Submit(Greedy({9, 8, 7, 6, 5, 4, 3, 2, 1}, 7), 2);
  while (!first.decode->ended()) StepBoth();
  const double waited_ms = static_cast<double>(clock_.NowUs() - start_us) / 1e3;
  ASSERT_GE(waited_ms, 3);
  RunAll();
  EXPECT_TRUE(second.decode->ended());
  const std::string text = registry_.Render();
  const auto value = [&text](const std::string& sample) {
    const size_t at = text.find(sample + " ");
    EXPECT_NE(at, std::string::npos) << sample << "\n" << text;
    return at == std::string::npos ? -1 : std::stod(text.substr(at + sample.size() + 1));
  };
  EXPECT_EQ(value("sglang:kv_transfer_alloc_ms_count{engine_type=\"decode\"}"), 2);
  EXPECT_EQ(value("sglang:kv_transfer_alloc_ms_count{engine_type=\"prefill\"}"), 0);
  EXPECT_NEAR(value("sglang:kv_transfer_alloc_ms_sum{engine_type=\"decode\"}"), waited_ms, 2);
}

// Whichever half loses its client, and whenever: the other half ends, pages are back, and the next
// request is served.
TEST_F(HandoffTest, AClientThatLeavesEndsBothHalves) {
  for (const bool decode_leaves : {false, true}) {
    for (int steps = 0; steps < 14; ++steps) {
      Make({.prefill_tokens = 64, .decode_tokens = 64});
      const GenerateRequest request = Greedy({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, 8);
      const Sinks sinks = Submit(request, 1);
      for (int i = 0; i < steps; ++i) StepBoth();
      if (decode_leaves) {
        decode_.core->Cancel(sinks.decode_id, -1);
      } else {
        prefill_.core->Cancel(sinks.prefill_id, -1);
      }
      RunAll();
      ASSERT_TRUE(sinks.decode->ended() && sinks.prefill->ended()) << steps;
      // Decode may have had everything by then.
      if (!decode_leaves && sinks.decode->finishes[0].reason != FinishEvent::Reason::kError) {
        EXPECT_EQ(sinks.decode->tokens(), Want(request)) << steps;
        EXPECT_GT(steps, 2);
      }
      const Sinks next = Submit(request, 2);
      RunAll();
      EXPECT_EQ(next.decode->tokens(), Want(request));
    }
  }
}

TEST_F(HandoffTest, AFailingModelEndsBothHalvesWithItsReason) {
  Make();
  prefill_.model->FailWith(Internal("no luck"));
  const Sinks sinks = Submit(Greedy({1, 2, 3}), 1);
  RunAll();
  ASSERT_TRUE(sinks.decode->ended() && sinks.prefill->ended());
  EXPECT_EQ(sinks.prefill->finishes[0].status.message(), "no luck");
  EXPECT_NE(sinks.decode->finishes[0].status.message().find("no luck"), std::string::npos)
      << sinks.decode->finishes[0].status.message();
  prefill_.model->FailWith(OkStatus());
  const GenerateRequest request = Greedy({1, 2, 3});
  const Sinks next = Submit(request, 2);
  RunAll();
  EXPECT_EQ(next.decode->tokens(), Want(request));
}

TEST_F(HandoffTest, ARequestRefusedByOneHalfEndsTheOther) {
  Make();
  GenerateRequest request = Greedy({1, 2, 3});
  request.rendezvous = Rendezvous{.host = "memory", .room = 1};
  for (const bool refused_first : {false, true}) {
    request.rendezvous->room += 2;
    auto sink = std::make_shared<Recorder>();
    if (refused_first) {
      decode_.core->RefuseRendezvous(*request.rendezvous, InvalidArgument("too long for me"));
      for (int i = 0; i < 5; ++i) StepBoth();
    }
    prefill_.core->Submit(next_id_++, request, sink, clock_.NowUs());
    for (int i = 0; i < 5; ++i) StepBoth();
    if (!refused_first) {
      EXPECT_FALSE(sink->ended());
      decode_.core->RefuseRendezvous(*request.rendezvous, InvalidArgument("too long for me"));
    }
    RunAll();
    ASSERT_TRUE(sink->ended()) << refused_first;
    EXPECT_NE(sink->finishes[0].status.message().find("too long for me"), std::string::npos)
        << sink->finishes[0].status.message();

    request.rendezvous->room += 2;
    sink = std::make_shared<Recorder>();
    if (refused_first) {
      prefill_.core->RefuseRendezvous(*request.rendezvous, InvalidArgument("not mine"));
    }
    decode_.core->Submit(next_id_++, request, sink, clock_.NowUs());
    for (int i = 0; i < 5; ++i) StepBoth();
    if (!refused_first) {
      EXPECT_FALSE(sink->ended());
      prefill_.core->RefuseRendezvous(*request.rendezvous, InvalidArgument("not mine"));
    }
    RunAll();
    ASSERT_TRUE(sink->ended()) << refused_first;
    EXPECT_NE(sink->finishes[0].status.message().find("not mine"), std::string::npos)
        << sink->finishes[0].status.message();
  }
}

TEST_F(HandoffTest, ARoomIsUsedOnce) {
  Make();
  const GenerateRequest request = Greedy({1, 2, 3});
  const Sinks first = Submit(request, 1), second = Submit(request, 1);
  RunAll();
  EXPECT_EQ(first.decode->tokens(), Want(request));
  ASSERT_EQ(second.decode->finishes.size(), 1u);
  EXPECT_EQ(second.decode->finishes[0].reason, FinishEvent::Reason::kError);
  EXPECT_EQ(second.decode->finishes[0].status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(second.prefill->finishes[0].status.code(), StatusCode::kInvalidArgument);
}

TEST_F(HandoffTest, OtherTokensForOnePromptEndBothHalves) {
  Make();
  GenerateRequest request = Greedy({1, 2, 3});
  request.rendezvous = Rendezvous{.host = "memory", .room = 1};
  auto prefill = std::make_shared<Recorder>(), decode = std::make_shared<Recorder>();
  prefill_.core->Submit(next_id_++, request, prefill, clock_.NowUs());
  request.tokens[1] = 5;
  decode_.core->Submit(next_id_++, request, decode, clock_.NowUs());
  RunAll();
  for (const auto& sink : {prefill, decode}) {
    ASSERT_EQ(sink->finishes.size(), 1u);
    EXPECT_EQ(sink->finishes[0].reason, FinishEvent::Reason::kError);
    EXPECT_NE(sink->finishes[0].status.message().find("different tokens"), std::string::npos);
    EXPECT_TRUE(sink->events.empty());
  }
}

INSTANTIATE_TEST_SUITE_P(RowForms, HandoffForms, testing::Bool());

}  // namespace
}  // namespace tern
