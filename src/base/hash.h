// Hashes: XXH3-64, behind one wrapper. Thread: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace tern {

// XXH3-64 of bytes with a seed; the instruction set is chosen at run time.
uint64_t Hash64(std::span<const std::byte> bytes, uint64_t seed = 0);
inline uint64_t Hash64(std::string_view text, uint64_t seed = 0) {
  return Hash64(std::as_bytes(std::span(text.data(), text.size())), seed);
}

}  // namespace tern
