// PageId and PageTag: which page, and who may use it right now. A page gets a new tag whenever it
// is allocated and whenever it is freed, so a holder that remembers (page, tag) can tell that the
// page is still its own. Thread: the engine thread.
#pragma once

#include <cstdint>

#include "base/rng.h"

namespace tern {

enum class PageId : uint32_t {};

// 0 is the tag of a page that was never allocated; nobody can expect it.
enum class PageTag : uint64_t { kNever = 0 };

// Makes tags that never repeat in this process, and hardly ever across restarts: a counter, mixed
// with the boot nonce through a bijection (docs/formats/kv_page.md).
class PageTagSource {
 public:
  explicit PageTagSource(uint64_t boot_nonce) : base_(Mix64(boot_nonce)) {}

  PageTag Next() {
    uint64_t tag = 0;
    while (tag == 0) tag = Mix64(base_ + ++made_);
    return PageTag{tag};
  }

 private:
  uint64_t base_;
  uint64_t made_ = 0;
};

}  // namespace tern
