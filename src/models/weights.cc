#include "models/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>

#include "kernels/ref/dequantize.h"
#include "models/observer.h"

namespace tern {
namespace {

// Where row `row` of Hugging Face's order lies among interleaved rows. Within a head, the
// converter moved row h*(d/2) + i (half h, pair i) to 2*i + h.
int64_t InterleavedRow(int64_t row, int64_t head_dim) {
  const int64_t head = row / head_dim, within = row % head_dim;
  const int64_t half = within / (head_dim / 2), pair = within % (head_dim / 2);
  return head * head_dim + 2 * pair + half;
}

// A NaN in a norm is seen in every answer; in a router it hides an expert for good.
Status CheckFinite(const CheckpointTensor& tensor, std::span<const float> values) {
  const auto bad =
      std::find_if(values.begin(), values.end(), [](float x) { return !std::isfinite(x); });
  if (bad == values.end()) return OkStatus();
  return InvalidArgument(fmt::format("{}: tensor '{}' holds {} at {}", tensor.path(),
                                     tensor.stored_name, *bad, bad - values.begin()));
}

}  // namespace

WeightLoader::WeightLoader(std::shared_ptr<const Checkpoint> checkpoint, Ops& ops,
                           const LoadOptions& options)
    : checkpoint_(std::move(checkpoint)),
      ops_(ops),
      options_(options),
      total_bytes_(checkpoint_->tensor_bytes()) {}

Result<const CheckpointTensor*> WeightLoader::RequireWeight(const std::string& name,
                                                            const Shape& shape) {
  TERN_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, checkpoint_->Require(name, shape));
  if (IsWeightType(tensor->view.dtype)) return tensor;
  return InvalidArgument(fmt::format("{}: tensor '{}' has type {}, which is no weight",
                                     tensor->path(), tensor->stored_name,
                                     InfoOf(tensor->view.dtype).name));
}

void WeightLoader::CountDone(uint64_t stored_bytes) {
  done_bytes_ += stored_bytes;
  if (options_.progress) options_.progress(done_bytes_, total_bytes_);
}

Result<PackedMatrix> WeightLoader::Pack(const std::string& as, const StoredWeight& stored,
                                        const WeightView& view, Precision precision) {
  Result<PackedMatrix> packed = PackedMatrix();
  if (options_.shared != nullptr) packed = options_.shared->FindMatrix(as, stored);
  if (!packed->empty()) {
    shared_bytes_ += packed->size_bytes();
  } else {
    TERN_RETURN_IF_ERROR(CheckScales(stored));
    if (options_.shared != nullptr && options_.shared->MayBeShared(*checkpoint_, stored.data())) {
      TERN_RETURN_IF_ERROR(
          CheckFits(fmt::format("{}: tensor '{}'", stored.data().path(), stored.data().stored_name),
                    stored.stored_bytes(), options_));
    }
    packed = view.scheme == WeightView::Scheme::kPlain ? ops_.Pack(view.data, precision)
                                                       : ops_.Pack(view, precision);
    if (!packed.ok()) {
      return packed.status().WithContext(
          fmt::format("{}: tensor '{}'", stored.data().path(), stored.data().stored_name));
    }
    if (options_.shared != nullptr) options_.shared->AddMatrix(as, stored, *packed);
  }
  for (const CheckpointTensor* tensor : stored.tensors) {
    if (tensor != nullptr) Checkpoint::Release(*tensor);
  }
  resident_bytes_ += packed->size_bytes();
  CountDone(stored.stored_bytes());
  return packed;
}

Result<PackedMatrix> WeightLoader::Matrix(const std::string& name, int64_t rows, int64_t columns) {
  TERN_ASSIGN_OR_RETURN(const StoredWeight stored, FindWeight(*checkpoint_, name, rows, columns));
  TERN_ASSIGN_OR_RETURN(PackedMatrix packed, Pack(name, stored, stored.view, options_.precision));
  Name(packed, name);
  return packed;
}

void WeightLoader::Name(const PackedMatrix& matrix, const std::string& name) {
  if (options_.weight_names != nullptr) options_.weight_names->Add(matrix, name);
}

Result<PackedMatrix> WeightLoader::Float32Matrix(const std::string& name, int64_t rows,
                                                 int64_t columns) {
  TERN_ASSIGN_OR_RETURN(const StoredWeight stored, FindWeight(*checkpoint_, name, rows, columns));
  TERN_ASSIGN_OR_RETURN(const std::vector<float> values, Values(name, rows, columns));
  TERN_RETURN_IF_ERROR(CheckFinite(stored.data(), values));
  return Pack(name + " in float32", stored, stored.view, Precision::kReference);
}

Result<std::vector<float>> WeightLoader::Values(const std::string& name, int64_t rows,
                                                int64_t columns) {
  TERN_ASSIGN_OR_RETURN(const StoredWeight stored, FindWeight(*checkpoint_, name, rows, columns));
  TERN_RETURN_IF_ERROR(CheckScales(stored));
  std::vector<float> values(static_cast<size_t>(rows * columns));
  for (int64_t row = 0; row < rows; ++row) {
    float* out = values.data() + row * columns;
    if (stored.view.scheme == WeightView::Scheme::kPlain) {
      ops_.DequantizeRow(stored.view.data, row, out);
    } else {
      ops_.DequantizeRow(stored.view, row, out);
    }
  }
  return values;
}

Result<PackedMatrix> WeightLoader::PackValues(const std::string& name, const float* values,
                                              int64_t rows, int64_t columns) {
  const TensorView view = {
      .dtype = DType::kF32,
      .shape = Shape{rows, columns},
      .bytes = std::as_bytes(std::span(values, static_cast<size_t>(rows * columns)))};
  Result<PackedMatrix> packed = ops_.Pack(view, options_.precision);
  if (!packed.ok()) {
    return packed.status().WithContext(fmt::format("{}: {}", checkpoint_->path(), name));
  }
  if (options_.shared != nullptr && options_.shared->OneOfComputed(name, &*packed)) {
    shared_bytes_ += packed->size_bytes();
  }
  resident_bytes_ += packed->size_bytes();
  return packed;
}

Result<PackedMatrix> WeightLoader::RotaryMatrix(const std::string& name, int64_t heads,
                                                int64_t head_dim, int64_t columns) {
  const int64_t rows = heads * head_dim;
  if (!checkpoint_->rotary_rows_interleaved()) return Matrix(name, rows, columns);
  TERN_ASSIGN_OR_RETURN(const StoredWeight stored, FindWeight(*checkpoint_, name, rows, columns));
  const std::span<const std::byte> bytes = stored.view.data.bytes;  // GGUF: plain
  std::vector<std::byte> ordered(bytes.size());
  const size_t row_bytes = ordered.size() / static_cast<size_t>(rows);
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(ordered.data() + static_cast<size_t>(row) * row_bytes,
                bytes.data() + static_cast<size_t>(InterleavedRow(row, head_dim)) * row_bytes,
                row_bytes);
  }
  WeightView view = stored.view;
  view.data.bytes = ordered;
  TERN_ASSIGN_OR_RETURN(PackedMatrix packed,
                        Pack(name + " in halves", stored, view, options_.precision));
  Name(packed, name);
  return packed;
}

Result<LookupTable> WeightLoader::Table(const std::string& name, int64_t rows, int64_t columns) {
  TERN_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, RequireWeight(name, Shape{rows, columns}));
  if (options_.shared != nullptr) return options_.shared->OneTable(*tensor, checkpoint_);
  return LookupTable{tensor->view, checkpoint_};
}

Result<WeightVector> WeightLoader::VectorInOrder(const std::string& name, const std::string& as,
                                                 int64_t size,
                                                 const std::function<int64_t(int64_t)>& order) {
  TERN_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, RequireWeight(name, Shape{size}));
  WeightVector vector;
  if (options_.shared != nullptr) vector = options_.shared->FindVector(as, *tensor);
  if (!vector.empty()) {
    shared_bytes_ += vector.size_bytes();
  } else {
    TensorView row = tensor->view;
    row.shape = Shape{1, size};
    std::vector<float> stored(static_cast<size_t>(size)), values(stored.size());
    ops_.DequantizeRow(row, 0, stored.data());
    TERN_RETURN_IF_ERROR(CheckFinite(*tensor, stored));
    for (int64_t i = 0; i < size; ++i) {
      values[static_cast<size_t>(i)] = stored[static_cast<size_t>(order(i))];
    }
    vector = WeightVector(std::move(values));
    if (options_.shared != nullptr) options_.shared->AddVector(as, *tensor, vector);
  }
  resident_bytes_ += vector.size_bytes();
  done_bytes_ += tensor->view.bytes.size();
  return vector;
}

Result<WeightVector> WeightLoader::Vector(const std::string& name, int64_t size) {
  return VectorInOrder(name, name, size, [](int64_t i) { return i; });
}

Result<WeightVector> WeightLoader::RotaryVector(const std::string& name, int64_t heads,
                                                int64_t head_dim) {
  if (!checkpoint_->rotary_rows_interleaved()) return Vector(name, heads * head_dim);
  return VectorInOrder(name, name + " in halves", heads * head_dim,
                       [=](int64_t i) { return InterleavedRow(i, head_dim); });
}

}  // namespace tern
