// Log probabilities of prompt tokens through the engine core with the toy model, whose logits
// LogitsOf computes without pages or batches.
#include "engine/prompt_logprobs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/engine_core.h"
#include "sim/recording_sink.h"
#include "sim/toy_reference.h"

namespace tern {
namespace {

struct Recorder final : RecordingSink {
  void OnPromptLogprobs(std::vector<PromptLogprob> logprobs) override {
    EXPECT_TRUE(events.empty() && finishes.empty() && told == 0);
    prompt = std::move(logprobs);
    ++told;
  }
  std::vector<PromptLogprob> prompt;
  int told = 0;
};

std::vector<int32_t> PromptOf(int64_t tokens, int32_t start) {
  std::vector<int32_t> prompt(static_cast<size_t>(tokens));
  for (size_t i = 0; i < prompt.size(); ++i) {
    prompt[i] = static_cast<int32_t>((static_cast<size_t>(start) + i * i + i / 3) % 24);
  }
  return prompt;
}

class PromptLogprobsTest : public testing::TestWithParam<bool> {
 protected:
  void Make(int64_t total_tokens, EngineOptions options = {}) {
    toy_ = {.context_length = 256, .two_forms = GetParam()};
    model_ = std::make_unique<ToyModel>(toy_);
    options.page_tokens = 4;
    const auto plan =
        PlanMemory(model_->info(), {.page_tokens = 4,
                                    .max_total_tokens = total_tokens,
                                    .available_bytes = 1 << 30,
                                    .max_running_requests = options.max_running_requests,
                                    .chunked_prefill_size = options.chunked_prefill_size});
    core_ = EngineCore::Create(*model_, pool_, options, plan.value(), 1, clock_, nullptr).value();
  }
  void TearDown() override { EXPECT_TRUE(core_->CheckInvariants().ok()); }

  static GenerateRequest Ask(std::vector<int32_t> prompt, int64_t from, int64_t max_new = 2) {
    GenerateRequest request;
    request.tokens = std::move(prompt);
    request.sampling = {.temperature = 0, .max_new_tokens = max_new, .ignore_eos = true};
    request.prompt_logprobs_from = from;
    request.top_logprobs = 3;
    request.logprob_token_ids = {7, 0};
    return request;
  }
  std::shared_ptr<Recorder> Submit(GenerateRequest request) {
    auto sink = std::make_shared<Recorder>();
    EXPECT_TRUE(core_->Validate(request).ok()) << core_->Validate(request).ToString();
    core_->Submit(++last_id_, std::move(request), sink, 0);
    return sink;
  }
  void RunAll() {
    while (core_->Step()) {
    }
  }

  // What the prompt's tokens behind `from` have, from the definition.
  void Expect(const std::vector<int32_t>& prompt, int64_t from, const Recorder& sink) const {
    ASSERT_EQ(sink.told, 1);
    ASSERT_EQ(static_cast<int64_t>(sink.prompt.size()),
              std::max<int64_t>(static_cast<int64_t>(prompt.size()) - 1 - from, 0));
    for (size_t i = 0; i < sink.prompt.size(); ++i) {
      const size_t position = static_cast<size_t>(from) + i + 1;
      const std::vector<int32_t> before(prompt.begin(), prompt.begin() + long(position));
      const std::vector<float> logits = LogitsOf(toy_, before, int64_t(prompt.size()));
      double sum = 0;
      for (const float logit : logits) sum += std::exp(double{logit});
      std::vector<int32_t> order(logits.size());
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](int32_t a, int32_t b) { return logits[size_t(a)] > logits[size_t(b)]; });
      const PromptLogprob& got = sink.prompt[i];
      const auto want = [&](int32_t id) { return double{logits[size_t(id)]} - std::log(sum); };
      EXPECT_EQ(got.token.token, prompt[position]);
      EXPECT_NEAR(got.token.logprob, want(prompt[position]), 1e-5) << position;
      ASSERT_EQ(got.top.size(), 3u);
      for (size_t k = 0; k < 3; ++k) {
        EXPECT_EQ(got.top[k].token, order[k]);
        EXPECT_NEAR(got.top[k].logprob, want(order[k]), 1e-5);
      }
      ASSERT_EQ(got.asked.size(), 2u);
      EXPECT_EQ(got.asked[0].token, 7);
      EXPECT_NEAR(got.asked[0].logprob, want(7), 1e-5);
      EXPECT_NEAR(got.asked[1].logprob, want(0), 1e-5);
    }
  }

  ToyOptions toy_;
  std::unique_ptr<ToyModel> model_;
  ThreadPool pool_{2};
  ManualClock clock_;
  std::unique_ptr<EngineCore> core_;
  RequestId last_id_ = 0;
};

// 150 rows want logits, a batch has room for 64: several passes, whatever the chunk.
TEST_P(PromptLogprobsTest, EveryRowIsThatOfTheModel) {
  const std::vector<int32_t> prompt = PromptOf(151, 3);
  for (const int64_t chunk : {512, 100, 7, 1}) {
    Make(1024, {.chunked_prefill_size = chunk});
    for (const int64_t from : {0, 1, 63, 149, 150, 500}) {
      SCOPED_TRACE(testing::Message() << "chunk " << chunk << " from " << from);
      const auto sink = Submit(Ask(prompt, from));
      RunAll();
      Expect(prompt, from, *sink);
      EXPECT_EQ(sink->events.size(), 2u);
    }
  }
}

TEST_P(PromptLogprobsTest, RowsThatAreWantedDoNotComeFromTheCache) {
  const std::vector<int32_t> prompt = PromptOf(30, 5);
  Make(256);
  Submit(Ask(prompt, 0));
  RunAll();
  for (const auto& [from, cached] : {std::pair{0, 0}, {3, 3}, {4, 4}, {13, 13}, {29, 29}}) {
    const auto sink = Submit(Ask(prompt, from));
    RunAll();
    Expect(prompt, from, *sink);
    EXPECT_EQ(sink->finishes[0].cached_tokens, cached) << from;
  }
}

TEST_P(PromptLogprobsTest, NoTokenIsGeneratedWhenNoneIsAskedFor) {
  const std::vector<int32_t> prompt = PromptOf(100, 1);
  Make(256);
  const auto sink = Submit(Ask(prompt, 0, /*max_new=*/0));
  RunAll();
  Expect(prompt, 0, *sink);
  EXPECT_TRUE(sink->events.empty());
  EXPECT_EQ(sink->finishes[0].reason, FinishEvent::Reason::kLength);
  EXPECT_EQ(sink->finishes[0].completion_tokens, 0);
}

// Many at once, more than a batch has logits for, among others that generate and push them out of
// memory: each prompt is told once and right.
TEST_P(PromptLogprobsTest, SurvivesCrowdsAndRetraction) {
  Make(160, {.max_running_requests = 8, .chunked_prefill_size = 32});
  std::vector<std::pair<std::vector<int32_t>, std::shared_ptr<Recorder>>> all;
  for (int32_t i = 0; i < 24; ++i) {
    const std::vector<int32_t> prompt = PromptOf(10 + 3 * i, i);
    GenerateRequest request = Ask(prompt, i % 3 * 5, 1 + i % 20);
    all.emplace_back(prompt, Submit(std::move(request)));
    if (i % 5 == 0) core_->Step();
  }
  RunAll();
  EXPECT_GT(core_->Stats().retractions, 0);
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(i);
    Expect(all[i].first, static_cast<int64_t>(i) % 3 * 5, *all[i].second);
    EXPECT_EQ(all[i].second->events.size(), 1 + i % 20);
  }
}

TEST_P(PromptLogprobsTest, LogitsThatAreNotFiniteEndTheRequestAlone) {
  Make(256);
  model_->PoisonToken(9);
  const auto bad = Submit(Ask({9, 1, 2, 3}, 0));
  const auto good = Submit(Ask({8, 1, 2, 3}, 0));
  RunAll();
  EXPECT_EQ(bad->told, 0);
  EXPECT_EQ(bad->finishes[0].reason, FinishEvent::Reason::kError);
  Expect({8, 1, 2, 3}, 0, *good);
}

// The stop token is told with its log probability, though it is no token of the answer.
TEST_P(PromptLogprobsTest, TheStopTokenHasALogProbability) {
  Make(256);
  GenerateRequest request = Ask({1, 2, 3}, 0, 5);
  request.return_logprobs = true;
  const auto free_run = Submit(request);
  RunAll();
  request.sampling.stop_token_ids = {free_run->events[2].token};
  const auto stopped = Submit(request);
  RunAll();
  ASSERT_TRUE(stopped->finishes[0].matched_logprobs.has_value());
  const TokenEvent& matched = *stopped->finishes[0].matched_logprobs;
  const TokenEvent& same = free_run->events[stopped->events.size()];
  EXPECT_EQ(matched.token, same.token);
  EXPECT_EQ(matched.index, same.index);
  EXPECT_EQ(matched.logprob->logprob, same.logprob->logprob);
  EXPECT_EQ(matched.top_logprobs.size(), 3u);
}

INSTANTIATE_TEST_SUITE_P(Forms, PromptLogprobsTest, testing::Bool());

}  // namespace
}  // namespace tern
