// The pd-send action: a prefill engine's side of hand-offs. A request waits until a decode worker
// asks for its room; its rows leave as they are computed; with the first token it keeps its pages
// until the other side has verified all of them. Owner: EngineCore. Thread: the engine thread.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/disaggregation.h"
#include "engine/handoff.h"
#include "engine/queues.h"
#include "kernels/ops.h"
#include "pd/sender.h"

namespace tern {

class PdSend final : public Handoff {
 public:
  // `specs`: the model's. All references outlive the action.
  PdSend(Disaggregation disaggregation, std::span<const KvLayerSpec> specs, const Ops& ops,
         const Clock& clock, Queues& queues, KvCache& kv);
  ~PdSend() override;

  Status Begin(Sequence& sequence) override;
  void NoteComputed(Sequence& sequence) override;
  bool TakeFirstToken(Sequence& sequence, const SampledToken& token) override;
  void Forget(Sequence& sequence, const Status& why) override;
  void Refuse(const Rendezvous& rendezvous, const Status& why) override;
  bool Step(std::vector<HandoffEvent>* events) override;
  std::vector<PdRecompute> TakeRecomputes() override { return sender_.TakeRecomputes(); }
  int64_t NextDeadlineUs() const override { return sender_.NextDeadlineUs(); }
  HandoffStats Stats() const override;
  std::vector<HandoffTimes> TakeTimes() override { return std::exchange(times_, {}); }

 private:
  class Source;
  static Source& SourceOf(Sequence& sequence);
  void ForgetEndedEarly();

  const std::unique_ptr<PdTransport> transport_;
  Queues& queues_;
  KvCache& kv_;
  const Clock& clock_;
  PdSender sender_;
  struct EndedEarly {
    uint64_t room;
    int64_t until_us;
  };
  std::deque<EndedEarly> ended_early_;  // failed rooms that nobody has asked for
  HandoffStats stats_;
  std::vector<HandoffTimes> times_;
};

}  // namespace tern
