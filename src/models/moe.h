// Mixture of experts: router, routed experts and shared experts, and the plain gated MLP that both
// kinds are made of. Formulas: DeepSeek-V3 (arXiv 2412.19437), section 2.1.2.
// Owner: a model. Thread: the model's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/model_config.h"
#include "kernels/ops.h"
#include "models/tensor_list.h"
#include "models/weights.h"
#include "models/workspace.h"

namespace tern {

// down(silu(gate(x)) * up(x)).
struct GatedMlp {
  PackedMatrix gate, up, down;

  // `prefix`: "model.layers.0.mlp.".
  static Result<GatedMlp> Load(WeightLoader& loader, const std::string& prefix, int64_t hidden,
                               int64_t intermediate);
  // x, out: [rows, hidden]; gated: [rows, 2 * intermediate], scratch. out may not equal x.
  void Forward(const Ops& ops, const float* x, int64_t rows, float* gated, float* out) const;
};

// Chooses the experts of one row from its router logits [n_routed_experts]: the bias counts for the
// choice only, the weights are the sigmoids of the chosen, normalized (if the config says so) and
// scaled. The lowest index wins a tie. experts, weights: [num_experts_per_tok], best first.
// scratch: [3 * n_routed_experts].
void ChooseExperts(const MoeConfig& config, const float* logits, const float* bias, float* scratch,
                   int32_t* experts, float* weights);

// Activations of a pass through feed-forward blocks, shared by all layers.
struct FeedForwardWorkspace {
  // `config` is null for models without experts. Errors: kResourceExhausted.
  Status Resize(int64_t hidden, int64_t intermediate, const MoeConfig* config, int64_t rows);
  static int64_t FloatsPerRow(int64_t hidden, int64_t intermediate, const MoeConfig* config);

  Workspace memory;
  float* gated = nullptr;        // [rows, 2 * the widest dense or shared intermediate]
  float* shared = nullptr;       // [rows, hidden]
  float* logits = nullptr;       // [rows, experts]
  float* scores = nullptr;       // [rows, 3 * experts]
  float* weights = nullptr;      // [rows, top]
  float* gathered = nullptr;     // [rows * top, hidden]: inputs sorted by expert, then outputs
  float* expert_gate = nullptr;  // [rows * top, moe intermediate]
  float* expert_up = nullptr;
  std::vector<int32_t> experts;  // [rows, top]
  std::vector<int32_t> sorted;   // [rows, top]: where each choice lies in `gathered`
  std::vector<int64_t> first;    // [experts + 1]: of each expert's places in `gathered`
  std::vector<int64_t> next;     // [experts]
  std::vector<MatMulGroup> gate_up, down;
};

// The feed-forward block of one layer: dense or a mixture.
class FeedForward {
 public:
  // Errors: WeightLoader's.
  static Result<FeedForward> Load(WeightLoader& loader, const ModelConfig& config, int64_t layer);

  // x, out: [rows, hidden], distinct. `workspace` has been resized for `rows`.
  void Forward(const Ops& ops, const float* x, int64_t rows, FeedForwardWorkspace& workspace,
               float* out) const;

 private:
  struct Mixture {
    PackedMatrix router;  // float32
    WeightVector bias;    // e_score_correction_bias
    std::vector<GatedMlp> experts;
    GatedMlp shared;  // empty: none
    MoeConfig config;
  };
  void ForwardMixture(const Ops& ops, const float* x, int64_t rows, FeedForwardWorkspace& w,
                      float* out) const;
  // Sorts the rows' choices by expert and copies their inputs together.
  void Gather(const Ops& ops, const float* x, int64_t rows, FeedForwardWorkspace& w) const;

  int64_t hidden_ = 0;
  GatedMlp dense_;
  std::vector<Mixture> mixture_;  // one, or none: dense
};

// The tensors of one layer's feed-forward block; `layer` may be past the last (next-token layers
// are sparse).
void AddFeedForwardTensors(const ModelConfig& config, int64_t layer,
                           std::vector<TensorSpec>& specs);

}  // namespace tern
