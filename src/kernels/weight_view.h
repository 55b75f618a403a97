// WeightView: a weight matrix as a checkpoint stores it: one tensor, or a quantized one with its
// scales. Thread: a value; the bytes are the checkpoint's affair.
#pragma once

#include <cstdint>

#include "tensor/tensor.h"

namespace tern {

struct WeightView {
  enum class Scheme {
    kPlain,      // data [rows, columns], a float or GGUF block type
    kFp8Block,   // data F8_E4M3 [rows, columns]; W[r, c] = data[r, c] * scales[r/128, c/128]
    kInt4Group,  // data I32 [rows, columns/8], element i of a row in bits 4*(i%8) of word i/8;
                 // W[r, i] = (q - zero) * scales[r, i/group], zero = 8 when symmetric
  };
  Scheme scheme = Scheme::kPlain;
  int64_t rows = 0, columns = 0;
  TensorView data;
  TensorView scales;       // kFp8Block: F32 [ceil(rows/block_rows), ceil(columns/block_columns)];
                           // kInt4Group: BF16, F16 or F32 [rows, columns/group]
  TensorView zero_points;  // kInt4Group, asymmetric only: I32 [ceil(rows/8), columns/group], row r
                           // in bits 4*(r%8) of word r/8; empty bytes: symmetric
  int64_t block_rows = 128, block_columns = 128;  // kFp8Block
  int64_t group = 32;                             // kInt4Group: 32, 64 or 128

  static WeightView Plain(const TensorView& view) {
    return {.rows = view.shape[0], .columns = view.shape[1], .data = view};
  }
};

}  // namespace tern
