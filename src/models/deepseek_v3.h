// DeepseekV3: latent attention and a mixture of experts: DeepSeek-V3, Kimi K2 and the text part of
// Kimi K2.5/K2.6, GLM-4.7-Flash. Thread: see models/model.h.
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
Result<std::unique_ptr<Model>> LoadDeepseekV3(std::shared_ptr<const Checkpoint> checkpoint,
                                              Ops& ops, const LoadOptions& options);
Result<std::vector<TensorSpec>> DeepseekV3TensorList(const ModelConfig& config);

}  // namespace tern
