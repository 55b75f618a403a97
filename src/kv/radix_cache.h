// RadixCache: the prefix cache. A tree whose nodes are pages: the path from a root to a node spells
// the tokens whose KV rows lie in the path's pages. One root per namespace (extra key, salt), so
// that tenants can't find each other's prefixes.
//
// Whole pages are shared. They are found by a hash of the namespace and of all tokens up to the
// page's end, and confirmed by comparing parent and tokens: a hash collision costs a comparison,
// never a wrong page. A tail, the last page of a sequence that ended within it, is a leaf with
// fewer tokens; it is never shared or locked. From a tail, or a whole page that goes on otherwise,
// the rows of the first tokens can be copied.
//
// A lock on a node keeps it and its ancestors; unlocked leaves are evicted in the order of
// kv/eviction_order.h. When memory runs out, a call that throws std::bad_alloc has changed nothing,
// but that a page may have been condemned. Owner: KvCache. Thread: the engine thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kv/eviction_order.h"
#include "kv/page_chain.h"
#include "kv/page_pool.h"

namespace tern {

// Says whether a page that the tree lists may become page number `index` of a sequence, or whether
// its first `rows` rows may, when it is listed with the tokens `listed`. Without a verifier, its
// tag decides between kShare and kCondemn.
class PageVerifier {
 public:
  enum class Verdict {
    kShare,
    kRefuse,   // not this sequence's; may be good for others
    kCondemn,  // not to be trusted by anybody
  };
  virtual ~PageVerifier() = default;
  // `in_use`: others have it locked.
  virtual Verdict Judge(PageRef page, int64_t index, bool in_use) = 0;
  virtual Verdict JudgeRows(PageRef page, int64_t index, std::span<const int32_t> listed,
                            int64_t rows) = 0;
};

class RadixCache {
 public:
  class Node;

  // `max_protected_pages`: of all sessions together. `hash_mask` narrows the hash so that tests can
  // force collisions. `pool` outlives the cache.
  explicit RadixCache(PagePool& pool, int64_t max_protected_pages = 0,
                      uint64_t hash_mask = ~uint64_t{0});
  ~RadixCache();
  RadixCache(const RadixCache&) = delete;
  RadixCache& operator=(const RadixCache&) = delete;

  // Appends the pages of the longest cached prefix of `tokens` to *pages and locks it. Returns the
  // lock: the prefix's last node, or null when nothing matches. A page that may not be shared is
  // condemned and ends the prefix. The page that FindRows would return counts as used, too.
  Node* MatchAndLock(const CacheNamespace& space, std::span<const int32_t> tokens,
                     std::vector<PageRef>* pages, PageVerifier* verifier = nullptr);
  // Drops one lock; null is no lock.
  void Unlock(Node* node);

  // The page behind `prefix` (null: the first one) whose tokens agree longest with `tokens`, and
  // with how many of them: less than P, else it would have been shared. Of several, the first in
  // the order of tokens that is not before `tokens`, else the last before. Nullopt: there is none,
  // or it may not be read.
  struct Rows {
    PageRef page;
    int64_t rows = 0;
  };
  std::optional<Rows> FindRows(const CacheNamespace& space, Node* prefix,
                               std::span<const int32_t> tokens, PageVerifier* verifier = nullptr);

  // Hands pages to the tree. pages[i] holds the rows of tokens [i*P, (i+1)*P); those of the path to
  // `locked` come first and are in the tree already. Where the tree has an equal node that may be
  // shared, the caller's page is freed and replaced by the node's in `pages`. The lock moves to the
  // last node, which is returned; pages behind it (a stale page, a condemned `locked`, no memory
  // for a node) remain the caller's. REQUIRES: tokens.size() >= pages.size() * P.
  Node* Insert(const CacheNamespace& space, Node* locked, std::span<const int32_t> tokens,
               std::span<PageRef> pages, PageVerifier* verifier = nullptr);

  // Hands over a tail: the page behind `prefix` whose first rows are those of `tokens`, 1 to P - 1
  // of them. It replaces the tail that it continues. Returns the node that has these rows, and
  // whether the page was taken; else it remains the caller's: its rows were in the tree, or (null)
  // it is stale, or `prefix` is condemned.
  std::pair<Node*, bool> InsertTail(const CacheNamespace& space, Node* prefix,
                                    std::span<const int32_t> tokens, PageRef page);

  // The path to `node` (null: none) is evicted after what no session protects, until the session
  // ends elsewhere or loses its protection to others.
  void Protect(uint64_t session, Node* node);

  // Frees up to `pages` unlocked pages, in the order of kv/eviction_order.h. Returns how many.
  int64_t Evict(int64_t pages);
  // Quarantines the page, if the tree lists it, and hides its node and all descendants from
  // matches. Locked ones leave the tree with their last lock.
  void Condemn(PageId page);

  int64_t pages() const { return static_cast<int64_t>(nodes_.size()); }
  int64_t evictable_pages() const { return order_.evictable_pages(); }
  int64_t protected_pages() const { return order_.protected_pages(); }

  // The pages of the path to `node`, root first; the depth is their number. Null: none.
  std::vector<PageRef> PathOf(const Node* node) const;
  static int64_t DepthOf(const Node* node);

  // Locks, children, eviction order and counts agree with each other and with `locked`, the locks
  // that holders have now; every cached page belongs to one node; tails are leaves that nobody has
  // locked, and no other page has their rows. Errors: kInternal.
  Status CheckInvariants(std::span<const Node* const> locked) const;

  void InjectFaults(KvFaults faults) { faults_ = faults; }

 private:
  struct Space;
  class SpaceHold;
  // Lexicographic: of all nodes in this order, those next to some tokens agree longest with them.
  struct ByTokens {
    using is_transparent = void;
    bool operator()(const Node* a, const Node* b) const;
    bool operator()(const Node* a, std::span<const int32_t> b) const;
  };
  using Children = std::multiset<Node*, ByTokens>;

  // The live child of `parent` (of the root when null) with these tokens that may be shared, or
  // null.
  Node* FindChild(const Space& space, Node* parent, uint64_t chain, std::span<const int32_t> tokens,
                  PageVerifier* verifier);
  struct Agreement {
    Node* node = nullptr;
    int64_t rows = 0;
  };
  // As FindRows, unverified; null where no token agrees.
  Agreement LongestAgreement(const Children& children, std::span<const int32_t> tokens) const;
  static Children& ChildrenOf(Space& space, Node* parent);
  Space* SpaceOf(const CacheNamespace& space);
  // Takes the caller's page and makes a node of it. Null: the page is stale.
  Node* Add(Space& space, Node* parent, std::span<const int32_t> tokens, PageRef page);
  // The node of page tokens[0, P) behind `parent`, found or made of `page`; null where Insert ends.
  Node* FindOrAdd(Space& space, Node* parent, std::span<const int32_t> tokens, PageRef page,
                  PageVerifier* verifier);
  PageVerifier::Verdict JudgeTag(PageRef page) const;
  uint64_t Chain(const Space& space, const Node* parent, std::span<const int32_t> tokens) const;
  const CacheNamespace& Effective(const CacheNamespace& space) const;
  void AddLocks(Node* node, int64_t locks);
  // Takes a live node from its siblings.
  static void Unlink(Node* node);
  // Hides a node without live children; it goes at once unless it is locked.
  void Hide(Node* node);
  // Removes a node without locks and children and frees its page.
  void Remove(Node* node);

  PagePool& pool_;
  const uint64_t hash_mask_;
  std::map<CacheNamespace, std::unique_ptr<Space>> spaces_;
  std::unordered_multimap<uint64_t, std::unique_ptr<Node>> nodes_;  // by chain; condemned too
  EvictionOrder order_;
  KvFaults faults_;
};

}  // namespace tern
