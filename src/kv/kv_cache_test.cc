#include "kv/kv_cache.h"

#include <gtest/gtest.h>

#include <array>
#include <map>

#include "base/rng.h"
#include "kv/test_clock.h"
#include "kv/test_pool.h"

namespace tern {

// Reaches into a lease to damage the block table that kernels would read.
class KvLeaseTestPeer {
 public:
  static std::vector<std::byte*>& BlockTable(KvLease& lease) { return lease.block_table_; }
};

namespace {

using Tokens = std::vector<int32_t>;

using enum KvViolationKind;

constexpr int64_t kSecondUs = 1'000'000;

std::unique_ptr<KvCache> MakeCache(int64_t pages, KvCache::Options options = {},
                                   int64_t page_tokens = 2) {
  return KvCache::Create(TestPageFormat(page_tokens), pages, 7, options).value();
}

// As an engine does for rows [first, last).
void Write(KvCache& cache, const Tokens& tokens, int64_t first, int64_t last, KvLease* lease,
           const CacheNamespace& space = {}) {
  cache.ExpectRows(*lease, first, last);
  const KvView view = cache.View(*lease);
  for (int64_t position = first; position < last; ++position) {
    for (int64_t layer = 0; layer < cache.format().layers(); ++layer) {
      for (const KvRowPart& part : cache.format().row_parts(layer)) {
        const int64_t page = position / cache.format().page_tokens();
        std::byte* row = view.pages[size_t(page)] + part.offset_bytes +
                         position % cache.format().page_tokens() * part.row_bytes;
        std::fill_n(row, part.row_bytes, std::byte(tokens[size_t(position)]));
      }
    }
  }
  cache.NoteWritten(space, tokens, first, last, lease);
  cache.SealWritten();
}

// As an engine does with time to spare. Returns how many pages.
int64_t Sweep(KvCache& cache, const Clock& clock) {
  int64_t pages = 0;
  while (cache.SweepOne(clock.NowUs())) ++pages;
  return pages;
}

Status Check(const KvCache& cache, std::initializer_list<const KvLease*> leases) {
  return cache.CheckInvariants(std::vector<const KvLease*>(leases));
}

TEST(KvCache, ReserveIsAllOrNothing) {
  const auto cache = MakeCache(3);
  KvLease a, b;
  ASSERT_TRUE(cache->Reserve(3, &a));  // two pages of two tokens
  EXPECT_EQ(a.pages(), 2);
  EXPECT_FALSE(cache->Reserve(3, &b));
  EXPECT_EQ(b.pages(), 0);
  EXPECT_TRUE(cache->Reserve(4, &a));
  EXPECT_EQ(a.pages(), 2);
  EXPECT_TRUE(cache->Reserve(2, &b));
  EXPECT_TRUE(Check(*cache, {&a, &b}).ok());
  cache->Release(&a);
  cache->Release(&b);
  EXPECT_EQ(cache->available_pages(), 3);
  EXPECT_TRUE(Check(*cache, {}).ok());
}

TEST(KvCache, ACommittedPrefixIsFoundAndEvictedWhenNeeded) {
  const auto cache = MakeCache(4);
  const Tokens tokens = {1, 2, 3, 4, 5};
  KvLease a;
  ASSERT_TRUE(cache->Reserve(5, &a));
  Write(*cache, tokens, 0, 5, &a);
  cache->Commit({}, tokens, 5, 5, &a);
  EXPECT_EQ(a.shared_pages(), 2);
  EXPECT_EQ(a.pages(), 3);

  KvLease b;
  EXPECT_EQ(cache->MatchPrefix({}, tokens, 5, &b), 4);
  EXPECT_EQ(cache->View(b).pages[1], cache->View(a).pages[1]);
  EXPECT_TRUE(Check(*cache, {&a, &b}).ok());
  cache->Release(&a);
  cache->Release(&b);
  EXPECT_EQ(cache->pool().count(PageState::kCached), 2);

  KvLease c;
  EXPECT_TRUE(cache->Reserve(8, &c));
  EXPECT_EQ(cache->evicted_pages(), 2);
  cache->Release(&c);
}

// A whole prompt in the cache still leaves its last token to compute: its logits are wanted.
TEST(KvCache, AMatchLeavesOneTokenToCompute) {
  const auto cache = MakeCache(4);
  const Tokens tokens = {1, 2, 3, 4};
  KvLease a, b;
  ASSERT_TRUE(cache->Reserve(4, &a));
  Write(*cache, tokens, 0, 4, &a);
  cache->Commit({}, tokens, 4, 4, &a);
  EXPECT_EQ(cache->MatchPrefix({}, tokens, 5, &b), 2);
  cache->Release(&a);
  cache->Release(&b);
}

TEST(KvCache, DecodeRowsAreKeptBackWhereFormsDiffer) {
  for (const bool reuse : {false, true}) {
    const auto cache = MakeCache(4, {.reuse_decode_rows = reuse});
    KvLease a;
    ASSERT_TRUE(cache->Reserve(6, &a));
    const Tokens tokens = {1, 2, 3, 4, 5, 6};
    Write(*cache, tokens, 0, 6, &a);
    cache->Commit({}, tokens, 6, 3, &a);
    EXPECT_EQ(a.shared_pages(), reuse ? 3 : 1);
    cache->Release(&a);
    // A recomputed answer must not take rows that a prompt left: its first row is number 1.
    KvLease b;
    EXPECT_EQ(cache->MatchPrefix({}, Tokens{1, 2, 3, 4, 5}, 1, &b), reuse ? 4 : 0);
    cache->Release(&b);
  }
}

// A sequence that has run and ended.
void Leave(KvCache& cache, const Tokens& tokens, int64_t first_decode_row = 1000,
           const CacheNamespace& space = {}, uint64_t session = 0) {
  KvLease lease;
  const auto rows = static_cast<int64_t>(tokens.size());
  ASSERT_TRUE(cache.Reserve(rows, &lease));
  Write(cache, tokens, 0, rows, &lease, space);
  cache.CommitLast(space, tokens, rows, first_decode_row, session, &lease);
  cache.Release(&lease);
}

struct Found {
  int64_t shared = 0, copied = 0;
  friend bool operator==(const Found&, const Found&) = default;
};
// What a newcomer with these tokens gets from the cache; its rows must be those of its tokens, and
// it goes on from there.
Found Admit(KvCache& cache, const Tokens& tokens, KvLease* lease, int64_t first_decode_row = 1000,
            const CacheNamespace& space = {}) {
  const auto rows = static_cast<int64_t>(tokens.size());
  Found found = {.shared = cache.MatchPrefix(space, tokens, first_decode_row, lease)};
  EXPECT_TRUE(cache.Reserve(rows, lease));
  found.copied = cache.CopyRows(space, tokens, first_decode_row, lease);
  EXPECT_EQ(lease->rows(), found.shared + found.copied);
  const int64_t page_tokens = cache.format().page_tokens();
  for (int64_t position = 0; position < lease->rows(); ++position) {
    const std::byte* const page = cache.View(*lease).pages[size_t(position / page_tokens)];
    for (int64_t layer = 0; layer < cache.format().layers(); ++layer) {
      for (const KvRowPart& part : cache.format().row_parts(layer)) {
        const std::byte* row = page + part.offset_bytes + position % page_tokens * part.row_bytes;
        EXPECT_EQ(std::count(row, row + part.row_bytes, std::byte(tokens[size_t(position)])),
                  part.row_bytes);
      }
    }
  }
  EXPECT_FALSE(cache.FindMismatch(*lease, 0).has_value());
  EXPECT_TRUE(Check(cache, {lease}).ok()) << Check(cache, {lease}).ToString();
  Write(cache, tokens, lease->rows(), rows, lease, space);
  EXPECT_FALSE(cache.FindMismatch(*lease, 0).has_value());
  EXPECT_TRUE(Check(cache, {lease}).ok()) << Check(cache, {lease}).ToString();
  return found;
}

TEST(KvCache, RowsOfAPageThatCantBeSharedAreCopied) {
  for (const KvIntegrity integrity :
       {KvIntegrity::kOff, KvIntegrity::kTags, KvIntegrity::kSealed}) {
    const auto cache = MakeCache(16, {.integrity = integrity}, 4);
    const Tokens tokens = {1, 2, 3, 4, 5, 6, 7};
    Leave(*cache, tokens);
    const std::pair<Tokens, Found> cases[] = {
        {tokens, {4, 2}},                       // the last token is computed: its logits are wanted
        {{1, 2, 3, 4, 5, 6, 7, 8, 9}, {4, 3}},  // a tail
        {{1, 2, 3, 4, 5, 9, 9, 9, 9}, {4, 1}},
        {{1, 2, 3, 9, 5}, {0, 3}},  // a whole page that goes on otherwise
        {{1, 2, 3, 4}, {0, 3}},
        {{1, 2, 3, 4, 9}, {4, 0}},
        {{2, 2, 3, 4}, {0, 0}},
        {{1}, {0, 0}}};
    int64_t copied = 0;
    for (const auto& [prompt, want] : cases) {
      KvLease lease;
      EXPECT_EQ(Admit(*cache, prompt, &lease), want) << testing::PrintToString(prompt);
      copied += want.copied;
      cache->Release(&lease);
    }
    EXPECT_EQ(cache->copied_rows(), copied);
    KvLease other;
    EXPECT_EQ(Admit(*cache, tokens, &other, 1000, {"", "another tenant"}), (Found{0, 0}));
    cache->Release(&other);
    EXPECT_FALSE(cache->has_violations());
    EXPECT_TRUE(Check(*cache, {}).ok()) << Check(*cache, {}).ToString();
  }
}

// A page may hold more rows than its tail offers: those of discarded tokens, or in another form.
TEST(KvCache, ATailOffersOnlyTheRowsThatCount) {
  const Tokens tokens = {1, 2, 3, 4, 5, 6, 7, 8};
  for (const KvIntegrity integrity : {KvIntegrity::kTags, KvIntegrity::kSealed}) {
    const auto cache = MakeCache(16, {.reuse_decode_rows = false, .integrity = integrity}, 4);
    Leave(*cache, tokens, 6);
    KvLease lease;
    EXPECT_EQ(Admit(*cache, {1, 2, 3, 4, 5, 6, 7, 8, 9}, &lease), (Found{4, 2}));
    cache->Release(&lease);
    // Nor are rows from first_decode_row on taken from a prompt.
    EXPECT_EQ(Admit(*cache, tokens, &lease, 5), (Found{4, 1}));
    cache->Release(&lease);
    EXPECT_EQ(Admit(*cache, tokens, &lease, 3), (Found{0, 3}));
    cache->Release(&lease);
    EXPECT_FALSE(cache->has_violations());
  }
}

TEST(KvCache, ASourceIsVerifiedWholeWhateverTheInterval) {
  ManualClock clock;
  const Tokens tokens = {1, 2, 3, 4, 5, 6, 7};
  for (const int row : {0, 2}) {  // one that is copied, one that is not
    const auto cache = MakeCache(16, {.integrity = KvIntegrity::kSealed, .clock = &clock}, 4);
    KvLease a;
    ASSERT_TRUE(cache->Reserve(7, &a));
    Write(*cache, tokens, 0, 7, &a);
    const PageId source = a.expected()[1].id;
    cache->CommitLast({}, tokens, 7, 7, 0, &a);
    cache->Release(&a);
    cache->MutablePage(source)[cache->format().row_parts(0)[0].offset_bytes +
                               row * cache->format().row_parts(0)[0].row_bytes] ^= std::byte{1};
    KvLease b;
    EXPECT_EQ(Admit(*cache, {1, 2, 3, 4, 5, 6, 9}, &b), (Found{4, 0}));
    const auto violations = cache->TakeViolations();
    ASSERT_EQ(violations.size(), 1u);
    EXPECT_EQ(violations[0].kind, kSeal);
    EXPECT_EQ(violations[0].page, source);
    EXPECT_EQ(cache->pool().state(source), PageState::kQuarantined);
    cache->Release(&b);
    EXPECT_TRUE(Check(*cache, {}).ok()) << Check(*cache, {}).ToString();
  }
}

TEST(KvCache, TheTimeOfEachVerificationCountsOnce) {
  const TickingClock clock;
  const auto cache = MakeCache(
      16, {.integrity = KvIntegrity::kSealed, .verify_interval_us = 0, .clock = &clock}, 2);
  const Tokens tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  Leave(*cache, tokens);
  ASSERT_EQ(cache->verified_pages(), 0);
  KvLease b;
  ASSERT_EQ(Admit(*cache, tokens, &b), (Found{8, 0}));
  EXPECT_EQ(cache->verified_pages(), 4);
  EXPECT_EQ(cache->match_us(), 4);
  cache->Release(&b);
}

// The copy has seals of its own.
TEST(KvCache, ACopiedRowIsSealed) {
  ManualClock clock;
  const auto cache = MakeCache(
      16, {.integrity = KvIntegrity::kSealed, .verify_interval_us = 0, .clock = &clock}, 4);
  Leave(*cache, {1, 2, 3, 4, 5, 6, 7});
  KvLease b;
  ASSERT_EQ(Admit(*cache, {1, 2, 3, 4, 5, 6, 9}, &b), (Found{4, 2}));
  clock.AdvanceUs(1);
  EXPECT_EQ(Sweep(*cache, clock), 3);  // the tail, and two pages in use
  EXPECT_FALSE(cache->has_violations());
  const PageId own = b.expected()[1].id;
  cache->MutablePage(own)[cache->format().row_parts(0)[0].offset_bytes] ^= std::byte{1};
  clock.AdvanceUs(1);
  EXPECT_EQ(Sweep(*cache, clock), 3);
  EXPECT_EQ(cache->TakeViolations().at(0).page, own);
  cache->Release(&b);
}

TEST(KvCache, TheDisabledCacheFindsNothing) {
  const auto cache = MakeCache(4, {.reuse_prefixes = false});
  KvLease a, b;
  ASSERT_TRUE(cache->Reserve(4, &a));
  Write(*cache, Tokens{1, 2, 3, 4}, 0, 4, &a);
  cache->Commit({}, Tokens{1, 2, 3, 4}, 4, 4, &a);
  EXPECT_EQ(cache->MatchPrefix({}, Tokens{1, 2, 3, 4}, 4, &b), 0);
  cache->Release(&a);
  EXPECT_EQ(cache->pool().count(PageState::kFree), 4);
}

// The kind of the lease's first violation; -1: none.
int Mismatch(KvCache& cache, const KvLease& lease) {
  const auto found = cache.FindMismatch(lease, 0);
  return found ? static_cast<int>(found->kind) : -1;
}

TEST(KvCache, FindsMismatchesInHeaderAndBlockTable) {
  const auto cache = MakeCache(4);
  KvLease a;
  ASSERT_TRUE(cache->Reserve(6, &a));
  EXPECT_EQ(Mismatch(*cache, a), -1);
  std::byte* header = cache->MutablePage(a.expected()[1].id);
  header[3] ^= std::byte{0x80};
  EXPECT_EQ(Mismatch(*cache, a), int(kTag));
  EXPECT_EQ(cache->FindMismatch(a, 0)->page, a.expected()[1].id);
  header[3] ^= std::byte{0x80};
  std::swap(KvLeaseTestPeer::BlockTable(a)[0], KvLeaseTestPeer::BlockTable(a)[2]);
  EXPECT_EQ(Mismatch(*cache, a), int(kBlockTable));
  EXPECT_EQ(cache->FindMismatch(a, 0)->page, a.expected()[0].id);
  EXPECT_EQ(cache->StrayPages(a, 3, 5), std::vector<PageId>{a.expected()[0].id});
  EXPECT_EQ(cache->FindMismatchWritten(a, 2, 4)->kind, kBlockTable);  // read, if not written
  std::swap(KvLeaseTestPeer::BlockTable(a)[0], KvLeaseTestPeer::BlockTable(a)[2]);
  EXPECT_FALSE(cache->FindMismatchWritten(a, 0, 6).has_value());
  cache->QuarantinePage(a.expected()[2].id);
  EXPECT_EQ(Mismatch(*cache, a), int(kTag));
  EXPECT_FALSE(cache->FindMismatchWritten(a, 0, 4).has_value());
  EXPECT_EQ(cache->FindMismatchWritten(a, 3, 5)->kind, kOwner);
  EXPECT_TRUE(Check(*cache, {&a}).ok());
  cache->Release(&a);
  EXPECT_EQ(cache->usable_pages(), 3);
  EXPECT_EQ(cache->available_pages(), 3);
  EXPECT_TRUE(Check(*cache, {}).ok());
  cache->ReadmitQuarantined();
  EXPECT_EQ(cache->available_pages(), 4);
  EXPECT_TRUE(Check(*cache, {}).ok());
}

TEST(KvCache, AQuarantinedPageIsScrubbed) {
  const auto cache = MakeCache(1);
  KvLease a;
  ASSERT_TRUE(cache->Reserve(2, &a));
  Write(*cache, Tokens{5, 6}, 0, 2, &a);
  const PageId page = a.expected()[0].id;
  cache->QuarantinePage(page);
  const std::byte* bytes = cache->MutablePage(page);
  for (int64_t i = sizeof(PageHeader); i < cache->format().page_bytes(); ++i) {
    ASSERT_EQ(bytes[i], std::byte{0}) << i;
  }
  cache->Release(&a);
}

TEST(KvCache, WithoutIntegrityNobodyLooks) {
  const auto cache = MakeCache(4, {.integrity = KvIntegrity::kOff});
  KvLease a;
  ASSERT_TRUE(cache->Reserve(6, &a));
  cache->MutablePage(a.expected()[1].id)[3] ^= std::byte{1};
  EXPECT_EQ(Mismatch(*cache, a), -1);
  EXPECT_FALSE(cache->FindMismatchWritten(a, 0, 6).has_value());
  EXPECT_EQ(cache->seals(), nullptr);
  cache->MutablePage(a.expected()[1].id)[3] ^= std::byte{1};
  cache->Release(&a);
}

TEST(KvCache, EveryHolderOfAQuarantinedPageFailsItsCheck) {
  const auto cache = MakeCache(6);
  const Tokens tokens = {1, 2, 3, 4, 5};
  KvLease a, b, c;
  ASSERT_TRUE(cache->Reserve(5, &a));
  Write(*cache, tokens, 0, 5, &a);
  cache->Commit({}, tokens, 4, 4, &a);
  ASSERT_EQ(cache->MatchPrefix({}, tokens, 5, &b), 4);
  ASSERT_TRUE(cache->Reserve(2, &c));
  cache->QuarantinePage(a.expected()[0].id);
  EXPECT_EQ(Mismatch(*cache, a), int(kTag));
  EXPECT_EQ(Mismatch(*cache, b), int(kTag));
  EXPECT_EQ(Mismatch(*cache, c), -1);
  EXPECT_TRUE(Check(*cache, {&a, &b, &c}).ok()) << Check(*cache, {&a, &b, &c}).ToString();
  cache->Release(&a);
  cache->Release(&b);
  cache->Release(&c);
  EXPECT_TRUE(Check(*cache, {}).ok());
  EXPECT_EQ(cache->available_pages(), 5);
}

// A page says what it was written for: model, tenant and all tokens up to its end.
TEST(KvCache, ChainsNameModelTenantAndTokens) {
  const auto chains = [](uint64_t model, const CacheNamespace& space, const Tokens& tokens) {
    const auto cache = MakeCache(4, {.model_id = model});
    KvLease a;
    EXPECT_TRUE(cache->Reserve(5, &a));
    Write(*cache, tokens, 0, 1, &a, space);
    EXPECT_EQ(cache->pool().chain(a.expected()[0].id), 0u);  // not full yet
    Write(*cache, tokens, 1, 5, &a, space);
    EXPECT_EQ(cache->pool().chain(a.expected()[2].id), 0u);
    const std::pair both(cache->pool().chain(a.expected()[0].id),
                         cache->pool().chain(a.expected()[1].id));
    cache->Release(&a);
    return both;
  };
  const auto base = chains(1, {}, {1, 2, 3, 4, 5});
  EXPECT_EQ(chains(1, {}, {1, 2, 3, 4, 9}), base);
  EXPECT_EQ(chains(1, {}, {1, 2, 3, 9, 5}).first, base.first);
  for (const auto& other :
       {chains(2, {}, {1, 2, 3, 4, 5}), chains(1, {"a", ""}, {1, 2, 3, 4, 5}),
        chains(1, {"", "a"}, {1, 2, 3, 4, 5}), chains(1, {}, {9, 2, 3, 4, 5})}) {
    EXPECT_NE(other.first, base.first);
    EXPECT_NE(other.second, base.second);
  }
  EXPECT_NE(chains(1, {"", "a"}, {1, 2, 3, 4, 5}), chains(1, {"a", ""}, {1, 2, 3, 4, 5}));
}

// docs/formats/kv_page.md, "Chain" and "Tail"; values by Python's xxhash 4.1:
// h = xxh3_64_intdigest; root = h(b"salt", h(b"key", 42)), then h(pack("<2i", 1, 2), root),
// h(pack("<2i", 3, -4), ...), h(pack("<i", 5), ...).
TEST(KvCache, ChainsAreThoseOfTheSpecification) {
  const CacheNamespace space = {.extra_key = "key", .cache_salt = "salt"};
  EXPECT_EQ(ChainRoot(42, space), 0xd1779b9f235adf2u);
  EXPECT_EQ(ChainRoot(42, {}), 0x231d01b63abefe71u);
  const auto cache = MakeCache(4, {.model_id = 42});
  const Tokens tokens = {1, 2, 3, -4, 5};
  KvLease a;
  ASSERT_TRUE(cache->Reserve(5, &a));
  Write(*cache, tokens, 0, 5, &a, space);
  const std::vector<PageRef> pages(a.expected().begin(), a.expected().end());
  EXPECT_EQ(cache->pool().chain(pages[0].id), 0x332af5ef33755904u);
  EXPECT_EQ(cache->pool().chain(pages[1].id), 0xdb9df0b88153a03u);
  EXPECT_EQ(cache->pool().chain(pages[2].id), 0u);
  cache->CommitLast(space, tokens, 5, 5, 0, &a);
  cache->Release(&a);
  EXPECT_EQ(cache->pool().chain(pages[2].id), 0x5c6b991811d093cbu);
  EXPECT_EQ(cache->pool().rows(pages[2].id), 1);
}

TEST(KvCache, SealsFollowTheRowsAndAreCheckedOnReuse) {
  const auto cache = MakeCache(8, {.integrity = KvIntegrity::kSealed, .verify_interval_us = 0});
  const Tokens tokens = {1, 2, 3, 4, 5, 6};
  KvLease a, b, c;
  ASSERT_TRUE(cache->Reserve(5, &a));
  for (int64_t i = 0; i < 5; ++i) Write(*cache, tokens, i, i + 1, &a);
  for (size_t i = 0; i < 3; ++i) {
    const PageId page = a.expected()[i].id;
    const int64_t rows = i < 2 ? 2 : 1;
    EXPECT_EQ(cache->seals()->seal(page, 0),
              SealRows(cache->format(), 0, cache->MutablePage(page), int64_t(2 * i), rows));
  }
  cache->Commit({}, tokens, 4, 4, &a);
  EXPECT_EQ(cache->MatchPrefix({}, tokens, 6, &b), 4);
  EXPECT_EQ(cache->verified_pages(), 2);
  EXPECT_TRUE(cache->TakeViolations().empty());

  cache->MutablePage(a.expected()[1].id)[sizeof(PageHeader)] ^= std::byte{4};
  EXPECT_EQ(cache->MatchPrefix({}, tokens, 6, &c), 2);
  const auto violations = cache->TakeViolations();
  ASSERT_EQ(violations.size(), 1u);
  EXPECT_EQ(violations[0].kind, kSeal);
  EXPECT_EQ(violations[0].page, a.expected()[1].id);
  EXPECT_EQ(Mismatch(*cache, b), int(kTag));
  EXPECT_EQ(Mismatch(*cache, c), -1);
  for (KvLease* lease : {&a, &b, &c}) cache->Release(lease);
  EXPECT_TRUE(Check(*cache, {}).ok()) << Check(*cache, {}).ToString();
}

TEST(KvCache, TheSweepVerifiesPagesInUseAndNoneTwiceWithinASecond) {
  ManualClock clock;
  const auto cache = MakeCache(8, {.integrity = KvIntegrity::kSealed, .clock = &clock});
  const Tokens tokens = {1, 2, 3, 4, 5, 6};
  KvLease a;
  ASSERT_TRUE(cache->Reserve(5, &a));
  Write(*cache, tokens, 0, 5, &a);
  EXPECT_EQ(Sweep(*cache, clock), 0);  // just written
  clock.AdvanceUs(kSecondUs - 1);
  EXPECT_EQ(Sweep(*cache, clock), 0);
  clock.AdvanceUs(1);
  EXPECT_EQ(Sweep(*cache, clock), 3);
  EXPECT_EQ(cache->swept_pages(), 3);
  EXPECT_FALSE(cache->has_violations());

  clock.AdvanceUs(kSecondUs);
  std::byte* last = cache->MutablePage(a.expected()[2].id) + sizeof(PageHeader);
  last[15] ^= std::byte{1};  // of a row that is not written
  EXPECT_EQ(Sweep(*cache, clock), 3);
  EXPECT_FALSE(cache->has_violations());
  clock.AdvanceUs(kSecondUs);
  last[0] ^= std::byte{1};
  EXPECT_EQ(Sweep(*cache, clock), 3);
  const auto violations = cache->TakeViolations();
  ASSERT_EQ(violations.size(), 1u);
  EXPECT_EQ(violations[0].page, a.expected()[2].id);
  EXPECT_EQ(violations[0].good_us, 2 * kSecondUs);
  EXPECT_EQ(cache->quarantined_pages(), 1);
  cache->Release(&a);
}

// The pages that the sweep takes now, one after the other.
std::vector<PageId> SweptPages(KvCache& cache, const Clock& clock) {
  std::vector<PageId> pages;
  std::vector<int64_t> good_us(static_cast<size_t>(cache.pool().pages()));
  const auto each_page = [&](const auto& visit) {
    for (uint32_t i = 0; i < good_us.size(); ++i) visit(PageId{i}, good_us[i]);
  };
  while (true) {
    each_page([&](PageId page, int64_t& us) { us = cache.seals()->good_us(page); });
    if (!cache.SweepOne(clock.NowUs())) return pages;
    each_page([&](PageId page, int64_t us) {
      if (cache.seals()->good_us(page) != us) pages.push_back(page);
    });
  }
}

// Pages of `lease`, in its order.
std::vector<PageId> PagesOf(const KvLease& lease) {
  std::vector<PageId> pages;
  for (const PageRef& page : lease.expected()) pages.push_back(page.id);
  return pages;
}

TEST(KvCache, TheSweepTakesPagesInUseFirst) {
  ManualClock clock;
  const auto cache = MakeCache(16, {.integrity = KvIntegrity::kSealed, .clock = &clock});
  const Tokens known = {1, 2, 3, 4, 5}, other = {6, 7, 8, 9};
  Leave(*cache, known);  // two pages and a tail
  clock.AdvanceUs(1);
  KvLease a, b;
  ASSERT_TRUE(cache->Reserve(4, &a));
  Write(*cache, other, 0, 3, &a);
  clock.AdvanceUs(1);
  ASSERT_EQ(cache->MatchPrefix({}, {{1, 2, 3}}, 9, &b), 2);  // shares the first one
  clock.AdvanceUs(kSecondUs);
  const std::vector<PageId> own = PagesOf(a), shared = PagesOf(b);
  std::vector<PageId> swept = SweptPages(*cache, clock);
  ASSERT_EQ(swept.size(), 5u);
  EXPECT_EQ((std::vector(swept.begin(), swept.begin() + 3)),
            (std::vector{own[0], own[1], shared[0]}));
  const std::vector<PageId> cached(swept.begin() + 3, swept.end());
  for (const PageId page : cached) EXPECT_EQ(cache->pool().state(page), PageState::kCached);

  // What is cached from now on comes last, what is shared from now on first; being cached while
  // its writer goes on changes nothing.
  clock.AdvanceUs(1);
  cache->Commit({}, other, 2, 4, &a);
  EXPECT_EQ(cache->pool().state(own[0]), PageState::kCached);
  cache->Release(&b);
  ASSERT_EQ(cache->MatchPrefix({}, known, 9, &b), 4);
  cache->Release(&b);
  clock.AdvanceUs(kSecondUs);
  swept = SweptPages(*cache, clock);
  ASSERT_EQ(swept.size(), 5u);
  EXPECT_EQ((std::vector(swept.begin(), swept.begin() + 2)), (std::vector{own[0], own[1]}));
  EXPECT_TRUE(Check(*cache, {&a}).ok()) << Check(*cache, {&a}).ToString();
  cache->Release(&a);
  clock.AdvanceUs(kSecondUs);
  EXPECT_EQ(SweptPages(*cache, clock).size(), 4u);  // one was written and nowhere cached
  EXPECT_TRUE(Check(*cache, {}).ok()) << Check(*cache, {}).ToString();
}

// One page a second, of twenty that are in use and two that are not.
TEST(KvCache, CachedPagesHaveTurnsWhilePagesInUseTakeAllTime) {
  ManualClock clock;
  const auto cache = MakeCache(32, {.integrity = KvIntegrity::kSealed, .clock = &clock});
  Leave(*cache, {1, 2, 3, 4});
  KvLease a;
  ASSERT_TRUE(cache->Reserve(40, &a));
  Write(*cache, Tokens(40, 7), 0, 40, &a);
  std::map<PageId, std::vector<int>> turns;
  for (int turn = 0; turn < 96; ++turn) {
    clock.AdvanceUs(kSecondUs);
    const int64_t now_us = clock.NowUs();
    ASSERT_TRUE(cache->SweepOne(now_us));
    for (uint32_t i = 0; i < 32; ++i) {
      if (cache->seals()->good_us(PageId{i}) == now_us) turns[PageId{i}].push_back(turn);
    }
  }
  EXPECT_EQ(turns.size(), 22u);
  const int in_use_round = 20 * 16 / 15 + 1, cached_round = 2 * 16;
  int cached_turns = 0;
  for (const auto& [page, of_page] : turns) {
    const bool in_use = cache->pool().in_use(page);
    EXPECT_EQ(in_use, a.Holds(page));
    if (!in_use) cached_turns += static_cast<int>(of_page.size());
    for (size_t i = 0; i < of_page.size(); ++i) {
      EXPECT_LE(of_page[i] - (i == 0 ? -1 : of_page[i - 1]), in_use ? in_use_round : cached_round);
    }
  }
  EXPECT_EQ(cached_turns, 96 / 16);
  cache->Release(&a);
}

// Requests come and go at random. No page is swept twice within a second; when the sweep says that
// nothing is left, nothing is that has been due for a second; and none is without a turn.
TEST(KvCache, TheSweepForgetsNoPageOfARandomTrace) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Rng rng(seed);
    ManualClock clock;
    const auto cache = MakeCache(24, {.integrity = KvIntegrity::kSealed, .clock = &clock});
    std::array<KvLease, 4> leases;
    std::array<Tokens, 4> tokens;
    for (int step = 0; step < 300; ++step) {
      clock.AdvanceUs(static_cast<int64_t>(rng.Below(kSecondUs / 2)));
      const auto i = static_cast<size_t>(rng.Below(leases.size()));
      KvLease& lease = leases[i];
      if (lease.pages() > 0) {
        const auto rows = static_cast<int64_t>(tokens[i].size());
        cache->CommitLast({}, tokens[i], rows, rows, rng.Below(3), &lease);
        cache->Release(&lease);
      } else {
        tokens[i].clear();
        for (uint64_t n = 1 + rng.Below(12); n > 0; --n) {
          tokens[i].push_back(static_cast<int32_t>(rng.Below(2)));
        }
        const auto rows = static_cast<int64_t>(tokens[i].size());
        cache->MatchPrefix({}, tokens[i], rows, &lease);
        if (!cache->Reserve(rows, &lease)) {
          cache->Release(&lease);
          continue;
        }
        cache->CopyRows({}, tokens[i], rows, &lease);
        Write(*cache, tokens[i], lease.rows(), rows, &lease);
        if (rng.Chance(0.5)) cache->Commit({}, tokens[i], rows, rows, &lease);
      }
      const int64_t now_us = clock.NowUs();
      int64_t budget = static_cast<int64_t>(rng.Below(6));
      bool more = true;
      for (; more && budget > 0; --budget) {
        std::vector<int64_t> before;
        for (uint32_t p = 0; p < 24; ++p) before.push_back(cache->seals()->good_us(PageId{p}));
        more = cache->SweepOne(now_us);
        for (uint32_t p = 0; p < 24; ++p) {
          if (cache->seals()->good_us(PageId{p}) == before[p]) continue;
          EXPECT_GE(now_us, before[p] + kSecondUs);
        }
      }
      const std::vector<const KvLease*> all = {&leases[0], &leases[1], &leases[2], &leases[3]};
      const Status status = cache->CheckInvariants(all);
      ASSERT_TRUE(status.ok()) << status.ToString();
      if (more) continue;
      for (uint32_t p = 0; p < 24; ++p) {
        if (!cache->pool().HasTurn(PageId{p}) || !cache->pool().in_use(PageId{p})) continue;
        EXPECT_LT(now_us - cache->seals()->good_us(PageId{p}), 2 * kSecondUs) << p;
      }
    }
    EXPECT_FALSE(cache->has_violations());
    for (KvLease& lease : leases) cache->Release(&lease);
  }
}

// What others read already is the sweep's, for five seconds; a newcomer that takes such a page on
// trust is among its holders when the sweep finds it out.
TEST(KvCache, APageInUseIsVerifiedByTheSweepAndSeldomerOnReuse) {
  ManualClock clock;
  const auto cache = MakeCache(8, {.integrity = KvIntegrity::kSealed, .clock = &clock});
  const Tokens tokens = {1, 2, 3, 4, 5, 6};
  KvLease a, b, c;
  ASSERT_TRUE(cache->Reserve(5, &a));
  Write(*cache, tokens, 0, 5, &a);
  cache->Commit({}, tokens, 4, 4, &a);
  const auto verified_by_match = [&](KvLease* lease) {
    const int64_t before = cache->verified_pages();
    EXPECT_EQ(cache->MatchPrefix({}, tokens, 6, lease), 4);
    return cache->verified_pages() - before;
  };
  clock.AdvanceUs(5 * kSecondUs - 1);
  EXPECT_EQ(verified_by_match(&b), 0);
  cache->Release(&b);
  clock.AdvanceUs(1);
  EXPECT_EQ(verified_by_match(&b), 2);
  cache->Release(&a);
  cache->Release(&b);
  clock.AdvanceUs(kSecondUs);  // nobody's
  EXPECT_EQ(verified_by_match(&a), 2);

  clock.AdvanceUs(2 * kSecondUs);
  const PageId lost = a.expected()[1].id;
  cache->MutablePage(lost)[sizeof(PageHeader)] ^= std::byte{4};
  EXPECT_EQ(verified_by_match(&c), 0);
  EXPECT_EQ(Sweep(*cache, clock), 2);
  const auto violations = cache->TakeViolations();
  ASSERT_EQ(violations.size(), 1u);
  EXPECT_EQ(violations[0].kind, kSeal);
  EXPECT_EQ(violations[0].page, lost);
  EXPECT_EQ(Mismatch(*cache, a), int(kTag));
  EXPECT_EQ(Mismatch(*cache, c), int(kTag));
  cache->Release(&a);
  cache->Release(&c);
  EXPECT_TRUE(Check(*cache, {}).ok()) << Check(*cache, {}).ToString();
}

// Pages from another engine: in any order, with the seals that it made.
TEST(KvCache, ReceivedPagesKeepTheSendersSeals) {
  const Tokens tokens = {1, 2, 3, 4, 5};
  const auto sender = MakeCache(4, {.integrity = KvIntegrity::kSealed});
  KvLease a, b;
  ASSERT_TRUE(sender->Reserve(5, &a));
  Write(*sender, tokens, 0, 5, &a);
  for (const bool damaged : {false, true}) {
    ManualClock clock;
    const auto cache = MakeCache(4, {.integrity = KvIntegrity::kSealed, .clock = &clock});
    ASSERT_TRUE(cache->Reserve(5, &b));
    for (const size_t page : {2, 0, 1}) {
      const std::byte* from = sender->MutablePage(a.expected()[page].id);
      std::byte* to = cache->MutablePage(b.expected()[page].id);
      std::copy(from + sizeof(PageHeader), from + sender->format().page_bytes(),
                to + sizeof(PageHeader));
      if (damaged && page == 1) to[sizeof(PageHeader) + 9] ^= std::byte{1};
      const uint64_t sums[] = {sender->seals()->seal(a.expected()[page].id, 0).sum};
      const auto first = static_cast<int64_t>(2 * page);
      cache->NoteWritten({}, tokens, first, std::min<int64_t>(first + 2, 5), &b, sums);
    }
    for (size_t page = 0; page < 3; ++page) {
      EXPECT_EQ(cache->pool().chain(b.expected()[page].id),
                sender->pool().chain(a.expected()[page].id));
    }
    EXPECT_EQ(Mismatch(*cache, b), -1);
    clock.AdvanceUs(kSecondUs);
    EXPECT_EQ(Sweep(*cache, clock), 3);
    EXPECT_EQ(cache->TakeViolations().size(), damaged ? 1u : 0u);
    cache->Release(&b);
  }
  sender->Release(&a);
}

TEST(KvCache, ARowThatThePassLeavesOutIsSeen) {
  const auto cache = MakeCache(4, {.integrity = KvIntegrity::kSealed});
  KvLease a;
  ASSERT_TRUE(cache->Reserve(3, &a));
  const Tokens tokens = {1, 2, 3};
  cache->ExpectRows(a, 0, 3);
  const KvView view = cache->View(a);
  for (const int64_t position : {0, 2}) {  // not 1
    std::fill_n(view.pages[size_t(position / 2)] + sizeof(PageHeader) + position % 2 * 8, 8,
                std::byte{7});
  }
  cache->NoteWritten({}, tokens, 0, 3, &a);
  cache->SealWritten();
  const auto violations = cache->TakeViolations();
  ASSERT_EQ(violations.size(), 1u);
  EXPECT_EQ(violations[0].kind, kUnwritten);
  EXPECT_EQ(violations[0].page, a.expected()[0].id);
  cache->Release(&a);
}

TEST(KvCache, InvariantsSeeALostAndAForgottenLease) {
  const auto cache = MakeCache(4);
  KvLease a;
  ASSERT_TRUE(cache->Reserve(2, &a));
  EXPECT_EQ(Check(*cache, {}).code(), StatusCode::kInternal);        // a leak
  EXPECT_EQ(Check(*cache, {&a, &a}).code(), StatusCode::kInternal);  // two owners
  cache->Release(&a);
}

}  // namespace
}  // namespace tern
