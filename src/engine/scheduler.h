// Scheduler: which rows of which sequences the next forward pass computes.
//
// Decode rows come first, so that a long prompt never stops the streams that are running; the rest
// of the step's token budget goes to prompts, in chunks, oldest first. Waiting requests are
// admitted in order of arrival when their pages exist; when pages run out, the youngest gives its
// own back. The oldest request always makes progress. Owner: EngineCore. Thread: the engine thread.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/batch.h"
#include "engine/queues.h"

namespace tern {

class Scheduler {
 public:
  struct Limits {
    int64_t max_running_requests = 64;
    int64_t chunk_tokens = 512;  // rows of a step; decode rows count first and always go
  };
  // `kv` outlives the scheduler.
  Scheduler(Limits limits, KvCache& kv) : limits_(limits), kv_(kv) {}

  // Queues a new sequence, by its age.
  void Add(std::unique_ptr<Sequence> sequence);
  // A live sequence; null for an unknown id.
  Sequence* Find(RequestId id) const;
  // Takes a live sequence out, its pages still leased; null for an unknown id.
  std::unique_ptr<Sequence> Remove(RequestId id);
  // Puts a running sequence back to wait and frees its pages. Null for any other id.
  Sequence* Retract(RequestId id);
  // Fills *batch. It is empty only when nothing runs and nothing that waits can be admitted.
  void FillBatch(Batch* batch);

  const Queues& queues() const { return queues_; }
  Queues& queues() { return queues_; }

 private:
  const Limits limits_;
  KvCache& kv_;
  Queues queues_;
};

}  // namespace tern
