#include "engine/integrity_guard.h"

#include <gtest/gtest.h>

#include "base/log.h"
#include "kv/test_clock.h"
#include "kv/test_pool.h"

namespace tern {
namespace {

constexpr int64_t kSecondUs = 1'000'000;

class IntegrityGuardTest : public testing::Test {
 protected:
  void SetUp() override { SetLogLevel(LogLevel::kError); }
  void TearDown() override {
    for (const auto& sequence : queues_.running) kv_->Release(&sequence->lease);
    SetLogLevel(LogLevel::kInfo);
  }

  void Make(IntegrityOptions options) {
    const KvLayerSpec layer = {.kind = KvLayerSpec::Kind::kGqa, .kv_heads = 1, .head_dim = 4};
    kv_ = KvCache::Create(PageFormat::Make({&layer, 1}, KvFormat::kBf16, 4).value(), 32, 1,
                          {.integrity = options.mode, .clock = &clock_})
              .value();
    guard_ = std::make_unique<IntegrityGuard>(options, *kv_, queues_, clock_);
  }
  Sequence& Add(RequestId id, std::vector<int32_t> tokens) {
    auto sequence = std::make_unique<Sequence>();
    sequence->id = id;
    sequence->tokens = std::move(tokens);
    sequence->prompt_tokens = sequence->size();
    EXPECT_TRUE(kv_->Reserve(sequence->size(), &sequence->lease));
    queues_.running.push_back(std::move(sequence));
    return *queues_.running.back();
  }
  // One pass over all rows that a sequence lacks, which writes something.
  size_t Pass(Sequence& sequence) {
    batch_.Clear();
    batch_.Add(sequence, sequence.size() - sequence.computed);
    size_t victims = guard_->BeforePass(batch_).size();
    const KvView view = kv_->View(sequence.lease);
    for (int64_t p = sequence.computed; p < sequence.size(); ++p) {
      for (const KvRowPart& part : view.format->row_parts(0)) {
        std::fill_n(view.pages[size_t(p / 4)] + part.offset_bytes + p % 4 * part.row_bytes,
                    part.row_bytes, std::byte(sequence.tokens[size_t(p)]));
      }
    }
    victims += guard_->AfterPass(batch_).size();
    sequence.computed = sequence.size();
    return victims;
  }
  std::byte* PageOf(const Sequence& sequence, size_t index) {
    return kv_->MutablePage(sequence.lease.expected()[index].id);
  }

  ManualClock clock_;
  Queues queues_;
  Batch batch_;
  std::unique_ptr<KvCache> kv_;
  std::unique_ptr<IntegrityGuard> guard_;
};

TEST_F(IntegrityGuardTest, ThreeThatEndedARequestWithinAMinuteMatter) {
  Make({});
  guard_->NoteEnded(2);
  clock_.AdvanceUs(61 * kSecondUs);
  guard_->NoteEnded(1);
  clock_.AdvanceUs(20 * kSecondUs);
  guard_->NoteEnded(1);
  EXPECT_EQ(guard_->Stats().unhealthy_until_us, 0);
  clock_.AdvanceUs(20 * kSecondUs);
  guard_->NoteEnded(1);
  EXPECT_EQ(guard_->Stats().unhealthy_until_us, clock_.NowUs() + 60 * kSecondUs);
  clock_.AdvanceUs(59 * kSecondUs);  // one more while it lasts
  guard_->NoteEnded(1);
  EXPECT_EQ(guard_->Stats().unhealthy_until_us, clock_.NowUs() + 60 * kSecondUs);
  clock_.AdvanceUs(61 * kSecondUs);
  guard_->NoteEnded(1);  // one alone, afterwards
  EXPECT_LT(guard_->Stats().unhealthy_until_us, clock_.NowUs());
  guard_->NoteHealed();
  EXPECT_EQ(guard_->Stats().ended_requests, 7);
  EXPECT_EQ(guard_->Stats().healed_requests, 1);
}

TEST_F(IntegrityGuardTest, MoreQuarantinedPagesThanTheLimitMatter) {
  Make({.quarantine_limit = 1});
  Sequence& a = Add(1, {1, 2, 3, 4, 5, 6, 7, 8, 9});
  EXPECT_EQ(Pass(a), 0u);
  for (const size_t page : {0, 1}) {
    EXPECT_EQ(guard_->Stats().unhealthy_until_us, 0);
    PageOf(a, page)[1] ^= std::byte{1};
    batch_.Clear();
    batch_.Add(a, 0);
    ASSERT_EQ(guard_->BeforePass(batch_).size(), 1u);
    PageOf(a, page)[1] ^= std::byte{1};
  }
  EXPECT_EQ(guard_->Stats().quarantined_pages, 1);  // the second check stopped at the first page
  kv_->QuarantinePage(a.lease.expected()[1].id);
  EXPECT_EQ(guard_->Stats().unhealthy_until_us, IntegrityStats::kNeverHealthy);
  kv_->Release(&a.lease);
  kv_->ReadmitQuarantined();
  EXPECT_EQ(guard_->Stats().unhealthy_until_us, 0);
}

TEST_F(IntegrityGuardTest, WhoHeldThePageSinceItWasLastGoodIsExposed) {
  Make({.mode = KvIntegrity::kSealed});
  Sequence& early = Add(1, {1, 2, 3, 4, 5});
  EXPECT_EQ(Pass(early), 0u);
  kv_->Commit({}, early.tokens, 5, 5, &early.lease);
  guard_->NoteFinished(early);
  clock_.AdvanceUs(2 * kSecondUs);
  guard_->SweepIdle(1000);  // now all pages are good
  clock_.AdvanceUs(2 * kSecondUs);
  Sequence& late = Add(2, {9, 8, 7});
  EXPECT_EQ(Pass(late), 0u);
  kv_->Release(&late.lease);
  kv_->MatchPrefix({}, early.tokens, 5, &late.lease);  // holds the early one's first page
  clock_.AdvanceUs(kSecondUs / 2);
  guard_->NoteFinished(late);
  PageOf(early, 0)[70] ^= std::byte{1};
  clock_.AdvanceUs(2 * kSecondUs);
  guard_->SweepIdle(1000);
  EXPECT_EQ(guard_->Stats().violations[size_t(KvViolationKind::kSeal)], 1);
  EXPECT_EQ(guard_->Stats().exposed_requests, 1);
}

TEST_F(IntegrityGuardTest, TheSweepKeepsItsShareOfStepTime) {
  Make({.mode = KvIntegrity::kSealed});
  Sequence& a = Add(1, {1, 2, 3, 4, 5, 6, 7, 8, 9});
  Pass(a);
  EXPECT_TRUE(guard_->AfterStep(100'000).empty());
  EXPECT_EQ(guard_->Stats().swept_pages, 0);  // verified within the last second
  clock_.AdvanceUs(2 * kSecondUs);
  PageOf(a, 1)[70] ^= std::byte{1};
  const auto victims = guard_->AfterStep(100'000);
  ASSERT_EQ(victims.size(), 1u);
  EXPECT_EQ(victims[0].id, 1u);
  EXPECT_EQ(victims[0].violation.kind, KvViolationKind::kSeal);
  EXPECT_EQ(guard_->Stats().step_us, 200'000);
}

// What it costs to find out that no page is due is time of integrity, too.
TEST(IntegrityGuard, TheChoiceOfAPageCountsAlsoWhenThereIsNone) {
  const TickingClock clock;
  const auto kv =
      KvCache::Create(TestPageFormat(4), 8, 1, {.integrity = KvIntegrity::kSealed, .clock = &clock})
          .value();
  const Queues queues;
  IntegrityGuard guard({.mode = KvIntegrity::kSealed}, *kv, queues, clock);
  guard.AfterStep(100'000);
  EXPECT_EQ(guard.Stats().swept_pages, 0);
  EXPECT_EQ(guard.Stats().check_us, 1);
  EXPECT_EQ(guard.Stats().step_us, 100'001);
}

}  // namespace
}  // namespace tern
