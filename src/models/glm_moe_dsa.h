// GlmMoeDsa: DeepseekV3's layers with sparse attention: GLM-5, 5.1, 5.2 (where most layers share
// the indexer of one before them) and DeepSeek-V3.2. Thread: see models/model.h.
#pragma once

#include <memory>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "kernels/ops.h"
#include "models/model.h"
#include "models/registry.h"
#include "models/tensor_list.h"

namespace tern {

// Errors: as LoadModel.
Result<std::unique_ptr<Model>> LoadGlmMoeDsa(std::shared_ptr<const Checkpoint> checkpoint, Ops& ops,
                                             const LoadOptions& options);
Result<std::vector<TensorSpec>> GlmMoeDsaTensorList(const ModelConfig& config);

}  // namespace tern
