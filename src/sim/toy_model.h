// ToyModel: a model made of hashes. It writes a row per position and layer into real KV pages and
// reads all earlier rows back for each result, so that a page that is wrong, stale, freed, out of
// order, or not read in the format that it was written in, changes the answer. Two layers: the
// second one's rows depend on the first one's, as in a real model. It needs rows of 16 bytes: bf16,
// or fp8_tiled for one row form. Thread: one call at a time.
#pragma once

#include <cstdint>

#include "models/model.h"

namespace tern {

struct ToyOptions {
  int32_t vocab_size = 24;
  int64_t context_length = 48;
  // One row form, as grouped-query attention has; or two that differ, as MLA has.
  bool two_forms = false;
  int32_t eos_token = 0;
  uint32_t weights = 0;  // other ones: other rows of the same tokens, and other answers
};

// What the model computes, as pure functions; toy_reference.cc applies them without pages.
// `form` is ignored (pass kPrefill) when both forms are one.
uint64_t ToyInput(const ToyOptions& options, int32_t token);  // of the first layer
uint64_t ToyRow(int64_t layer, uint64_t input, int64_t position, RowForm form);
uint64_t ToyFold(uint64_t digest, uint64_t row);  // a digest over rows starts at 0
float ToyLogit(uint64_t digest, int32_t token);

class ToyModel final : public Model {
 public:
  explicit ToyModel(ToyOptions options);

  const ModelInfo& info() const override { return info_; }
  Status Forward(const ForwardBatch& batch, float* logits) override;

  // For tests: the next calls of Forward return this.
  void FailWith(Status status) { failure_ = std::move(status); }
  // For tests: logits of sequences that begin with this token are not finite.
  void PoisonToken(int32_t token) { poison_ = token; }

 private:
  void Write(const KvView& kv, int64_t layer, int64_t position, uint64_t value) const;
  uint64_t Read(const KvView& kv, int64_t layer, int64_t position) const;
  // Over rows [0, position] as they are stored.
  uint64_t Digest(const KvView& kv, int64_t layer, int64_t position) const;

  const ToyOptions options_;
  ModelInfo info_;
  Status failure_;
  int32_t poison_ = -1;
};

}  // namespace tern
