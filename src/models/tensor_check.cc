#include "models/tensor_check.h"

#include <fmt/format.h>

#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_set>

#include "models/stored_weight.h"
#include "models/weight_recipe.h"

namespace tern {
namespace {

// The N of "model.layers.N.mlp.gate.weight", or, of names that GGUF files alone have, "blk.N.".
std::optional<int64_t> LayerOf(std::string_view name) {
  for (const std::string_view prefix : {"model.layers.", "blk."}) {
    if (!name.starts_with(prefix)) continue;
    const char* const begin = name.data() + prefix.size();
    const char* const end = name.data() + name.size();
    int64_t layer = 0;
    const auto [after, error] = std::from_chars(begin, end, layer);
    if (error == std::errc() && after != end && *after == '.' && layer >= 0) return layer;
  }
  return std::nullopt;
}

// Tensors that only a next-token-prediction layer has.
bool IsNextToken(std::string_view name) {
  return name.find(".eh_proj.") != std::string_view::npos ||
         name.find(".nextn.") != std::string_view::npos;
}

Status CheckRequired(const Checkpoint& files, std::span<const TensorSpec> specs) {
  bool any_fp8 = false;
  const TensorSpec* first_linear = nullptr;
  for (const TensorSpec& spec : specs) {
    if (spec.next_token) continue;
    if (spec.shape.rank() != 2) {
      TERN_RETURN_IF_ERROR(files.Require(spec.name, spec.shape).status());
      continue;
    }
    TERN_ASSIGN_OR_RETURN(const StoredWeight stored,
                          FindWeight(files, spec.name, spec.shape[0], spec.shape[1]));
    any_fp8 |= stored.view.scheme == WeightView::Scheme::kFp8Block;
    if (first_linear == nullptr && IsLinear(spec) && spec.kind != TensorKind::kHead) {
      first_linear = &spec;
    }
  }
  const bool announced =
      files.config().quantization.method == QuantizationConfig::Method::kFp8Block;
  if (!announced || any_fp8 || first_linear == nullptr) return OkStatus();
  const CheckpointTensor* tensor = files.Find(first_linear->name);
  return InvalidArgument(fmt::format(
      "{}: quantization_config says fp8, but no weight is: tensor '{}' in {} has type {}",
      files.config().source, first_linear->name, tensor->path(), InfoOf(tensor->view.dtype).name));
}

// Whether a tensor that no spec asks for leaves the result alone.
bool IsHarmless(const ModelConfig& config, std::string_view weight) {
  if (!weight.ends_with(".weight") && !weight.ends_with(".bias")) return true;
  if (config.dsa && weight.find(".self_attn.indexer.") != std::string_view::npos) return true;
  // GGUF files may have kv_b_proj whole beside its halves.
  return config.mla && config.mla->split_kv_b && weight.ends_with(".self_attn.kv_b_proj.weight");
}

Status CheckOthers(const Checkpoint& files, std::span<const TensorSpec> specs) {
  const ModelConfig& config = files.config();
  std::unordered_set<std::string_view> asked;
  for (const TensorSpec& spec : specs) asked.insert(spec.name);
  std::map<int64_t, const CheckpointTensor*>
      beyond;  // the first tensor of each layer past the last
  std::set<int64_t> next_token;
  for (const CheckpointTensor& tensor : files.tensors()) {
    const std::optional<int64_t> layer = LayerOf(tensor.name);
    if (!layer) continue;
    if (*layer >= config.num_hidden_layers) {
      beyond.emplace(*layer, &tensor);
      if (IsNextToken(tensor.name)) next_token.insert(*layer);
      continue;
    }
    const std::string weight = WeightOf(tensor.name);
    if (asked.contains(weight) || IsHarmless(config, weight)) continue;
    return InvalidArgument(fmt::format("{}: tensor '{}' has no place in the {} that {} describes",
                                       tensor.path(), tensor.stored_name, config.architecture,
                                       config.source));
  }
  for (const auto& [layer, tensor] : beyond) {
    if (next_token.contains(layer)) continue;
    return InvalidArgument(fmt::format(
        "{}: tensor '{}' is of layer {}, but num_hidden_layers in {} is {}, and it is "
        "no next-token-prediction layer",
        tensor->path(), tensor->stored_name, layer, config.source, config.num_hidden_layers));
  }
  return OkStatus();
}

}  // namespace

Status CheckTensors(const Checkpoint& files, std::span<const TensorSpec> specs) {
  TERN_RETURN_IF_ERROR(CheckRequired(files, specs));
  return CheckOthers(files, specs);
}

}  // namespace tern
