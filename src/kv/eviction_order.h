// EvictionOrder: which page of the prefix cache goes next. First the least recently used one of
// those that no session protects, then that of the session that was used longest ago.
//
// A session, a conversation that its requests name, protects the pages of the path to where its
// last request ended. All sessions together protect `max_protected` pages at most: beyond them, the
// one used longest ago loses its protection, and a longer path is protected as far as that.
// Protected pages can be evicted like others, only later: they never keep anybody waiting. Owner:
// RadixCache. Thread: the engine thread.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "base/status.h"

namespace tern {

class EvictionOrder {
 public:
  explicit EvictionOrder(int64_t max_protected) : max_protected_(max_protected) {}

  struct Page;
  using Leaves = std::map<uint64_t, Page*>;
  struct Session {
    uint64_t last_use = 0;
    Page* end = nullptr;
  };
  // A page's place in the tree, and in this order. Making one allocates all that its place in the
  // order will ever need.
  struct Page {
    Page();

    Page* parent = nullptr;  // null: child of the root
    int64_t depth = 1;       // pages from the root, this one included
    int64_t children = 0;
    int64_t locks = 0;  // on this page or a descendant
    bool condemned = false;
    uint64_t last_use = 0;              // one path has one time
    int64_t protectors = 0;             // sessions whose path it is on
    std::map<uint64_t, Session*> ends;  // those of them that end here, by last use
    Leaves::node_type place;            // while it is not among the leaves
  };

  // Around every change of `parent`, `children`, `locks` and `condemned`: Unlist, then List. A page
  // is unlisted until it is in the tree.
  void Unlist(Page* page);
  void List(Page* page);
  // Those changes that are nothing but a count.
  void AddLocks(Page* page, int64_t locks) {
    Unlist(page);
    page->locks += locks;
    List(page);
  }
  void AddChildren(Page* page, int64_t children) {
    Unlist(page);
    page->children += children;
    List(page);
  }
  // Marks the path to `page` as used now.
  void Touch(Page* page);
  // The unlocked leaf to be evicted next; null: there is none.
  Page* Next() const;
  // An unlisted page is about to leave the tree, or to be condemned: sessions end before it.
  void Forget(Page* page);

  // The path to `page` is what this session protects from now on. The only call that allocates:
  // when it throws, nothing has changed.
  void Protect(uint64_t session, Page* page);

  int64_t evictable_pages() const { return evictable_; }  // unlocked ones, leaves or not
  int64_t protected_pages() const { return protected_; }

  // Whether the counts are those of `pages`, all that the tree has, and every unlocked leaf is
  // listed once. Errors: kInternal.
  Status CheckInvariants(const std::vector<const Page*>& pages) const;

 private:
  // Of the last of the sessions that end there. REQUIRES: there are some.
  static uint64_t SessionUse(const Page* page) { return page->ends.rbegin()->first; }
  // Takes a session from its path.
  void Leave(Session& session);

  // The leaves that `page` is among when it is an unlocked one, and its key there.
  Leaves& LeavesOf(const Page* page) {
    return page->ends.empty() ? unprotected_ : protected_leaves_;
  }
  static uint64_t KeyOf(const Page* page) {
    return page->ends.empty() ? page->last_use : SessionUse(page);
  }

  const int64_t max_protected_;
  uint64_t now_ = 0;
  Leaves unprotected_;       // unlocked leaves by last use
  Leaves protected_leaves_;  // by their sessions' last use
  int64_t evictable_ = 0, protected_ = 0;
  std::unordered_map<uint64_t, Session> sessions_;
  std::map<uint64_t, uint64_t> by_use_;  // sessions by last use
};

}  // namespace tern
