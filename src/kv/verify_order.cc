#include "kv/verify_order.h"

#include <fmt/format.h>

namespace tern {

VerifyOrder::VerifyOrder(int64_t pages) : links_(static_cast<size_t>(pages) + 2) {
  for (uint32_t i = 0; Links & links : links_) {
    links = {i, i};
    ++i;
  }
}

void VerifyOrder::Put(PageId page, bool in_use) {
  Remove(page);
  const uint32_t at = Index(page), end = EndOf(in_use), last = links_[end].before;
  links_[at] = {.before = last, .after = end};
  links_[last].after = links_[end].before = at;
}

void VerifyOrder::Remove(PageId page) {
  const uint32_t at = Index(page);
  const auto [before, after] = links_[at];
  links_[before].after = after;
  links_[after].before = before;
  links_[at] = {at, at};
}

std::optional<PageId> VerifyOrder::Front(bool in_use) const {
  const uint32_t end = EndOf(in_use), first = links_[end].after;
  if (first == end) return std::nullopt;
  return PageId{first};
}

Status VerifyOrder::CheckInvariants(const std::function<bool(PageId)>& in_use) const {
  size_t found = 0;
  for (const bool queue : {false, true}) {
    const uint32_t end = EndOf(queue);
    for (uint32_t last = end, at = links_[end].after;; last = at, at = links_[at].after) {
      if (links_[at].before != last || ++found > links_.size()) {
        return Internal(fmt::format("KV page {}: its neighbours to verify disagree", at));
      }
      if (at == end) break;
      if (at >= links_.size() - 2 || in_use(PageId{at}) != queue) {
        return Internal(fmt::format("KV page {}: in the wrong queue to be verified", at));
      }
    }
  }
  size_t placed = 2;  // both ends
  for (uint32_t i = 0; i < links_.size() - 2; ++i) placed += Contains(PageId{i}) ? 1 : 0;
  if (placed != found) return Internal("a KV page to be verified is in no queue");
  return OkStatus();
}

}  // namespace tern
