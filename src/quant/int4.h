// INT4 groups: signed codes in [-8, 7] with one BF16 scale per row and group of columns, W = code *
// scale, packed as compressed-tensors' `pack-quantized` stores it (docs/formats/quantized.md).
// Thread: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "quant/quant_error.h"

namespace tern {

inline constexpr int kInt4Min = -8, kInt4Max = 7;

// A quantized [rows, columns] matrix before it is packed.
struct Int4Matrix {
  int64_t rows = 0, columns = 0;
  int64_t group = 32;            // columns that share a scale; divides `columns`
  std::vector<int8_t> codes;     // [rows, columns]
  std::vector<uint16_t> scales;  // BF16, [rows, columns / group]
};

enum class ScaleMethod {
  kRoundToNearest,  // largest magnitude / 7.5
  kSearch,          // the least (weighted) squared error, never more than kRoundToNearest's
};

// The BF16 scale of the `count` weights of one group. kRoundToNearest is compressed-tensors' minmax
// observer: the larger of amax / 7.5 and 1e-10, rounded to BF16.
// kSearch looks for the least sum_i importance[i] * (weights[i] - code[i] * scale)^2 among amax
// / 6.5
// ... amax / 10 and the BF16 numbers around the least squares of the best of these;
// `importance` [count] may be null: all alike.
// REQUIRES: finite weights, importance finite and not negative, count <= 128.
uint16_t Int4Scale(const float* weights, int64_t count, ScaleMethod method,
                   const float* importance = nullptr);

// The nearest codes: round-half-even(weight / scale), clamped. REQUIRES: `scale` is above zero.
void Int4Codes(const float* weights, int64_t count, uint16_t scale, int8_t* codes);

// One row: scales [columns / group] and codes [columns]. `importance` [columns] may be null. Adds
// the differences from the weights to `sums` unless it is null. Returns whether all weights are
// finite; if not, the outputs hold nothing of use.
bool QuantizeInt4Row(const float* weights, int64_t columns, int64_t group, ScaleMethod method,
                     const float* importance, int8_t* codes, uint16_t* scales,
                     QuantError* sums = nullptr);

// `weights` [rows, columns]. REQUIRES: finite weights, `group` divides `columns`.
Int4Matrix QuantizeInt4(const float* weights, int64_t rows, int64_t columns, int64_t group,
                        ScaleMethod method, const float* importance = nullptr);

// Adds a quantized row's differences from its weights to `sums`.
void AddInt4Error(const float* weights, int64_t columns, int64_t group, const int8_t* codes,
                  const uint16_t* scales, QuantError* sums);

// One row of codes as 32-bit words [columns / 8]: code i plus 8 in bits 4 (i mod 8) .. of word
// i / 8. REQUIRES: 8 divides `columns`.
void PackInt4Row(const int8_t* codes, int64_t columns, uint32_t* words);
// The way back.
void UnpackInt4Row(const uint32_t* words, int64_t columns, int8_t* codes);

}  // namespace tern
