#include "base/rng.h"

#include <sys/random.h>

#include "base/check.h"

namespace tern {

uint64_t RandomSeed() {
  uint64_t seed = 0;
  TERN_CHECK(::getrandom(&seed, sizeof(seed), 0) == static_cast<ssize_t>(sizeof(seed)));
  return seed;
}

}  // namespace tern
