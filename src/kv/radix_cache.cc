#include "kv/radix_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/check.h"

namespace tern {

// The root of one namespace.
struct RadixCache::Space {
  uint64_t chain = 0;
  int64_t nodes = 0;
  std::map<CacheNamespace, std::unique_ptr<Space>>::iterator self;
};

class RadixCache::Node {
 public:
  Space* space = nullptr;
  Node* parent = nullptr;       // null: child of the root
  uint64_t chain = 0;           // hash of namespace and tokens up to this page's end
  std::vector<int32_t> tokens;  // [P], of this page
  PageRef page;
  int64_t depth = 1;  // pages from the root, this one included
  bool condemned = false;
  int64_t locks = 0;  // on this node or a descendant
  int64_t children = 0;
  uint64_t last_use = 0;
};

RadixCache::RadixCache(PagePool& pool, uint64_t hash_mask) : pool_(pool), hash_mask_(hash_mask) {}
RadixCache::~RadixCache() = default;

const CacheNamespace& RadixCache::Effective(const CacheNamespace& space) const {
  static const CacheNamespace kShared;
  return faults_.match_across_salts ? kShared : space;
}

uint64_t RadixCache::Chain(const Space& space, const Node* parent,
                           std::span<const int32_t> tokens) const {
  const uint64_t before = parent == nullptr ? space.chain : parent->chain;
  const uint64_t mask = faults_.match_without_tokens ? 1 : hash_mask_;
  return ChainNext(before, tokens) & mask;
}

RadixCache::Node* RadixCache::FindChild(const Space& space, Node* parent, uint64_t chain,
                                        std::span<const int32_t> tokens, PageVerifier* verifier) {
  const auto [first, last] = nodes_.equal_range(chain);
  for (auto it = first; it != last; ++it) {
    Node* node = it->second.get();
    if (node->space != &space || node->parent != parent) continue;
    const bool same = std::equal(tokens.begin(), tokens.end(), node->tokens.begin());
    if (!same && !faults_.match_without_tokens) continue;
    using Verdict = PageVerifier::Verdict;
    const Verdict verdict = verifier != nullptr ? verifier->Judge(node->page, node->depth - 1)
                            : pool_.Matches(node->page) ? Verdict::kShare
                                                        : Verdict::kCondemn;
    if (verdict == Verdict::kShare) return node;
    if (verdict == Verdict::kRefuse) continue;
    Condemn(node->page.id);
    return nullptr;
  }
  return nullptr;
}

RadixCache::Node* RadixCache::MatchAndLock(const CacheNamespace& space,
                                           std::span<const int32_t> tokens,
                                           std::vector<PageRef>* pages, PageVerifier* verifier) {
  const auto found = spaces_.find(Effective(space));
  if (found == spaces_.end()) return nullptr;
  // A condemned node can take its whole namespace with it: hold the space until the walk is over.
  Space* root = found->second.get();
  ++root->nodes;
  const size_t page_tokens = static_cast<size_t>(pool_.format().page_tokens());
  Node* last = nullptr;
  for (; tokens.size() >= page_tokens; tokens = tokens.subspan(page_tokens)) {
    const auto page = tokens.first(page_tokens);
    Node* next = FindChild(*root, last, Chain(*root, last, page), page, verifier);
    if (next == nullptr) break;
    pages->push_back(next->page);
    last = next;
  }
  if (--root->nodes == 0) spaces_.erase(root->self);
  Touch(last);
  for (Node* node = last; node != nullptr; node = node->parent) {
    Unlist(node);
    ++node->locks;
    List(node);
  }
  return last;
}

void RadixCache::Unlock(Node* node) {
  Touch(node);
  while (node != nullptr) {
    Node* parent = node->parent;
    TERN_CHECK(node->locks > 0);
    Unlist(node);
    --node->locks;
    List(node);
    if (node->condemned && node->locks == 0 && node->children == 0) Remove(node);
    node = parent;
  }
}

RadixCache::Node* RadixCache::Insert(const CacheNamespace& space, Node* locked,
                                     std::span<const int32_t> tokens, std::span<PageRef> pages,
                                     PageVerifier* verifier) {
  if (locked != nullptr && locked->condemned) return locked;
  const size_t page_tokens = static_cast<size_t>(pool_.format().page_tokens());
  TERN_CHECK(tokens.size() / page_tokens >= pages.size());
  const auto [it, is_new] = spaces_.try_emplace(Effective(space));
  if (is_new) {
    it->second = std::make_unique<Space>();
    it->second->chain = ChainRoot(0, Effective(space));
    it->second->self = it;
  }
  Space* root = it->second.get();
  ++root->nodes;
  Node* last = locked;
  for (size_t i = static_cast<size_t>(DepthOf(locked)); i < pages.size(); ++i) {
    const auto page = tokens.subspan(i * page_tokens, page_tokens);
    const uint64_t chain = Chain(*root, last, page);
    Node* node = FindChild(*root, last, chain, page, verifier);
    if (node != nullptr) {
      if (!(pages[i] == node->page)) pool_.Free(pages[i]);
      pages[i] = node->page;
    } else {
      if (!pool_.MoveToCache(pages[i])) break;
      auto made = std::make_unique<Node>();
      node = made.get();
      node->space = root;
      node->parent = last;
      node->chain = chain;
      node->tokens.assign(page.begin(), page.end());
      node->page = pages[i];
      node->depth = static_cast<int64_t>(i) + 1;
      nodes_.emplace(chain, std::move(made));
      ++root->nodes;
      if (last != nullptr) ++last->children;  // `last` is locked: not in the eviction order
      List(node);
    }
    Unlist(node);
    ++node->locks;
    List(node);
    last = node;
  }
  if (--root->nodes == 0) spaces_.erase(root->self);
  Touch(last);
  return last;
}

int64_t RadixCache::Evict(int64_t pages) {
  int64_t evicted = 0;
  for (; evicted < pages && !lru_.empty(); ++evicted) Remove(lru_.begin()->second);
  return evicted;
}

void RadixCache::Condemn(PageId page) {
  const auto bad = std::find_if(nodes_.begin(), nodes_.end(),
                                [&](const auto& entry) { return entry.second->page.id == page; });
  if (bad == nodes_.end()) return;
  const Node* top = bad->second.get();
  std::vector<Node*> tainted;
  for (const auto& [chain, node] : nodes_) {
    const Node* ancestor = node.get();
    while (ancestor != nullptr && ancestor->depth > top->depth) ancestor = ancestor->parent;
    if (ancestor == top) tainted.push_back(node.get());
  }
  pool_.Quarantine(page);
  // Deepest first, so that a node's children have gone before it.
  std::sort(tainted.begin(), tainted.end(),
            [](const Node* a, const Node* b) { return a->depth > b->depth; });
  for (Node* node : tainted) {
    Unlist(node);
    node->condemned = true;
    const auto [first, last] = nodes_.equal_range(node->chain);
    const auto it =
        std::find_if(first, last, [&](const auto& e) { return e.second.get() == node; });
    condemned_.emplace(node, std::move(it->second));
    nodes_.erase(it);
    List(node);
    if (node->locks == 0) Remove(node);
  }
}

std::vector<PageRef> RadixCache::PathOf(const Node* node) const {
  std::vector<PageRef> path(static_cast<size_t>(DepthOf(node)));
  for (; node != nullptr; node = node->parent)
    path[static_cast<size_t>(node->depth - 1)] = node->page;
  return path;
}

int64_t RadixCache::DepthOf(const Node* node) { return node == nullptr ? 0 : node->depth; }

void RadixCache::Touch(Node* node) {
  ++now_;
  for (; node != nullptr; node = node->parent) {
    Unlist(node);
    node->last_use = now_;
    List(node);
  }
}

void RadixCache::Unlist(Node* node) {
  if (node->locks > 0 || node->condemned) return;
  --evictable_pages_;
  if (node->children == 0) lru_.erase(node->last_use);
}

void RadixCache::List(Node* node) {
  if (node->locks > 0 || node->condemned) return;
  ++evictable_pages_;
  if (node->children == 0) TERN_CHECK(lru_.emplace(node->last_use, node).second);
}

void RadixCache::Remove(Node* node) {
  Unlist(node);
  pool_.Free(node->page);
  if (Node* parent = node->parent; parent != nullptr) {
    Unlist(parent);
    --parent->children;
    List(parent);
  }
  if (Space* space = node->space; --space->nodes == 0) spaces_.erase(space->self);
  if (node->condemned) {
    condemned_.erase(node);
    return;
  }
  const auto [first, last] = nodes_.equal_range(node->chain);
  nodes_.erase(
      std::find_if(first, last, [&](const auto& entry) { return entry.second.get() == node; }));
}

Status RadixCache::CheckInvariants(std::span<const Node* const> locked) const {
  struct Expected {
    int64_t locks = 0, children = 0;
  };
  std::unordered_map<const Node*, Expected> expected;
  for (const auto& [chain, node] : nodes_) expected.try_emplace(node.get());
  for (const auto& [key, node] : condemned_) expected.try_emplace(node.get());
  for (const auto& [node, want] : expected) {
    if (node->parent == nullptr) continue;
    const auto it = expected.find(node->parent);
    if (it == expected.end()) return Internal("prefix cache: a node has lost its parent");
    ++it->second.children;
  }
  for (const Node* node : locked) {
    for (; node != nullptr; node = node->parent) {
      const auto it = expected.find(node);
      if (it == expected.end()) return Internal("prefix cache: a lock on a node that is gone");
      ++it->second.locks;
    }
  }
  std::set<PageId> pages;
  int64_t unlocked = 0, leaves = 0, cached = 0;
  for (const auto& [node, want] : expected) {
    const uint32_t page = static_cast<uint32_t>(node->page.id);
    if (node->locks != want.locks || node->children != want.children) {
      return Internal(
          fmt::format("prefix cache: page {} has {} locks and {} children, not {} and {}", page,
                      node->locks, node->children, want.locks, want.children));
    }
    if (!pages.insert(node->page.id).second) {
      return Internal(fmt::format("prefix cache: page {} is listed twice", page));
    }
    if (pool_.tag(node->page.id) == node->page.tag) ++cached;
    if (node->condemned && node->locks == 0) {
      return Internal(fmt::format("prefix cache: page {} is condemned and unlocked", page));
    }
    if (!node->condemned && !pool_.Matches(node->page)) {
      return Internal(fmt::format("prefix cache: page {} is not the one it was", page));
    }
    if (node->locks > 0 || node->condemned) continue;
    ++unlocked;
    if (node->children > 0) continue;
    ++leaves;
    const auto it = lru_.find(node->last_use);
    if (it == lru_.end() || it->second != node) {
      return Internal(fmt::format("prefix cache: page {} is missing in the eviction order", page));
    }
  }
  if (unlocked != evictable_pages_ || leaves != static_cast<int64_t>(lru_.size())) {
    return Internal("prefix cache: the number of evictable pages is wrong");
  }
  if (cached != pool_.count(PageState::kCached)) {
    return Internal(fmt::format("prefix cache: {} pages are listed, {} marked as cached", cached,
                                pool_.count(PageState::kCached)));
  }
  return OkStatus();
}

}  // namespace tern
