// Batch: the rows of one forward pass: which sequences, how many rows of each, and the arrays that
// the model takes. Reused from step to step. Owner: EngineCore. Thread: the engine thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/sequence.h"
#include "models/model.h"

namespace tern {

struct BatchEntry {
  Sequence* sequence = nullptr;
  int64_t rows = 0;       // the next ones: positions [computed, computed + rows)
  bool admitted = false;  // in this step

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
    retracted_ = 0;
  }
  void Add(Sequence& sequence, int64_t rows, bool admitted = false) {
    entries_.push_back({&sequence, rows, admitted});
    rows_ += rows;
  }
  void NoteRetraction() { ++retracted_; }

  std::vector<BatchEntry>& entries() { return entries_; }
  bool empty() const { return entries_.empty(); }
  int64_t rows() const { return rows_; }
  int64_t retracted() const { return retracted_; }

  // The model's arrays for the entries; valid until the batch changes. Prompt positions take the
  // prefill form and generated ones the decode form, also when they are computed anew: a chunk that
  // crosses the border is two runs.
  ForwardBatch Build(const KvCache& kv) {
    tokens_.clear();
    runs_.clear();
    logit_rows_.clear();
    for (const BatchEntry& entry : entries_) {
      const Sequence& sequence = *entry.sequence;
      const int64_t end = sequence.computed + entry.rows;
      const int64_t border = std::clamp(sequence.prompt_tokens, sequence.computed, end);
      AddRun(kv, sequence, sequence.computed, border, RowForm::kPrefill);
      AddRun(kv, sequence, border, end, RowForm::kDecode);
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

  std::vector<BatchEntry> entries_;
  int64_t rows_ = 0;
  int64_t retracted_ = 0;
  std::vector<int32_t> tokens_;
  std::vector<ForwardRun> runs_;
  std::vector<int32_t> logit_rows_;
};

}  // namespace tern
