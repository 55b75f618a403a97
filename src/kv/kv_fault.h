// KvFault: mistakes that the KV cache can be told to make, so that tests can show that tags,
// invariants and the simulator catch them. Never set outside tests.
#pragma once

#include <cstdint>

namespace tern {

enum class KvFault : uint8_t {
  kNone,
  kReuseWithoutNewTag,   // freeing and allocating keep the old tag
  kFreeWhileReferenced,  // releasing a lease also frees a page that the prefix cache still lists
  kMatchAcrossSalts,     // the prefix cache ignores extra_key and cache_salt
};

}  // namespace tern
