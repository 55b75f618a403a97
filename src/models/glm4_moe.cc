#include "models/glm4_moe.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "models/decoder.h"

namespace tern {
namespace {

int64_t HeadDim(const ModelConfig& config) {
  return config.head_dim.value_or(config.hidden_size / config.num_attention_heads);
}

const float* BiasOrNull(const WeightVector& bias) { return bias.empty() ? nullptr : bias.data(); }

struct Glm4MoeLayer {
  PackedMatrix q, k, v, o;
  WeightVector q_bias, k_bias, v_bias;  // empty: none
  WeightVector q_norm, k_norm;          // empty: none
};

class Glm4MoeAttention final : public AttentionStack {
 public:
  Glm4MoeAttention(const ModelConfig& config, const Ops& ops)
      : config_(config),
        ops_(ops),
        shape_{.heads = config.num_attention_heads,
               .kv_heads = config.num_key_value_heads,
               .head_dim = HeadDim(config),
               .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(HeadDim(config))))},
        q_size_(shape_.heads * shape_.head_dim),
        kv_size_(shape_.kv_heads * shape_.head_dim) {}

  Status Load(WeightLoader& loader, int64_t layer) override;
  KvLayerSpec kv_layer(int64_t) const override {
    return {
        .kind = KvLayerSpec::Kind::kGqa, .kv_heads = shape_.kv_heads, .head_dim = shape_.head_dim};
  }
  int64_t rotary_dims() const override {
    return static_cast<int64_t>(static_cast<double>(shape_.head_dim) *
                                config_.partial_rotary_factor);
  }
  int64_t floats_per_row() const override { return 2 * (q_size_ + kv_size_); }
  Status Begin(const AttentionPass& pass) override {
    const Workspace::Field fields[] = {
        {&q_, q_size_}, {&k_, kv_size_}, {&v_, kv_size_}, {&heads_out_, q_size_}};
    return memory_.Resize(fields, pass.rows);
  }
  void Forward(int64_t layer, const AttentionPass& pass, const float* normed, float* out) override;

 private:
  const ModelConfig config_;
  const Ops& ops_;
  const GqaShape shape_;
  const int64_t q_size_, kv_size_;
  std::vector<Glm4MoeLayer> layers_;
  Workspace memory_;
  float *q_ = nullptr, *k_ = nullptr, *v_ = nullptr, *heads_out_ = nullptr;
};

Status Glm4MoeAttention::Load(WeightLoader& loader, int64_t index) {
  Glm4MoeLayer& layer = layers_.emplace_back();
  const int64_t hidden = config_.hidden_size;
  const auto name = [&](const char* parameter) {
    return LayerName(index, "self_attn.") + parameter;
  };
  TERN_ASSIGN_OR_RETURN(layer.q, loader.Matrix(name("q_proj.weight"), q_size_, hidden));
  TERN_ASSIGN_OR_RETURN(layer.k, loader.Matrix(name("k_proj.weight"), kv_size_, hidden));
  TERN_ASSIGN_OR_RETURN(layer.v, loader.Matrix(name("v_proj.weight"), kv_size_, hidden));
  TERN_ASSIGN_OR_RETURN(layer.o, loader.Matrix(name("o_proj.weight"), hidden, q_size_));
  if (config_.attention_bias) {
    TERN_ASSIGN_OR_RETURN(layer.q_bias, loader.Vector(name("q_proj.bias"), q_size_));
    TERN_ASSIGN_OR_RETURN(layer.k_bias, loader.Vector(name("k_proj.bias"), kv_size_));
    TERN_ASSIGN_OR_RETURN(layer.v_bias, loader.Vector(name("v_proj.bias"), kv_size_));
  }
  if (config_.use_qk_norm) {
    TERN_ASSIGN_OR_RETURN(layer.q_norm, loader.Vector(name("q_norm.weight"), shape_.head_dim));
    TERN_ASSIGN_OR_RETURN(layer.k_norm, loader.Vector(name("k_norm.weight"), shape_.head_dim));
  }
  return OkStatus();
}

void Glm4MoeAttention::Forward(int64_t index, const AttentionPass& pass, const float* normed,
                               float* out) {
  const Glm4MoeLayer& layer = layers_[static_cast<size_t>(index)];
  const int64_t rows = pass.rows, heads = shape_.heads, kv_heads = shape_.kv_heads;
  const int64_t dim = shape_.head_dim;
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  const KvSlab& slab = pass.format->slab(index);
  const MatMulTarget qkv[] = {{&layer.q, q_, BiasOrNull(layer.q_bias)},
                              {&layer.k, k_, BiasOrNull(layer.k_bias)},
                              {&layer.v, v_, BiasOrNull(layer.v_bias)}};
  ops_.MatMul(normed, rows, qkv);
  if (config_.use_qk_norm) {
    ops_.RmsNorm(q_, rows * heads, dim, layer.q_norm.data(), eps, q_);
    ops_.RmsNorm(k_, rows * kv_heads, dim, layer.k_norm.data(), eps, k_);
  }
  ops_.Rope(q_, rows, heads, dim, rotary_dims(), RopeStyle::kHalfSplit, pass.cos, pass.sin);
  ops_.Rope(k_, rows, kv_heads, dim, rotary_dims(), RopeStyle::kHalfSplit, pass.cos, pass.sin);
  ops_.GqaWrite(shape_, slab, pass.kv_runs, k_, v_);
  ops_.GqaAttention(shape_, slab, pass.kv_runs, q_, heads_out_);
  const MatMulTarget o[] = {{&layer.o, out}};
  ops_.MatMul(heads_out_, rows, o);
}

void AddGqaTensors(const ModelConfig& config, int64_t layer, std::vector<TensorSpec>& specs) {
  using enum TensorKind;
  using enum TensorSplit;
  const int64_t hidden = config.hidden_size, dim = HeadDim(config);
  const int64_t heads = config.num_attention_heads, kv_heads = config.num_key_value_heads;
  const auto add = [&](const char* name, Shape shape, TensorKind kind,
                       TensorSplit split = kReplicated, int64_t units = 1) {
    specs.push_back({LayerName(layer, "self_attn.") + name, shape, kind, split, units});
  };
  add("q_proj.weight", {heads * dim, hidden}, kAttention, kRows, heads);
  add("k_proj.weight", {kv_heads * dim, hidden}, kAttention, kRows, kv_heads);
  add("v_proj.weight", {kv_heads * dim, hidden}, kAttention, kRows, kv_heads);
  add("o_proj.weight", {hidden, heads * dim}, kAttention, kColumns, heads);
  if (config.attention_bias) {
    add("q_proj.bias", {heads * dim}, kAttention, kRows, heads);
    add("k_proj.bias", {kv_heads * dim}, kAttention, kRows, kv_heads);
    add("v_proj.bias", {kv_heads * dim}, kAttention, kRows, kv_heads);
  }
  if (config.use_qk_norm) {
    add("q_norm.weight", {dim}, kNorm);
    add("k_norm.weight", {dim}, kNorm);
  }
}

}  // namespace

Result<std::unique_ptr<Model>> LoadGlm4Moe(std::shared_ptr<const Checkpoint> checkpoint, Ops& ops,
                                           const LoadOptions& options) {
  TERN_ASSIGN_OR_RETURN(const auto specs, Glm4MoeTensorList(checkpoint->config()));
  auto attention = std::make_unique<Glm4MoeAttention>(checkpoint->config(), ops);
  return LoadDecoder(std::move(checkpoint), ops, options, std::move(attention), specs);
}

Result<std::vector<TensorSpec>> Glm4MoeTensorList(const ModelConfig& config) {
  TERN_RETURN_IF_ERROR(CheckDecoderConfig(config));
  if (config.mla || config.dsa) {
    return InvalidArgument(fmt::format("{}: {} belongs to another architecture than {}",
                                       config.source, config.mla ? "kv_lora_rank" : "index_topk",
                                       config.architecture));
  }
  return DecoderTensorList(config, AddGqaTensors);
}

}  // namespace tern
