#include "models/weights.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

namespace tern {
namespace {

bool IsFloat(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ8_0:
    case DType::kQ4_K:
    case DType::kQ6_K:
      return true;
    default:
      return false;
  }
}

// Where row `row` of Hugging Face's order lies among interleaved rows. Within a head, the
// converter moved row h*(d/2) + i (half h, pair i) to 2*i + h.
int64_t InterleavedRow(int64_t row, int64_t head_dim) {
  const int64_t head = row / head_dim, within = row % head_dim;
  const int64_t half = within / (head_dim / 2), pair = within % (head_dim / 2);
  return head * head_dim + 2 * pair + half;
}

}  // namespace

WeightLoader::WeightLoader(const Checkpoint& checkpoint, Ops& ops, const LoadOptions& options)
    : checkpoint_(checkpoint), ops_(ops), options_(options) {
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    total_bytes_ += tensor.view.bytes.size();
  }
}

Result<const CheckpointTensor*> WeightLoader::RequireWeight(const std::string& name,
                                                            const Shape& shape) {
  TERN_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, checkpoint_.Require(name, shape));
  if (IsFloat(tensor->view.dtype)) return tensor;
  return InvalidArgument(fmt::format("{}: tensor '{}' has type {}, which is no weight",
                                     tensor->file->path(), tensor->stored_name,
                                     InfoOf(tensor->view.dtype).name));
}

Result<PackedMatrix> WeightLoader::Pack(const CheckpointTensor& tensor, const TensorView& view) {
  Result<PackedMatrix> packed = ops_.Pack(view, options_.precision);
  if (!packed.ok()) {
    return packed.status().WithContext(
        fmt::format("{}: tensor '{}'", tensor.file->path(), tensor.stored_name));
  }
  checkpoint_.Release(tensor);
  resident_bytes_ += packed->size_bytes();
  done_bytes_ += tensor.view.bytes.size();
  if (options_.progress) options_.progress(done_bytes_, total_bytes_);
  return packed;
}

Result<PackedMatrix> WeightLoader::Matrix(const std::string& name, int64_t rows, int64_t columns) {
  TERN_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, RequireWeight(name, Shape{rows, columns}));
  return Pack(*tensor, tensor->view);
}

Result<PackedMatrix> WeightLoader::RotaryMatrix(const std::string& name, int64_t heads,
                                                int64_t head_dim, int64_t columns) {
  const int64_t rows = heads * head_dim;
  if (!checkpoint_.rotary_rows_interleaved()) return Matrix(name, rows, columns);
  TERN_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, RequireWeight(name, Shape{rows, columns}));
  std::vector<std::byte> ordered(tensor->view.bytes.size());
  const size_t row_bytes = ordered.size() / static_cast<size_t>(rows);
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(
        ordered.data() + static_cast<size_t>(row) * row_bytes,
        tensor->view.bytes.data() + static_cast<size_t>(InterleavedRow(row, head_dim)) * row_bytes,
        row_bytes);
  }
  TensorView view = tensor->view;
  view.bytes = ordered;
  return Pack(*tensor, view);
}

Result<TensorView> WeightLoader::LookupTable(const std::string& name, int64_t rows,
                                             int64_t columns) {
  TERN_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, RequireWeight(name, Shape{rows, columns}));
  return tensor->view;
}

Result<std::vector<float>> WeightLoader::Vector(const std::string& name, int64_t size) {
  TERN_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, RequireWeight(name, Shape{size}));
  TensorView row = tensor->view;
  row.shape = Shape{1, size};
  std::vector<float> values(static_cast<size_t>(size));
  ops_.DequantizeRow(row, 0, values.data());
  resident_bytes_ += values.size() * sizeof(float);
  done_bytes_ += tensor->view.bytes.size();
  return values;
}

Result<std::vector<float>> WeightLoader::RotaryVector(const std::string& name, int64_t heads,
                                                      int64_t head_dim) {
  TERN_ASSIGN_OR_RETURN(const std::vector<float> stored, Vector(name, heads * head_dim));
  if (!checkpoint_.rotary_rows_interleaved()) return stored;
  std::vector<float> ordered(stored.size());
  for (size_t row = 0; row < ordered.size(); ++row) {
    ordered[row] = stored[static_cast<size_t>(InterleavedRow(static_cast<int64_t>(row), head_dim))];
  }
  return ordered;
}

}  // namespace tern
