// Quantities as people read them. Thread: pure functions.
#pragma once

#include <cstdint>

namespace tern {

constexpr double Gib(uint64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

}  // namespace tern
