#include "base/hash.h"

#include <xxhash.h>
// After xxhash.h: replaces the calls below by run-time dispatch between SSE2, AVX2 and AVX-512.
#include <xxh_x86dispatch.h>

namespace tern {

uint64_t Hash64(std::span<const std::byte> bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

}  // namespace tern
