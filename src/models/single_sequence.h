// SingleSequence: one sequence through a model with pages of its own, no pool, no scheduler: for
// parity, evaluation and tests. Thread: as the model's (one call at a time).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "models/model.h"
#include "tensor/tensor.h"

namespace tern {

class SingleSequence {
 public:
  // Room for `max_positions` tokens. `model` must outlive the result.
  // Errors: those of PageFormat::Make; kInvalidArgument when max_positions exceeds the model's
  // context; kResourceExhausted (memory).
  static Result<SingleSequence> Make(Model& model, KvFormat kv_format, int64_t page_tokens,
                                     int64_t max_positions,
                                     std::span<const int64_t> kv_bf16_layers = {});

  // Appends tokens in one pass. Logits of every token, [tokens, vocab], or of the last one only,
  // [vocab]. Errors: Model::Forward's. REQUIRES: room.
  Status Append(std::span<const int32_t> tokens, RowForm form, float* all_logits);
  Status AppendForLast(std::span<const int32_t> tokens, RowForm form, float* last_logits);

  // A run that feeds the next `rows` tokens of this sequence as part of a larger batch, where
  // they start at `first_row`. Call Advance after the pass.
  ForwardRun NextRun(int64_t first_row, int64_t rows, RowForm form) const;
  void Advance(int64_t rows) { position_ += rows; }

  int64_t position() const { return position_; }
  const PageFormat& page_format() const { return *format_; }

 private:
  SingleSequence() = default;
  Status Forward(std::span<const int32_t> tokens, RowForm form, std::span<const int32_t> logit_rows,
                 float* logits);

  Model* model_ = nullptr;
  std::unique_ptr<const PageFormat> format_;  // on the heap: views point to it
  Buffer memory_;
  std::vector<std::byte*> pages_;
  int64_t position_ = 0;
};

}  // namespace tern
