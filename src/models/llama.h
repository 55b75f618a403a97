// Llama: the dense, grouped-query decoder of Llama 2 and 3, SmolLM2, Qwen2 and Qwen3.
// Thread: see models/model.h.
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
Result<std::unique_ptr<Model>> LoadLlama(std::shared_ptr<const Checkpoint> checkpoint, Ops& ops,
                                         const LoadOptions& options);
Result<std::vector<TensorSpec>> LlamaTensorList(const ModelConfig& config);

}  // namespace tern
