#include "kernels/top_k.h"

#include <array>
#include <bit>

#include "base/check.h"

namespace tern {
namespace {

// Unsigned integers in the order of the numbers: NaN lowest, -0.0 as 0.0.
uint32_t KeyOf(float x) {
  if (x != x) return 0;
  const auto bits = std::bit_cast<uint32_t>(x + 0.0f);
  // Without a branch: no CPU foresees signs.
  return bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
}

// Digits of 11, 11 and 10 bits, the highest first.
struct Digit {
  int shift, bits;
};
constexpr Digit kDigits[] = {{21, 11}, {10, 11}, {0, 10}};

}  // namespace

void SelectTopK(const float* x, int64_t n, int64_t k, int32_t* out) {
  TERN_CHECK(k >= 0 && k <= n);
  if (k == 0) return;
  // Radix select of the k-th largest key: `prefix` are its digits so far, `wanted` its rank among
  // the keys that begin with them.
  uint32_t prefix = 0, known = 0;
  int64_t wanted = k;
  for (const Digit& digit : kDigits) {
    std::array<int64_t, 2048> counts{};
    const uint32_t mask = (uint32_t{1} << digit.bits) - 1;
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t key = KeyOf(x[i]);
      if ((key & known) == prefix) ++counts[key >> digit.shift & mask];
    }
    uint32_t value = mask;
    while (counts[value] < wanted) wanted -= counts[value--];
    prefix |= value << digit.shift;
    known |= mask << digit.shift;
  }
  // All keys above it, and the first `wanted` that equal it.
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t key = KeyOf(x[i]);
    if (key > prefix || (key == prefix && wanted-- > 0)) *out++ = static_cast<int32_t>(i);
  }
}

}  // namespace tern
