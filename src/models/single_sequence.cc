#include "models/single_sequence.h"

#include <fmt/format.h>

#include <numeric>
#include <utility>

#include "base/check.h"

namespace tern {

Result<SingleSequence> SingleSequence::Make(Model& model, KvFormat kv_format, int64_t page_tokens,
                                            int64_t max_positions,
                                            std::span<const int64_t> kv_bf16_layers) {
  const ModelInfo& info = model.info();
  if (max_positions > info.context_length) {
    return InvalidArgument(fmt::format("{} positions exceed the model's context of {}",
                                       max_positions, info.context_length));
  }
  TERN_ASSIGN_OR_RETURN(PageFormat format,
                        PageFormat::Make(info.kv_layers, kv_format, page_tokens, kv_bf16_layers));
  SingleSequence sequence;
  sequence.model_ = &model;
  const int64_t pages = (max_positions + page_tokens - 1) / page_tokens;
  sequence.memory_ = Buffer(static_cast<size_t>(pages * format.page_bytes()));
  if (pages > 0 && sequence.memory_.data() == nullptr) {
    return ResourceExhausted(
        fmt::format("no memory for {} KV pages of {} bytes", pages, format.page_bytes()));
  }
  for (int64_t i = 0; i < pages; ++i) {
    sequence.pages_.push_back(sequence.memory_.data() + i * format.page_bytes());
  }
  sequence.format_ = std::make_unique<const PageFormat>(std::move(format));
  return sequence;
}

ForwardRun SingleSequence::NextRun(int64_t first_row, int64_t rows, RowForm form) const {
  TERN_CHECK(position_ + rows <= static_cast<int64_t>(pages_.size()) * format_->page_tokens());
  return {.kv = {.format = format_.get(), .pages = pages_},
          .first_position = position_,
          .first_row = first_row,
          .rows = rows,
          .form = form};
}

Status SingleSequence::Append(std::span<const int32_t> tokens, RowForm form, float* all_logits) {
  std::vector<int32_t> rows(tokens.size());
  std::iota(rows.begin(), rows.end(), 0);
  return Forward(tokens, form, rows, all_logits);
}

Status SingleSequence::AppendForLast(std::span<const int32_t> tokens, RowForm form,
                                     float* last_logits) {
  TERN_CHECK(!tokens.empty());
  const int32_t last[] = {static_cast<int32_t>(tokens.size()) - 1};
  return Forward(tokens, form, last, last_logits);
}

Status SingleSequence::Forward(std::span<const int32_t> tokens, RowForm form,
                               std::span<const int32_t> logit_rows, float* logits) {
  const auto rows = static_cast<int64_t>(tokens.size());
  const ForwardRun runs[] = {NextRun(0, rows, form)};
  TERN_RETURN_IF_ERROR(
      model_->Forward({.tokens = tokens, .runs = runs, .logit_rows = logit_rows}, logits));
  Advance(rows);
  return OkStatus();
}

}  // namespace tern
