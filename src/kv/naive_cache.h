// NaiveCache: the prefix cache as its specification reads: a list of (namespace, all tokens up to
// the last one of a page, page). No hashes, no tree, no order. radix_cache_test.cc runs it in
// lockstep with RadixCache. Thread: tests only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kv/radix_cache.h"

namespace tern {

class NaiveCache {
 public:
  explicit NaiveCache(size_t page_tokens, size_t max_protected = 0)
      : page_tokens_(page_tokens), max_protected_(max_protected) {}

  struct Entry {
    CacheNamespace space;
    std::vector<int32_t> prefix;  // a whole number of pages, unless the page is a tail
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
    if (Entry* behind = LongestBehind(space, tokens, pages.size())) behind->last_use = now_;
    return pages;
  }

  // The page behind the first `pages` ones of `tokens` that agrees longest with them; rows 0: none.
  struct Rows {
    PageId page{};
    int64_t rows = 0;
  };
  Rows FindRows(const CacheNamespace& space, const Tokens& tokens, size_t pages) {
    Entry* entry = LongestBehind(space, tokens, pages);
    if (entry == nullptr) return {};
    const int64_t rows = Agreement(*entry, tokens) - static_cast<int64_t>(pages * page_tokens_);
    if (rows == static_cast<int64_t>(page_tokens_)) return {};
    Use(*entry);
    return {entry->page, rows};
  }

  // `tokens` end within `page`. All tokens of the page that has the rows, and whether it is this
  // one.
  std::pair<Tokens, bool> InsertTail(const CacheNamespace& space, const Tokens& tokens,
                                     PageId page) {
    const size_t pages = tokens.size() / page_tokens_;
    Entry* known = LongestBehind(space, tokens, pages);
    const bool taken =
        known == nullptr || Agreement(*known, tokens) < static_cast<int64_t>(tokens.size());
    if (taken) known = Add(space, tokens, page);
    Use(*known);
    return {known->prefix, taken};
  }

  // What begins `end` is what the session protects from now on, as many pages as there may be.
  void Protect(uint64_t session, const CacheNamespace& space, Tokens end) {
    end.resize(std::min(end.size(), max_protected_ * page_tokens_));
    if (end.empty()) return;
    std::erase_if(sessions_, [&](const Session& other) { return other.id == session; });
    sessions_.push_back({session, ++now_, space, std::move(end)});
    while (protected_pages() > max_protected_ || sessions_.size() > max_protected_) {
      sessions_.erase(sessions_.begin());  // they are in the order of their last use
    }
  }
  size_t protected_pages() const {
    return static_cast<size_t>(std::ranges::count_if(
        entries_, [&](const Entry& entry) { return LastProtector(entry) > 0; }));
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
        Add(space, Tokens(tokens.begin(), tokens.begin() + long(n)), pages[i]);
      }
      Entry* entry = Find(space, tokens, n);
      pages[i] = entry->page;
      entry->last_use = now_;
      if (i >= locked) ++entry->locks;
    }
    return pages;
  }

  // Removes unlocked entries that no other entry extends: those that no session protects first, by
  // their last use, then those of the session that was used longest ago.
  std::vector<PageId> Evict(int64_t count) {
    std::vector<PageId> evicted;
    while (static_cast<int64_t>(evicted.size()) < count) {
      size_t best = entries_.size();
      for (size_t i = 0; i < entries_.size(); ++i) {
        if (entries_[i].locks > 0 || IsExtended(entries_[i])) continue;
        if (best == entries_.size() || Turn(entries_[i]) < Turn(entries_[best])) best = i;
      }
      if (best == entries_.size()) break;
      evicted.push_back(entries_[best].page);
      EndBefore(entries_[best]);
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

  // Whether `other` begins with all tokens of `entry`, and has more.
  static bool Extends(const Entry& other, const Entry& entry) {
    return other.space == entry.space && other.prefix.size() > entry.prefix.size() &&
           std::equal(entry.prefix.begin(), entry.prefix.end(), other.prefix.begin());
  }
  bool IsExtended(const Entry& entry) const {
    return std::any_of(entries_.begin(), entries_.end(),
                       [&](const Entry& other) { return Extends(other, entry); });
  }

  static int64_t Agreement(const Entry& entry, const Tokens& tokens) {
    return std::ranges::mismatch(entry.prefix, tokens).in2 - tokens.begin();
  }

  // Of the entries one page longer than the first `pages` pages of `tokens`, and with those and one
  // more token at least: the one that agrees longest.
  Entry* LongestBehind(const CacheNamespace& space, const Tokens& tokens, size_t pages) {
    const size_t before = pages * page_tokens_;
    const Tokens query(tokens.begin(),
                       tokens.begin() + long(std::min(tokens.size(), before + page_tokens_)));
    Entry* best = nullptr;
    for (Entry& entry : entries_) {
      if (entry.space != space || entry.prefix.size() <= before ||
          entry.prefix.size() > before + page_tokens_ ||
          Agreement(entry, query) <= static_cast<int64_t>(before)) {
        continue;
      }
      const auto longer = best == nullptr ? 1 : Agreement(entry, query) - Agreement(*best, query);
      const bool behind = entry.prefix >= query;
      const bool first_behind =
          behind && (best == nullptr || best->prefix < query || entry.prefix < best->prefix);
      const bool last_before =
          !behind && (best == nullptr || (best->prefix < query && entry.prefix > best->prefix));
      if (longer > 0 || (longer == 0 && (first_behind || last_before))) best = &entry;
    }
    return best;
  }

  // A conversation, and all tokens of the page where it ended.
  struct Session {
    uint64_t id, last_use;
    CacheNamespace space;
    Tokens end;
  };
  // The last use of the sessions that protect an entry; 0: none does.
  uint64_t LastProtector(const Entry& entry) const {
    uint64_t last = 0;
    for (const Session& session : sessions_) {
      if (session.space == entry.space && session.end.size() >= entry.prefix.size() &&
          std::equal(entry.prefix.begin(), entry.prefix.end(), session.end.begin())) {
        last = std::max(last, session.last_use);
      }
    }
    return last;
  }
  std::pair<uint64_t, uint64_t> Turn(const Entry& entry) const {
    const uint64_t protector = LastProtector(entry);
    return {protector, protector > 0 ? 0 : entry.last_use};
  }
  // The entry goes: sessions end before it.
  void EndBefore(const Entry& entry) {
    for (Session& session : sessions_) {
      if (session.space != entry.space || session.end != entry.prefix) continue;
      session.end.resize((session.end.size() - 1) / page_tokens_ * page_tokens_);
    }
    std::erase_if(sessions_, [](const Session& session) { return session.end.empty(); });
  }

  // A tail that the new entry continues is gone.
  Entry* Add(const CacheNamespace& space, const Tokens& prefix, PageId page) {
    Entry added{space, prefix, page};
    std::erase_if(entries_, [&](const Entry& entry) {
      const bool gone = entry.prefix.size() % page_tokens_ != 0 && Extends(added, entry);
      if (gone) EndBefore(entry);
      return gone;
    });
    entries_.push_back(std::move(added));
    return &entries_.back();
  }

  // Marks an entry, and those that it extends, as used now.
  void Use(const Entry& used) {
    ++now_;
    for (Entry& entry : entries_) {
      if (&entry == &used || Extends(used, entry)) entry.last_use = now_;
    }
  }

  size_t page_tokens_, max_protected_;
  std::vector<Session> sessions_;
  std::vector<Entry> entries_;
  uint64_t now_ = 0;
};

}  // namespace tern
