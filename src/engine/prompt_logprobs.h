// PromptLogprobs: what the model thought of a request's own prompt, gathered row by row while the
// prompt is computed. The logits of row p judge the token at p + 1.
//
// A batch has room for the logits of kPromptLogitRows such rows, whatever the chunk size, so a
// prompt that wants them goes in smaller chunks; no number depends on chunks (DESIGN section 5).
// Owner: its Sequence. Thread: the engine thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/request.h"

namespace tern {

class Batch;
class ThreadPool;

// [first, last)
struct PositionRange {
  int64_t first = 0, last = 0;
  int64_t size() const { return last - first; }
};

class PromptLogprobs {
 public:
  // Of the prompt's tokens behind position `from`.
  PromptLogprobs(int64_t from, int64_t prompt_tokens)
      : next_(std::min(from, prompt_tokens - 1)), end_(prompt_tokens - 1) {}

  // The next row whose logits are wanted: those before it may come from the prefix cache.
  int64_t next() const { return next_; }
  // Which of these rows' logits are wanted.
  PositionRange WantedIn(int64_t first, int64_t last) const {
    const int64_t begin = std::clamp(next_, first, std::max(first, last));
    return {begin, std::clamp(last, begin, std::max(begin, end_))};
  }
  // How many of the `rows` rows from `first` on may be computed when `room` may be wanted.
  int64_t MostRows(int64_t first, int64_t rows, int64_t room) const {
    const PositionRange wanted = WantedIn(first, first + rows);
    return wanted.size() <= room ? rows : wanted.first + room - first;
  }

  // What row next() says.
  void Add(PromptLogprob logprob) {
    logprobs_.push_back(std::move(logprob));
    ++next_;
  }
  void Fail(Status status) { status_ = std::move(status); }
  const Status& status() const { return status_; }
  std::vector<PromptLogprob> Take() { return std::move(logprobs_); }

 private:
  int64_t next_;
  const int64_t end_;  // the last row judges no prompt token
  std::vector<PromptLogprob> logprobs_;
  Status status_;
};

// Gives every sequence of the batch what its rows of `logits` say; a row that is not finite fails
// its sequence's PromptLogprobs. `logits`: [rows that Build asked for, vocab].
void GatherPromptLogprobs(Batch& batch, const float* logits, int64_t vocab, ThreadPool& pool);

}  // namespace tern
