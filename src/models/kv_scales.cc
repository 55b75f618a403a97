#include "models/kv_scales.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <optional>

#include "models/tensor_list.h"
#include "tensor/number.h"

namespace tern {
namespace {

Status ReadScale(const Checkpoint& checkpoint, const std::string& name, float* scale) {
  const CheckpointTensor* tensor = checkpoint.Find(name);
  if (tensor == nullptr) return OkStatus();
  const TensorView& view = tensor->view;
  const auto fail = [&](std::string_view what) {
    return InvalidArgument(
        fmt::format("{}: tensor '{}' {}", tensor->path(), tensor->stored_name, what));
  };
  if (view.shape.elements() != std::optional<int64_t>(1)) return fail("is not one number");
  if (view.dtype == DType::kF32) {
    std::memcpy(scale, view.bytes.data(), sizeof(*scale));
  } else if (view.dtype == DType::kBF16 || view.dtype == DType::kF16) {
    uint16_t bits = 0;
    std::memcpy(&bits, view.bytes.data(), sizeof(bits));
    *scale = view.dtype == DType::kBF16 ? FloatFromBf16(bits) : FloatFromF16(bits);
  } else {
    return fail("is not a float");
  }
  if (!std::isfinite(*scale) || *scale <= 0) return fail("is not positive and finite");
  return OkStatus();
}

}  // namespace

Status ReadKvScales(const Checkpoint& checkpoint, std::span<KvLayerSpec> layers) {
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto name = [&](const char* scale) { return LayerName(static_cast<int64_t>(i), scale); };
    TERN_RETURN_IF_ERROR(ReadScale(checkpoint, name("self_attn.k_scale"), &layers[i].k_scale));
    TERN_RETURN_IF_ERROR(ReadScale(checkpoint, name("self_attn.v_scale"), &layers[i].v_scale));
  }
  return OkStatus();
}

}  // namespace tern
