#include "models/moe.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace tern {
namespace {

bool IsSparse(const ModelConfig& config, int64_t layer) {
  if (!config.moe) return false;
  const std::vector<bool>& sparse = config.moe->sparse_layers;
  return layer >= static_cast<int64_t>(sparse.size()) || sparse[static_cast<size_t>(layer)];
}

constexpr float kNever = -std::numeric_limits<float>::infinity();

// Index of the largest of n numbers, the lowest index on a tie; NaN loses to all.
int64_t Largest(const float* x, int64_t n) {
  int64_t best = 0;
  for (int64_t i = 1; i < n; ++i) {
    if (x[i] > x[best] || (std::isnan(x[best]) && !std::isnan(x[i]))) best = i;
  }
  return best;
}

// Sets the choice scores of all but the best topk_group groups to -inf. A group's score is the sum
// of its two best.
void KeepBestGroups(const MoeConfig& config, float* choice, float* group_scores) {
  const int64_t size = config.n_routed_experts / config.n_group;
  for (int64_t g = 0; g < config.n_group; ++g) {
    float* group = choice + g * size;
    const int64_t first = Largest(group, size);
    const float best = group[first];
    group[first] = kNever;
    group_scores[g] = best + group[Largest(group, size)];
    group[first] = best;
  }
  // A kept group's score becomes NaN, which Largest passes over while others are left.
  for (int64_t k = 0; k < config.topk_group; ++k) {
    group_scores[Largest(group_scores, config.n_group)] = std::nanf("");
  }
  for (int64_t g = 0; g < config.n_group; ++g) {
    if (!std::isnan(group_scores[g])) std::fill_n(choice + g * size, size, kNever);
  }
}

std::string MlpName(int64_t layer, std::string_view name) {
  return LayerName(layer, "mlp.") + std::string(name);
}

}  // namespace

Result<GatedMlp> GatedMlp::Load(WeightLoader& loader, const std::string& prefix, int64_t hidden,
                                int64_t intermediate) {
  GatedMlp mlp;
  TERN_ASSIGN_OR_RETURN(mlp.gate, loader.Matrix(prefix + "gate_proj.weight", intermediate, hidden));
  TERN_ASSIGN_OR_RETURN(mlp.up, loader.Matrix(prefix + "up_proj.weight", intermediate, hidden));
  TERN_ASSIGN_OR_RETURN(mlp.down, loader.Matrix(prefix + "down_proj.weight", hidden, intermediate));
  return mlp;
}

void GatedMlp::Forward(const Ops& ops, const float* x, int64_t rows, float* gated,
                       float* out) const {
  float* const up_out = gated + rows * gate.rows();
  const MatMulTarget gate_up[] = {{&gate, gated}, {&up, up_out}};
  ops.MatMul(x, rows, gate_up);
  ops.SiluMul(gated, up_out, rows * gate.rows(), gated);
  const MatMulTarget down_target[] = {{&down, out}};
  ops.MatMul(gated, rows, down_target);
}

void ChooseExperts(const MoeConfig& config, const float* logits, const float* bias, float* scratch,
                   int32_t* experts, float* weights) {
  const int64_t n = config.n_routed_experts;
  float* const score = scratch;
  float* const choice = scratch + n;
  for (int64_t e = 0; e < n; ++e) {
    score[e] = 1.0f / (1.0f + std::exp(-logits[e]));
    choice[e] = score[e] + bias[e];
  }
  if (config.n_group > 1) {
    KeepBestGroups(config, choice, scratch + 2 * n);  // groups are no more than experts
  }
  float sum = 0;
  for (int64_t k = 0; k < config.num_experts_per_tok; ++k) {
    const int64_t best = Largest(choice, n);
    choice[best] = std::nanf("");  // not again
    experts[k] = static_cast<int32_t>(best);
    weights[k] = score[best];
    sum += score[best];
  }
  const float divisor = config.norm_topk_prob ? sum + 1e-20f : 1.0f;
  const auto factor = static_cast<float>(config.routed_scaling_factor);
  for (int64_t k = 0; k < config.num_experts_per_tok; ++k)
    weights[k] = weights[k] / divisor * factor;
}

namespace {

// The widest gated product of a dense MLP or of the shared experts.
int64_t WidestIntermediate(int64_t intermediate, const MoeConfig* config) {
  if (config == nullptr) return intermediate;
  return std::max(intermediate, config->moe_intermediate_size * config->n_shared_experts);
}

}  // namespace

int64_t FeedForwardWorkspace::FloatsPerRow(int64_t hidden, int64_t intermediate,
                                           const MoeConfig* config) {
  int64_t floats = 2 * WidestIntermediate(intermediate, config) + hidden;
  if (config != nullptr) {
    floats += 4 * config->n_routed_experts +
              config->num_experts_per_tok * (1 + 2 * hidden + 2 * config->moe_intermediate_size);
  }
  return floats;
}

Status FeedForwardWorkspace::Resize(int64_t hidden, int64_t intermediate, const MoeConfig* config,
                                    int64_t rows) {
  const int64_t top = config != nullptr ? config->num_experts_per_tok : 0;
  const int64_t all = config != nullptr ? config->n_routed_experts : 0;
  const int64_t inner = config != nullptr ? config->moe_intermediate_size : 0;
  const Workspace::Field fields[] = {{&gated, 2 * WidestIntermediate(intermediate, config)},
                                     {&shared, hidden},
                                     {&logits, all},
                                     {&scores, 3 * all},
                                     {&weights, top},
                                     {&gathered, top * hidden},
                                     {&expert_gate, top * inner},
                                     {&expert_up, top * inner}};
  experts.resize(static_cast<size_t>(rows * top));
  sorted.resize(static_cast<size_t>(rows * top));
  return memory.Resize(fields, rows);
}

Result<FeedForward> FeedForward::Load(WeightLoader& loader, const ModelConfig& config,
                                      int64_t layer) {
  FeedForward block;
  block.hidden_ = config.hidden_size;
  if (!IsSparse(config, layer)) {
    TERN_ASSIGN_OR_RETURN(block.dense_, GatedMlp::Load(loader, MlpName(layer, ""), block.hidden_,
                                                       config.intermediate_size));
    return block;
  }
  const MoeConfig& moe = *config.moe;
  Mixture& mixture = block.mixture_.emplace_back();
  mixture.config = moe;
  TERN_ASSIGN_OR_RETURN(mixture.router, loader.Float32Matrix(MlpName(layer, "gate.weight"),
                                                             moe.n_routed_experts, block.hidden_));
  TERN_ASSIGN_OR_RETURN(mixture.bias, loader.Vector(MlpName(layer, "gate.e_score_correction_bias"),
                                                    moe.n_routed_experts));
  for (int64_t e = 0; e < moe.n_routed_experts; ++e) {
    const std::string prefix = MlpName(layer, "experts.") + std::to_string(e) + ".";
    TERN_ASSIGN_OR_RETURN(GatedMlp expert,
                          GatedMlp::Load(loader, prefix, block.hidden_, moe.moe_intermediate_size));
    mixture.experts.push_back(std::move(expert));
  }
  if (moe.n_shared_experts > 0) {
    TERN_ASSIGN_OR_RETURN(mixture.shared,
                          GatedMlp::Load(loader, MlpName(layer, "shared_experts."), block.hidden_,
                                         moe.moe_intermediate_size * moe.n_shared_experts));
  }
  return block;
}

void FeedForward::Forward(const Ops& ops, const float* x, int64_t rows, FeedForwardWorkspace& w,
                          float* out) const {
  if (mixture_.empty()) return dense_.Forward(ops, x, rows, w.gated, out);
  ForwardMixture(ops, x, rows, w, out);
}

void FeedForward::Gather(const Ops& ops, const float* x, int64_t rows,
                         FeedForwardWorkspace& w) const {
  const MoeConfig& config = mixture_.front().config;
  const int64_t top = config.num_experts_per_tok, choices = rows * top;
  // Counting sort: within an expert, rows stay in order.
  w.first.assign(static_cast<size_t>(config.n_routed_experts) + 1, 0);
  for (int64_t i = 0; i < choices; ++i) ++w.first[static_cast<size_t>(w.experts[i]) + 1];
  for (size_t e = 1; e < w.first.size(); ++e) w.first[e] += w.first[e - 1];
  w.next.assign(w.first.begin(), w.first.end());
  for (int64_t i = 0; i < choices; ++i) {
    w.sorted[i] = static_cast<int32_t>(w.next[static_cast<size_t>(w.experts[i])]++);
  }
  ops.pool().ParallelFor(rows, [&](int64_t row, int) {
    for (int64_t k = 0; k < top; ++k) {
      std::memcpy(w.gathered + w.sorted[row * top + k] * hidden_, x + row * hidden_,
                  static_cast<size_t>(hidden_) * sizeof(float));
    }
  });
}

void FeedForward::ForwardMixture(const Ops& ops, const float* x, int64_t rows,
                                 FeedForwardWorkspace& w, float* out) const {
  const Mixture& mixture = mixture_.front();
  const MoeConfig& config = mixture.config;
  const int64_t experts = config.n_routed_experts, top = config.num_experts_per_tok;
  const int64_t inner = config.moe_intermediate_size;
  const MatMulTarget router[] = {{&mixture.router, w.logits}};
  ops.MatMul(x, rows, router);
  ops.Begin(Operation::kRouting);
  ops.pool().ParallelFor(rows, [&](int64_t row, int) {
    ChooseExperts(config, w.logits + row * experts, mixture.bias.data(),
                  w.scores + row * 3 * experts, w.experts.data() + row * top,
                  w.weights + row * top);
  });

  Gather(ops, x, rows, w);
  w.gate_up.clear();
  w.down.clear();
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t begin = w.first[static_cast<size_t>(e)];
    const int64_t count = w.first[static_cast<size_t>(e) + 1] - begin;
    if (count == 0) continue;
    const GatedMlp& expert = mixture.experts[static_cast<size_t>(e)];
    float* const input = w.gathered + begin * hidden_;
    w.gate_up.push_back(
        {&expert.gate, input, hidden_, count, w.expert_gate + begin * inner, inner});
    w.gate_up.push_back({&expert.up, input, hidden_, count, w.expert_up + begin * inner, inner});
    // The inputs have been used up: the outputs take their place.
    w.down.push_back({&expert.down, w.expert_gate + begin * inner, inner, count, input, hidden_});
  }
  ops.MatMul(w.gate_up);
  ops.SiluMul(w.expert_gate, w.expert_up, rows * top * inner, w.expert_gate);
  ops.MatMul(w.down);

  const bool has_shared = !mixture.shared.gate.empty();
  if (has_shared) mixture.shared.Forward(ops, x, rows, w.gated, w.shared);
  ops.Begin(Operation::kRouting);
  ops.pool().ParallelFor(rows, [&](int64_t row, int) {
    float* const sum = out + row * hidden_;
    std::fill_n(sum, hidden_, 0.0f);
    for (int64_t k = 0; k < top; ++k) {
      const float weight = w.weights[row * top + k];
      const float* const expert_out = w.gathered + w.sorted[row * top + k] * hidden_;
      for (int64_t i = 0; i < hidden_; ++i) sum[i] += weight * expert_out[i];
    }
    if (!has_shared) return;
    const float* const shared = w.shared + row * hidden_;
    for (int64_t i = 0; i < hidden_; ++i) sum[i] += shared[i];
  });
}

void AddFeedForwardTensors(const ModelConfig& config, int64_t layer,
                           std::vector<TensorSpec>& specs) {
  using enum TensorKind;
  using enum TensorSplit;
  const int64_t hidden = config.hidden_size;
  const auto add_mlp = [&](const std::string& prefix, int64_t inner, TensorKind kind) {
    specs.push_back({prefix + "gate_proj.weight", {inner, hidden}, kind, kRows, inner});
    specs.push_back({prefix + "up_proj.weight", {inner, hidden}, kind, kRows, inner});
    specs.push_back({prefix + "down_proj.weight", {hidden, inner}, kind, kColumns, inner});
  };
  if (!IsSparse(config, layer)) {
    add_mlp(MlpName(layer, ""), config.intermediate_size, kMlp);
    return;
  }
  const MoeConfig& moe = *config.moe;
  specs.push_back({MlpName(layer, "gate.weight"), {moe.n_routed_experts, hidden}, kRouter});
  specs.push_back(
      {MlpName(layer, "gate.e_score_correction_bias"), {moe.n_routed_experts}, kRouter});
  for (int64_t e = 0; e < moe.n_routed_experts; ++e) {
    add_mlp(MlpName(layer, "experts.") + std::to_string(e) + ".", moe.moe_intermediate_size,
            kExpert);
  }
  if (moe.n_shared_experts > 0) {
    add_mlp(MlpName(layer, "shared_experts."), moe.moe_intermediate_size * moe.n_shared_experts,
            kSharedExpert);
  }
}

}  // namespace tern
