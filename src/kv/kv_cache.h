// KvCache: page pool and prefix cache together, and the leases through which sequences hold pages.
// It knows no requests: a holder brings its namespace and tokens. When memory runs out, a call that
// throws std::bad_alloc has lost no page: the lease can be released, and must be where rows were
// being written. Owner: the engine. Thread: the engine thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "kv/kv_integrity.h"
#include "kv/kv_view.h"
#include "kv/page_pool.h"
#include "kv/radix_cache.h"
#include "kv/seal_table.h"

namespace tern {

// The pages of one sequence, in position order. The first ones may be shared: they belong to the
// prefix cache and are locked. Only KvCache changes a lease; Release it before it goes away.
class KvLease {
 public:
  KvLease() = default;
  KvLease(const KvLease&) = delete;
  KvLease& operator=(const KvLease&) = delete;

  int64_t pages() const { return static_cast<int64_t>(expected_.size()); }
  int64_t rows() const { return rows_; }  // written, found in the prefix cache, or copied from it
  int64_t shared_pages() const { return RadixCache::DepthOf(prefix_); }
  // What the holder expects, recorded at acquisition; the block table that kernels read is apart.
  std::span<const PageRef> expected() const { return expected_; }
  bool Holds(PageId page) const;

 private:
  friend class KvCache;
  friend class KvLeaseTestPeer;
  friend class KvSaboteur;
  std::vector<PageRef> expected_;
  std::vector<uint64_t> chains_;  // of each page; 0: not full yet
  std::vector<std::byte*> block_table_;
  int64_t rows_ = 0;
  RadixCache::Node* prefix_ = nullptr;  // the lock on the shared pages
};

class KvCache {
 public:
  struct Options {
    bool reuse_prefixes = true;
    // Whether rows that decode wrote may serve another sequence's prompt, and the other way round.
    // Only where both row forms are one (grouped-query attention, or the engine computes one form)
    // is that bit-equal.
    bool reuse_decode_rows = true;
    KvIntegrity integrity = KvIntegrity::kTags;
    uint64_t model_id = 0;            // goes into chains
    int64_t max_protected_pages = 0;  // by sessions, all together
    // A page whose bytes were verified less than this ago is shared as it is; less than five times
    // this ago where others read it already, for those the sweep takes first. 0: verified again
    // each time.
    int64_t verify_interval_us = 1'000'000;
    ThreadPool* threads = nullptr;  // shares the hashing of kSealed; null: one thread
    const Clock* clock = nullptr;   // null: the system's
  };
  // `options.threads` and `options.clock` outlive the cache.
  static Result<std::unique_ptr<KvCache>> Create(PageFormat format, int64_t pages,
                                                 uint64_t boot_nonce, Options options);

  // Gives an empty lease the longest cached prefix of `tokens`, in whole pages and leaving at least
  // one token to compute. Rows from `first_decode_row` on are wanted in the decode form: where
  // forms differ, cached ones don't serve. Pages are verified first: see TakeViolations. Returns
  // the number of tokens found; once pages are reserved, CopyRows finds more.
  int64_t MatchPrefix(const CacheNamespace& space, std::span<const int32_t> tokens,
                      int64_t first_decode_row, KvLease* lease);
  // Grows the lease to hold `positions` positions, evicting cached pages as needed. False, and no
  // change, when there are not enough pages.
  [[nodiscard]] bool Reserve(int64_t positions, KvLease* lease);
  // Goes on where MatchPrefix with the same arguments ended, within the page behind: copies the
  // rows that another sequence has for the same tokens into the lease's own page. Their source is
  // verified in the same moment, its bytes too, so the copy is as good as if it were shared until
  // now. Returns how many rows. REQUIRES: nothing is written to the lease yet.
  int64_t CopyRows(const CacheNamespace& space, std::span<const int32_t> tokens,
                   int64_t first_decode_row, KvLease* lease);
  // Positions [first, last) have been written, behind those that their page had. tokens[i] is the
  // token of row i. `sums`: where another engine made the rows, its seal of each layer, of one page
  // from its first row on; else SealWritten makes it.
  void NoteWritten(const CacheNamespace& space, std::span<const int32_t> tokens, int64_t first,
                   int64_t last, KvLease* lease, std::span<const uint64_t> sums = {});
  // Offers the whole pages among the first `rows` rows to the prefix cache, so that others find
  // them; the lease keeps them, now shared. Rows from `first_decode_row` on were written by decode.
  // A page that lacks rows is not taken.
  void Commit(const CacheNamespace& space, std::span<const int32_t> tokens, int64_t rows,
              int64_t first_decode_row, KvLease* lease);
  // As Commit, and offers the rows behind the last whole page for copying. A `session` other than 0
  // protects all of them from now on (kv/eviction_order.h). Nothing is written to the lease any
  // more: Release must follow.
  void CommitLast(const CacheNamespace& space, std::span<const int32_t> tokens, int64_t rows,
                  int64_t first_decode_row, uint64_t session, KvLease* lease);
  // Gives everything back; the lease is empty again.
  void Release(KvLease* lease);

  // Integrity (docs/integrity.md). A pass goes: FindMismatch of all its leases, ExpectRows, the
  // pass, FindMismatchWritten, NoteWritten, SealWritten.

  // The first page of the lease that is not what the holder recorded: block table, tag in side
  // table and header, chain, row count. `now_us`: for good_us.
  std::optional<KvViolation> FindMismatch(const KvLease& lease, int64_t now_us);
  // Announces that a pass will write positions [first, last). kSealed only: else nothing to do.
  void ExpectRows(const KvLease& lease, int64_t first, int64_t last);
  // After a pass that wrote positions [first, last): the first page that changed hands (kOwner), or
  // whose entry in the block table did (kBlockTable), since FindMismatch.
  std::optional<KvViolation> FindMismatchWritten(const KvLease& lease, int64_t first,
                                                 int64_t last) const;
  // Somebody else's pages to which a wrong block table sent rows [first, last).
  std::vector<PageId> StrayPages(const KvLease& lease, int64_t first, int64_t last) const;
  // Seals the rows of all NoteWritten calls since the last time. A page with a row that the pass
  // left out is a violation.
  void SealWritten();
  // Verifies the bytes of the page whose turn it is: of those that leases have, else of those that
  // are only cached; one turn in sixteen is theirs first. False: whoever's turn it is was verified
  // at `now_us`, or less than `verify_interval_us` before. The choice costs the same however many
  // pages there are.
  bool SweepOne(int64_t now_us);
  // What MatchPrefix, CopyRows, Commit, SealWritten and SweepOne have found since the last call.
  // Pages that have failed are in quarantine already; who holds one must end.
  std::vector<KvViolation> TakeViolations() { return std::exchange(violations_, {}); }
  bool has_violations() const { return !violations_.empty(); }

  // Takes a page out of use and hides what was cached behind it. Everybody who holds the page fails
  // the next check.
  void QuarantinePage(PageId page);
  // Time that MatchPrefix, CopyRows and Commit have spent so far in verifying bytes.
  int64_t match_us() const { return match_us_; }
  int64_t copied_rows() const { return copied_rows_; }        // by CopyRows, since the start
  int64_t verified_pages() const { return verified_pages_; }  // by their seals, at reuse
  int64_t swept_pages() const { return swept_pages_; }        // by their seals, by SweepOne
  KvIntegrity integrity() const { return options_.integrity; }
  // Null unless kSealed.
  const SealTable* seals() const { return seals_.get(); }

  KvView View(const KvLease& lease) const { return {&format(), lease.block_table_}; }

  // Drops all cached pages that nobody has locked. Returns how many.
  int64_t Flush();
  // Frees all quarantined pages. REQUIRES: no lease holds pages, and nobody else writes to any.
  void ReadmitQuarantined() { pool_.Readmit(); }

  const PageFormat& format() const { return pool_.format(); }
  int64_t PagesFor(int64_t positions) const {
    return (positions + format().page_tokens() - 1) / format().page_tokens();
  }
  // Pages that Reserve can find now, and those it could find if nobody held any.
  int64_t available_pages() const {
    return pool_.count(PageState::kFree) + radix_.evictable_pages();
  }
  int64_t usable_pages() const { return pool_.pages() - quarantined_pages(); }
  int64_t quarantined_pages() const { return pool_.count(PageState::kQuarantined); }
  int64_t evictable_pages() const { return radix_.evictable_pages(); }
  int64_t protected_pages() const { return radix_.protected_pages(); }
  int64_t evicted_pages() const { return evicted_pages_; }  // since the start
  const PagePool& pool() const { return pool_; }

  // free + cached + held + quarantined = total; headers equal the side table; each held page is in
  // one of `leases`, each cached one in the tree; locks equal the leases' prefixes; with kSealed,
  // all rows in use have their seals. `leases` are all that exist. Errors: kInternal.
  Status CheckInvariants(std::span<const KvLease* const> leases) const;

  // For tests: mistakes to make, and the bytes of a page to damage.
  void InjectFaults(KvFaults faults);
  const KvFaults& faults() const { return faults_; }
  std::byte* MutablePage(PageId page) { return pool_.base(page); }

 private:
  friend class KvSaboteur;
  class MatchVerifier;

  KvCache(PagePool pool, Options options);
  // So that a lease of that many pages takes no memory. Room doubles: a growing sequence seldom
  // moves its lists.
  static void MakeRoom(int64_t pages, KvLease* lease);
  void Append(PageRef page, uint64_t chain, KvLease* lease);
  // Those of `rows` rows that may be another sequence's prompt.
  int64_t Reusable(int64_t rows, int64_t first_decode_row) const {
    return options_.reuse_decode_rows ? rows : std::min(rows, first_decode_row);
  }
  // Hands the page behind the shared ones to the tree, its first rows those of `tail`. Returns the
  // last node that the tree has of the sequence.
  RadixCache::Node* OfferTail(const CacheNamespace& space, std::span<const int32_t> tail,
                              KvLease* lease);
  // The chain of page `index` of a sequence, from its own tokens and what the lease has already.
  uint64_t ChainOf(const CacheNamespace& space, std::span<const int32_t> tokens, size_t index,
                   const KvLease& lease) const;
  // What is wrong with the identity of a page of which a holder expects this.
  std::optional<KvViolationKind> CheckIdentity(PageRef page, uint64_t chain, int64_t rows) const;
  // Whether the page's bytes are what was sealed; true where nothing is sealed, or was verified
  // lately. `in_use`: by others.
  bool VerifySeal(PageId page, bool in_use, int64_t now_us);
  Status CheckSealCounts() const;
  KvViolation ViolationOf(KvViolationKind kind, PageId page) const;
  void Report(KvViolationKind kind, PageId page);

  PagePool pool_;
  RadixCache radix_;
#if TERN_FAULTS
  Options options_;  // KvSaboteur changes the model
#else
  const Options options_;
#endif
  const Clock& clock_;
  std::unique_ptr<ThreadPool> own_thread_;  // where options bring none
  std::unique_ptr<SealTable> seals_;        // kSealed
  std::vector<SealTable::Rows> to_seal_;
  std::vector<int64_t> good_us_;  // [pages]: identity last checked
  std::vector<KvViolation> violations_;
  int64_t match_us_ = 0, verified_pages_ = 0, swept_pages_ = 0;
  int64_t evicted_pages_ = 0, copied_rows_ = 0;
  KvFaults faults_;
};

}  // namespace tern
