// Ops::Pack and Ops::DequantizeRow: checks that a checkpoint's tensors are a weight matrix, and
// spreads packing (kernels/cpu/pack.h) over the pool.
#include "kernels/cpu/pack.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "kernels/ops.h"
#include "kernels/packed_access.h"
#include "kernels/ref/dequantize.h"

namespace tern {
namespace {

// An [n, k] matrix whose panels pack(begin, end, packed) has written, in tasks of some tens of KiB.
template <typename Fn>
Result<PackedMatrix> PackInTasks(ThreadPool& pool, int64_t n, int64_t k, PackFormat format,
                                 Fn&& pack) {
  const int64_t panels = PanelsOf(n), stride = PanelBytes(format, k);
  const bool empty = n == 0 || k == 0;
  Buffer data(empty ? 0 : static_cast<size_t>(panels * stride));
  if (!empty) {
    if (data.data() == nullptr) {
      return ResourceExhausted(
          fmt::format("no memory to pack a weight [{}, {}] ({} bytes)", n, k, panels * stride));
    }
    const int64_t grain = std::max<int64_t>(65536 / stride, 1);
    pool.ParallelFor((panels + grain - 1) / grain, [&](int64_t task, int) {
      pack(task * grain, std::min(panels, (task + 1) * grain), data.data());
    });
  }
  return PackedAccess::Make(n, k, format, std::move(data));
}

Status CheckTensor(const char* what, const TensorView& tensor, DType dtype, const Shape& shape) {
  const DTypeInfo& info = InfoOf(dtype);
  if (tensor.dtype != dtype || tensor.shape != shape) {
    return InvalidArgument(fmt::format("{} are {} {}, not {} {}", what, InfoOf(tensor.dtype).name,
                                       tensor.shape.ToString(), info.name, shape.ToString()));
  }
  const auto elements = shape.elements();
  const auto bytes =
      elements ? StorageBytes(dtype, static_cast<uint64_t>(*elements)) : std::optional<uint64_t>();
  if (!bytes || *bytes != tensor.bytes.size()) {
    return InvalidArgument(fmt::format("{}: {} {} does not have {} bytes", what, info.name,
                                       shape.ToString(), tensor.bytes.size()));
  }
  return OkStatus();
}

Status CheckScalesAreFinite(const TensorView& scales) {
  const int64_t count = *scales.shape.elements();
  for (int64_t i = 0; i < count; ++i) {
    const float scale = ScaleAt(scales, i);
    if (!std::isfinite(scale)) {
      return InvalidArgument(fmt::format("scale {} of {} is {}", i, count, scale));
    }
  }
  return OkStatus();
}

Status CheckFp8(const WeightView& w) {
  if (w.block_rows <= 0 || w.block_rows % kPanelRows != 0 || w.block_columns != kFp8Group) {
    return InvalidArgument(fmt::format("FP8 blocks of {}x{} are not supported: 128x128 are",
                                       w.block_rows, w.block_columns));
  }
  TERN_RETURN_IF_ERROR(
      CheckTensor("FP8 weights", w.data, DType::kF8E4M3, Shape{w.rows, w.columns}));
  const Shape blocks{(w.rows + w.block_rows - 1) / w.block_rows,
                     (w.columns + w.block_columns - 1) / w.block_columns};
  TERN_RETURN_IF_ERROR(CheckTensor("FP8 scales", w.scales, DType::kF32, blocks));
  return CheckScalesAreFinite(w.scales);
}

Status CheckInt4(const WeightView& w) {
  if (w.group != 32 && w.group != 64 && w.group != 128) {
    return InvalidArgument(
        fmt::format("INT4 groups of {} are not supported: 32, 64 and 128 are", w.group));
  }
  if (w.columns % w.group != 0) {
    return InvalidArgument(
        fmt::format("{} columns are no multiple of the INT4 group of {}", w.columns, w.group));
  }
  TERN_RETURN_IF_ERROR(
      CheckTensor("INT4 weights", w.data, DType::kI32, Shape{w.rows, w.columns / 8}));
  const DType scale = w.scales.dtype;
  if (scale != DType::kBF16 && scale != DType::kF16 && scale != DType::kF32) {
    return InvalidArgument(
        fmt::format("INT4 scales are {}, not BF16, F16 or F32", InfoOf(scale).name));
  }
  TERN_RETURN_IF_ERROR(
      CheckTensor("INT4 scales", w.scales, scale, Shape{w.rows, w.columns / w.group}));
  if (!w.zero_points.bytes.empty()) {
    TERN_RETURN_IF_ERROR(CheckTensor("INT4 zero points", w.zero_points, DType::kI32,
                                     Shape{(w.rows + 7) / 8, w.columns / w.group}));
  }
  return CheckScalesAreFinite(w.scales);
}

}  // namespace

bool PackedMatrix::SameAs(const PackedMatrix& other) const {
  return rows_ == other.rows_ && columns_ == other.columns_ && format_ == other.format_ &&
         size_bytes() == other.size_bytes() &&
         (size_bytes() == 0 || std::memcmp(identity(), other.identity(), size_bytes()) == 0);
}

Result<PackedMatrix> Ops::Pack(const TensorView& weight, Precision precision) const {
  const DTypeInfo& info = InfoOf(weight.dtype);
  if (!IsWeightType(weight.dtype)) {
    return InvalidArgument(fmt::format("can't multiply by a weight of type {}", info.name));
  }
  if (weight.shape.rank() != 2) {
    return InvalidArgument(
        fmt::format("a weight matrix has two dimensions, not {}", weight.shape.ToString()));
  }
  const int64_t n = weight.shape[0], k = weight.shape[1];
  if (k % info.block_elements != 0) {
    return InvalidArgument(fmt::format("{} columns are no multiple of {}'s block of {}", k,
                                       info.name, info.block_elements));
  }
  TERN_RETURN_IF_ERROR(CheckTensor("weights", weight, weight.dtype, weight.shape));
  const PackFormat format = PackFormatOf(weight.dtype, precision);
  return PackInTasks(pool_, n, k, format, [&](int64_t begin, int64_t end, std::byte* packed) {
    PackPanels(weight, format, begin, end, packed);
  });
}

Result<PackedMatrix> Ops::Pack(const WeightView& weight, Precision precision) const {
  if (weight.scheme == WeightView::Scheme::kPlain) return Pack(weight.data, precision);
  TERN_RETURN_IF_ERROR(weight.scheme == WeightView::Scheme::kFp8Block ? CheckFp8(weight)
                                                                      : CheckInt4(weight));
  const PackFormat format = PackFormatOf(weight, precision);
  std::atomic<bool> finite{true};
  Result<PackedMatrix> matrix = PackInTasks(pool_, weight.rows, weight.columns, format,
                                            [&](int64_t begin, int64_t end, std::byte* packed) {
                                              if (!PackPanels(weight, format, begin, end, packed))
                                                finite = false;
                                            });
  if (!finite) return InvalidArgument("FP8 weights: a number is NaN");
  return matrix;
}

void Ops::DequantizeRow(const TensorView& tensor, int64_t index, float* out) const {
  const DTypeInfo& info = InfoOf(tensor.dtype);
  const int64_t columns = tensor.shape[tensor.shape.rank() - 1];
  const int64_t row_bytes = columns / info.block_elements * info.block_bytes;
  DequantizeBlocks(tensor.dtype, tensor.bytes.data() + index * row_bytes, columns, out);
}

void Ops::DequantizeRow(const WeightView& weight, int64_t index, float* out) const {
  DequantizeWeightRow(weight, index, out);
}

}  // namespace tern
