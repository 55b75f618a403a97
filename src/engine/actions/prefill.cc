#include "engine/actions/prefill.h"

#include <algorithm>

#include "base/trace.h"

namespace tern {
namespace {

// REQUIRES: the batch has room.
void AddChunk(Sequence& sequence, int64_t chunk_tokens, bool admitted, Batch* batch) {
  TERN_TRACE("engine.prefill");
  const int64_t missing = sequence.size() - sequence.computed;
  batch->Add(sequence, std::min(missing, chunk_tokens - batch->rows()), admitted);
}

// Gives the sequence its cached prefix and pages for all its tokens; or nothing, and false.
// Besides those, every running sequence must be able to take a page more: otherwise the newcomer
// would be retracted in the next steps, its work lost.
bool AcquirePages(Sequence& sequence, int64_t running, KvCache& kv) {
  TERN_TRACE("kv.match");
  const int64_t cached =
      kv.MatchPrefix(sequence.space, sequence.tokens, sequence.prompt_tokens, &sequence.lease);
  const int64_t missing = kv.PagesFor(sequence.size()) - sequence.lease.pages();
  if (missing + running > kv.available_pages() || !kv.Reserve(sequence.size(), &sequence.lease)) {
    kv.Release(&sequence.lease);
    return false;
  }
  sequence.computed = cached;
  if (sequence.cached_tokens < 0) {
    sequence.cached_tokens = std::min(cached, sequence.prompt_tokens);
  }
  return true;
}

}  // namespace

void AddPrefillRows(Queues& queues, int64_t chunk_tokens, Batch* batch) {
  for (const auto& sequence : queues.running) {
    if (batch->rows() >= chunk_tokens) return;
    if (!sequence->decoding()) AddChunk(*sequence, chunk_tokens, false, batch);
  }
}

void AdmitWaiting(Queues& queues, KvCache& kv, int64_t max_running, int64_t chunk_tokens,
                  Batch* batch) {
  while (!queues.waiting.empty() && batch->rows() < chunk_tokens) {
    const int64_t running = static_cast<int64_t>(queues.running.size());
    if (running >= max_running || !AcquirePages(*queues.waiting.front(), running, kv)) return;
    AddChunk(*queues.AdmitOldest(), chunk_tokens, true, batch);
  }
}

}  // namespace tern
