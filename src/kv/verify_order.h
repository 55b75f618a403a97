// VerifyOrder: whose turn it is to have its bytes verified. Two queues, of the pages in use and of
// those that are only cached. A page goes to the back of one when it was verified, and when it
// changes queues, where it keeps its age: no queue is sorted by age. That does no harm: a cached
// page comes into use only when it was verified within KvCache::Options::verify_interval_us, and
// nobody reads one that fell out of use before that is looked at again. Each call costs the same,
// however many pages there are.
// Owner: PagePool. Thread: the engine thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "base/status.h"
#include "kv/page_tag.h"

namespace tern {

class VerifyOrder {
 public:
  // No page has a place yet.
  explicit VerifyOrder(int64_t pages);

  // To the back of a queue, wherever the page was.
  void Put(PageId page, bool in_use);
  // Out of its queue, if it is in one.
  void Remove(PageId page);
  bool Contains(PageId page) const { return links_[Index(page)].after != Index(page); }
  // Nullopt: the queue is empty.
  std::optional<PageId> Front(bool in_use) const;

  // Links agree with each other, and each page that has a place is in the queue that in_use(page)
  // names. Errors: kInternal.
  Status CheckInvariants(const std::function<bool(PageId)>& in_use) const;

 private:
  // A queue is a ring through its end, whose link is behind those of all pages.
  struct Links {
    uint32_t before = 0, after = 0;
  };
  static uint32_t Index(PageId page) { return static_cast<uint32_t>(page); }
  uint32_t EndOf(bool in_use) const {
    return static_cast<uint32_t>(links_.size()) - (in_use ? 1 : 2);
  }

  std::vector<Links> links_;  // [pages + 2]; one that links itself is in no queue, or an empty one
};

}  // namespace tern
