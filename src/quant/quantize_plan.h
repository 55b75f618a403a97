// QuantizePlan: everything that a quantized checkpoint will hold, decided before the first byte is
// read: each tensor's format, shape and place in its file.
// Owner: the quantizer; the checkpoint must outlive it. Thread: immutable.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors_writer.h"
#include "models/tensor_list.h"
#include "quant/recipe.h"
#include "quant/weight_source.h"

namespace tern {

// The kind of what the architecture does not ask for.
inline constexpr const char* kOtherKind = "other";

// One weight of the input and what becomes of it.
struct PlannedWeight {
  enum class Action {
    kCopy,      // bytes as they are
    kBf16,      // rounded to BF16
    kF32,       // to float32
    kInt4,      // outputs: words, scales, shape
    kFp8,       // outputs: codes, scales
    kConstant,  // `constant`
  };
  std::string name;  // Hugging Face's, without a multimodal prefix
  std::string kind;  // TensorKindName, or kOtherKind
  int64_t layer = -1;
  Action action = Action::kCopy;
  WeightSource source;                       // all but kCopy and kConstant
  const CheckpointTensor* tensor = nullptr;  // kCopy
  std::string constant;                      // kConstant: the bytes
  std::vector<SafetensorsEntry> outputs;
  std::vector<uint64_t> offsets;  // of the outputs, in their shard
  uint64_t input_bytes = 0;

  bool quantized() const { return action == Action::kInt4 || action == Action::kFp8; }
};

struct PlannedShard {
  std::string file;             // "model-00001-of-00003.safetensors"
  size_t first = 0, count = 0;  // of QuantizePlan::weights
  std::string header;
  uint64_t file_bytes = 0;
};

// One layer's scales of an FP8 KV cache; v is 0 where there is none (latent attention).
struct KvScales {
  float k = 1, v = 0;
};

struct QuantizePlan {
  std::vector<TensorSpec> specs;  // of the result: a head of its own where a tied one is quantized
  std::vector<PlannedWeight> weights;
  std::vector<PlannedShard> shards;
  std::vector<std::string> unknown;  // stored names of tensors carried along, not asked for
  bool unties_head = false;
  uint64_t input_bytes = 0, output_bytes = 0;  // output: of tensors, without headers
};

// `specs`: the architecture's list (TensorList). `kv`: per layer, or empty. `shard_bytes`: most
// bytes of tensors in a file, unless a single weight has more.
// Errors, naming file and tensor: kInvalidArgument: the checkpoint is INT4 already, a tensor is
// missing or of another shape or no weight, input features are no multiple of the group, a tensor
// of a GGUF file has no Hugging Face name; those of CheckSelection.
Result<QuantizePlan> MakeQuantizePlan(const Checkpoint& checkpoint, std::vector<TensorSpec> specs,
                                      const QuantSelection& selection, std::span<const KvScales> kv,
                                      uint64_t shard_bytes);

}  // namespace tern
