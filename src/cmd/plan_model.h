// PlannedModel: one rank's share of a model, from its config and a weight recipe alone.
// Owner: `tern plan`. Thread: values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "bench/kernel_speeds.h"
#include "checkpoint/model_config.h"
#include "engine/speed_plan.h"
#include "models/model.h"
#include "models/weight_recipe.h"

namespace tern {

struct PlannedModel {
  ModelConfig config;
  int64_t tp = 1;
  uint64_t checkpoint_bytes = 0;       // all tensors, next-token layers among them
  uint64_t next_token_bytes = 0;       // of these
  uint64_t replicated_bytes = 0;       // of checkpoint_bytes: whole on every rank in truth
  uint64_t rank_weight_bytes = 0;      // checkpoint_bytes / tp, rounded up, as `inspect` counts
  std::vector<KvLayerSpec> kv_layers;  // of one rank: latent rows whole, key-value heads divided
  SpeedModel speed;                    // without row_bytes and index_bytes
};

// `path`: config.json, a folder with one, or a GGUF file, whose own tensors count instead of the
// recipe's. Errors: those of LoadModelConfig, Checkpoint::Open, TensorList and
// StoredAs; kInvalidArgument for ranks that the model's heads can't be divided by.
Result<PlannedModel> PlanModel(const std::string& path, WeightRecipe recipe, int64_t tp);

// The model's layers on this machine, for MeasuredKernels.
PlannedLayer PlannedLayerOf(const ModelConfig& config, KvFormat format);

// Sets row_bytes and index_bytes for rows of a format. Errors: those of PageFormat::Make.
Status SetCacheBytes(const std::vector<KvLayerSpec>& layers, KvFormat format, int64_t page_tokens,
                     const std::vector<int64_t>& bf16_layers, SpeedModel* speed);

}  // namespace tern
