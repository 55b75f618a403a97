#include "models/llama.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <iterator>
#include <string>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "models/kv_scales.h"
#include "models/rope.h"
#include "models/tensor_check.h"
#include "models/weights.h"

namespace tern {
namespace {

// The sizes of a config under short names, and what the architecture's name adds to it.
struct LlamaShape {
  int64_t vocab, hidden, intermediate, layers, heads, kv_heads, head_dim;
  bool qk_norm;  // RMSNorm on each head of q and k before the rotation
  bool qkv_bias;
  bool o_bias;
  bool mlp_bias;
  bool tied;
};

Result<LlamaShape> ShapeOf(const ModelConfig& config) {
  const bool qwen2 = config.architecture == "Qwen2ForCausalLM";
  const bool qwen3 = config.architecture == "Qwen3ForCausalLM";
  if (config.hidden_act != "silu") {
    return Unimplemented(fmt::format("{}: hidden_act '{}' is not supported (silu is)",
                                     config.source, config.hidden_act));
  }
  if (config.use_sliding_window) {
    return Unimplemented(fmt::format("{}: use_sliding_window is not supported", config.source));
  }
  if (qwen3 && !config.head_dim) {
    return InvalidArgument(fmt::format("{}: head_dim is missing", config.source));
  }
  const LlamaShape shape{
      .vocab = config.vocab_size,
      .hidden = config.hidden_size,
      .intermediate = config.intermediate_size,
      .layers = config.num_hidden_layers,
      .heads = config.num_attention_heads,
      .kv_heads = config.num_key_value_heads,
      .head_dim = config.head_dim.value_or(config.hidden_size / config.num_attention_heads),
      .qk_norm = qwen3,
      .qkv_bias = qwen2 || config.attention_bias,
      .o_bias = !qwen2 && config.attention_bias,
      .mlp_bias = config.mlp_bias,
      .tied = config.tie_word_embeddings,
  };
  // Bounds far above any published model keep every product of two sizes inside int64.
  if (shape.layers > 4096 || shape.heads * shape.head_dim > (int64_t{1} << 31)) {
    return InvalidArgument(fmt::format("{}: {} layers of {} heads of {} are absurd", config.source,
                                       shape.layers, shape.heads, shape.head_dim));
  }
  return shape;
}

struct LlamaLayer {
  WeightVector input_norm, post_attention_norm;
  WeightVector q_norm, k_norm;  // qk_norm only
  PackedMatrix q, k, v, o, gate, up, down;
  WeightVector q_bias, k_bias, v_bias, o_bias;  // empty: none
  WeightVector gate_bias, up_bias, down_bias;
};

const float* BiasOrNull(const WeightVector& bias) { return bias.empty() ? nullptr : bias.data(); }

// Activations of one pass, float32, in one allocation that grows to the largest batch seen.
struct Activations {
  float *hidden, *normed, *projected;  // [rows, hidden]
  float *q, *attention;                // [rows, heads * head_dim]
  float *k, *v;                        // [rows, kv_heads * head_dim]
  float *gate, *up;                    // [rows, intermediate]
  float *cos, *sin;                    // [rows, head_dim / 2]

  // Upper bound for the memory plan.
  static int64_t FloatsPerRow(const LlamaShape& shape) {
    int64_t floats = 0;
    for (const int64_t columns : Columns(shape)) floats += Padded(columns);
    return floats;
  }

  Status Resize(const LlamaShape& shape, int64_t rows) {
    const std::array columns = Columns(shape);
    if (rows > capacity_rows_) {
      int64_t floats = 0;
      for (const int64_t n : columns) floats += Padded(rows * n);
      memory_ = Buffer();
      capacity_rows_ = 0;
      memory_ = Buffer(static_cast<size_t>(floats) * sizeof(float));
      if (memory_.data() == nullptr) {
        return ResourceExhausted(fmt::format("no memory for the activations of {} tokens", rows));
      }
      capacity_rows_ = rows;
    }
    float** const fields[] = {&hidden, &normed, &projected, &q,   &attention, &k,
                              &v,      &gate,   &up,        &cos, &sin};
    static_assert(std::size(fields) == std::tuple_size_v<decltype(columns)>);
    float* next = memory_.as<float>();
    for (size_t i = 0; i < columns.size(); ++i) {
      *fields[i] = next;
      next += Padded(rows * columns[i]);
    }
    return OkStatus();
  }

 private:
  // Of each field, in the order of their declaration.
  static std::array<int64_t, 11> Columns(const LlamaShape& shape) {
    const int64_t q_size = shape.heads * shape.head_dim, kv_size = shape.kv_heads * shape.head_dim;
    return {shape.hidden,
            shape.hidden,
            shape.hidden,
            q_size,
            q_size,
            kv_size,
            kv_size,
            shape.intermediate,
            shape.intermediate,
            shape.head_dim / 2,
            shape.head_dim / 2};
  }
  // A whole number of cache lines.
  static int64_t Padded(int64_t floats) { return (floats + 15) / 16 * 16; }

  Buffer memory_;
  int64_t capacity_rows_ = 0;
};

class LlamaModel final : public Model {
 public:
  static Result<std::unique_ptr<Model>> Load(std::shared_ptr<const Checkpoint> checkpoint, Ops& ops,
                                             const LoadOptions& options);

  const ModelInfo& info() const override { return info_; }
  Status Forward(const ForwardBatch& batch, float* logits) override;

 private:
  LlamaModel(std::shared_ptr<const Checkpoint> checkpoint, Ops& ops)
      : checkpoint_(std::move(checkpoint)), ops_(ops) {}

  Status LoadLayer(WeightLoader& loader, LlamaLayer& layer, int64_t index);
  Status Embed(std::span<const int32_t> tokens);
  // hidden += o_proj(attention(...)) and hidden += mlp(...), each on the normed hidden state.
  void AttentionBlock(const LlamaLayer& layer, const KvSlab& slab, std::span<const KvRun> runs,
                      int64_t rows);
  void MlpBlock(const LlamaLayer& layer, int64_t rows);
  void Logits(std::span<const int32_t> rows, float* logits);

  const std::shared_ptr<const Checkpoint> checkpoint_;
  Ops& ops_;
  ModelInfo info_;
  LlamaShape shape_{};
  GqaShape attention_shape_;
  float norm_eps_ = 0;
  RotaryEmbedding rotary_;
  LookupTable embedding_;  // [vocab, hidden]
  std::vector<LlamaLayer> layers_;
  WeightVector final_norm_;
  PackedMatrix head_;  // [vocab, hidden]; the embedding once more where they are tied
  Activations act_{};
  std::vector<KvRun> runs_;  // of the pass
};

Result<std::unique_ptr<Model>> LlamaModel::Load(std::shared_ptr<const Checkpoint> checkpoint,
                                                Ops& ops, const LoadOptions& options) {
  std::unique_ptr<LlamaModel> model(new LlamaModel(std::move(checkpoint), ops));
  const Checkpoint& files = *model->checkpoint_;
  const ModelConfig& config = files.config();
  TERN_ASSIGN_OR_RETURN(const LlamaShape shape, ShapeOf(config));
  // All of the list first: a missing tensor is told before minutes are spent on packing.
  TERN_ASSIGN_OR_RETURN(const std::vector<TensorSpec> specs, LlamaTensorList(config));
  TERN_RETURN_IF_ERROR(CheckTensors(files, specs));

  WeightLoader loader(model->checkpoint_, ops, options);
  WeightVector divisors;
  if (files.Find("rope_freqs.weight") != nullptr) {
    TERN_ASSIGN_OR_RETURN(divisors, loader.Vector("rope_freqs.weight", shape.head_dim / 2));
    for (const float divisor : divisors) {
      if (!std::isfinite(divisor) || divisor <= 0) {
        return InvalidArgument(files.path() + ": tensor 'rope_freqs.weight' holds no divisors");
      }
    }
  }
  TERN_ASSIGN_OR_RETURN(
      model->rotary_, RotaryEmbedding::Make(config.rope, shape.head_dim, divisors, config.source));
  if (options.bf16_rotary_frequencies) model->rotary_.RoundFrequenciesToBf16();
  model->shape_ = shape;
  model->norm_eps_ = static_cast<float>(config.rms_norm_eps);
  model->attention_shape_ = {
      .heads = shape.heads,
      .kv_heads = shape.kv_heads,
      .head_dim = shape.head_dim,
      .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim)))};

  // The largest matrix first: while it is packed it exists twice, and nothing else is resident yet.
  TERN_ASSIGN_OR_RETURN(model->head_,
                        loader.Matrix(shape.tied ? "model.embed_tokens.weight" : "lm_head.weight",
                                      shape.vocab, shape.hidden));
  for (int64_t i = 0; i < shape.layers; ++i) {
    TERN_RETURN_IF_ERROR(model->LoadLayer(loader, model->layers_.emplace_back(), i));
  }
  TERN_ASSIGN_OR_RETURN(model->final_norm_, loader.Vector("model.norm.weight", shape.hidden));
  TERN_ASSIGN_OR_RETURN(model->embedding_,
                        loader.Table("model.embed_tokens.weight", shape.vocab, shape.hidden));

  model->info_ = {
      .architecture = config.architecture,
      .model_type = config.model_type,
      .vocab_size = shape.vocab,
      .context_length = config.max_position_embeddings,
      .kv_layers = std::vector<KvLayerSpec>(static_cast<size_t>(shape.layers),
                                            {.kind = KvLayerSpec::Kind::kGqa,
                                             .kv_heads = shape.kv_heads,
                                             .head_dim = shape.head_dim}),
      .eos_token_ids = files.eos_token_ids(),
      .weight_bytes = loader.resident_bytes(),
      .shared_weight_bytes = loader.shared_bytes(),
      .workspace_bytes_per_row =
          static_cast<uint64_t>(Activations::FloatsPerRow(shape)) * sizeof(float),
  };
  model->info_.fp8_kv_cache = config.quantization.fp8_kv_cache;
  TERN_RETURN_IF_ERROR(ReadKvScales(files, model->info_.kv_layers));
  return std::unique_ptr<Model>(std::move(model));
}

Status LlamaModel::LoadLayer(WeightLoader& loader, LlamaLayer& layer, int64_t index) {
  const LlamaShape& s = shape_;
  const int64_t q_size = s.heads * s.head_dim, kv_size = s.kv_heads * s.head_dim;
  const auto name = [&](const char* parameter) { return LayerName(index, parameter); };
  TERN_ASSIGN_OR_RETURN(layer.input_norm, loader.Vector(name("input_layernorm.weight"), s.hidden));
  TERN_ASSIGN_OR_RETURN(layer.post_attention_norm,
                        loader.Vector(name("post_attention_layernorm.weight"), s.hidden));
  TERN_ASSIGN_OR_RETURN(
      layer.q, loader.RotaryMatrix(name("self_attn.q_proj.weight"), s.heads, s.head_dim, s.hidden));
  TERN_ASSIGN_OR_RETURN(layer.k, loader.RotaryMatrix(name("self_attn.k_proj.weight"), s.kv_heads,
                                                     s.head_dim, s.hidden));
  TERN_ASSIGN_OR_RETURN(layer.v, loader.Matrix(name("self_attn.v_proj.weight"), kv_size, s.hidden));
  TERN_ASSIGN_OR_RETURN(layer.o, loader.Matrix(name("self_attn.o_proj.weight"), s.hidden, q_size));
  TERN_ASSIGN_OR_RETURN(layer.gate,
                        loader.Matrix(name("mlp.gate_proj.weight"), s.intermediate, s.hidden));
  TERN_ASSIGN_OR_RETURN(layer.up,
                        loader.Matrix(name("mlp.up_proj.weight"), s.intermediate, s.hidden));
  TERN_ASSIGN_OR_RETURN(layer.down,
                        loader.Matrix(name("mlp.down_proj.weight"), s.hidden, s.intermediate));
  if (s.qk_norm) {
    TERN_ASSIGN_OR_RETURN(layer.q_norm, loader.Vector(name("self_attn.q_norm.weight"), s.head_dim));
    TERN_ASSIGN_OR_RETURN(layer.k_norm, loader.Vector(name("self_attn.k_norm.weight"), s.head_dim));
  }
  if (s.qkv_bias) {
    TERN_ASSIGN_OR_RETURN(layer.q_bias,
                          loader.RotaryVector(name("self_attn.q_proj.bias"), s.heads, s.head_dim));
    TERN_ASSIGN_OR_RETURN(
        layer.k_bias, loader.RotaryVector(name("self_attn.k_proj.bias"), s.kv_heads, s.head_dim));
    TERN_ASSIGN_OR_RETURN(layer.v_bias, loader.Vector(name("self_attn.v_proj.bias"), kv_size));
  }
  if (s.o_bias) {
    TERN_ASSIGN_OR_RETURN(layer.o_bias, loader.Vector(name("self_attn.o_proj.bias"), s.hidden));
  }
  if (s.mlp_bias) {
    TERN_ASSIGN_OR_RETURN(layer.gate_bias,
                          loader.Vector(name("mlp.gate_proj.bias"), s.intermediate));
    TERN_ASSIGN_OR_RETURN(layer.up_bias, loader.Vector(name("mlp.up_proj.bias"), s.intermediate));
    TERN_ASSIGN_OR_RETURN(layer.down_bias, loader.Vector(name("mlp.down_proj.bias"), s.hidden));
  }
  return OkStatus();
}

Status LlamaModel::Forward(const ForwardBatch& batch, float* logits) {
  const auto rows = static_cast<int64_t>(batch.tokens.size());
  if (rows == 0) return OkStatus();
  TERN_RETURN_IF_ERROR(act_.Resize(shape_, rows));
  TERN_RETURN_IF_ERROR(Embed(batch.tokens));

  const PageFormat& format = *batch.runs.front().kv.format;
  const int64_t half = shape_.head_dim / 2;
  runs_.clear();
  for (const ForwardRun& run : batch.runs) {
    TERN_CHECK(run.kv.format->format() == format.format() &&
               run.kv.format->page_tokens() == format.page_tokens());
    TERN_CHECK(static_cast<int64_t>(run.kv.pages.size()) * format.page_tokens() >=
               run.first_position + run.rows);
    runs_.push_back({run.kv.pages.data(), run.first_position, run.first_row, run.rows});
    rotary_.Fill(run.first_position, run.rows, act_.cos + run.first_row * half,
                 act_.sin + run.first_row * half);
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    AttentionBlock(layers_[i], format.slab(static_cast<int64_t>(i)), runs_, rows);
    MlpBlock(layers_[i], rows);
  }
  Logits(batch.logit_rows, logits);
  return OkStatus();
}

Status LlamaModel::Embed(std::span<const int32_t> tokens) {
  float* out = act_.hidden;
  for (const int32_t token : tokens) {
    if (token < 0 || token >= shape_.vocab) {
      return InvalidArgument(
          fmt::format("token id {} is outside the vocabulary of {}", token, shape_.vocab));
    }
    ops_.DequantizeRow(embedding_.view, token, out);
    out += shape_.hidden;
  }
  return OkStatus();
}

void LlamaModel::AttentionBlock(const LlamaLayer& layer, const KvSlab& slab,
                                std::span<const KvRun> runs, int64_t rows) {
  const LlamaShape& s = shape_;
  ops_.RmsNorm(act_.hidden, rows, s.hidden, layer.input_norm.data(), norm_eps_, act_.normed);
  const MatMulTarget qkv[] = {{&layer.q, act_.q, BiasOrNull(layer.q_bias)},
                              {&layer.k, act_.k, BiasOrNull(layer.k_bias)},
                              {&layer.v, act_.v, BiasOrNull(layer.v_bias)}};
  ops_.MatMul(act_.normed, rows, qkv);
  if (s.qk_norm) {
    ops_.RmsNorm(act_.q, rows * s.heads, s.head_dim, layer.q_norm.data(), norm_eps_, act_.q);
    ops_.RmsNorm(act_.k, rows * s.kv_heads, s.head_dim, layer.k_norm.data(), norm_eps_, act_.k);
  }
  ops_.Rope(act_.q, rows, s.heads, s.head_dim, s.head_dim, RopeStyle::kHalfSplit, act_.cos,
            act_.sin);
  ops_.Rope(act_.k, rows, s.kv_heads, s.head_dim, s.head_dim, RopeStyle::kHalfSplit, act_.cos,
            act_.sin);
  ops_.GqaWrite(attention_shape_, slab, runs, act_.k, act_.v);
  ops_.GqaAttention(attention_shape_, slab, runs, act_.q, act_.attention);
  const MatMulTarget o[] = {{&layer.o, act_.projected, BiasOrNull(layer.o_bias)}};
  ops_.MatMul(act_.attention, rows, o);
  ops_.Add(act_.hidden, act_.projected, rows * s.hidden);
}

void LlamaModel::MlpBlock(const LlamaLayer& layer, int64_t rows) {
  const LlamaShape& s = shape_;
  ops_.RmsNorm(act_.hidden, rows, s.hidden, layer.post_attention_norm.data(), norm_eps_,
               act_.normed);
  const MatMulTarget gate_up[] = {{&layer.gate, act_.gate, BiasOrNull(layer.gate_bias)},
                                  {&layer.up, act_.up, BiasOrNull(layer.up_bias)}};
  ops_.MatMul(act_.normed, rows, gate_up);
  ops_.SiluMul(act_.gate, act_.up, rows * s.intermediate, act_.gate);
  const MatMulTarget down[] = {{&layer.down, act_.projected, BiasOrNull(layer.down_bias)}};
  ops_.MatMul(act_.gate, rows, down);
  ops_.Add(act_.hidden, act_.projected, rows * s.hidden);
}

void LlamaModel::Logits(std::span<const int32_t> rows, float* logits) {
  if (rows.empty()) return;
  const auto count = static_cast<int64_t>(rows.size());
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(act_.projected + i * shape_.hidden,
                act_.hidden + rows[static_cast<size_t>(i)] * shape_.hidden,
                static_cast<size_t>(shape_.hidden) * sizeof(float));
  }
  ops_.RmsNorm(act_.projected, count, shape_.hidden, final_norm_.data(), norm_eps_, act_.normed);
  const MatMulTarget head[] = {{&head_, logits}};
  ops_.MatMul(act_.normed, count, head);
}

}  // namespace

Result<std::unique_ptr<Model>> LoadLlama(std::shared_ptr<const Checkpoint> checkpoint, Ops& ops,
                                         const LoadOptions& options) {
  return LlamaModel::Load(std::move(checkpoint), ops, options);
}

Result<std::vector<TensorSpec>> LlamaTensorList(const ModelConfig& config) {
  TERN_ASSIGN_OR_RETURN(const LlamaShape s, ShapeOf(config));
  const int64_t q_size = s.heads * s.head_dim, kv_size = s.kv_heads * s.head_dim;
  using enum TensorKind;
  using enum TensorSplit;
  std::vector<TensorSpec> specs = {
      {"model.embed_tokens.weight", {s.vocab, s.hidden}, kEmbedding, kRows, s.vocab},
      {"model.norm.weight", {s.hidden}, kNorm},
  };
  if (!s.tied) specs.push_back({"lm_head.weight", {s.vocab, s.hidden}, kHead, kRows, s.vocab});
  for (int64_t i = 0; i < s.layers; ++i) {
    const auto add = [&](const char* name, Shape shape, TensorKind kind,
                         TensorSplit split = kReplicated, int64_t units = 1) {
      specs.push_back({LayerName(i, name), shape, kind, split, units});
    };
    add("input_layernorm.weight", {s.hidden}, kNorm);
    add("post_attention_layernorm.weight", {s.hidden}, kNorm);
    add("self_attn.q_proj.weight", {q_size, s.hidden}, kAttention, kRows, s.heads);
    add("self_attn.k_proj.weight", {kv_size, s.hidden}, kAttention, kRows, s.kv_heads);
    add("self_attn.v_proj.weight", {kv_size, s.hidden}, kAttention, kRows, s.kv_heads);
    add("self_attn.o_proj.weight", {s.hidden, q_size}, kAttention, kColumns, s.heads);
    add("mlp.gate_proj.weight", {s.intermediate, s.hidden}, kMlp, kRows, s.intermediate);
    add("mlp.up_proj.weight", {s.intermediate, s.hidden}, kMlp, kRows, s.intermediate);
    add("mlp.down_proj.weight", {s.hidden, s.intermediate}, kMlp, kColumns, s.intermediate);
    if (s.qk_norm) {
      add("self_attn.q_norm.weight", {s.head_dim}, kNorm);
      add("self_attn.k_norm.weight", {s.head_dim}, kNorm);
    }
    if (s.qkv_bias) {
      add("self_attn.q_proj.bias", {q_size}, kAttention, kRows, s.heads);
      add("self_attn.k_proj.bias", {kv_size}, kAttention, kRows, s.kv_heads);
      add("self_attn.v_proj.bias", {kv_size}, kAttention, kRows, s.kv_heads);
    }
    if (s.o_bias) add("self_attn.o_proj.bias", {s.hidden}, kAttention);
    if (s.mlp_bias) {
      add("mlp.gate_proj.bias", {s.intermediate}, kMlp, kRows, s.intermediate);
      add("mlp.up_proj.bias", {s.intermediate}, kMlp, kRows, s.intermediate);
      add("mlp.down_proj.bias", {s.hidden}, kMlp);
    }
  }
  return specs;
}

}  // namespace tern
