// DeepSeek sparse attention: the indexer of one layer, which scores all cached positions cheaply
// and selects those that attention reads. Formulas: DeepSeek-V3.2 (arXiv 2512.02556), section 2.1.
// Owner: a model. Thread: the model's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "checkpoint/model_config.h"
#include "kernels/ops.h"
#include "models/decoder.h"
#include "models/weights.h"
#include "models/workspace.h"

namespace tern {

// Selections of a pass, made by a full layer and reused by the shared layers after it.
class DsaPass {
 public:
  static int64_t FloatsPerRow(const ModelConfig& config);
  // Errors: kResourceExhausted.
  Status Begin(const DsaConfig& config, const AttentionPass& pass);
  // One per row of the batch.
  std::span<const RowSelection> selections() const { return selections_; }

 private:
  friend class Indexer;
  Workspace memory_;
  float *q_ = nullptr, *k_ = nullptr, *weights_ = nullptr;
  int64_t top_k_ = 0;               // index_topk, or the most positions that a row of the pass sees
  std::vector<int32_t> positions_;  // [rows, top_k_]
  std::vector<RowSelection> selections_;
};

class Indexer {
 public:
  // Errors: WeightLoader's.
  static Result<Indexer> Load(WeightLoader& loader, const ModelConfig& config, int64_t layer);

  // Writes the rows' keys and selects. normed: [rows, hidden]; query_latent: [rows, q_lora].
  void Select(const Ops& ops, const KvSlab& index_slab, const AttentionPass& pass,
              const float* normed, const float* query_latent, DsaPass& shared) const;

 private:
  IndexerShape shape_;
  int64_t rotary_dims_ = 0;
  RopeStyle rope_style_ = RopeStyle::kInterleaved;
  PackedMatrix q_, k_, weights_;  // wq_b, wk; weights_proj in float32
  WeightVector k_norm_weight_, k_norm_bias_;
};

// The tensors of one full layer's indexer.
void AddIndexerTensors(const ModelConfig& config, int64_t layer, std::vector<TensorSpec>& specs);

}  // namespace tern
