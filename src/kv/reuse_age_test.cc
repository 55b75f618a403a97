// How old the last verification of a shared page is when a newcomer takes it, in the load of
// docs/decisions/009, which has these figures. Time is virtual.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/clock.h"
#include "kv/kv_cache.h"
#include "kv/test_pool.h"

namespace tern {
namespace {

constexpr int64_t kSecondUs = 1'000'000;
constexpr int64_t kStepUs = 70'000, kSteps = 15 * 60 * kSecondUs / kStepUs;
constexpr int64_t kPageTokens = 2, kPages = 225;
constexpr int64_t kPrefixPages = 32, kStreams = 32, kStepsPerNewcomer = 2;
// What engine/integrity_guard.cc lets the sweep take.
constexpr double kShare = 0.0045, kMostCreditUs = 2'000, kMostDebtUs = 20'000;

struct Load {
  double others_us, hash_us;  // other checks, a step; verifying a page
};

class ReuseAge : public ::testing::TestWithParam<Load> {
 protected:
  struct Stream {
    KvLease lease;
    std::vector<int32_t> tokens;
  };

  // As an engine does when a request begins; the last page and a half wait for its tokens.
  void Begin(Stream& stream, int32_t token, bool has_prefix) {
    stream.tokens.assign(has_prefix ? kPrefixPages * kPageTokens : 0, -1);
    stream.tokens.insert(stream.tokens.end(), 3, token);
    const auto rows = static_cast<int64_t>(stream.tokens.size());
    std::array<int64_t, kPages> good_us;
    for (uint32_t p = 0; p < kPages; ++p) good_us[p] = cache_->seals()->good_us(PageId{p});
    cache_->MatchPrefix({}, stream.tokens, rows, &stream.lease);
    for (const PageRef& page : stream.lease.expected()) {
      oldest_us_ = std::max(oldest_us_, clock_.NowUs() - good_us[static_cast<size_t>(page.id)]);
    }
    ASSERT_TRUE(cache_->Reserve(rows, &stream.lease));
    Write(stream, rows - 2);
    cache_->Commit({}, stream.tokens, rows - 2, rows, &stream.lease);
  }
  void Write(Stream& stream, int64_t rows) {
    cache_->NoteWritten({}, stream.tokens, stream.lease.rows(), rows, &stream.lease);
    cache_->SealWritten();
  }
  void End(Stream& stream) {
    const int64_t rows = stream.lease.rows();
    cache_->CommitLast({}, stream.tokens, rows, rows, 0, &stream.lease);
    cache_->Release(&stream.lease);
  }

  ManualClock clock_;
  const std::unique_ptr<KvCache> cache_ =
      KvCache::Create(TestPageFormat(kPageTokens), kPages, 7,
                      {.integrity = KvIntegrity::kSealed, .clock = &clock_})
          .value();
  int64_t oldest_us_ = 0;  // when a newcomer came
};

// Half of the streams share a prefix. Every other step one ends and another begins.
TEST_P(ReuseAge, TheSweepLeavesReuseNothingToVerify) {
  std::array<Stream, kStreams> streams;
  double credit_us = 0, spent_us = 0;
  for (int64_t step = 0; step < kSteps; ++step) {
    if (step % kStepsPerNewcomer == 0) {
      const int64_t turn = step / kStepsPerNewcomer;
      Stream& newcomer = streams[static_cast<size_t>(turn % kStreams)];
      End(newcomer);
      ASSERT_NO_FATAL_FAILURE(Begin(newcomer, static_cast<int32_t>(turn), turn % 2 == 0));
      Stream& half_done = streams[static_cast<size_t>((turn + kStreams / 2) % kStreams)];
      Write(half_done, static_cast<int64_t>(half_done.tokens.size()));
    }
    clock_.AdvanceUs(kStepUs);
    credit_us = std::clamp(credit_us + kShare * kStepUs - GetParam().others_us, -kMostDebtUs,
                           kMostCreditUs);
    spent_us += GetParam().others_us;
    while (credit_us >= 0 && cache_->SweepOne(clock_.NowUs())) {
      credit_us -= GetParam().hash_us;
      spent_us += GetParam().hash_us;
    }
  }
  fmt::print("others {} us, a page {} us: oldest {:.1f} s, share {:.3f} %\n", GetParam().others_us,
             GetParam().hash_us, static_cast<double>(oldest_us_) / kSecondUs,
             spent_us / (kSteps * kStepUs) * 100);
  EXPECT_GT(oldest_us_, kSecondUs);  // or nothing has been shared
  EXPECT_LT(oldest_us_, 5 * kSecondUs);
  EXPECT_EQ(cache_->verified_pages(), 0);
  for (Stream& stream : streams) End(stream);
}

INSTANTIATE_TEST_SUITE_P(Loads, ReuseAge,
                         ::testing::Values(Load{150, 76}, Load{150, 104}, Load{215, 76},
                                           Load{215, 104}));

}  // namespace
}  // namespace tern
