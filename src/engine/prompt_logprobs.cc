#include "engine/prompt_logprobs.h"

#include <new>

#include "base/result.h"
#include "base/thread_pool.h"
#include "engine/batch.h"
#include "engine/sampler.h"

namespace tern {

void GatherPromptLogprobs(Batch& batch, const float* logits, int64_t vocab, ThreadPool& pool) {
  struct Row {
    Sequence* sequence;
    int32_t token;
    int64_t logit_row;
  };
  std::vector<Row> rows;
  for (const BatchEntry& entry : batch.entries()) {
    if (entry.prompt_logit_rows == 0) continue;
    Sequence& sequence = *entry.sequence;
    for (int64_t i = 0; i < entry.prompt_logit_rows; ++i) {
      const int64_t judged = sequence.prompt_logprobs->next() + i + 1;
      rows.push_back(
          {&sequence, sequence.tokens[static_cast<size_t>(judged)], entry.first_logit_row + i});
    }
  }
  if (rows.empty()) return;
  std::vector<Result<RowLogprobs>> results(rows.size(), RowLogprobs{});
  pool.ParallelFor(static_cast<int64_t>(rows.size()), [&](int64_t i, int) {
    const Row& row = rows[static_cast<size_t>(i)];
    Result<RowLogprobs>& result = results[static_cast<size_t>(i)];
    try {  // this may be one of the pool's threads
      result = LogprobsOf({logits + row.logit_row * vocab, static_cast<size_t>(vocab)}, row.token,
                          row.sequence->top_logprobs, row.sequence->logprob_token_ids);
    } catch (const std::bad_alloc&) {
      result = ResourceExhausted("out of memory for log probabilities of the prompt");
    }
  });
  for (size_t i = 0; i < rows.size(); ++i) {
    PromptLogprobs& gathered = *rows[i].sequence->prompt_logprobs;
    if (!results[i].ok()) {
      gathered.Fail(results[i].status());
      continue;
    }
    RowLogprobs& row = *results[i];
    gathered.Add({{rows[i].token, row.chosen}, std::move(row.top), std::move(row.asked)});
  }
}

}  // namespace tern
