// Registry: the architectures that tern knows, by the class name in config.json.
// Thread: pure functions; LoadModel uses `ops` from the calling thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/topology.h"
#include "checkpoint/checkpoint.h"
#include "kernels/ops.h"
#include "models/model.h"
#include "models/tensor_list.h"
#include "models/weight_recipe.h"

namespace tern {

class SharedWeights;  // models/shared_weights.h
class WeightNames;    // models/observer.h

enum class LoadFormat {
  kAuto,  // what the files are
  kSafetensors,
  kGguf,
  kDummy,  // made-up weights for the config.json at the path, or in the folder there
};
// "auto", "safetensors", "gguf", "dummy". Errors: kInvalidArgument.
Result<LoadFormat> LoadFormatNamed(const std::string& name);

struct LoadOptions {
  LoadFormat format = LoadFormat::kAuto;
  WeightRecipe dummy_recipe = WeightRecipe::kConfig;
  Precision precision = Precision::kProduction;
  // Rotary frequencies rounded to BF16, as in references that were computed after casting a whole
  // model to BF16: transformers keeps them in float32, but `model.to(bfloat16)` rounds them too.
  bool bf16_rotary_frequencies = false;
  // Called after each packed matrix with bytes of the checkpoint read so far and in all.
  std::function<void(uint64_t done_bytes, uint64_t total_bytes)> progress;
  // Learns the name of each linear layer's packed weight; must outlive the load. Null: nobody asks.
  WeightNames* weight_names = nullptr;
  // What models loaded before have alike is held once; must outlive the load. Null: no others.
  SharedWeights* shared = nullptr;
  // Bytes that weights may take now.
  std::function<uint64_t()> available_memory = AvailableMemoryBytes;
};

// Loads a checkpoint (Checkpoint::Open's paths). `ops` must outlive the model. Mapped tensors are
// released one by one as they are packed, so two full copies never exist.
// Errors: those of Checkpoint::Open; kUnimplemented for an unknown architecture, listing the known;
// kInvalidArgument naming a missing or misshapen tensor; kResourceExhausted (memory): before
// anything is read, as far as sizes tell; else with the weight that turns out not to be shared.
Result<std::unique_ptr<Model>> LoadModel(const std::string& path, Ops& ops,
                                         const LoadOptions& options);

// kResourceExhausted, naming `what`, when weights of `bytes` do not fit.
Status CheckFits(const std::string& what, uint64_t bytes, const LoadOptions& options);

// Every tensor that the architecture asks for. Errors: as for an unknown architecture.
Result<std::vector<TensorSpec>> TensorList(const ModelConfig& config);

}  // namespace tern
