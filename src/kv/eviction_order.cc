#include "kv/eviction_order.h"

#include <utility>

#include "base/check.h"

namespace tern {

EvictionOrder::Page::Page() {
  Leaves made;
  made.emplace(0, this);
  place = made.extract(made.begin());
}

void EvictionOrder::Unlist(Page* page) {
  if (page->locks > 0 || page->condemned) return;
  --evictable_;
  if (page->children > 0) return;
  page->place = LeavesOf(page).extract(KeyOf(page));
}

void EvictionOrder::List(Page* page) {
  if (page->locks > 0 || page->condemned) return;
  ++evictable_;
  if (page->children > 0) return;
  // A leaf that is on a session's path is its end.
  TERN_CHECK(!page->place.empty());
  page->place.key() = KeyOf(page);
  TERN_CHECK(LeavesOf(page).insert(std::move(page->place)).inserted);
}

void EvictionOrder::Touch(Page* page) {
  ++now_;
  for (; page != nullptr; page = page->parent) {
    Unlist(page);
    page->last_use = now_;
    List(page);
  }
}

EvictionOrder::Page* EvictionOrder::Next() const {
  if (!unprotected_.empty()) return unprotected_.begin()->second;
  return protected_leaves_.empty() ? nullptr : protected_leaves_.begin()->second;
}

void EvictionOrder::Forget(Page* page) {
  if (page->protectors > 0) --protected_;
  page->protectors = 0;
  Page* const parent = page->parent;
  for (const auto& [last_use, session] : page->ends) session->end = parent;
  if (parent != nullptr) {
    Unlist(parent);
    parent->ends.merge(page->ends);
    List(parent);
  } else {
    for (const auto& [last_use, session] : page->ends) {
      const auto entry = by_use_.find(last_use);
      sessions_.erase(entry->second);
      by_use_.erase(entry);
    }
  }
  page->ends.clear();
}

void EvictionOrder::Protect(uint64_t session, Page* page) {
  while (page != nullptr && page->depth > max_protected_) page = page->parent;
  if (page == nullptr || page->condemned) return;
  std::map<uint64_t, uint64_t> use = {{now_ + 1, session}};
  std::map<uint64_t, Session*> end = {{now_ + 1, nullptr}};
  Session& protector = sessions_[session];
  if (protector.end != nullptr) Leave(protector);
  protector = {++now_, page};
  end.begin()->second = &protector;
  by_use_.merge(use);
  Unlist(page);
  page->ends.merge(end);
  List(page);
  for (Page* on = page; on != nullptr; on = on->parent) {
    if (on->protectors++ == 0) ++protected_;
  }
  // As many sessions as pages at most: any number may end at one page.
  while (protected_ > max_protected_ || static_cast<int64_t>(sessions_.size()) > max_protected_) {
    const uint64_t oldest = by_use_.begin()->second;
    Leave(sessions_.at(oldest));
    sessions_.erase(oldest);
  }
}

void EvictionOrder::Leave(Session& session) {
  Unlist(session.end);
  session.end->ends.erase(session.last_use);
  List(session.end);
  for (Page* on = session.end; on != nullptr; on = on->parent) {
    if (--on->protectors == 0) --protected_;
  }
  by_use_.erase(session.last_use);
}

Status EvictionOrder::CheckInvariants(const std::vector<const Page*>& pages) const {
  int64_t evictable = 0, on_paths = 0, leaves = 0, ends = 0;
  for (const Page* page : pages) {
    int64_t protectors = 0;  // that end here or below
    for (const auto& [id, session] : sessions_) {
      const Page* at = session.end;
      while (at != nullptr && at->depth > page->depth) at = at->parent;
      protectors += at == page ? 1 : 0;
    }
    if (page->protectors != protectors) {
      return Internal("eviction order: a page is on more or fewer sessions' paths");
    }
    on_paths += protectors > 0 ? 1 : 0;
    ends += static_cast<int64_t>(page->ends.size());
    if (page->locks > 0 || page->condemned) continue;
    ++evictable;
    if (page->children > 0) continue;
    ++leaves;
    const Leaves& list = page->ends.empty() ? unprotected_ : protected_leaves_;
    const auto it = list.find(KeyOf(page));
    if (it == list.end() || it->second != page) {
      return Internal("eviction order: an unlocked leaf is missing");
    }
  }
  if (evictable != evictable_ || on_paths != protected_ || protected_ > max_protected_ ||
      leaves != static_cast<int64_t>(unprotected_.size() + protected_leaves_.size()) ||
      ends != static_cast<int64_t>(sessions_.size()) || by_use_.size() != sessions_.size()) {
    return Internal("eviction order: a count is wrong");
  }
  return OkStatus();
}

}  // namespace tern
