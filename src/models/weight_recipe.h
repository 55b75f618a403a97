// WeightRecipe: which weights of a model are stored in which format, so that the tensors of a
// checkpoint follow from its config without the checkpoint. Thread: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/model_config.h"
#include "models/tensor_list.h"

namespace tern {

enum class WeightRecipe {
  kConfig,  // what the config's quantization_config says
  kBf16,    // nothing quantized
  kFp8,     // FP8 blocks as published: linear layers but the head, the indexer's weights_proj and
            // eh_proj of next-token layers
  kInt4,    // Kimi's: routed experts in INT4 groups, all else BF16
  kInt4Linear,  // every linear layer that a quantizer may touch, the head among them, in INT4
                // groups
  kFp8Linear,   // the same in FP8 blocks
};

// "config", "bf16", "fp8", "fp8-linear"; "int4" or "kimi"; "int4-linear". Errors:
// kInvalidArgument.
Result<WeightRecipe> WeightRecipeNamed(const std::string& name);

// One weight as stored: its tensors, and the format's name for people.
struct RecipeWeight {
  std::string format;                // "BF16", "FP8 128x128", "INT4 g32"
  std::vector<DummyTensor> tensors;  // the weight itself first, then scales and the like
  uint64_t bytes = 0;                // of all of them
};

// Errors: kInvalidArgument for sizes that overflow or don't fit the recipe's groups.
Result<RecipeWeight> StoredAs(const TensorSpec& spec, const ModelConfig& config,
                              WeightRecipe recipe);

// The name of the weight that a stored tensor belongs to: "...up_proj.weight" of
// "...up_proj.weight_scale"; other names come back as they are.
std::string WeightOf(const std::string& stored_name);

}  // namespace tern
