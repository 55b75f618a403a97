// e4m3 numbers as BF16, in which all of them are exact.
// See kernels/cpu/isa_common.h for the rules of this file; vec.h of the level comes first.
#pragma once

#include "kernels/cpu/isa_common.h"

namespace tern {
namespace {

// The two bytes of e4m3 numbers as BF16, by exponent and mantissa bits.
struct E4m3Tables {
  alignas(64) uint8_t low[128];
  uint8_t high[128];
};
constexpr E4m3Tables MakeE4m3Tables() {
  E4m3Tables tables = {};
  for (uint32_t i = 0; i < 128; ++i) {
    // float32 with e4m3's bits in place has the bias 127 for 7.
    const float value = __builtin_bit_cast(float, i << 20) * 0x1p120f;
    const auto bits = __builtin_bit_cast(uint32_t, value);
    tables.low[i] = static_cast<uint8_t>(bits >> 16);
    tables.high[i] = static_cast<uint8_t>(bits >> 24);
  }
  return tables;
}
constexpr E4m3Tables kE4m3Tables = MakeE4m3Tables();

struct E4m3Expansion {
  // words[0]: of each sixteen codes the first eight, words[1]: the others.
  void Words(__m512i codes, __m512i words[2]) const {
    // vpermi2b looks at seven index bits: the sign needs no masking.
    const __m512i low = _mm512_permutex2var_epi8(low0, codes, low1);
    const __m512i magnitude = _mm512_permutex2var_epi8(high0, codes, high1);
    constexpr int kOrAnd = 0xF8;  // a | (b & c)
    const __m512i high = _mm512_ternarylogic_epi32(magnitude, codes, sign, kOrAnd);
    words[0] = _mm512_unpacklo_epi8(low, high);
    words[1] = _mm512_unpackhi_epi8(low, high);
  }

  __m512i low0 = _mm512_load_si512(kE4m3Tables.low), low1 = _mm512_load_si512(kE4m3Tables.low + 64);
  __m512i high0 = _mm512_load_si512(kE4m3Tables.high),
          high1 = _mm512_load_si512(kE4m3Tables.high + 64);
  __m512i sign = _mm512_set1_epi8(-128);
};

// Eighths of a register in the order 0 4 1 5 2 6 3 7: E4m3Expansion::Words of codes in that order
// are of the first 32 codes and of the last.
inline __m512i EighthsForWords() { return _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7); }

}  // namespace
}  // namespace tern
