// PackedAccess: how the drivers of this folder make and read a PackedMatrix, which is opaque to
// everybody else. Thread: pure functions.
#pragma once

#include <memory>
#include <utility>

#include "kernels/isa_table.h"
#include "kernels/ops.h"

namespace tern {

struct PackedAccess {
  static PackedMatrix Make(int64_t rows, int64_t columns, int format, Buffer data) {
    PackedMatrix matrix;
    matrix.rows_ = rows;
    matrix.columns_ = columns;
    matrix.format_ = format;
    matrix.data_ = std::make_shared<const Buffer>(std::move(data));
    return matrix;
  }
  // Weight, format and shape; the inputs and outputs are the caller's.
  static MatMulArgs ArgsOf(const PackedMatrix& matrix) {
    return {.format = matrix.format_,
            .weight = matrix.data_ == nullptr ? nullptr : matrix.data_->data(),
            .n = matrix.rows_,
            .k = matrix.columns_};
  }
};

}  // namespace tern
