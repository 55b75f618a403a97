// Handoff: what an engine does besides computing when prefill and decode are apart (DESIGN section
// 8). A prefill engine sends the rows of its prompts (engine/actions/pd_send.h), a decode engine
// receives them (engine/actions/pd_receive.h); an engine that does both itself has none.
//
// A sequence that waits for the other side is parked: it takes no part in scheduling.
// Owner: EngineCore. Thread: the engine thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "pd/sender.h"

namespace tern {

struct Sequence;

// A sequence's part in a hand-off; each action has its own. Owner: the sequence.
class SequenceHandoff {
 public:
  virtual ~SequenceHandoff() = default;
  // The sequence has lost its pages.
  virtual void OnRetracted() = 0;
};

// What has become of a parked sequence. Its state is as the kind says; EngineCore goes on.
struct HandoffEvent {
  enum class Kind {
    kSent,      // prefill: the other side has all rows and the first token
    kReceived,  // decode: all rows are here; the sequence runs again
    kFailed,
  } kind = Kind::kFailed;
  RequestId id = 0;
  SampledToken first;         // the first generated token; decode's is from the other side
  uint64_t seed = 0;          // kReceived: the sampler's
  int64_t cached_tokens = 0;  // kReceived: found in prefill's cache
  bool again = false;         // kReceived: after a retraction; `first` is known already
  Status status;              // kFailed
};

// One room, when it has ended well: for histograms.
struct HandoffTimes {
  int64_t bootstrap_us = 0;  // parked, until both sides knew of the room
  int64_t alloc_us = -1;     // decode: parked, until it had pages; -1: prefill, which waits later
  int64_t transfer_us = 0;   // from the first page to the end
  int64_t bytes = 0;
};

// Counts and gauges, for EngineStats.
struct HandoffStats {
  // A room has ended well.
  HandoffTimes NoteTransfer(const PdRoomTimes& times);

  int64_t bootstrap_queue = 0, inflight_queue = 0;                      // prefill
  int64_t prealloc_queue = 0, transfer_queue = 0, retracted_queue = 0;  // decode
  int64_t receiving_tokens = 0;  // decode: of whole pages that rows are awaited for
  int64_t transfers = 0, transfer_failures = 0, bootstrap_failures = 0;
  int64_t asked_again = 0;       // decode: prompts asked for once more, after a retraction
  int64_t local_recomputes = 0;  // decode: prompts that had to be computed here instead
  int64_t transferred_bytes = 0;
  double speed_gb_s = 0, latency_ms = 0;  // of the last transfer
};

class Handoff {
 public:
  virtual ~Handoff() = default;

  // Parks a sequence that has just been queued and has a rendezvous. Errors: kInvalidArgument (the
  // room is in use); the sequence is still queued then.
  virtual Status Begin(Sequence& sequence) = 0;
  // Its rows [0, sequence.computed) are written.
  virtual void NoteComputed(Sequence& sequence) = 0;
  // Its first token. True: it belongs to the other side, and the sequence is parked until that side
  // has it.
  virtual bool TakeFirstToken(Sequence& sequence, const SampledToken& token) = 0;
  // The sequence ends here; the other side hears why, if it still waits for something.
  virtual void Forget(Sequence& sequence, const Status& why) = 0;
  // The other side of a request that was refused here hears why.
  virtual void Refuse(const Rendezvous& rendezvous, const Status& why) = 0;

  // Takes what came, sends what can be sent, moves parked sequences on. Returns whether anything
  // changed. Never waits.
  virtual bool Step(std::vector<HandoffEvent>* events) = 0;
  // Prompts that the other side wants computed without a request of its own; each becomes a
  // sequence with this rendezvous.
  virtual std::vector<PdRecompute> TakeRecomputes() { return {}; }
  // When Step must run again at the latest, though nothing arrives; INT64_MAX: never.
  virtual int64_t NextDeadlineUs() const = 0;

  virtual HandoffStats Stats() const = 0;
  // Of rooms that have ended well since the last call.
  virtual std::vector<HandoffTimes> TakeTimes() = 0;
};

}  // namespace tern
