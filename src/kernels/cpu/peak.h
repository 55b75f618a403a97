// Loops that find what a level can do at most: IsaTable::peak. The level's peak.h has the products.
// See kernels/cpu/isa_common.h for the rules of this file.
#pragma once

#include "kernels/cpu/isa_common.h"

// Defines double name(int64_t rounds): a loop whose every round runs `product` for each register
// number \r of `chains` (`count` of them, independent sums), after `clear` for each and `load`,
// which puts the factors [a] and [b] into registers. Returns rounds * count * operations. All
// assembly: compilers merge chains that compute the same, or keep them in memory.
#define TERN_PEAK_LOOP(name, a_bits, b_bits, chains, count, operations, clear, load, product, ...) \
  double name(int64_t rounds) {                                                                    \
    const double all = static_cast<double>(rounds) * (count) * (operations);                       \
    const uint32_t a = a_bits, b = b_bits;                                                         \
    __asm__ volatile(".irp r," chains "\n\t" clear "\n\t.endr\n\t" load                            \
                     "\n\t.p2align 5\n1:\n\t.irp r," chains "\n\t" product                         \
                     "\n\t.endr\n\tdec %[rounds]\n\tjnz 1b"                                        \
                     : [rounds] "+r"(rounds)                                                       \
                     : [a] "m"(a), [b] "m"(b)                                                      \
                     : "cc", __VA_ARGS__);                                                         \
    return all;                                                                                    \
  }

namespace tern {
namespace {

// PeakLoops::read.
[[maybe_unused]] int64_t PeakRead(const std::byte* data, int64_t bytes) {
  constexpr int64_t kStep = 256;
  VecI sum[4] = {SetI(0), SetI(0), SetI(0), SetI(0)};
  for (int64_t at = 0; at + kStep <= bytes; at += kStep) {
    for (int i = 0; i < 4; ++i) sum[i] = AddI(sum[i], LoadI(data + at + 64 * i));
  }
  int32_t lanes[kLanes];
  const VecI all = AddI(AddI(sum[0], sum[1]), AddI(sum[2], sum[3]));
  __builtin_memcpy(lanes, &all, sizeof(lanes));
  uint32_t total = 0;
  for (const int32_t lane : lanes) total += static_cast<uint32_t>(lane);
  return total;
}

}  // namespace
}  // namespace tern
