#include "engine/actions/prefill.h"

#include <algorithm>
#include <span>

#include "base/trace.h"

namespace tern {
namespace {

// REQUIRES: the batch has room.
void AddChunk(Sequence& sequence, int64_t chunk_tokens, bool admitted, Batch* batch) {
  TERN_TRACE("engine.prefill");
  const int64_t missing = sequence.size() - sequence.computed;
  const int64_t rows =
      batch->RowsThatFit(sequence, std::min(missing, chunk_tokens - batch->rows()));
  batch->Add(sequence, rows, admitted);
}

// Gives the sequence its cached prefix and pages for all its tokens; or nothing, and false.
// Besides those, every running sequence must be able to take a page more: otherwise the newcomer
// would be retracted in the next steps, its work lost.
bool AcquirePages(Sequence& sequence, int64_t running, KvCache& kv) {
  TERN_TRACE("kv.match");
  std::span<const int32_t> known = sequence.tokens;
  if (sequence.prompt_logprobs != nullptr) {  // a match leaves one token to compute
    known = known.first(static_cast<size_t>(sequence.prompt_logprobs->next() + 1));
  }
  // All rows that derive a token again are computed; a match leaves one more to compute.
  if (sequence.rederive_end > 0) known = known.first(static_cast<size_t>(sequence.prompt_tokens));
  kv.MatchPrefix(sequence.space, known, sequence.prompt_tokens, &sequence.lease);
  const int64_t missing = kv.PagesFor(sequence.size()) - sequence.lease.pages();
  if (missing + running > kv.available_pages() || !kv.Reserve(sequence.size(), &sequence.lease)) {
    kv.Release(&sequence.lease);
    return false;
  }
  kv.CopyRows(sequence.space, known, sequence.prompt_tokens, &sequence.lease);
  sequence.computed = sequence.lease.rows();
  if (sequence.cached_tokens < 0) {
    sequence.cached_tokens = std::min(sequence.computed, sequence.prompt_tokens);
  }
  return true;
}

}  // namespace

void AddPrefillRows(Queues& queues, int64_t chunk_tokens, Batch* batch) {
  for (const auto& sequence : queues.running) {
    if (batch->rows() >= chunk_tokens) return;
    if (sequence->decoding() || !batch->HasLogitRoomFor(*sequence)) continue;
    AddChunk(*sequence, chunk_tokens, false, batch);
  }
}

void AdmitWaiting(Queues& queues, KvCache& kv, int64_t max_running, int64_t chunk_tokens,
                  Batch* batch) {
  while (!queues.waiting.empty() && batch->rows() < chunk_tokens) {
    const int64_t running = static_cast<int64_t>(queues.running.size());
    Sequence& oldest = *queues.waiting.front();
    if (running >= max_running || !batch->HasLogitRoomFor(oldest)) return;
    if (!AcquirePages(oldest, running, kv)) return;
    AddChunk(*queues.AdmitOldest(), chunk_tokens, true, batch);
  }
}

}  // namespace tern
