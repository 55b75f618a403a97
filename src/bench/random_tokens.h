// Token ids of a vocabulary, drawn evenly. Thread: pure but for `rng`.
#pragma once

#include <cstdint>
#include <vector>

#include "base/rng.h"

namespace tern {

inline std::vector<int32_t> RandomTokens(int64_t n, int64_t vocab_size, Rng& rng) {
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>(rng.Below(static_cast<uint64_t>(vocab_size)));
  }
  return tokens;
}

}  // namespace tern
