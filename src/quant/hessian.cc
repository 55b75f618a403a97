#include "quant/hessian.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace tern {
namespace {

constexpr int64_t kPendingRows = 256;  // inputs of one product: long enough sums to be fast
constexpr int64_t kBlock = 256;        // columns of one product

TensorView MatrixView(const float* values, int64_t rows, int64_t columns) {
  return {.dtype = DType::kF32,
          .shape = Shape{rows, columns},
          .bytes = std::as_bytes(std::span(values, static_cast<size_t>(rows * columns)))};
}

}  // namespace

Result<HessianSum> HessianSum::Make(int64_t columns) {
  HessianSum result;
  result.sum_.columns = columns;
  result.sum_.values = Buffer(static_cast<size_t>(columns * columns) * sizeof(float));
  if (columns > 0 && result.sum_.values.data() == nullptr) {
    return ResourceExhausted(
        fmt::format("no memory for the second moments of {} input features ({} bytes)", columns,
                    columns * columns * static_cast<int64_t>(sizeof(float))));
  }
  result.pending_.resize(static_cast<size_t>(columns * kPendingRows));
  return result;
}

uint64_t HessianSum::Bytes(int64_t columns) {
  return static_cast<uint64_t>(columns) * sizeof(float) *
         static_cast<uint64_t>(columns + kPendingRows + 2 * kBlock);
}

Status HessianSum::Add(const float* x, int64_t stride, int64_t rows, Ops& ops) {
  const int64_t columns = sum_.columns;
  for (int64_t row = 0; row < rows; ++row) {
    const float* const from = x + row * stride;
    for (int64_t c = 0; c < columns; ++c) {
      if (!std::isfinite(from[c])) {
        return InvalidArgument(fmt::format("input feature {} is {}", c, from[c]));
      }
      pending_[static_cast<size_t>(c * kPendingRows + pending_rows_)] = from[c];
    }
    sum_.rows += 1;
    if (++pending_rows_ == kPendingRows) TERN_RETURN_IF_ERROR(Flush(ops));
  }
  return OkStatus();
}

Status HessianSum::Flush(Ops& ops) {
  const int64_t columns = sum_.columns;
  if (pending_rows_ == 0) return OkStatus();
  // The rest of the last batch is zero: it adds nothing.
  for (int64_t c = 0; c < columns; ++c) {
    float* const row = pending_.data() + c * kPendingRows;
    std::fill(row + pending_rows_, row + kPendingRows, 0.0f);
  }
  pending_rows_ = 0;
  std::vector<float> product(static_cast<size_t>(columns * std::min(kBlock, columns)));
  float* const sum = sum_.values.as<float>();
  for (int64_t begin = 0; begin < columns; begin += kBlock) {
    const int64_t width = std::min(kBlock, columns - begin), height = columns - begin;
    const float* const x = pending_.data() + begin * kPendingRows;
    TERN_ASSIGN_OR_RETURN(const PackedMatrix block,
                          ops.Pack(MatrixView(x, width, kPendingRows), Precision::kReference));
    const MatMulTarget target[] = {{&block, product.data()}};
    ops.MatMul(x, height, target);
    ops.pool().ParallelFor((height + 31) / 32, [&](int64_t chunk, int) {
      for (int64_t i = chunk * 32; i < std::min(height, chunk * 32 + 32); ++i) {
        float* const to = sum + (begin + i) * columns + begin;
        const float* const from = product.data() + i * width;
        for (int64_t j = 0; j < width; ++j) to[j] += from[j];
      }
    });
  }
  return OkStatus();
}

Result<Hessian> HessianSum::Finish(Ops& ops) {
  TERN_RETURN_IF_ERROR(Flush(ops));
  float* const sum = sum_.values.as<float>();
  const int64_t columns = sum_.columns;
  // The diagonal blocks are whole; the rest of the upper triangle is the mirror of the lower one.
  ops.pool().ParallelFor(columns, [&](int64_t i, int) {
    for (int64_t j = i + 1; j < columns; ++j) sum[i * columns + j] = sum[j * columns + i];
  });
  pending_ = {};
  return std::move(sum_);
}

}  // namespace tern
