// Recipes: which weights of a model are quantized, into what, and how the config.json of the result
// says so. Thread: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "checkpoint/module_pattern.h"
#include "models/tensor_list.h"

namespace tern {

enum class QuantFormat {
  kInt4,  // compressed-tensors pack-quantized, symmetric, BF16 scales
  kFp8,   // e4m3 in 128 x 128 blocks
};

enum class QuantRecipe {
  kKimi,       // routed experts, as Kimi K2 is published
  kAllLinear,  // every linear layer, the head among them
};

struct QuantSelection {
  QuantFormat format = QuantFormat::kInt4;
  QuantRecipe recipe = QuantRecipe::kKimi;
  int64_t group = 32;                           // kInt4: 32, 64 or 128
  std::vector<ModulePattern> include, exclude;  // exclude wins
};

// "model.layers.0.mlp.up_proj" of its weight; empty for other tensors.
std::string_view ModuleOfWeight(std::string_view tensor);

// Whether the tensor may be quantized at all: the weight of a linear layer that is neither router
// nor an indexer's weights_proj. Norms and embeddings are none.
bool IsQuantizable(const TensorSpec& spec);

// Whether the selection quantizes it. `prefix` is what a multimodal checkpoint puts before modules:
// patterns may be written with or without it.
bool Selects(const QuantSelection& selection, const TensorSpec& spec, const std::string& prefix);

// Errors: kInvalidArgument: nothing is selected, or a pattern of `include` or `exclude` matches no
// weight that may be quantized.
Status CheckSelection(const QuantSelection& selection, std::span<const TensorSpec> specs,
                      const std::string& prefix);

// The `quantization_config`. `specs`: the linear layers' weights that the checkpoint has.
// INT4: the published `ignore` entries of Kimi where they say what is selected, and by name what
// they leave out. FP8: `modules_to_not_convert` names the linear layers that are not FP8.
// `fp8_kv`: with a kv_cache_scheme for stored k_scale and v_scale.
Json QuantizationConfigJson(const QuantSelection& selection, std::span<const TensorSpec> specs,
                            const std::string& prefix, bool fp8_kv);

}  // namespace tern
