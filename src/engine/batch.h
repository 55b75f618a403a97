// Batch: the rows of one forward pass: which sequences, how many rows of each, and the arrays that
// the model takes. Reused from step to step. Owner: EngineCore. Thread: the engine thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/memory_plan.h"
#include "engine/sequence.h"
#include "models/model.h"

namespace tern {

struct BatchEntry {
  Sequence* sequence = nullptr;
  int64_t rows = 0;       // the next ones: positions [computed, computed + rows)
  bool admitted = false;  // in this step
  // Of the batch's logits, set by Build: those that judge prompt tokens, then those that derive
  // sent tokens again, and then, if it samples, the one that chooses the next.
  int64_t first_logit_row = 0, prompt_logit_rows = 0, rederive_rows = 0;

  // The last row's logits choose the next token.
  bool samples() const {
    return sequence->computed + rows == sequence->size() && sequence->size() < sequence->max_tokens;
  }
};

class Batch {
 public:
  void Clear() {
    entries_.clear();
    rows_ = 0;
    prompt_logit_rows_ = 0;
    rederive_rows_ = 0;
    retracted_ = 0;
  }
  void Add(Sequence& sequence, int64_t rows, bool admitted = false) {
    entries_.push_back({&sequence, rows, admitted});
    rows_ += rows;
    if (sequence.prompt_logprobs != nullptr) {
      prompt_logit_rows_ +=
          sequence.prompt_logprobs->WantedIn(sequence.computed, sequence.computed + rows).size();
    }
    const auto [first, last] = sequence.RederiveRows(sequence.computed, sequence.computed + rows);
    rederive_rows_ += last - first;
  }
  // How many of the sequence's next `rows` rows the batch can take: it has room for the logits of
  // kPromptLogitRows prompt tokens and of kRederiveRows tokens that are derived again. At least one
  // while HasLogitRoomFor.
  int64_t RowsThatFit(const Sequence& sequence, int64_t rows) const {
    if (sequence.prompt_logprobs != nullptr) {
      const int64_t room = kPromptLogitRows - prompt_logit_rows_;
      rows = sequence.prompt_logprobs->MostRows(sequence.computed, rows, room);
    }
    const auto [first, last] = sequence.RederiveRows(sequence.computed, sequence.computed + rows);
    const int64_t room = kRederiveRows - rederive_rows_;
    return last - first <= room ? rows : first + room - sequence.computed;
  }
  bool HasLogitRoomFor(const Sequence& sequence) const {
    return (sequence.prompt_logprobs == nullptr || prompt_logit_rows_ < kPromptLogitRows) &&
           (sequence.rederive_end == 0 || rederive_rows_ < kRederiveRows);
  }
  void NoteRetraction() { ++retracted_; }

  // Prompt rows take the decode form too, so that rows that decode wrote can serve prompts.
  void set_one_row_form(bool one) { one_row_form_ = one; }

  std::vector<BatchEntry>& entries() { return entries_; }
  bool empty() const { return entries_.empty(); }
  const std::vector<BatchEntry>& entries() const { return entries_; }
  int64_t rows() const { return rows_; }
  int64_t retracted() const { return retracted_; }

  // The model's arrays for the entries; valid until the batch changes. Prompt positions take the
  // prefill form and generated ones the decode form, also when they are computed anew: a chunk that
  // crosses the border is two runs.
  ForwardBatch Build(const KvCache& kv) {
    tokens_.clear();
    runs_.clear();
    logit_rows_.clear();
    for (BatchEntry& entry : entries_) {
      const Sequence& sequence = *entry.sequence;
      const int64_t end = sequence.computed + entry.rows;
      const int64_t border = std::clamp(sequence.prompt_tokens, sequence.computed, end);
      const RowForm prompt_form = one_row_form_ ? RowForm::kDecode : RowForm::kPrefill;
      AddRun(kv, sequence, sequence.computed, border, prompt_form);
      AddRun(kv, sequence, border, end, RowForm::kDecode);
      entry.first_logit_row = static_cast<int64_t>(logit_rows_.size());
      const int64_t first_row = static_cast<int64_t>(tokens_.size()) - entry.rows;
      const auto add_logits_of = [&](int64_t first, int64_t last) {
        for (int64_t p = first; p < last; ++p) {
          logit_rows_.push_back(static_cast<int32_t>(first_row + p - sequence.computed));
        }
        return last - first;
      };
      if (sequence.prompt_logprobs != nullptr) {
        const PositionRange wanted = sequence.prompt_logprobs->WantedIn(sequence.computed, end);
        entry.prompt_logit_rows = add_logits_of(wanted.first, wanted.last);
      }
      const auto [again, again_end] = sequence.RederiveRows(sequence.computed, end);
      entry.rederive_rows = add_logits_of(again, again_end);
      if (entry.samples()) logit_rows_.push_back(static_cast<int32_t>(tokens_.size()) - 1);
    }
    return {.tokens = tokens_, .runs = runs_, .logit_rows = logit_rows_};
  }

 private:
  void AddRun(const KvCache& kv, const Sequence& sequence, int64_t first, int64_t end,
              RowForm form) {
    if (first == end) return;
    runs_.push_back({.kv = kv.View(sequence.lease),
                     .first_position = first,
                     .first_row = static_cast<int64_t>(tokens_.size()),
                     .rows = end - first,
                     .form = form});
    tokens_.insert(tokens_.end(), sequence.tokens.begin() + first, sequence.tokens.begin() + end);
  }

  bool one_row_form_ = false;
  std::vector<BatchEntry> entries_;
  int64_t rows_ = 0;
  int64_t prompt_logit_rows_ = 0;
  int64_t rederive_rows_ = 0;
  int64_t retracted_ = 0;
  std::vector<int32_t> tokens_;
  std::vector<ForwardRun> runs_;
  std::vector<int32_t> logit_rows_;
};

}  // namespace tern
