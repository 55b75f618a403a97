// FP8 blocks: e4m3fn codes with one float32 scale per 128 x 128 block, W = code * scale, as
// DeepSeek-V3 publishes them (docs/formats/quantized.md). Thread: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "quant/quant_error.h"

namespace tern {

inline constexpr int64_t kFp8BlockSize = 128;

struct Fp8Matrix {
  int64_t rows = 0, columns = 0;
  std::vector<uint8_t> codes;  // [rows, columns]
  std::vector<float> scales;   // [ceil(rows / 128), ceil(columns / 128)]
};

// One row of blocks: `weights` and `codes` [rows, columns] with rows <= 128, `scales`
// [ceil(columns / 128)]. A scale is the larger of amax and 1e-12, divided by 448.
// REQUIRES: finite weights.
void QuantizeFp8Blocks(const float* weights, int64_t rows, int64_t columns, uint8_t* codes,
                       float* scales);

// Adds such a row's differences from its weights to `sums`.
void AddFp8Error(const float* weights, int64_t rows, int64_t columns, const uint8_t* codes,
                 const float* scales, QuantError* sums);

Fp8Matrix QuantizeFp8(const float* weights, int64_t rows, int64_t columns);

}  // namespace tern
