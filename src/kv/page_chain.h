// The chain of a page: a hash of the model, the tenant (extra key, salt) and all tokens up to its
// last row's. A holder computes it from its own tokens, the pool's side table has what the page was
// written for: pages that were swapped, found by a hash collision or by another tenant differ.
// Thread: pure functions and values.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string>

#include "base/hash.h"

namespace tern {

struct CacheNamespace {
  std::string extra_key, cache_salt;
  auto operator<=>(const CacheNamespace&) const = default;
};

// The chain before the first page. `model_id` names model and KV format.
inline uint64_t ChainRoot(uint64_t model_id, const CacheNamespace& space) {
  return Hash64(space.cache_salt, Hash64(space.extra_key, model_id));
}

// The chain of a page behind one with chain `before`; never 0, which stands for a page without one.
// tokens: of its rows, [P] or fewer in the last page of a finished sequence.
inline uint64_t ChainNext(uint64_t before, std::span<const int32_t> tokens) {
  const uint64_t chain = Hash64(std::as_bytes(tokens), before);
  return chain != 0 ? chain : 1;
}

}  // namespace tern
