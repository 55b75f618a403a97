// KV integrity on a real checkpoint: exactly the requests that hold a damaged page end or are
// healed, and nobody else can tell: the bits of all logits at every step, page seals and tokens are
// those of the run without faults, and no token is later by more than a step.
#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "base/log.h"
#include "base/rng.h"
#include "engine/testing_run.h"
#include "kv/kv_sabotage.h"

#if TERN_FAULTS

namespace tern {
namespace {

using test_run::Loaded, test_run::Outcome, test_run::EngineRun, test_run::Sink;

std::vector<int32_t> Prompt(int request, size_t tokens, bool shared) {
  std::vector<int32_t> prompt(tokens);
  Rng rng(shared ? 5 : static_cast<uint64_t>(request) + 100);
  for (int32_t& token : prompt) token = static_cast<int32_t>(3 + rng.Below(250));
  prompt[shared ? tokens - 1 : 0] = request + 3;
  return prompt;
}

// 12 requests: one leaves a prefix, then eight of which every second one shares it, then three.
void SubmitAll(EngineRun& run) {
  run.Submit(Prompt(0, 30, true), 3);
  run.Steps(6);
  for (int i = 1; i <= 8; ++i) run.Submit(Prompt(i, 30, i % 2 == 0), 30 + i);
  run.Steps(4);
  for (int i = 9; i <= 11; ++i) run.Submit(Prompt(i, 12, false), 20);
  run.Steps(4);
}

struct Damage {
  const char* name;
  // Does it; returns who must end.
  std::function<std::set<RequestId>(EngineRun&)> inject;
};

std::vector<Damage> Damages() {
  return {
      {"SharedHeader",
       [](EngineRun& run) {
         const PageId page = run.Live(5)->lease.expected()[1].id;
         EXPECT_GE(run.HoldersOf(page).size(), 4u);
         KvSaboteur(run.core->kv()).FlipHeaderBit(page, 2, 6);
         return run.HoldersOf(page);
       }},
      {"PrivateBits",
       [](EngineRun& run) {
         const PageId page = run.Live(4)->lease.expected()[2].id;
         KvSaboteur(run.core->kv()).FlipBit(page, 100, 1);
         return run.HoldersOf(page);
       }},
      {"SharedBits",
       [](EngineRun& run) {
         const PageId page = run.Live(3)->lease.expected()[0].id;
         KvSaboteur(run.core->kv()).FlipBit(page, 33, 7);
         return run.HoldersOf(page);
       }},
      {"BlockTable",
       [](EngineRun& run) {
         const PageId other = run.Live(5)->lease.expected()[1].id;
         KvSaboteur::Redirect(run.Live(2)->lease, 1, run.core->kv().MutablePage(other));
         return std::set<RequestId>{2};
       }},
      {"Swap",
       [](EngineRun& run) {
         KvSaboteur::Swap(run.Live(7)->lease, 0, 2);
         return std::set<RequestId>{7};
       }},
  };
}

class Integrity : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { SetLogLevel(LogLevel::kError); }
  void TearDown() override { SetLogLevel(LogLevel::kInfo); }
};

void ExpectUntouched(const Outcome& faulty, const Outcome& clean, RequestId id) {
  const Sink &got = *faulty.sinks[id - 1], &want = *clean.sinks[id - 1];
  EXPECT_EQ(got.tokens, want.tokens) << id;
  EXPECT_EQ(got.finish->reason, want.finish->reason) << id;
  for (const auto& [key, hashes] : clean.logits) {
    if (key.first != id) continue;
    EXPECT_EQ(hashes.size(), 1u);
    ASSERT_TRUE(faulty.logits.contains(key)) << id << " position " << key.second;
    EXPECT_EQ(faulty.logits.at(key), hashes) << id << " position " << key.second;
  }
  for (size_t i = 1; i < got.steps.size() && i < want.steps.size(); ++i) {
    EXPECT_LE(got.steps[i] - got.steps[i - 1], want.steps[i] - want.steps[i - 1] + 1) << id;
  }
  for (const auto& [key, seal] : clean.seals) {
    const auto it = faulty.seals.find(key);
    if (key.first != id || it == faulty.seals.end()) continue;
    EXPECT_EQ(it->second, seal) << id;
  }
}

TEST_P(Integrity, ExactlyTheVictimsEnd) {
  Loaded loaded(GetParam());
  const IntegrityOptions sealed = {.mode = KvIntegrity::kSealed};
  EngineRun clean_run(loaded, sealed);
  SubmitAll(clean_run);
  const Outcome clean = clean_run.Finish();
  EXPECT_EQ(clean.stats.all_violations(), 0);
  EXPECT_GT(clean.stats.swept_pages, 100);
  for (const Damage& damage : Damages()) {
    SCOPED_TRACE(damage.name);
    EngineRun run(loaded, sealed);
    SubmitAll(run);
    const std::set<RequestId> victims = damage.inject(run);
    run.Submit(Prompt(2, 30, true), 10);  // the prefix is not found again, or is good
    const Outcome faulty = run.Finish();
    EXPECT_EQ(faulty.ended, victims);
    EXPECT_EQ(faulty.stats.ended_requests, static_cast<int64_t>(victims.size()));
    EXPECT_GE(faulty.stats.all_violations(), 1);
    for (RequestId id = 1; id <= 12; ++id) {
      if (!victims.contains(id)) ExpectUntouched(faulty, clean, id);
    }
    // The newcomer, sent as request 3 was but for its length: the same bits.
    const auto& late = faulty.sinks[12]->tokens;
    const auto& first = clean.sinks[2]->tokens;
    EXPECT_TRUE(std::equal(late.begin(), late.end(), first.begin()));
    EXPECT_EQ(late.size(), 10u);
  }
}

// Damage that is noticed before anybody reads it, by turns. False where there was nothing to
// damage.
bool Injure(EngineRun& run, Rng& rng, int kind) {
  KvSaboteur saboteur(run.core->kv());
  std::vector<Sequence*> running;
  for (const auto& sequence : run.core->queues().running) {
    if (sequence->decoding()) running.push_back(sequence.get());
  }
  if (running.size() < 2) return false;
  Sequence& victim = *running[rng.Below(running.size())];
  const auto pages = static_cast<int64_t>(victim.lease.pages());
  const auto index = static_cast<int64_t>(rng.Below(static_cast<uint64_t>(pages)));
  const PageId page = victim.lease.expected()[static_cast<size_t>(index)].id;
  switch (kind) {
    case 0:
      saboteur.FlipHeaderBit(page, static_cast<int64_t>(rng.Below(8)), 3);
      return true;
    case 1: {
      const Sequence& other = *running[rng.Below(running.size())];
      if (other.id == victim.id) return false;
      KvSaboteur::Redirect(victim.lease, index,
                           run.core->kv().MutablePage(other.lease.expected().back().id));
      return true;
    }
    case 2:
      if (index == 0 || index + 1 >= pages) return false;
      KvSaboteur::Swap(victim.lease, 0, index);
      return true;
    case 3:
      saboteur.Free(page);
      return true;
    default: {  // a page of the prefix cache that nobody holds
      const PagePool& pool = run.core->kv().pool();
      for (uint32_t i = 0; i < static_cast<uint32_t>(pool.pages()); ++i) {
        const PageId cached{i};
        if (pool.state(cached) != PageState::kCached || !run.HoldersOf(cached).empty()) continue;
        saboteur.FlipBit(cached, static_cast<int64_t>(rng.Below(200)), 2);
        return true;
      }
      return false;
    }
  }
}

TEST_P(Integrity, AThousandFaultsHealAndNobodyCanTell) {
  Loaded loaded(GetParam());
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr int kFaults = 100;
#else
  constexpr int kFaults = 1000;
#endif
  constexpr int kBatch = 32;
  const auto submit = [](EngineRun& run) {
    for (int i = 0; i < kBatch; ++i) {
      run.Submit(Prompt(i, 8 + static_cast<size_t>(i) % 23, false), 24 + i % 11);
    }
  };
  EngineRun clean_run(loaded, {.mode = KvIntegrity::kSealed});
  submit(clean_run);
  const Outcome clean = clean_run.Finish();

  EngineRun run(loaded,
                {.mode = KvIntegrity::kSealed,
                 .action = IntegrityAction::kRecompute,
                 .quarantine_limit = 1 << 20},
                /*total_tokens=*/(1 << 11) * test_run::kPageTokens);
  Rng rng(9);
  int faults = 0;
  for (int tries = 0; faults < kFaults; ++tries) {
    if (run.core->idle()) submit(run);
    if (Injure(run, rng, tries % 5)) ++faults;
    run.Step();
    ASSERT_LT(run.step, 20'000);
  }
  const Outcome healed = run.Finish();
  EXPECT_TRUE(healed.ended.empty());
  EXPECT_GE(healed.stats.healed_requests, kFaults / 2);
  EXPECT_EQ(healed.stats.ended_requests, 0);
  EXPECT_EQ(healed.stats.unhealthy_until_us, 0);
  for (size_t i = 0; i < healed.sinks.size(); ++i) {
    const Sink &got = *healed.sinks[i], &want = *clean.sinks[i % kBatch];
    EXPECT_EQ(got.finish->reason, want.finish->reason) << got.finish->status.ToString();
    EXPECT_EQ(got.tokens, want.tokens) << i;
  }
  // All logits, those that were derived again included.
  for (const auto& [key, hashes] : healed.logits) {
    const RequestId twin = (key.first - 1) % kBatch + 1;
    EXPECT_EQ(hashes, clean.logits.at({twin, key.second})) << key.first << " at " << key.second;
  }
}

INSTANTIATE_TEST_SUITE_P(, Integrity, testing::Values("llama-rope3-tied", "kimi-k2-wide-int4"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace tern

#endif  // TERN_FAULTS
