// A small page pool for tests: one tiny grouped-query layer in BF16. Thread: tests only.
#pragma once

#include "kv/page_pool.h"

namespace tern {

inline PageFormat TestPageFormat(int64_t page_tokens) {
  const KvLayerSpec layer = {.kind = KvLayerSpec::Kind::kGqa, .kv_heads = 1, .head_dim = 4};
  return PageFormat::Make({&layer, 1}, KvFormat::kBf16, page_tokens).value();
}

inline PagePool TestPagePool(int64_t pages, int64_t page_tokens = 4, uint64_t nonce = 1) {
  return PagePool::Create(TestPageFormat(page_tokens), pages, nonce).value();
}

}  // namespace tern
