#include "kv/kv_cache.h"

#include <gtest/gtest.h>

#include "kv/test_pool.h"

namespace tern {

// Reaches into a lease to damage the block table that kernels would read.
class KvLeaseTestPeer {
 public:
  static std::vector<std::byte*>& BlockTable(KvLease& lease) { return lease.block_table_; }
};

namespace {

using Tokens = std::vector<int32_t>;

std::unique_ptr<KvCache> MakeCache(int64_t pages, KvCache::Options options = {}) {
  return KvCache::Create(TestPageFormat(2), pages, 7, options).value();
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
  cache->NoteWritten(a, 0, 5);
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
    cache->Commit({}, Tokens{1, 2, 3, 4, 5, 6}, 6, 3, &a);
    EXPECT_EQ(a.shared_pages(), reuse ? 3 : 1);
    cache->Release(&a);
    // A recomputed answer must not take rows that a prompt left: its first row is number 1.
    KvLease b;
    EXPECT_EQ(cache->MatchPrefix({}, Tokens{1, 2, 3, 4, 5}, 1, &b), reuse ? 4 : 0);
    cache->Release(&b);
  }
}

TEST(KvCache, TheDisabledCacheFindsNothing) {
  const auto cache = MakeCache(4, {.reuse_prefixes = false});
  KvLease a, b;
  ASSERT_TRUE(cache->Reserve(4, &a));
  cache->Commit({}, Tokens{1, 2, 3, 4}, 4, 4, &a);
  EXPECT_EQ(cache->MatchPrefix({}, Tokens{1, 2, 3, 4}, 4, &b), 0);
  cache->Release(&a);
  EXPECT_EQ(cache->pool().count(PageState::kFree), 4);
}

TEST(KvCache, FindsMismatchesInHeaderAndBlockTable) {
  const auto cache = MakeCache(4);
  KvLease a;
  ASSERT_TRUE(cache->Reserve(6, &a));
  EXPECT_EQ(cache->FindMismatch(a), -1);
  std::byte* header = cache->MutablePage(a.expected()[1].id);
  header[3] ^= std::byte{0x80};
  EXPECT_EQ(cache->FindMismatch(a), 1);
  header[3] ^= std::byte{0x80};
  std::swap(KvLeaseTestPeer::BlockTable(a)[0], KvLeaseTestPeer::BlockTable(a)[2]);
  EXPECT_EQ(cache->FindMismatch(a), 0);
  std::swap(KvLeaseTestPeer::BlockTable(a)[0], KvLeaseTestPeer::BlockTable(a)[2]);
  cache->QuarantinePage(a, 2);
  EXPECT_EQ(cache->FindMismatch(a), 2);
  EXPECT_TRUE(Check(*cache, {&a}).ok());
  cache->Release(&a);
  EXPECT_EQ(cache->usable_pages(), 3);
  EXPECT_EQ(cache->available_pages(), 3);
  EXPECT_TRUE(Check(*cache, {}).ok());
}

TEST(KvCache, EveryHolderOfAQuarantinedPageFailsItsCheck) {
  const auto cache = MakeCache(6);
  const Tokens tokens = {1, 2, 3, 4, 5};
  KvLease a, b, c;
  ASSERT_TRUE(cache->Reserve(5, &a));
  cache->Commit({}, tokens, 4, 4, &a);
  ASSERT_EQ(cache->MatchPrefix({}, tokens, 5, &b), 4);
  ASSERT_TRUE(cache->Reserve(2, &c));
  cache->QuarantinePage(a, 0);
  EXPECT_EQ(cache->FindMismatch(a), 0);
  EXPECT_EQ(cache->FindMismatch(b), 0);
  EXPECT_EQ(cache->FindMismatch(c), -1);
  EXPECT_TRUE(Check(*cache, {&a, &b, &c}).ok()) << Check(*cache, {&a, &b, &c}).ToString();
  cache->Release(&a);
  cache->Release(&b);
  cache->Release(&c);
  EXPECT_TRUE(Check(*cache, {}).ok());
  EXPECT_EQ(cache->available_pages(), 5);
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
