// PagePool: all KV pages of a process, allocated once, and which of them are free, held by a lease,
// cached in the prefix tree or quarantined; and in which order their bytes are verified. Every page
// has one owner at a time; sharing a cached page goes through locks of the tree (kv/radix_cache.h).
// Owner: KvCache. Thread: the engine thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/result.h"
#include "kv/kv_fault.h"
#include "kv/page_format.h"
#include "kv/page_tag.h"
#include "kv/verify_order.h"
#include "tensor/tensor.h"

namespace tern {

// What a holder remembers of a page: which one, and the tag it had when the holder acquired it.
struct PageRef {
  PageId id{};
  PageTag tag = PageTag::kNever;
  friend bool operator==(const PageRef&, const PageRef&) = default;
};

enum class PageState : uint8_t { kFree, kHeld, kCached, kQuarantined };

class PagePool {
 public:
  // Reserves `pages` pages; memory becomes resident as pages are first written.
  // Errors: kInvalidArgument (pages < 1 or more than 2^32 - 1), kResourceExhausted.
  static Result<PagePool> Create(PageFormat format, int64_t pages, uint64_t boot_nonce);

  // A page that nobody holds, with a new tag, no rows and unspecified slabs; nullopt when none is
  // free. The last page freed is the first one reused.
  std::optional<PageRef> Alloc();
  // Gives a held or cached page back under a new tag. A reference whose tag is not current frees
  // nothing: its holder lost the page before (quarantine).
  void Free(PageRef page);
  // The owner of a held page hands it to the prefix tree; the tag stays, and it is in use until
  // SetInUse says otherwise. False, and no change, when the reference is stale.
  bool MoveToCache(PageRef page);
  // Whether a lease shares a page of the prefix tree. A stale reference changes nothing.
  void SetInUse(PageRef page, bool in_use);
  // Takes a page out of use, whoever owns it, under a new tag, and zeroes it.
  void Quarantine(PageId page);
  // Frees all quarantined pages. REQUIRES: nobody exists who could still write to one of them.
  void Readmit();

  // The bytes of a held or cached page are good as they are: its next turn is behind all others' of
  // its kind. A page has none before, and again none once it is somebody else's.
  void NoteVerified(PageId page);
  // Whose turn it is: of the pages in use, or of those that are only cached.
  std::optional<PageId> NextToVerify(bool in_use) const { return order_.Front(in_use); }
  bool HasTurn(PageId page) const { return order_.Contains(page); }

  // Whether `page` is held or cached and side table and header both show the expected tag.
  bool Matches(PageRef page) const;
  // Records that the first `rows` rows of the page are written.
  void SetRows(PageId page, int64_t rows) {
    pages_[Index(page)].rows = header(page).rows = static_cast<uint32_t>(rows);
  }
  // Records what a page of the prefix cache was written for (kv/page_chain.h).
  void SetChain(PageId page, uint64_t chain) { pages_[Index(page)].chain = chain; }

  std::byte* base(PageId page) { return memory_.data() + Index(page) * page_bytes(); }
  const std::byte* base(PageId page) const { return memory_.data() + Index(page) * page_bytes(); }
  PageState state(PageId page) const { return pages_[Index(page)].state; }
  // Held, or shared by a lease.
  bool in_use(PageId page) const { return pages_[Index(page)].in_use; }
  PageTag tag(PageId page) const { return pages_[Index(page)].tag; }
  int64_t rows(PageId page) const { return pages_[Index(page)].rows; }
  uint64_t chain(PageId page) const { return pages_[Index(page)].chain; }  // 0: none yet
  // Whether `address` lies in some page, and in which.
  std::optional<PageId> PageAt(const std::byte* address) const;
  const PageFormat& format() const { return format_; }
  int64_t pages() const { return static_cast<int64_t>(pages_.size()); }
  int64_t count(PageState state) const { return counts_[static_cast<size_t>(state)]; }
  uint64_t size_bytes() const { return memory_.size_bytes(); }

  // Counts add up, the free list is the set of free pages, headers equal the side table, pages that
  // have a turn are held or cached.
  // Errors: kInternal, naming the first page at fault.
  Status CheckInvariants() const;

  void InjectFaults(KvFaults faults) { faults_ = faults; }

 private:
  PagePool(PageFormat format, int64_t pages, uint64_t boot_nonce);

  friend class KvSaboteur;
  static size_t Index(PageId page) { return static_cast<size_t>(page); }
  size_t page_bytes() const { return static_cast<size_t>(format_.page_bytes()); }
  PageHeader& header(PageId page) { return *reinterpret_cast<PageHeader*>(base(page)); }
  const PageHeader& header(PageId page) const {
    return *reinterpret_cast<const PageHeader*>(memory_.data() + Index(page) * page_bytes());
  }
  bool HeldOrCached(PageId page) const {
    return state(page) == PageState::kHeld || state(page) == PageState::kCached;
  }
  void SetState(PageId page, PageState state);
  // The page is another owner's, or nobody's: stamps a new tag into side table and header.
  void Retag(PageId page);

  PageFormat format_;
  Buffer memory_;
  uint64_t boot_nonce_;
  PageTagSource tag_source_;
  // What the pool knows of a page; apart from its header, which whoever writes to it can damage.
  struct Entry {
    PageTag tag = PageTag::kNever;
    uint64_t chain = 0;
    uint32_t rows = 0;
    PageState state = PageState::kFree;
    bool in_use = false;
  };
  std::vector<Entry> pages_;  // the side table
  std::vector<PageId> free_;  // a stack
  int64_t counts_[4] = {};    // by PageState
  VerifyOrder order_;
  KvFaults faults_;
};

}  // namespace tern
