// NaiveCache: the prefix cache as its specification reads: a list of (namespace, all tokens up to a
// page's end, page). No hashes, no tree. radix_cache_test.cc runs it in lockstep with RadixCache.
// Thread: tests only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kv/radix_cache.h"

namespace tern {

class NaiveCache {
 public:
  explicit NaiveCache(size_t page_tokens) : page_tokens_(page_tokens) {}

  struct Entry {
    CacheNamespace space;
    std::vector<int32_t> prefix;  // a whole number of pages
    PageId page;
    int64_t locks = 0;
    uint64_t last_use = 0;
  };
  using Tokens = std::vector<int32_t>;

  // Pages of the longest cached prefix; each gets one more lock.
  std::vector<PageId> MatchAndLock(const CacheNamespace& space, const Tokens& tokens) {
    ++now_;
    std::vector<PageId> pages;
    for (size_t n = page_tokens_; n <= tokens.size(); n += page_tokens_) {
      Entry* entry = Find(space, tokens, n);
      if (entry == nullptr) break;
      pages.push_back(entry->page);
    }
    for (size_t i = 1; i <= pages.size(); ++i) {
      Entry* entry = Find(space, tokens, i * page_tokens_);
      ++entry->locks;
      entry->last_use = now_;
    }
    return pages;
  }

  // Drops one lock of each of the first `pages` pages of `tokens`.
  void Unlock(const CacheNamespace& space, const Tokens& tokens, size_t pages) {
    ++now_;
    for (size_t i = 1; i <= pages; ++i) {
      Entry* entry = Find(space, tokens, i * page_tokens_);
      --entry->locks;
      entry->last_use = now_;
    }
  }

  // The holder of the first `locked` pages offers more; returns the pages it has afterwards.
  std::vector<PageId> Insert(const CacheNamespace& space, const Tokens& tokens,
                             std::vector<PageId> pages, size_t locked) {
    ++now_;
    for (size_t i = 0; i < pages.size(); ++i) {
      const size_t n = (i + 1) * page_tokens_;
      if (Find(space, tokens, n) == nullptr) {
        entries_.push_back({space, Tokens(tokens.begin(), tokens.begin() + long(n)), pages[i]});
      }
      Entry* entry = Find(space, tokens, n);
      pages[i] = entry->page;
      entry->last_use = now_;
      if (i >= locked) ++entry->locks;
    }
    return pages;
  }

  // Removes unlocked entries that no other entry extends, oldest use first.
  std::vector<PageId> Evict(int64_t count) {
    std::vector<PageId> evicted;
    while (static_cast<int64_t>(evicted.size()) < count) {
      size_t best = entries_.size();
      for (size_t i = 0; i < entries_.size(); ++i) {
        if (entries_[i].locks > 0 || IsExtended(entries_[i])) continue;
        if (best == entries_.size() || entries_[i].last_use < entries_[best].last_use) best = i;
      }
      if (best == entries_.size()) break;
      evicted.push_back(entries_[best].page);
      entries_.erase(entries_.begin() + long(best));
    }
    return evicted;
  }

  const std::vector<Entry>& entries() const { return entries_; }

 private:
  Entry* Find(const CacheNamespace& space, const Tokens& tokens, size_t n) {
    for (Entry& entry : entries_) {
      if (entry.space == space && entry.prefix.size() == n &&
          std::equal(entry.prefix.begin(), entry.prefix.end(), tokens.begin())) {
        return &entry;
      }
    }
    return nullptr;
  }

  bool IsExtended(const Entry& entry) const {
    return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& other) {
      return other.space == entry.space && other.prefix.size() > entry.prefix.size() &&
             std::equal(entry.prefix.begin(), entry.prefix.end(), other.prefix.begin());
    });
  }

  size_t page_tokens_;
  std::vector<Entry> entries_;
  uint64_t now_ = 0;
};

}  // namespace tern
