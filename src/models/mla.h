// Multi-head latent attention of one layer: projections, cache rows, and both forms of attention.
// Formulas: DeepSeek-V2 (arXiv 2405.04434), section 2.1; the absorbed form multiplies queries by
// W_UK and results by W_UV, so that a cached row is key and value of every head.
// Owner: a model. Thread: the model's.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/result.h"
#include "checkpoint/model_config.h"
#include "kernels/ops.h"
#include "models/decoder.h"
#include "models/weights.h"
#include "models/workspace.h"

namespace tern {

// Sizes and softmax scale of a config's attention. REQUIRES: config.mla.
MlaShape MlaShapeOf(const ModelConfig& config);

// What the layers of a pass share: which rows take which form, and activations.
class MlaPass {
 public:
  static int64_t FloatsPerRow(const ModelConfig& config);
  // Prompt rows take the expanded form, generated rows the absorbed one; prompt rows that have
  // more than `dense_limit` positions to attend take the absorbed one too.
  // Errors: kResourceExhausted.
  Status Begin(const ModelConfig& config, const AttentionPass& pass, int64_t dense_limit);

  // [rows, q_lora]: the normed low-rank query, from which an indexer makes its own.
  const float* query_latent() const { return q_latent_; }

 private:
  friend class MlaLayer;
  // Rows that follow each other in the batch and among the absorbed rows.
  struct Range {
    int64_t batch_row, absorbed_row, rows;
  };
  void AddAbsorbed(const KvRun& run);

  std::vector<KvRun> expanded_;  // first_row: in the batch
  std::vector<KvRun> absorbed_;  // first_row: among the absorbed rows
  std::vector<Range> ranges_;
  int64_t absorbed_rows_ = 0;
  Workspace memory_, absorbed_memory_;
  float *q_latent_ = nullptr, *q_ = nullptr, *q_rope_ = nullptr;
  float *kv_ = nullptr, *latent_ = nullptr, *k_rope_ = nullptr, *heads_out_ = nullptr;
  float *absorbed_q_ = nullptr, *absorbed_out_ = nullptr;
  std::vector<RowSelection> selections_;
  std::vector<MatMulGroup> keys_, values_;
};

class MlaLayer {
 public:
  // Errors: WeightLoader's.
  static Result<MlaLayer> Load(WeightLoader& loader, const ModelConfig& config, int64_t layer);

  // Projects and rotates queries and keys of all rows, and writes the rows of the cache.
  void Project(const Ops& ops, const KvSlab& slab, const AttentionPass& pass, const float* normed,
               MlaPass& shared) const;
  // Attention and the output projection. `selections`: empty, or one per row of the batch.
  void Attend(const Ops& ops, const KvSlab& slab, const AttentionPass& pass,
              std::span<const RowSelection> selections, MlaPass& shared, float* out) const;

 private:
  // split: kv_b_proj is stored as two halves.
  Status LoadUpProjections(WeightLoader& loader, int64_t layer, bool split);
  void AttendAbsorbed(const Ops& ops, const KvSlab& slab, std::span<const RowSelection> selections,
                      MlaPass& shared) const;

  MlaShape shape_;
  RopeStyle rope_style_ = RopeStyle::kInterleaved;
  int64_t hidden_ = 0, q_lora_ = 0;           // 0: q_proj is one matrix
  PackedMatrix q_a_, q_b_, kv_a_, kv_b_, o_;  // q_b_ is q_proj without q_lora
  WeightVector q_norm_, kv_norm_;
  std::vector<PackedMatrix> k_up_;  // W_UK of each head, transposed: [latent, nope]
  std::vector<PackedMatrix> v_up_;  // W_UV of each head: [value, latent]
};

// The tensors of one layer's attention.
void AddMlaTensors(const ModelConfig& config, int64_t layer, std::vector<TensorSpec>& specs);

// Errors: kInvalidArgument where the config has no latent attention or has biases.
Status CheckMlaConfig(const ModelConfig& config);

}  // namespace tern
