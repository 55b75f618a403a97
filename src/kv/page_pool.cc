#include "kv/page_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <utility>

namespace tern {

Result<PagePool> PagePool::Create(PageFormat format, int64_t pages, uint64_t boot_nonce) {
  if (pages < 1 || pages >= std::numeric_limits<uint32_t>::max()) {
    return InvalidArgument(fmt::format("a KV pool can't have {} pages", pages));
  }
  int64_t bytes = 0;
  if (__builtin_mul_overflow(pages, format.page_bytes(), &bytes)) {
    return InvalidArgument(fmt::format("a KV pool of {} pages overflows", pages));
  }
  PagePool pool(std::move(format), pages, boot_nonce);
  if (pool.memory_.data() == nullptr) {
    return ResourceExhausted(fmt::format("can't reserve {} bytes for {} KV pages", bytes, pages));
  }
  return pool;
}

PagePool::PagePool(PageFormat format, int64_t pages, uint64_t boot_nonce)
    : format_(std::move(format)),
      memory_(static_cast<size_t>(pages) * page_bytes()),
      boot_nonce_(boot_nonce),
      tag_source_(boot_nonce),
      pages_(static_cast<size_t>(pages)),
      free_(static_cast<size_t>(pages)),
      order_(pages) {
  // Low pages are used first: a server with little to do touches little memory.
  for (size_t i = 0; i < free_.size(); ++i) {
    free_[i] = PageId{static_cast<uint32_t>(free_.size() - 1 - i)};
  }
  counts_[static_cast<size_t>(PageState::kFree)] = pages;
}

std::optional<PageRef> PagePool::Alloc() {
  if (free_.empty()) return std::nullopt;
  const PageId page = free_.back();
  free_.pop_back();
  SetState(page, PageState::kHeld);
  Retag(page);
  return PageRef{page, tag(page)};
}

void PagePool::Free(PageRef page) {
  if (!HeldOrCached(page.id) || tag(page.id) != page.tag) return;
  SetState(page.id, PageState::kFree);
  Retag(page.id);
  free_.push_back(page.id);
}

bool PagePool::MoveToCache(PageRef page) {
  if (tag(page.id) != page.tag || state(page.id) != PageState::kHeld) return false;
  SetState(page.id, PageState::kCached);
  return true;
}

void PagePool::SetInUse(PageRef page, bool in_use) {
  Entry& entry = pages_[Index(page.id)];
  if (entry.in_use == in_use || entry.state != PageState::kCached || entry.tag != page.tag) return;
  entry.in_use = in_use;
  if (order_.Contains(page.id)) order_.Put(page.id, in_use);
}

void PagePool::NoteVerified(PageId page) {
  if (HeldOrCached(page)) order_.Put(page, in_use(page));
}

void PagePool::Quarantine(PageId page) {
  if (state(page) == PageState::kFree) std::erase(free_, page);
  SetState(page, PageState::kQuarantined);
  std::memset(base(page), 0, page_bytes());
  Retag(page);
}

void PagePool::Readmit() {
  for (size_t i = 0; i < pages_.size(); ++i) {
    if (pages_[i].state != PageState::kQuarantined) continue;
    const PageId page{static_cast<uint32_t>(i)};
    SetState(page, PageState::kFree);
    Retag(page);
    free_.push_back(page);
  }
}

std::optional<PageId> PagePool::PageAt(const std::byte* address) const {
  if (std::less<>()(address, memory_.data()) ||
      !std::less<>()(address, memory_.data() + memory_.size_bytes())) {
    return std::nullopt;
  }
  return PageId{
      static_cast<uint32_t>(static_cast<size_t>(address - memory_.data()) / page_bytes())};
}

bool PagePool::Matches(PageRef page) const {
  return HeldOrCached(page.id) && tag(page.id) == page.tag &&
         PageTag{header(page.id).tag} == page.tag;
}

void PagePool::SetState(PageId page, PageState state) {
  --counts_[static_cast<size_t>(pages_[Index(page)].state)];
  ++counts_[static_cast<size_t>(state)];
  pages_[Index(page)].state = state;
}

void PagePool::Retag(PageId page) {
  const bool keep = faults_.reuse_without_new_tag && tag(page) != PageTag::kNever;
  Entry& entry = pages_[Index(page)];
  if (!keep) entry.tag = tag_source_.Next();
  entry.chain = entry.rows = 0;
  entry.in_use = entry.state == PageState::kHeld;
  order_.Remove(page);
  header(page) = {.tag = static_cast<uint64_t>(tag(page)),
                  .format = static_cast<uint32_t>(format_.format()),
                  .rows = 0,
                  .boot_nonce = boot_nonce_};
}

Status PagePool::CheckInvariants() const {
  int64_t counts[4] = {};
  for (size_t i = 0; i < pages_.size(); ++i) {
    ++counts[static_cast<size_t>(pages_[i].state)];
    const PageId page{static_cast<uint32_t>(i)};
    // A page that was never used has no header yet; reading it would make it resident.
    if (pages_[i].tag != PageTag::kNever && PageTag{header(page).tag} != pages_[i].tag) {
      return Internal(fmt::format("KV page {}: header tag {:#x}, side table {:#x}", i,
                                  header(page).tag, static_cast<uint64_t>(pages_[i].tag)));
    }
    if (pages_[i].state != PageState::kFree && pages_[i].tag == PageTag::kNever) {
      return Internal(fmt::format("KV page {}: in use without a tag", i));
    }
  }
  if (!std::equal(counts, counts + 4, counts_)) {
    return Internal("KV page counts differ from the pages' states");
  }
  std::vector<bool> listed(pages_.size(), false);
  for (const PageId page : free_) {
    if (listed[Index(page)] || state(page) != PageState::kFree) {
      return Internal(fmt::format("KV page {}: wrongly in the free list", Index(page)));
    }
    listed[Index(page)] = true;
  }
  if (static_cast<int64_t>(free_.size()) != count(PageState::kFree)) {
    return Internal("a free KV page is not in the free list");
  }
  for (size_t i = 0; i < pages_.size(); ++i) {
    const PageId page{static_cast<uint32_t>(i)};
    if (HasTurn(page) && !HeldOrCached(page)) {
      return Internal(fmt::format("KV page {}: nobody's, and to be verified", i));
    }
  }
  return order_.CheckInvariants([this](PageId page) { return in_use(page); });
}

}  // namespace tern
