#include "engine/scheduler.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/trace.h"
#include "engine/actions/decode.h"
#include "engine/actions/prefill.h"

namespace tern {

void Scheduler::Add(std::unique_ptr<Sequence> sequence) { queues_.Add(std::move(sequence)); }

Sequence* Scheduler::Find(RequestId id) const {
  Sequence* found = nullptr;
  queues_.ForEach([&](Sequence& sequence) {
    if (sequence.id == id) found = &sequence;
  });
  return found;
}

std::unique_ptr<Sequence> Scheduler::Remove(RequestId id) {
  for (auto* queue : {&queues_.running, &queues_.waiting, &queues_.parked}) {
    if (auto sequence = Queues::Take(id, queue)) return sequence;
  }
  return nullptr;
}

Sequence* Scheduler::Retract(RequestId id) {
  for (size_t i = 0; i < queues_.running.size(); ++i) {
    if (queues_.running[i]->id == id) return queues_.Retract(i, kv_);
  }
  return nullptr;
}

void Scheduler::FillBatch(Batch* batch) {
  TERN_TRACE("engine.schedule");
  batch->Clear();
  AddDecodeRows(queues_, kv_, batch);
  // One prompt row at least, so that many streams can't starve an older prompt.
  const int64_t budget = std::max(limits_.chunk_tokens, batch->rows() + 1);
  AddPrefillRows(queues_, budget, batch);
  // Pages that a retraction has just freed are for those it was made for.
  if (batch->retracted() == 0) {
    AdmitWaiting(queues_, kv_, limits_.max_running_requests, budget, batch);
  }
}

}  // namespace tern
