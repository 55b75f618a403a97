// The prefill action: prompt rows, and rows lost to a retraction, in chunks; and the admission of
// waiting requests. Thread: the engine thread.
#pragma once

#include "engine/batch.h"
#include "engine/queues.h"

namespace tern {

// Adds rows of running sequences that still have some to compute, oldest first, until the batch has
// `chunk_tokens` rows.
void AddPrefillRows(Queues& queues, int64_t chunk_tokens, Batch* batch);

// While the batch has room: admits waiting requests in order of arrival, each with its cached
// prefix and pages for all its tokens, and adds their first rows. Stops at the first that does not
// fit.
void AdmitWaiting(Queues& queues, KvCache& kv, int64_t max_running, int64_t chunk_tokens,
                  Batch* batch);

}  // namespace tern
