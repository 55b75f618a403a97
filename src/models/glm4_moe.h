// Glm4Moe: grouped-query attention with biases and partial rotation, and a mixture of experts:
// GLM-4.5, 4.6 and 4.7. Thread: see models/model.h.
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
Result<std::unique_ptr<Model>> LoadGlm4Moe(std::shared_ptr<const Checkpoint> checkpoint, Ops& ops,
                                           const LoadOptions& options);
Result<std::vector<TensorSpec>> Glm4MoeTensorList(const ModelConfig& config);

}  // namespace tern
