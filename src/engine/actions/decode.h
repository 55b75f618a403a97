// The decode action: one row for every sequence that is generating. Thread: the engine thread.
#pragma once

#include "engine/batch.h"
#include "engine/queues.h"

namespace tern {

// Adds a row for each generating sequence, oldest first. When pages run out, the youngest running
// sequences are retracted until the rest fits.
void AddDecodeRows(Queues& queues, KvCache& kv, Batch* batch);

}  // namespace tern
