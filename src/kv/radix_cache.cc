#include "kv/radix_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "base/check.h"

namespace tern {

// The root of one namespace.
struct RadixCache::Space {
  uint64_t chain = 0;
  int64_t nodes = 0;
  Children children;
  std::map<CacheNamespace, std::unique_ptr<Space>>::iterator self;
};

// Keeps a namespace in the tree, though its last node may go.
class RadixCache::SpaceHold {
 public:
  SpaceHold(RadixCache& cache, Space* space) : cache_(cache), space_(*space) { ++space_.nodes; }
  SpaceHold(const SpaceHold&) = delete;
  SpaceHold& operator=(const SpaceHold&) = delete;
  ~SpaceHold() {
    if (--space_.nodes == 0) cache_.spaces_.erase(space_.self);
  }

 private:
  RadixCache& cache_;
  Space& space_;
};

class RadixCache::Node : public EvictionOrder::Page {
 public:
  Node* Parent() const { return static_cast<Node*>(parent); }

  Space* space = nullptr;
  uint64_t chain = 0;           // hash of namespace and tokens up to the last one of this page
  std::vector<int32_t> tokens;  // of this page; [P] unless it is a tail
  PageRef page;
  Children live_children;  // Page::children counts condemned ones, too
};

bool RadixCache::ByTokens::operator()(const Node* a, const Node* b) const {
  return a->tokens < b->tokens;
}

bool RadixCache::ByTokens::operator()(const Node* a, std::span<const int32_t> b) const {
  return std::ranges::lexicographical_compare(a->tokens, b);
}

RadixCache::RadixCache(PagePool& pool, int64_t max_protected_pages, uint64_t hash_mask)
    : pool_(pool), hash_mask_(hash_mask), order_(max_protected_pages) {}
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
    if (node->condemned || node->space != &space || node->parent != parent) continue;
    if (node->tokens.size() != tokens.size()) continue;  // a tail
    if (!std::ranges::equal(tokens, node->tokens) && !faults_.match_without_tokens) continue;
    using Verdict = PageVerifier::Verdict;
    const Verdict verdict = verifier != nullptr
                                ? verifier->Judge(node->page, node->depth - 1, node->locks > 0)
                                : JudgeTag(node->page);
    if (verdict == Verdict::kShare) return node;
    if (verdict == Verdict::kRefuse) continue;
    Condemn(node->page.id);
    return nullptr;
  }
  return nullptr;
}

PageVerifier::Verdict RadixCache::JudgeTag(PageRef page) const {
  return pool_.Matches(page) ? PageVerifier::Verdict::kShare : PageVerifier::Verdict::kCondemn;
}

RadixCache::Children& RadixCache::ChildrenOf(Space& space, Node* parent) {
  return parent != nullptr ? parent->live_children : space.children;
}

RadixCache::Agreement RadixCache::LongestAgreement(const Children& children,
                                                   std::span<const int32_t> tokens) const {
  tokens = tokens.first(std::min(tokens.size(), static_cast<size_t>(pool_.format().page_tokens())));
  const auto rows_of = [&](const Node* node) {
    return std::ranges::mismatch(node->tokens, tokens).in2 - tokens.begin();
  };
  const auto next = children.lower_bound(tokens);
  Agreement longest;
  if (next != children.end()) longest = {*next, rows_of(*next)};
  if (next != children.begin()) {
    Node* const before = *std::prev(next);
    if (rows_of(before) > longest.rows) longest = {before, rows_of(before)};
  }
  return longest.rows > 0 ? longest : Agreement{};
}

std::optional<RadixCache::Rows> RadixCache::FindRows(const CacheNamespace& space, Node* prefix,
                                                     std::span<const int32_t> tokens,
                                                     PageVerifier* verifier) {
  const auto found = spaces_.find(Effective(space));
  if (found == spaces_.end()) return std::nullopt;
  const auto [node, rows] = LongestAgreement(ChildrenOf(*found->second, prefix), tokens);
  if (node == nullptr || rows == pool_.format().page_tokens()) return std::nullopt;
  const int64_t claimed = rows + (faults_.copy_a_row_too_many ? 1 : 0);
  using Verdict = PageVerifier::Verdict;
  const Verdict verdict =
      verifier != nullptr ? verifier->JudgeRows(node->page, node->depth - 1, node->tokens, claimed)
                          : JudgeTag(node->page);
  if (verdict == Verdict::kCondemn) Condemn(node->page.id);
  if (verdict != Verdict::kShare) return std::nullopt;
  order_.Touch(node);
  return Rows{node->page, claimed};
}

RadixCache::Node* RadixCache::MatchAndLock(const CacheNamespace& space,
                                           std::span<const int32_t> tokens,
                                           std::vector<PageRef>* pages, PageVerifier* verifier) {
  const auto found = spaces_.find(Effective(space));
  if (found == spaces_.end()) return nullptr;
  Space* root = found->second.get();
  const SpaceHold hold(*this, root);
  const size_t page_tokens = static_cast<size_t>(pool_.format().page_tokens());
  Node* last = nullptr;
  for (; tokens.size() >= page_tokens; tokens = tokens.subspan(page_tokens)) {
    const auto page = tokens.first(page_tokens);
    Node* next = FindChild(*root, last, Chain(*root, last, page), page, verifier);
    if (next == nullptr) break;
    pages->push_back(next->page);
    last = next;
  }
  const Agreement behind = LongestAgreement(ChildrenOf(*root, last), tokens);
  order_.Touch(behind.node != nullptr ? behind.node : last);
  for (Node* node = last; node != nullptr; node = node->Parent()) {
    AddLocks(node, 1);
  }
  return last;
}

void RadixCache::Unlock(Node* node) {
  order_.Touch(node);
  while (node != nullptr) {
    Node* parent = node->Parent();
    TERN_CHECK(node->locks > 0);
    AddLocks(node, -1);
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
  Space* root = SpaceOf(space);
  const SpaceHold hold(*this, root);
  Node* last = locked;
  for (size_t i = static_cast<size_t>(DepthOf(locked)); i < pages.size(); ++i) {
    Node* const node =
        FindOrAdd(*root, last, tokens.subspan(i * page_tokens, page_tokens), pages[i], verifier);
    if (node == nullptr) break;
    if (!(pages[i] == node->page)) pool_.Free(pages[i]);
    pages[i] = node->page;
    AddLocks(node, 1);
    last = node;
  }
  order_.Touch(last);
  return last;
}

RadixCache::Node* RadixCache::FindOrAdd(Space& space, Node* parent, std::span<const int32_t> tokens,
                                        PageRef page, PageVerifier* verifier) {
  try {
    Node* const found = FindChild(space, parent, Chain(space, parent, tokens), tokens, verifier);
    return found != nullptr ? found : Add(space, parent, tokens, page);
  } catch (const std::bad_alloc&) {  // what was handed over before must have its lock
    return nullptr;
  }
}

std::pair<RadixCache::Node*, bool> RadixCache::InsertTail(const CacheNamespace& space, Node* prefix,
                                                          std::span<const int32_t> tokens,
                                                          PageRef page) {
  if (prefix != nullptr && prefix->condemned) return {nullptr, false};
  TERN_CHECK(!tokens.empty() && tokens.size() < static_cast<size_t>(pool_.format().page_tokens()));
  Space* root = SpaceOf(space);
  const SpaceHold hold(*this, root);
  const Agreement known = LongestAgreement(ChildrenOf(*root, prefix), tokens);
  const bool is_known = known.rows == static_cast<int64_t>(tokens.size());
  Node* const tail = is_known ? known.node : Add(*root, prefix, tokens, page);
  order_.Touch(tail);
  const bool taken = !is_known && tail != nullptr;
  if (taken) pool_.SetInUse(page, false);
  return {tail, taken};
}

RadixCache::Space* RadixCache::SpaceOf(const CacheNamespace& space) {
  const CacheNamespace& name = Effective(space);
  if (const auto found = spaces_.find(name); found != spaces_.end()) return found->second.get();
  auto made = std::make_unique<Space>();
  made->chain = ChainRoot(0, name);
  const auto it = spaces_.emplace(name, std::move(made)).first;
  it->second->self = it;
  return it->second.get();
}

RadixCache::Node* RadixCache::Add(Space& space, Node* parent, std::span<const int32_t> tokens,
                                  PageRef page) {
  auto made = std::make_unique<Node>();
  Node* const node = made.get();
  node->space = &space;
  node->parent = parent;
  node->chain = Chain(space, parent, tokens);
  node->tokens.assign(tokens.begin(), tokens.end());
  node->page = page;
  node->depth = DepthOf(parent) + 1;
  // All memory comes before the page is taken, so that no node is half in the tree without it.
  Children link;
  link.insert(node);
  const auto entry = nodes_.emplace(node->chain, std::move(made));
  if (!pool_.MoveToCache(page)) {
    nodes_.erase(entry);
    return nullptr;
  }
  ++space.nodes;
  if (parent != nullptr) order_.AddChildren(parent, 1);
  Children& siblings = ChildrenOf(space, parent);
  const auto it = siblings.insert(link.extract(link.begin()));
  order_.List(node);
  // A tail that this page continues lies right before it.
  Node* const before = it == siblings.begin() ? nullptr : *std::prev(it);
  if (before != nullptr && before->tokens.size() < node->tokens.size() &&
      std::ranges::equal(before->tokens, tokens.first(before->tokens.size()))) {
    Remove(before);
  }
  return node;
}

int64_t RadixCache::Evict(int64_t pages) {
  int64_t evicted = 0;
  for (; evicted < pages; ++evicted) {
    EvictionOrder::Page* const next = order_.Next();
    if (next == nullptr) break;
    Remove(static_cast<Node*>(next));
  }
  return evicted;
}

void RadixCache::Condemn(PageId page) {
  const auto bad = std::find_if(nodes_.begin(), nodes_.end(), [&](const auto& entry) {
    return entry.second->page.id == page && !entry.second->condemned;
  });
  if (bad == nodes_.end()) return;
  pool_.Quarantine(page);
  // Descendants before their parents, without memory for a list of them.
  Node* const top = bad->second.get();
  for (Node* node = top; node != nullptr;) {
    if (!node->live_children.empty()) {
      node = *node->live_children.begin();
      continue;
    }
    Node* const parent = node == top ? nullptr : node->Parent();
    Hide(node);
    node = parent;
  }
}

void RadixCache::Hide(Node* node) {
  order_.Unlist(node);
  order_.Forget(node);
  node->condemned = true;
  Unlink(node);
  order_.List(node);
  if (node->locks == 0) Remove(node);
}

std::vector<PageRef> RadixCache::PathOf(const Node* node) const {
  std::vector<PageRef> path(static_cast<size_t>(DepthOf(node)));
  for (; node != nullptr; node = node->Parent())
    path[static_cast<size_t>(node->depth - 1)] = node->page;
  return path;
}

int64_t RadixCache::DepthOf(const Node* node) { return node == nullptr ? 0 : node->depth; }

void RadixCache::Protect(uint64_t session, Node* node) { order_.Protect(session, node); }

void RadixCache::AddLocks(Node* node, int64_t locks) {
  order_.AddLocks(node, locks);
  pool_.SetInUse(node->page, node->locks > 0);
}

void RadixCache::Unlink(Node* node) {
  Children& siblings = ChildrenOf(*node->space, node->Parent());
  auto [it, last] = siblings.equal_range(node);
  siblings.erase(std::find(it, last, node));
}

void RadixCache::Remove(Node* node) {
  order_.Unlist(node);
  order_.Forget(node);
  pool_.Free(node->page);
  if (Node* parent = node->Parent(); parent != nullptr) order_.AddChildren(parent, -1);
  if (!node->condemned) Unlink(node);
  if (Space* space = node->space; --space->nodes == 0) spaces_.erase(space->self);
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
  for (const auto& [node, want] : expected) {
    if (node->parent == nullptr) continue;
    const auto it = expected.find(node->Parent());
    if (it == expected.end()) return Internal("prefix cache: a node has lost its parent");
    ++it->second.children;
  }
  for (const Node* node : locked) {
    for (; node != nullptr; node = node->Parent()) {
      const auto it = expected.find(node);
      if (it == expected.end()) return Internal("prefix cache: a lock on a node that is gone");
      ++it->second.locks;
    }
  }
  std::set<PageId> pages;
  int64_t cached = 0;
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
    if (pool_.tag(node->page.id) == node->page.tag &&
        pool_.in_use(node->page.id) != (node->locks > 0)) {
      return Internal(fmt::format("prefix cache: page {} is wrongly in use, or not", page));
    }
    if (!node->condemned && !pool_.Matches(node->page)) {
      return Internal(fmt::format("prefix cache: page {} is not the one it was", page));
    }
    if (!node->condemned) {
      const Children& siblings = ChildrenOf(*node->space, node->Parent());
      const auto [begin, end] = siblings.equal_range(node);
      if (std::count(begin, end, node) != 1) {
        return Internal(fmt::format("prefix cache: page {} is not among its siblings", page));
      }
      const bool tail = static_cast<int64_t>(node->tokens.size()) < pool_.format().page_tokens();
      const bool continued =
          end != siblings.end() &&
          std::ranges::mismatch((*end)->tokens, node->tokens).in2 == node->tokens.end();
      if (tail && (node->locks > 0 || node->children > 0 || continued || node->tokens.empty())) {
        return Internal(fmt::format("prefix cache: page {} is no tail", page));
      }
    }
  }
  std::vector<const EvictionOrder::Page*> order;
  for (const auto& [node, want] : expected) order.push_back(node);
  TERN_RETURN_IF_ERROR(order_.CheckInvariants(order).WithContext("prefix cache"));
  if (cached != pool_.count(PageState::kCached)) {
    return Internal(fmt::format("prefix cache: {} pages are listed, {} marked as cached", cached,
                                pool_.count(PageState::kCached)));
  }
  return OkStatus();
}

}  // namespace tern
