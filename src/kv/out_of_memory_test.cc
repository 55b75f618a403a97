// Memory runs out at each allocation in turn while requests come, share pages, are cached and go.
// Each time the caller ends its requests, as the engine does; no page may be lost by it.
#include <gtest/gtest.h>

#include <array>

#include "base/test_allocation.h"
#include "kv/kv_cache.h"
#include "kv/test_pool.h"

namespace tern {
namespace {

using Tokens = std::vector<int32_t>;

class KvOutOfMemory : public testing::TestWithParam<KvIntegrity> {
 protected:
  static constexpr int64_t kPages = 9, kPageTokens = 2;
  using Leases = std::array<KvLease, 3>;

  void SetUp() override {
    cache_ = KvCache::Create(TestPageFormat(kPageTokens), kPages, 7,
                             {.integrity = GetParam(), .max_protected_pages = 3})
                 .value();
  }

  // Rows of `tokens` from where the lease ends; their bytes say their tokens.
  void Compute(const CacheNamespace& space, const Tokens& tokens, KvLease* lease) {
    const auto first = lease->rows(), last = static_cast<int64_t>(tokens.size());
    cache_->ExpectRows(*lease, first, last);
    for (int64_t position = first; position < last; ++position) {
      std::byte* const page = cache_->View(*lease).pages[size_t(position / kPageTokens)];
      for (const KvRowPart& part : cache_->format().row_parts(0)) {
        std::fill_n(page + part.offset_bytes + position % kPageTokens * part.row_bytes,
                    part.row_bytes, std::byte(tokens[size_t(position)]));
      }
    }
    cache_->NoteWritten(space, tokens, first, last, lease);
    cache_->SealWritten();
  }

  // Tokens found for a request that computes the rest, offers its prompt and, with a session, ends.
  int64_t Serve(const CacheNamespace& space, const Tokens& tokens, uint64_t session,
                KvLease* lease) {
    const auto size = static_cast<int64_t>(tokens.size());
    int64_t found = cache_->MatchPrefix(space, tokens, size, lease);
    EXPECT_TRUE(cache_->Reserve(size, lease));
    found += cache_->CopyRows(space, tokens, size, lease);
    Compute(space, tokens, lease);
    cache_->Commit(space, tokens, size, size, lease);
    if (session == 0) return found;
    try {
      cache_->CommitLast(space, tokens, size, size, session, lease);
    } catch (const std::bad_alloc&) {  // the tree may have the tail already: Release must follow
      cache_->Release(lease);
      throw;
    }
    cache_->Release(lease);
    return found;
  }

  // `salt` keeps runs apart. Returns the tokens found by each request, of which none is damaged.
  std::vector<int64_t> Run(const std::string& salt, Leases& leases) {
    const CacheNamespace space = {.extra_key = "", .cache_salt = salt};
    const CacheNamespace other = {.extra_key = salt, .cache_salt = ""};
    std::vector<int64_t> found;
    found.reserve(8);
    found.push_back(Serve(space, {1, 2, 3, 4, 5}, 1, &leases[0]));
    found.push_back(Serve(space, {1, 2, 3, 4, 5, 6, 7}, 0, &leases[1]));  // continues a tail
    found.push_back(Serve(space, {1, 2, 3, 9, 9}, 2, &leases[0]));        // copies a row
    found.push_back(Serve(other, {1, 2, 3, 4, 5}, 3, &leases[0]));        // evicts
    found.push_back(Serve(space, {1, 2, 3, 4, 5, 6, 8}, 1, &leases[2]));
    // A page that two requests share is lost, and found to be so by who comes next.
    const PageId lost = leases[1].expected()[1].id;
    cache_->MutablePage(lost)[0] ^= std::byte{1};
    try {
      found.push_back(Serve(space, {1, 2, 3, 4, 5}, 2, &leases[0]));
    } catch (const std::bad_alloc&) {  // perhaps before it was found; invariants speak of headers
      if (cache_->pool().state(lost) != PageState::kQuarantined) {
        cache_->MutablePage(lost)[0] ^= std::byte{1};
      }
      throw;
    }
    cache_->QuarantinePage(leases[1].expected()[2].id);
    (void)cache_->TakeViolations();
    Release(leases);
    return found;
  }
  void Release(Leases& leases) {
    for (KvLease& lease : leases) cache_->Release(&lease);
  }

  std::unique_ptr<KvCache> cache_;
};
INSTANTIATE_TEST_SUITE_P(Modes, KvOutOfMemory,
                         testing::Values(KvIntegrity::kTags, KvIntegrity::kSealed),
                         [](const auto& info) {
                           return info.param == KvIntegrity::kTags ? "tags" : "sealed";
                         });

TEST_P(KvOutOfMemory, LosesNoPage) {
  Leases none;
  const std::vector<int64_t> want = Run("a", none);
  // By hand: two pages and the tail's row; a page and a row of the next; three pages; the page
  // before the lost one and a row of the other behind it, which was used last.
  EXPECT_EQ(want, (std::vector<int64_t>{0, 5, 3, 0, 6, 3}));
  int64_t failures = 0;
  for (int64_t call = 0;; ++call) {
    SCOPED_TRACE(testing::Message() << "call " << call);
    SetUp();
    Leases leases;
    bool failed = false;
    TestAllocation::calls = 0;
    TestAllocation::fail_at = call;
    TestAllocation::counting = true;
    try {
      Run("a", leases);
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    TestAllocation::counting = false;
    const bool reached = TestAllocation::calls > call;
    failures += reached;
    const std::vector<const KvLease*> held = {&leases[0], &leases[1], &leases[2]};
    Status status = cache_->CheckInvariants(held);
    ASSERT_TRUE(status.ok()) << status.ToString();
    Release(leases);
    (void)cache_->TakeViolations();
    status = cache_->CheckInvariants({});
    ASSERT_TRUE(status.ok()) << status.ToString();
    EXPECT_EQ(cache_->pool().count(PageState::kHeld), 0);
    cache_->ReadmitQuarantined();
    cache_->Flush();
    EXPECT_EQ(cache_->pool().count(PageState::kFree), kPages);
    ASSERT_EQ(Run("b", leases), want);
    status = cache_->CheckInvariants({});
    ASSERT_TRUE(status.ok()) << status.ToString();
    if (!reached) {
      EXPECT_FALSE(failed);
      break;
    }
  }
  EXPECT_GT(failures, 100);
}

}  // namespace
}  // namespace tern
