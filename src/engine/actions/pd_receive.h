// The pd-receive action: a decode engine's side of hand-offs. A request waits for pages, asks its
// prefill worker for the prompt's rows, and runs once all of them are in place and verified. After
// a retraction it asks again; if that fails, the prompt is computed here. Owner: EngineCore.
// Thread: the engine thread.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "engine/disaggregation.h"
#include "engine/handoff.h"
#include "engine/queues.h"
#include "kernels/ops.h"
#include "pd/receiver.h"

namespace tern {

class PdReceive final : public Handoff {
 public:
  struct Limits {
    int64_t max_running_requests = 64;  // those that receive count
    int64_t max_sequence_tokens = 0;
    int64_t pages_per_step = 16;  // placed while others decode
  };
  // `specs`: the model's. All references outlive the action.
  PdReceive(Disaggregation disaggregation, std::span<const KvLayerSpec> specs, Limits limits,
            const Ops& ops, const Clock& clock, Queues& queues, KvCache& kv);
  ~PdReceive() override;

  Status Begin(Sequence& sequence) override;
  void NoteComputed(Sequence&) override {}
  bool TakeFirstToken(Sequence&, const SampledToken&) override { return false; }
  void Forget(Sequence& sequence, const Status& why) override;
  void Refuse(const Rendezvous& rendezvous, const Status& why) override;
  bool Step(std::vector<HandoffEvent>* events) override;
  int64_t NextDeadlineUs() const override { return receiver_.NextDeadlineUs(); }
  HandoffStats Stats() const override;
  std::vector<HandoffTimes> TakeTimes() override { return std::exchange(times_, {}); }

 private:
  class Target;
  static Target& TargetOf(const Sequence& sequence);
  // Gives the sequence pages and asks for its rows. False: not enough pages now.
  bool Admit(Sequence& sequence, Status* refused);
  void TakeReceived(Sequence& sequence, HandoffEvent* event);

  const std::unique_ptr<PdTransport> transport_;
  const int64_t reserved_tokens_;
  const Limits limits_;
  const Clock& clock_;
  Queues& queues_;
  KvCache& kv_;
  PdReceiver receiver_;
  std::vector<uint64_t> refused_;  // rooms that end at the next step
  HandoffStats stats_;
  std::vector<HandoffTimes> times_;
};

}  // namespace tern
