#include "models/dsa.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/kv_layout.h"

namespace tern {
namespace {

constexpr float kKeyNormEps = 1e-6f;

}  // namespace

int64_t DsaPass::FloatsPerRow(const ModelConfig& config) {
  const DsaConfig& dsa = *config.dsa;
  return (dsa.index_n_heads + 1) * dsa.index_head_dim + dsa.index_n_heads +
         std::min(dsa.index_topk, config.max_position_embeddings);
}

Status DsaPass::Begin(const DsaConfig& config, const AttentionPass& pass) {
  const Workspace::Field fields[] = {{&q_, config.index_n_heads * config.index_head_dim},
                                     {&k_, config.index_head_dim},
                                     {&weights_, config.index_n_heads}};
  // No row selects more positions than it sees.
  top_k_ = 0;
  for (const ForwardRun& run : pass.runs) {
    top_k_ = std::max(top_k_, std::min(config.index_topk, run.first_position + run.rows));
  }
  positions_.resize(static_cast<size_t>(pass.rows * top_k_));
  selections_.assign(static_cast<size_t>(pass.rows), {});
  return memory_.Resize(fields, pass.rows);
}

Result<Indexer> Indexer::Load(WeightLoader& loader, const ModelConfig& config, int64_t layer) {
  const DsaConfig& dsa = *config.dsa;
  Indexer indexer;
  indexer.shape_ = {
      .heads = dsa.index_n_heads,
      .dim = dsa.index_head_dim,
      .top_k = dsa.index_topk,
      .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dsa.index_head_dim)))};
  indexer.rotary_dims_ = config.mla->qk_rope_head_dim;
  indexer.rope_style_ = dsa.rope_interleave ? RopeStyle::kInterleaved : RopeStyle::kHalfSplit;
  const auto name = [&](const char* parameter) {
    return LayerName(layer, "self_attn.indexer.") + parameter;
  };
  TERN_ASSIGN_OR_RETURN(indexer.q_,
                        loader.Matrix(name("wq_b.weight"), dsa.index_n_heads * dsa.index_head_dim,
                                      *config.mla->q_lora_rank));
  TERN_ASSIGN_OR_RETURN(indexer.k_,
                        loader.Matrix(name("wk.weight"), dsa.index_head_dim, config.hidden_size));
  TERN_ASSIGN_OR_RETURN(
      indexer.weights_,
      loader.Float32Matrix(name("weights_proj.weight"), dsa.index_n_heads, config.hidden_size));
  TERN_ASSIGN_OR_RETURN(indexer.k_norm_weight_,
                        loader.Vector(name("k_norm.weight"), dsa.index_head_dim));
  TERN_ASSIGN_OR_RETURN(indexer.k_norm_bias_,
                        loader.Vector(name("k_norm.bias"), dsa.index_head_dim));
  return indexer;
}

void Indexer::Select(const Ops& ops, const KvSlab& index_slab, const AttentionPass& pass,
                     const float* normed, const float* query_latent, DsaPass& w) const {
  IndexerShape s = shape_;
  s.top_k = w.top_k_;
  const int64_t rows = pass.rows;
  const MatMulTarget query[] = {{&q_, w.q_}};
  ops.MatMul(query_latent, rows, query);
  const MatMulTarget key_and_weights[] = {{&k_, w.k_}, {&weights_, w.weights_}};
  ops.MatMul(normed, rows, key_and_weights);
  ops.LayerNorm(w.k_, rows, s.dim, k_norm_weight_.data(), k_norm_bias_.data(), kKeyNormEps, w.k_);
  // A head begins with the part that rotates, unlike in MLA.
  ops.Rope(w.q_, rows, s.heads, s.dim, rotary_dims_, rope_style_, pass.cos, pass.sin);
  ops.Rope(w.k_, rows, 1, s.dim, rotary_dims_, rope_style_, pass.cos, pass.sin);
  if (IsFp8(index_slab.format)) {
    ops.Hadamard(w.q_, rows * s.heads, s.dim);
    ops.Hadamard(w.k_, rows, s.dim);
  }
  const auto weight_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(s.heads)));
  for (int64_t i = 0; i < rows * s.heads; ++i) w.weights_[i] *= weight_scale;
  ops.IndexerWrite(s, index_slab, pass.kv_runs, w.k_);
  ops.IndexerSelect(s, index_slab, pass.kv_runs, w.q_, w.weights_, w.positions_.data(),
                    w.selections_.data());
}

void AddIndexerTensors(const ModelConfig& config, int64_t layer, std::vector<TensorSpec>& specs) {
  using enum TensorKind;
  const DsaConfig& dsa = *config.dsa;
  const auto add = [&](const char* name, Shape shape, TensorKind kind) {
    specs.push_back({LayerName(layer, "self_attn.indexer.") + name, shape, kind});
  };
  add("wq_b.weight", {dsa.index_n_heads * dsa.index_head_dim, *config.mla->q_lora_rank}, kIndexer);
  add("wk.weight", {dsa.index_head_dim, config.hidden_size}, kIndexer);
  add("weights_proj.weight", {dsa.index_n_heads, config.hidden_size}, kIndexer);
  add("k_norm.weight", {dsa.index_head_dim}, kNorm);
  add("k_norm.bias", {dsa.index_head_dim}, kNorm);
}

}  // namespace tern
