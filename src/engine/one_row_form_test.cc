// --enable-deterministic-inference: with one form for all rows of latent attention, rows that
// decode wrote serve the next turn's prompt, and no bit of its logits tells.
#include <gtest/gtest.h>

#include "base/rng.h"
#include "engine/testing_run.h"

namespace tern {
namespace {

using test_run::Loaded, test_run::Outcome, test_run::EngineRun;

class OneRowForm : public testing::TestWithParam<const char*> {};

TEST_P(OneRowForm, ReuseOfAnswersIsBitEqual) {
  Loaded loaded(GetParam());
  Rng rng(3);
  std::vector<int32_t> prompt(21);
  for (int32_t& token : prompt) token = static_cast<int32_t>(3 + rng.Below(250));

  const auto start = [&](bool one_form) {
    return std::make_unique<EngineRun>(loaded, IntegrityOptions{}, 8192, one_form);
  };
  const auto first = start(true);
  first->Submit(prompt, 40);
  first->RunAll();
  std::vector<int32_t> next = prompt;
  const auto& answer = first->outcome.sinks[0]->tokens;
  next.insert(next.end(), answer.begin(), answer.end());
  next.insert(next.end(), {7, 8, 9});
  first->Submit(next, 12);
  const Outcome reused = first->Finish();
  // 21 + 40 tokens, the last of which was never a row.
  EXPECT_EQ(reused.sinks[1]->finish->cached_tokens, 60);

  const auto fresh = start(true);
  fresh->Submit(next, 12);
  const Outcome computed = fresh->Finish();
  EXPECT_EQ(computed.sinks[0]->finish->cached_tokens, 0);
  EXPECT_EQ(reused.sinks[1]->tokens, computed.sinks[0]->tokens);
  int64_t compared = 0;
  for (const auto& [key, hashes] : computed.logits) {
    EXPECT_EQ(reused.logits.at({2, key.second}), hashes) << key.second;
    ++compared;
  }
  EXPECT_EQ(compared, 12);
}

// Without it, latent attention keeps the answer's rows to itself.
TEST(OneRowFormOff, IsNotTheDefaultOfLatentAttention) {
  Loaded loaded("kimi-k2-wide-int4");
  EngineRun run(loaded, {});
  std::vector<int32_t> prompt(21, 5);
  run.Submit(prompt, 40);
  run.RunAll();
  const auto& answer = run.outcome.sinks[0]->tokens;
  prompt.insert(prompt.end(), answer.begin(), answer.end());
  run.Submit(prompt, 2);
  EXPECT_EQ(run.Finish().sinks[1]->finish->cached_tokens, 21);
}

INSTANTIATE_TEST_SUITE_P(, OneRowForm,
                         testing::Values("llama-rope3-tied", "kimi-k2-wide-int4",
                                         "deepseek-v32-dsa"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace tern
