// Model: weights and a forward pass. Made once by LoadModel (models/registry.h), used by the
// engine thread. One readable file per architecture.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "kv/kv_view.h"

namespace tern {

// Which form computes a row: MLA has an expanded form for prompts and an absorbed one for generated
// positions; grouped-query models have one form for both (DESIGN section 5, iv).
enum class RowForm : uint8_t { kPrefill, kDecode };

// Consecutive positions of one sequence in a batch.
struct ForwardRun {
  KvView kv;
  int64_t first_position = 0;
  int64_t first_row = 0;  // in ForwardBatch::tokens
  int64_t rows = 0;
  RowForm form = RowForm::kPrefill;
};

struct ForwardBatch {
  std::span<const int32_t> tokens;      // [rows]
  std::span<const ForwardRun> runs;     // in row order, covering all rows
  std::span<const int32_t> logit_rows;  // rows whose logits are wanted, ascending
};

struct ModelInfo {
  std::string architecture;  // "LlamaForCausalLM"
  std::string model_type;    // "llama"
  int64_t vocab_size = 0;
  int64_t context_length = 0;  // positions the checkpoint was made for
  std::vector<KvLayerSpec> kv_layers;
  bool fp8_kv_cache = false;           // the checkpoint was made for kFp8E4m3 (its kv_cache_scheme)
  std::vector<int32_t> eos_token_ids;  // from generation_config.json, config.json or GGUF
  uint64_t weight_bytes = 0;           // resident, packed
  uint64_t shared_weight_bytes = 0;    // of these, held already by a model loaded before
  uint64_t workspace_bytes_per_row = 0;  // activations of one batch row, for the memory plan
  uint64_t scratch_bytes = 0;  // of kernels, however many rows a batch has, for the memory plan
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelInfo& info() const = 0;
  // Writes the KV rows of every position of the batch, and logits [logit_rows.size(), vocab_size].
  // Errors: kInvalidArgument (a token id outside the vocabulary), kResourceExhausted (workspace).
  // Thread: one call at a time.
  virtual Status Forward(const ForwardBatch& batch, float* logits) = 0;
};

}  // namespace tern
