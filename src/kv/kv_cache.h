// KvCache: page pool and prefix cache together, and the leases through which sequences hold pages.
// It knows no requests: a holder brings its namespace and tokens. Owner: the engine.
// Thread: the engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "kv/kv_view.h"
#include "kv/page_pool.h"
#include "kv/radix_cache.h"

namespace tern {

// The pages of one sequence, in position order. The first ones may be shared: they belong to the
// prefix cache and are locked. Only KvCache changes a lease; Release it before it goes away.
class KvLease {
 public:
  KvLease() = default;
  KvLease(const KvLease&) = delete;
  KvLease& operator=(const KvLease&) = delete;

  int64_t pages() const { return static_cast<int64_t>(expected_.size()); }
  int64_t shared_pages() const { return RadixCache::DepthOf(prefix_); }
  // What the holder expects, recorded at acquisition; the block table that kernels read is apart.
  std::span<const PageRef> expected() const { return expected_; }

 private:
  friend class KvCache;
  friend class KvLeaseTestPeer;
  std::vector<PageRef> expected_;
  std::vector<std::byte*> block_table_;
  RadixCache::Node* prefix_ = nullptr;  // the lock on the shared pages
};

class KvCache {
 public:
  struct Options {
    bool reuse_prefixes = true;
    // Whether rows that decode wrote may serve another sequence's prompt, and the other way round.
    // Only where both row forms are one (grouped-query attention) is that bit-equal.
    bool reuse_decode_rows = true;
  };
  static Result<std::unique_ptr<KvCache>> Create(PageFormat format, int64_t pages,
                                                 uint64_t boot_nonce, Options options);

  // Gives an empty lease the longest cached prefix of `tokens`, in whole pages and leaving at least
  // one token to compute. Rows from `first_decode_row` on are wanted in the decode form: where
  // forms differ, cached ones don't serve. Returns the number of tokens found.
  int64_t MatchPrefix(const CacheNamespace& space, std::span<const int32_t> tokens,
                      int64_t first_decode_row, KvLease* lease);
  // Grows the lease to hold `positions` positions, evicting cached pages as needed. False, and no
  // change, when there are not enough pages.
  [[nodiscard]] bool Reserve(int64_t positions, KvLease* lease);
  // Positions [first, last) have been written.
  void NoteWritten(const KvLease& lease, int64_t first, int64_t last);
  // Offers the whole pages among the first `rows` rows to the prefix cache, so that others find
  // them; the lease keeps them, now shared. Rows from `first_decode_row` on were written by decode.
  // tokens[i] is the token of row i.
  void Commit(const CacheNamespace& space, std::span<const int32_t> tokens, int64_t rows,
              int64_t first_decode_row, KvLease* lease);
  // Gives everything back; the lease is empty again.
  void Release(KvLease* lease);

  // The first page of the lease whose block table entry, side table or header is not what the
  // holder recorded; -1 when all agree. Quarantine it with QuarantinePage.
  int64_t FindMismatch(const KvLease& lease) const;
  // Takes page `index` of the lease out of use and hides what was cached behind it. Everybody who
  // holds the page fails the next check.
  void QuarantinePage(const KvLease& lease, int64_t index);

  KvView View(const KvLease& lease) const { return {&format(), lease.block_table_}; }

  // Drops all cached pages that nobody has locked. Returns how many.
  int64_t Flush();

  const PageFormat& format() const { return pool_.format(); }
  int64_t PagesFor(int64_t positions) const {
    return (positions + format().page_tokens() - 1) / format().page_tokens();
  }
  // Pages that Reserve can find now, and those it could find if nobody held any.
  int64_t available_pages() const {
    return pool_.count(PageState::kFree) + radix_.evictable_pages();
  }
  int64_t usable_pages() const { return pool_.pages() - pool_.count(PageState::kQuarantined); }
  int64_t evictable_pages() const { return radix_.evictable_pages(); }
  int64_t evicted_pages() const { return evicted_pages_; }  // since the start
  const PagePool& pool() const { return pool_; }

  // free + cached + held + quarantined = total; headers equal the side table; each held page is in
  // one of `leases`, each cached one in the tree; locks equal the leases' prefixes. `leases` are
  // all that exist. Errors: kInternal.
  Status CheckInvariants(std::span<const KvLease* const> leases) const;

  // For tests: mistakes to make, and the bytes of a page to damage.
  void InjectFaults(KvFaults faults);
  std::byte* MutablePage(PageId page) { return pool_.base(page); }

 private:
  KvCache(PagePool pool, Options options);
  void Append(PageRef page, KvLease* lease);

  PagePool pool_;
  RadixCache radix_;
  const Options options_;
  int64_t evicted_pages_ = 0;
  KvFaults faults_;
};

}  // namespace tern
