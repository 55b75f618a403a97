#include "models/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "models/kv_scales.h"
#include "models/tensor_check.h"

namespace tern {
namespace {

class Decoder final : public Model {
 public:
  Decoder(std::shared_ptr<const Checkpoint> checkpoint, Ops& ops,
          std::unique_ptr<AttentionStack> attention)
      : checkpoint_(std::move(checkpoint)),
        config_(checkpoint_->config()),
        ops_(ops),
        attention_(std::move(attention)) {}

  Status Load(const LoadOptions& options);
  const ModelInfo& info() const override { return info_; }
  Status Forward(const ForwardBatch& batch, float* logits) override;

 private:
  struct Layer {
    WeightVector input_norm, post_attention_norm;
    FeedForward feed_forward;
  };

  const MoeConfig* moe() const { return config_.moe ? &*config_.moe : nullptr; }
  Status Resize(int64_t rows);
  Status Embed(std::span<const int32_t> tokens);
  void Logits(std::span<const int32_t> rows, float* logits);

  const std::shared_ptr<const Checkpoint> checkpoint_;
  const ModelConfig& config_;
  Ops& ops_;
  const std::unique_ptr<AttentionStack> attention_;
  ModelInfo info_;
  float norm_eps_ = 0;
  RotaryEmbedding rotary_;
  LookupTable embedding_;  // [vocab, hidden]
  std::vector<Layer> layers_;
  WeightVector final_norm_;
  PackedMatrix head_;  // [vocab, hidden]

  Workspace memory_;
  float *hidden_ = nullptr, *normed_ = nullptr, *projected_ = nullptr;  // [rows, hidden]
  float *cos_ = nullptr, *sin_ = nullptr;                               // [rows, rotary_dims / 2]
  FeedForwardWorkspace feed_forward_;
  std::vector<KvRun> kv_runs_;  // of the pass
};

Status Decoder::Load(const LoadOptions& options) {
  const Checkpoint& files = *checkpoint_;
  WeightLoader loader(checkpoint_, ops_, options);
  TERN_ASSIGN_OR_RETURN(
      rotary_, RotaryEmbedding::Make(config_.rope, attention_->rotary_dims(), {}, config_.source));
  if (options.bf16_rotary_frequencies) rotary_.RoundFrequenciesToBf16();
  norm_eps_ = static_cast<float>(config_.rms_norm_eps);
  // The largest matrix first: while it is packed it exists twice, and nothing else is resident yet.
  TERN_ASSIGN_OR_RETURN(
      head_,
      loader.Matrix(config_.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight",
                    config_.vocab_size, config_.hidden_size));
  info_.kv_layers.clear();
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    Layer& layer = layers_.emplace_back();
    TERN_ASSIGN_OR_RETURN(layer.input_norm, loader.Vector(LayerName(i, "input_layernorm.weight"),
                                                          config_.hidden_size));
    TERN_ASSIGN_OR_RETURN(
        layer.post_attention_norm,
        loader.Vector(LayerName(i, "post_attention_layernorm.weight"), config_.hidden_size));
    TERN_RETURN_IF_ERROR(attention_->Load(loader, i));
    TERN_ASSIGN_OR_RETURN(layer.feed_forward, FeedForward::Load(loader, config_, i));
    info_.kv_layers.push_back(attention_->kv_layer(i));
  }
  TERN_ASSIGN_OR_RETURN(final_norm_, loader.Vector("model.norm.weight", config_.hidden_size));
  TERN_ASSIGN_OR_RETURN(embedding_, loader.Table("model.embed_tokens.weight", config_.vocab_size,
                                                 config_.hidden_size));
  info_.fp8_kv_cache = config_.quantization.fp8_kv_cache;
  TERN_RETURN_IF_ERROR(ReadKvScales(files, info_.kv_layers));
  info_.architecture = config_.architecture;
  info_.model_type = config_.model_type;
  info_.vocab_size = config_.vocab_size;
  info_.context_length = config_.max_position_embeddings;
  info_.eos_token_ids = files.eos_token_ids();
  info_.weight_bytes = loader.resident_bytes();
  info_.shared_weight_bytes = loader.shared_bytes();
  info_.scratch_bytes = attention_->scratch_bytes();
  const int64_t floats =
      3 * config_.hidden_size + attention_->rotary_dims() + attention_->floats_per_row() +
      FeedForwardWorkspace::FloatsPerRow(config_.hidden_size, config_.intermediate_size, moe());
  info_.workspace_bytes_per_row = static_cast<uint64_t>(floats) * sizeof(float);
  return OkStatus();
}

Status Decoder::Resize(int64_t rows) {
  const int64_t half = attention_->rotary_dims() / 2;
  const Workspace::Field fields[] = {{&hidden_, config_.hidden_size},
                                     {&normed_, config_.hidden_size},
                                     {&projected_, config_.hidden_size},
                                     {&cos_, half},
                                     {&sin_, half}};
  TERN_RETURN_IF_ERROR(memory_.Resize(fields, rows));
  return feed_forward_.Resize(config_.hidden_size, config_.intermediate_size, moe(), rows);
}

Status Decoder::Forward(const ForwardBatch& batch, float* logits) {
  const auto rows = static_cast<int64_t>(batch.tokens.size());
  if (rows == 0) return OkStatus();
  TERN_RETURN_IF_ERROR(Resize(rows));
  TERN_RETURN_IF_ERROR(Embed(batch.tokens));

  const PageFormat& format = *batch.runs.front().kv.format;
  const int64_t half = attention_->rotary_dims() / 2;
  kv_runs_.clear();
  for (const ForwardRun& run : batch.runs) {
    TERN_CHECK(run.kv.format->format() == format.format() &&
               run.kv.format->page_tokens() == format.page_tokens());
    TERN_CHECK(static_cast<int64_t>(run.kv.pages.size()) * format.page_tokens() >=
               run.first_position + run.rows);
    kv_runs_.push_back({run.kv.pages.data(), run.first_position, run.first_row, run.rows});
    rotary_.Fill(run.first_position, run.rows, cos_ + run.first_row * half,
                 sin_ + run.first_row * half);
  }
  const AttentionPass pass = {.rows = rows,
                              .runs = batch.runs,
                              .kv_runs = kv_runs_,
                              .format = &format,
                              .cos = cos_,
                              .sin = sin_};
  TERN_RETURN_IF_ERROR(attention_->Begin(pass));
  const int64_t hidden = config_.hidden_size;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    ops_.RmsNorm(hidden_, rows, hidden, layer.input_norm.data(), norm_eps_, normed_);
    attention_->Forward(static_cast<int64_t>(i), pass, normed_, projected_);
    ops_.Add(hidden_, projected_, rows * hidden);
    ops_.RmsNorm(hidden_, rows, hidden, layer.post_attention_norm.data(), norm_eps_, normed_);
    layer.feed_forward.Forward(ops_, normed_, rows, feed_forward_, projected_);
    ops_.Add(hidden_, projected_, rows * hidden);
  }
  Logits(batch.logit_rows, logits);
  return OkStatus();
}

Status Decoder::Embed(std::span<const int32_t> tokens) {
  float* out = hidden_;
  for (const int32_t token : tokens) {
    if (token < 0 || token >= config_.vocab_size) {
      return InvalidArgument(
          fmt::format("token id {} is outside the vocabulary of {}", token, config_.vocab_size));
    }
    ops_.DequantizeRow(embedding_.view, token, out);
    out += config_.hidden_size;
  }
  return OkStatus();
}

void Decoder::Logits(std::span<const int32_t> rows, float* logits) {
  if (rows.empty()) return;
  const auto count = static_cast<int64_t>(rows.size());
  const int64_t hidden = config_.hidden_size;
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(projected_ + i * hidden, hidden_ + rows[static_cast<size_t>(i)] * hidden,
                static_cast<size_t>(hidden) * sizeof(float));
  }
  ops_.RmsNorm(projected_, count, hidden, final_norm_.data(), norm_eps_, normed_);
  const MatMulTarget head[] = {{&head_, logits}};
  ops_.MatMul(normed_, count, head);
}

}  // namespace

Result<std::unique_ptr<Model>> LoadDecoder(std::shared_ptr<const Checkpoint> checkpoint, Ops& ops,
                                           const LoadOptions& options,
                                           std::unique_ptr<AttentionStack> attention,
                                           std::span<const TensorSpec> specs) {
  // The whole list first: a missing tensor is told before minutes are spent on packing.
  TERN_RETURN_IF_ERROR(CheckTensors(*checkpoint, specs));
  auto model = std::make_unique<Decoder>(std::move(checkpoint), ops, std::move(attention));
  TERN_RETURN_IF_ERROR(model->Load(options));
  return std::unique_ptr<Model>(std::move(model));
}

std::vector<TensorSpec> DecoderTensorList(const ModelConfig& config,
                                          const AddAttentionTensors& add_attention) {
  using enum TensorKind;
  using enum TensorSplit;
  const int64_t hidden = config.hidden_size, vocab = config.vocab_size;
  std::vector<TensorSpec> specs = {
      {"model.embed_tokens.weight", {vocab, hidden}, kEmbedding, kRows, vocab},
      {"model.norm.weight", {hidden}, kNorm},
  };
  if (!config.tie_word_embeddings) {
    specs.push_back({"lm_head.weight", {vocab, hidden}, kHead, kRows, vocab});
  }
  const int64_t layers = config.num_hidden_layers;
  for (int64_t i = 0; i < layers + config.num_nextn_predict_layers; ++i) {
    const size_t first = specs.size();
    specs.push_back({LayerName(i, "input_layernorm.weight"), {hidden}, kNorm});
    specs.push_back({LayerName(i, "post_attention_layernorm.weight"), {hidden}, kNorm});
    add_attention(config, i, specs);
    AddFeedForwardTensors(config, i, specs);
    if (i < layers) continue;
    specs.push_back({LayerName(i, "eh_proj.weight"), {hidden, 2 * hidden}, kNextToken});
    for (const char* norm : {"enorm.weight", "hnorm.weight", "shared_head.norm.weight"}) {
      specs.push_back({LayerName(i, norm), {hidden}, kNorm});
    }
    for (size_t s = first; s < specs.size(); ++s) specs[s].next_token = true;
  }
  return specs;
}

Status CheckDecoderConfig(const ModelConfig& config) {
  if (config.hidden_act != "silu") {
    return Unimplemented(fmt::format("{}: hidden_act '{}' is not supported (silu is)",
                                     config.source, config.hidden_act));
  }
  if (!config.moe) {
    return InvalidArgument(fmt::format("{}: n_routed_experts is missing", config.source));
  }
  // Bounds far above any published model keep every product of two sizes inside int64, and the
  // list of tensors in memory.
  const MoeConfig& moe = *config.moe;
  const int64_t heads = config.num_attention_heads;
  const int64_t head_dim = config.mla ? config.mla->qk_nope_head_dim +
                                            config.mla->qk_rope_head_dim + config.mla->v_head_dim
                                      : config.head_dim.value_or(1);
  constexpr int64_t kMaxProduct = int64_t{1} << 31;
  if (config.num_hidden_layers > 4096 || moe.n_routed_experts > 65536 ||
      config.num_hidden_layers * moe.n_routed_experts > (1 << 20) ||
      heads * head_dim > kMaxProduct ||
      moe.moe_intermediate_size * std::max<int64_t>(moe.n_shared_experts, 1) > kMaxProduct) {
    return InvalidArgument(fmt::format("{}: {} layers of {} heads and {} experts are absurd",
                                       config.source, config.num_hidden_layers, heads,
                                       moe.n_routed_experts));
  }
  return OkStatus();
}

}  // namespace tern
