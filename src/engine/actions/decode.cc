#include "engine/actions/decode.h"

#include "base/trace.h"

namespace tern {

void AddDecodeRows(Queues& queues, KvCache& kv, Batch* batch) {
  // Retraction takes from the end of `running`, never a sequence that is in the batch already.
  for (size_t i = 0; i < queues.running.size(); ++i) {
    Sequence& sequence = *queues.running[i];
    if (!sequence.decoding()) continue;
    bool retracted = false;
    while (!retracted && !kv.Reserve(sequence.size(), &sequence.lease)) {
      retracted = queues.RetractYoungest(kv) == &sequence;
      batch->NoteRetraction();
    }
    if (retracted) continue;
    TERN_TRACE("engine.decode");
    batch->Add(sequence, 1);
  }
}

}  // namespace tern
