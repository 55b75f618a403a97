// Decoder: what the mixture-of-experts models have in common: embedding, layers of attention and
// feed-forward blocks with a norm before each, a final norm and the head. An architecture brings
// its attention (AttentionStack). Owner: whoever loaded the model. Thread: see models/model.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "kernels/ops.h"
#include "models/model.h"
#include "models/moe.h"
#include "models/registry.h"
#include "models/rope.h"
#include "models/tensor_list.h"
#include "models/weights.h"
#include "models/workspace.h"

namespace tern {

// One pass, as the attention of every layer sees it.
struct AttentionPass {
  int64_t rows = 0;
  std::span<const ForwardRun> runs;  // in row order, covering all rows
  std::span<const KvRun> kv_runs;    // the same, for kernels
  const PageFormat* format = nullptr;
  const float* cos = nullptr;  // [rows, rotary_dims / 2]
  const float* sin = nullptr;
};

// The attention blocks of all layers. Calls come in the order Load(0), Load(1), ...; then, in each
// pass, Begin, Forward(0), Forward(1), ...
class AttentionStack {
 public:
  virtual ~AttentionStack() = default;
  virtual Status Load(WeightLoader& loader, int64_t layer) = 0;
  virtual KvLayerSpec kv_layer(int64_t layer) const = 0;
  virtual int64_t rotary_dims() const = 0;
  virtual int64_t floats_per_row() const = 0;  // of its workspace
  // What kernels keep for its attention, at most.
  virtual uint64_t scratch_bytes() const { return 0; }
  // Errors: kResourceExhausted.
  virtual Status Begin(const AttentionPass& pass) = 0;
  // normed, out: [rows, hidden], distinct.
  virtual void Forward(int64_t layer, const AttentionPass& pass, const float* normed,
                       float* out) = 0;
};

// `specs`: the architecture's tensors, all checked before any is packed.
// Errors: as LoadModel.
Result<std::unique_ptr<Model>> LoadDecoder(std::shared_ptr<const Checkpoint> checkpoint, Ops& ops,
                                           const LoadOptions& options,
                                           std::unique_ptr<AttentionStack> attention,
                                           std::span<const TensorSpec> specs);

// Adds one layer's attention tensors.
using AddAttentionTensors =
    std::function<void(const ModelConfig& config, int64_t layer, std::vector<TensorSpec>& specs)>;

// Every tensor of such a model; next-token-prediction layers are marked as such.
std::vector<TensorSpec> DecoderTensorList(const ModelConfig& config,
                                          const AddAttentionTensors& add_attention);

// What every such model asks of its config. Errors: kUnimplemented or kInvalidArgument.
Status CheckDecoderConfig(const ModelConfig& config);

}  // namespace tern
