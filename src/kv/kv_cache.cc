#include "kv/kv_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tern {

Result<std::unique_ptr<KvCache>> KvCache::Create(PageFormat format, int64_t pages,
                                                 uint64_t boot_nonce, Options options) {
  TERN_ASSIGN_OR_RETURN(PagePool pool, PagePool::Create(std::move(format), pages, boot_nonce));
  return std::unique_ptr<KvCache>(new KvCache(std::move(pool), options));
}

KvCache::KvCache(PagePool pool, Options options)
    : pool_(std::move(pool)), radix_(pool_), options_(options) {}

int64_t KvCache::MatchPrefix(const CacheNamespace& space, std::span<const int32_t> tokens,
                             int64_t first_decode_row, KvLease* lease) {
  TERN_CHECK(lease->pages() == 0);
  if (!options_.reuse_prefixes || tokens.empty()) return 0;
  size_t usable = tokens.size() - 1;
  if (!options_.reuse_decode_rows) usable = std::min(usable, static_cast<size_t>(first_decode_row));
  std::vector<PageRef> found;
  lease->prefix_ = radix_.MatchAndLock(space, tokens.first(usable), &found);
  for (const PageRef page : found) Append(page, lease);
  return lease->pages() * format().page_tokens();
}

bool KvCache::Reserve(int64_t positions, KvLease* lease) {
  const int64_t missing = PagesFor(positions) - lease->pages();
  if (missing > available_pages()) return false;
  while (pool_.count(PageState::kFree) < missing) {
    if (radix_.Evict(1) == 0) return false;
    ++evicted_pages_;
  }
  // Before a page is taken: one that no lease lists would be lost when memory runs out.
  // Room doubles, so that a growing sequence seldom moves its lists.
  const auto needed = static_cast<size_t>(lease->pages() + std::max<int64_t>(missing, 0));
  if (needed > lease->expected_.capacity()) {
    lease->expected_.reserve(std::max({needed, 2 * lease->expected_.capacity(), size_t{16}}));
  }
  lease->block_table_.reserve(lease->expected_.capacity());
  for (int64_t i = 0; i < missing; ++i) Append(*pool_.Alloc(), lease);
  return true;
}

void KvCache::NoteWritten(const KvLease& lease, int64_t first, int64_t last) {
  const int64_t page_tokens = format().page_tokens();
  for (int64_t page = first / page_tokens; page * page_tokens < last; ++page) {
    pool_.SetRows(lease.expected_[static_cast<size_t>(page)].id,
                  std::min(page_tokens, last - page * page_tokens));
  }
}

void KvCache::Commit(const CacheNamespace& space, std::span<const int32_t> tokens, int64_t rows,
                     int64_t first_decode_row, KvLease* lease) {
  if (!options_.reuse_prefixes) return;
  if (!options_.reuse_decode_rows) rows = std::min(rows, first_decode_row);
  const int64_t page_tokens = format().page_tokens();
  const int64_t whole = rows / page_tokens;
  if (whole <= lease->shared_pages()) return;
  const auto pages = std::span(lease->expected_).first(static_cast<size_t>(whole));
  lease->prefix_ = radix_.Insert(space, lease->prefix_, tokens, pages);
  // Where the tree had an equal page, it is this sequence's page from now on.
  for (size_t i = 0; i < pages.size(); ++i) lease->block_table_[i] = pool_.base(pages[i].id);
}

void KvCache::Release(KvLease* lease) {
  const size_t shared = static_cast<size_t>(lease->shared_pages());
  for (size_t i = shared; i < lease->expected_.size(); ++i) pool_.Free(lease->expected_[i]);
  if (faults_.free_while_referenced && shared > 0) pool_.Free(lease->expected_[0]);
  radix_.Unlock(lease->prefix_);
  lease->prefix_ = nullptr;
  lease->expected_.clear();
  lease->block_table_.clear();
}

int64_t KvCache::FindMismatch(const KvLease& lease) const {
  for (size_t i = 0; i < lease.expected_.size(); ++i) {
    const PageRef page = lease.expected_[i];
    if (lease.block_table_[i] != pool_.base(page.id) || !pool_.Matches(page)) {
      return static_cast<int64_t>(i);
    }
  }
  return -1;
}

void KvCache::QuarantinePage(const KvLease& lease, int64_t index) {
  const PageId page = lease.expected_[static_cast<size_t>(index)].id;
  radix_.Condemn(page);
  if (pool_.state(page) != PageState::kQuarantined) pool_.Quarantine(page);
}

int64_t KvCache::Flush() { return radix_.Evict(radix_.evictable_pages()); }

void KvCache::Append(PageRef page, KvLease* lease) {
  lease->expected_.push_back(page);
  lease->block_table_.push_back(pool_.base(page.id));
}

void KvCache::InjectFaults(KvFaults faults) {
  faults_ = faults;
  pool_.InjectFaults(faults);
  radix_.InjectFaults(faults);
}

Status KvCache::CheckInvariants(std::span<const KvLease* const> leases) const {
  TERN_RETURN_IF_ERROR(pool_.CheckInvariants());
  std::vector<const RadixCache::Node*> locks;
  std::vector<bool> held(static_cast<size_t>(pool_.pages()), false);
  int64_t held_pages = 0;
  for (const KvLease* lease : leases) {
    locks.push_back(lease->prefix_);
    const std::vector<PageRef> path = radix_.PathOf(lease->prefix_);
    if (path.size() > lease->expected_.size() ||
        !std::equal(path.begin(), path.end(), lease->expected_.begin())) {
      return Internal("KV lease: shared pages are not those of its prefix");
    }
    for (size_t i = path.size(); i < lease->expected_.size(); ++i) {
      const PageRef page = lease->expected_[i];
      const size_t index = static_cast<size_t>(page.id);
      // A page lost to quarantine stays in the lease until its holder's next check.
      if (pool_.state(page.id) == PageState::kQuarantined) continue;
      if (pool_.tag(page.id) != page.tag || held[index] ||
          pool_.state(page.id) != PageState::kHeld) {
        return Internal(fmt::format("KV page {}: a lease's own page has another owner", index));
      }
      held[index] = true;
      ++held_pages;
    }
  }
  if (held_pages != pool_.count(PageState::kHeld)) {
    return Internal(fmt::format("{} KV pages are held, {} by leases", pool_.count(PageState::kHeld),
                                held_pages));
  }
  return radix_.CheckInvariants(locks);
}

}  // namespace tern
