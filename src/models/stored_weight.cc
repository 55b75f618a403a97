#include "models/stored_weight.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "kernels/ref/dequantize.h"
#include "tensor/number.h"

namespace tern {
namespace {

using Method = QuantizationConfig::Method;

constexpr std::string_view kWeightSuffix = ".weight";
constexpr int64_t kNibblesPerWord = 8;

Status Bad(const CheckpointTensor& tensor, const std::string& what) {
  return InvalidArgument(
      fmt::format("{}: tensor '{}' {}", tensor.path(), tensor.stored_name, what));
}

std::string TypeName(const CheckpointTensor& tensor) {
  return std::string(InfoOf(tensor.view.dtype).name);
}

// "model.layers.0.mlp.up_proj" of its weight; empty for names that are no module's weight.
std::string_view ModuleOf(std::string_view name) {
  return name.ends_with(kWeightSuffix) ? name.substr(0, name.size() - kWeightSuffix.size())
                                       : std::string_view();
}

// Whether the config says that this module's weights are packed integers.
bool ConfigPacks(const Checkpoint& checkpoint, std::string_view name) {
  const QuantizationConfig& config = checkpoint.config().quantization;
  const std::string_view module = ModuleOf(name);
  if (config.method != Method::kInt4Group || module.empty()) return false;
  // Neither embedding nor router is a linear layer.
  if (module == "model.embed_tokens" || module.ends_with(".mlp.gate")) return false;
  return !config.Ignores(module) &&
         !config.Ignores(checkpoint.config().tensor_prefix + std::string(module));
}

Result<const CheckpointTensor*> RequireTyped(const Checkpoint& checkpoint, const std::string& name,
                                             const Shape& shape,
                                             std::initializer_list<DType> types) {
  TERN_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, checkpoint.Require(name, shape));
  std::string wanted;
  for (const DType type : types) {
    if (tensor->view.dtype == type) return tensor;
    wanted += fmt::format("{}{}", wanted.empty() ? "" : " or ", InfoOf(type).name);
  }
  return Bad(*tensor, fmt::format("has type {}, it must be {}", TypeName(*tensor), wanted));
}

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

Result<StoredWeight> FindFp8(const Checkpoint& checkpoint, const std::string& name,
                             const CheckpointTensor& data) {
  const QuantizationConfig& config = checkpoint.config().quantization;
  if (config.method == Method::kInt4Group) {
    return Bad(data, fmt::format("has type {}, but quantization_config in {} says int4",
                                 TypeName(data), checkpoint.config().source));
  }
  StoredWeight weight;
  weight.view = {.scheme = WeightView::Scheme::kFp8Block,
                 .rows = data.view.shape[0],
                 .columns = data.view.shape[1],
                 .data = data.view,
                 .block_rows = config.block_rows,
                 .block_columns = config.block_columns};
  const std::string scale_name = name + "_scale_inv";
  if (checkpoint.Find(scale_name) == nullptr) {
    return Bad(data, fmt::format("has type {} and no scales: tensor '{}' is missing",
                                 TypeName(data), scale_name));
  }
  const Shape blocks{CeilDiv(weight.view.rows, config.block_rows),
                     CeilDiv(weight.view.columns, config.block_columns)};
  TERN_ASSIGN_OR_RETURN(const CheckpointTensor* scales,
                        RequireTyped(checkpoint, scale_name, blocks, {DType::kF32}));
  weight.view.scales = scales->view;
  weight.tensors = {&data, scales, nullptr};
  return weight;
}

// weight_shape: the matrix's own [rows, columns], as int32 or int64.
Status CheckPackedShape(const Checkpoint& checkpoint, const std::string& name, int64_t rows,
                        int64_t columns) {
  TERN_ASSIGN_OR_RETURN(
      const CheckpointTensor* shape,
      RequireTyped(checkpoint, name + "_shape", Shape{2}, {DType::kI32, DType::kI64}));
  int64_t stored[2] = {};
  for (int i = 0; i < 2; ++i) {
    if (shape->view.dtype == DType::kI64) {
      std::memcpy(&stored[i], shape->view.bytes.data() + i * 8, 8);
    } else {
      int32_t value = 0;
      std::memcpy(&value, shape->view.bytes.data() + i * 4, 4);
      stored[i] = value;
    }
  }
  if (stored[0] == rows && stored[1] == columns) return OkStatus();
  return Bad(*shape, fmt::format("says [{}, {}], the config asks for [{}, {}]", stored[0],
                                 stored[1], rows, columns));
}

// weight_g_idx: the group of each input feature. Only the order as it comes is supported.
Status CheckGroupOrder(const Checkpoint& checkpoint, const std::string& name, int64_t columns,
                       int64_t group) {
  if (checkpoint.Find(name + "_g_idx") == nullptr) return OkStatus();
  TERN_ASSIGN_OR_RETURN(const CheckpointTensor* index,
                        RequireTyped(checkpoint, name + "_g_idx", Shape{columns}, {DType::kI32}));
  for (int64_t i = 0; i < columns; ++i) {
    int32_t value = 0;
    std::memcpy(&value, index->view.bytes.data() + i * 4, 4);
    if (value == i / group) continue;
    return Unimplemented(
        fmt::format("{}: tensor '{}' reorders input features, which is not supported",
                    index->path(), index->stored_name));
  }
  return OkStatus();
}

// The group that the scales' columns show, checked against the config's.
Result<int64_t> GroupOf(const Checkpoint& checkpoint, const CheckpointTensor& scales,
                        int64_t columns) {
  const QuantizationConfig& config = checkpoint.config().quantization;
  const bool fits = scales.view.shape.rank() == 2 && scales.view.shape[1] > 0 &&
                    columns % scales.view.shape[1] == 0;
  const int64_t group = fits ? columns / scales.view.shape[1] : 0;
  if (group != 32 && group != 64 && group != 128) {
    return Bad(scales, fmt::format("has shape {}: {} input features are not in groups of 32, 64 or "
                                   "128",
                                   scales.view.shape.ToString(), columns));
  }
  if (config.method == Method::kInt4Group && group != config.group) {
    return Bad(scales, fmt::format("has groups of {}, but quantization_config in {} says {}", group,
                                   checkpoint.config().source, config.group));
  }
  return group;
}

Result<StoredWeight> FindPacked(const Checkpoint& checkpoint, const std::string& name,
                                const CheckpointTensor& packed, int64_t rows, int64_t columns) {
  const QuantizationConfig& config = checkpoint.config().quantization;
  if (config.method == Method::kFp8Block) {
    return Bad(packed, fmt::format("is packed int4, but quantization_config in {} says fp8",
                                   checkpoint.config().source));
  }
  if (config.method == Method::kInt4Group && !ConfigPacks(checkpoint, name)) {
    return Bad(packed,
               fmt::format("is packed int4, but quantization_config in {} ignores its module",
                           checkpoint.config().source));
  }
  if (columns % kNibblesPerWord != 0) {
    return Bad(packed, fmt::format("packs {} input features, which are no multiple of 8", columns));
  }
  TERN_RETURN_IF_ERROR(
      RequireTyped(checkpoint, packed.name, Shape{rows, columns / kNibblesPerWord}, {DType::kI32})
          .status());
  TERN_RETURN_IF_ERROR(CheckPackedShape(checkpoint, name, rows, columns));
  StoredWeight weight;
  weight.view = {.scheme = WeightView::Scheme::kInt4Group,
                 .rows = rows,
                 .columns = columns,
                 .data = packed.view};
  const std::string scale_name = name + "_scale";
  const CheckpointTensor* scales = checkpoint.Find(scale_name);
  if (scales == nullptr) {
    return Bad(packed, fmt::format("has no scales: tensor '{}' is missing", scale_name));
  }
  TERN_ASSIGN_OR_RETURN(weight.view.group, GroupOf(checkpoint, *scales, columns));
  const int64_t groups = columns / weight.view.group;
  TERN_ASSIGN_OR_RETURN(scales, RequireTyped(checkpoint, scale_name, Shape{rows, groups},
                                             {DType::kBF16, DType::kF16, DType::kF32}));
  weight.view.scales = scales->view;
  TERN_RETURN_IF_ERROR(CheckGroupOrder(checkpoint, name, columns, weight.view.group));

  const std::string zero_name = name + "_zero_point";
  const CheckpointTensor* zeros = checkpoint.Find(zero_name);
  if (config.method == Method::kInt4Group && config.symmetric != (zeros == nullptr)) {
    return Bad(packed,
               fmt::format("{} tensor '{}', but quantization_config in {} says symmetric: {}",
                           zeros == nullptr ? "has no" : "has", zero_name,
                           checkpoint.config().source, config.symmetric));
  }
  if (zeros != nullptr) {
    TERN_ASSIGN_OR_RETURN(
        zeros, RequireTyped(checkpoint, zero_name, Shape{CeilDiv(rows, kNibblesPerWord), groups},
                            {DType::kI32}));
    weight.view.zero_points = zeros->view;
  }
  weight.tensors = {&packed, scales, zeros};
  return weight;
}

}  // namespace

uint64_t StoredWeight::stored_bytes() const {
  uint64_t bytes = 0;
  for (const CheckpointTensor* tensor : tensors) {
    if (tensor != nullptr) bytes += tensor->view.bytes.size();
  }
  return bytes;
}

Result<StoredWeight> FindWeight(const Checkpoint& checkpoint, const std::string& name, int64_t rows,
                                int64_t columns) {
  const CheckpointTensor* packed = checkpoint.Find(name + "_packed");
  if (packed != nullptr) {
    if (const CheckpointTensor* plain = checkpoint.Find(name)) {
      return Bad(*packed, fmt::format("and tensor '{}' hold the same weight", plain->stored_name));
    }
    return FindPacked(checkpoint, name, *packed, rows, columns);
  }
  if (ConfigPacks(checkpoint, name) && checkpoint.Find(name) == nullptr) {
    return InvalidArgument(
        fmt::format("{}: tensor '{}_packed' is missing", checkpoint.path(), name));
  }
  TERN_ASSIGN_OR_RETURN(const CheckpointTensor* tensor,
                        checkpoint.Require(name, Shape{rows, columns}));
  if (tensor->view.dtype == DType::kF8E4M3) return FindFp8(checkpoint, name, *tensor);
  if (!IsWeightType(tensor->view.dtype)) {
    return Bad(*tensor, fmt::format("has type {}, which is no weight", TypeName(*tensor)));
  }
  for (const char* suffix : {"_scale_inv", "_scale", "_zero_point"}) {
    if (const CheckpointTensor* scales = checkpoint.Find(name + suffix)) {
      return Bad(*scales, fmt::format("scales a weight of type {}", TypeName(*tensor)));
    }
  }
  if (ConfigPacks(checkpoint, name)) {
    return Bad(*tensor, fmt::format("has type {}, but quantization_config in {} says int4",
                                    TypeName(*tensor), checkpoint.config().source));
  }
  return StoredWeight{WeightView::Plain(tensor->view), {tensor, nullptr, nullptr}};
}

Status CheckScales(const StoredWeight& weight) {
  const CheckpointTensor* scales = weight.tensors[1];
  if (scales == nullptr) return OkStatus();
  const std::byte* bytes = scales->view.bytes.data();
  const int64_t count = scales->view.shape.elements().value_or(0);
  for (int64_t i = 0; i < count; ++i) {
    float value = 0;
    if (scales->view.dtype == DType::kF32) {
      std::memcpy(&value, bytes + i * 4, 4);
    } else {
      uint16_t half = 0;
      std::memcpy(&half, bytes + i * 2, 2);
      value = scales->view.dtype == DType::kBF16 ? FloatFromBf16(half) : FloatFromF16(half);
    }
    if (!std::isfinite(value)) return Bad(*scales, fmt::format("holds {} at {}", value, i));
  }
  return OkStatus();
}

}  // namespace tern
