// EngineThread: the Engine that servers use: one thread drives an EngineCore; everybody else leaves
// messages in its inbox. Thread: any, as engine/engine.h says.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "base/mutex.h"
#include "engine/engine.h"
#include "engine/engine_core.h"

namespace tern {

class EngineThread final : public Engine {
 public:
  // Starts the thread. `clock` and what the core refers to outlive this. `sweep_idle_fraction`: of
  // the time without requests, for EngineCore::SweepIdle.
  EngineThread(std::unique_ptr<EngineCore> core, std::unique_ptr<EngineMetrics> metrics,
               const Clock& clock, int64_t max_queued_requests, double sweep_idle_fraction = 0,
               Disaggregation disaggregation = {});
  ~EngineThread() override;

  Result<RequestId> Submit(GenerateRequest request, std::shared_ptr<TokenSink> sink) override
      TERN_EXCLUDES(mutex_);
  void Cancel(RequestId id, int64_t keep_tokens) override;
  void AbortRid(const std::string& rid, bool all) override;
  void FlushCache(std::function<void(bool)> done) override TERN_EXCLUDES(mutex_);
  void RefuseRendezvous(const Rendezvous& rendezvous, const Status& why) override;
  void Drain(int64_t timeout_us) override TERN_EXCLUDES(mutex_);
  EngineStats Stats() const override TERN_EXCLUDES(mutex_);

 private:
  struct SubmitMessage {
    RequestId id;
    GenerateRequest request;
    std::shared_ptr<TokenSink> sink;
    int64_t arrival_us;
  };
  struct CancelMessage {
    RequestId id;
    int64_t keep_tokens;
  };
  struct AbortRidMessage {
    std::string rid;
    bool all;
  };
  struct FlushMessage {
    std::function<void(bool)> done;
  };
  struct RefuseMessage {
    Rendezvous rendezvous;
    Status why;
  };
  using Message =
      std::variant<SubmitMessage, CancelMessage, AbortRidMessage, FlushMessage, RefuseMessage>;

  // False, and the message dropped, when the engine is stopping.
  bool Post(Message message) TERN_EXCLUDES(mutex_);

  // The engine thread.
  void Loop();
  // Returns what has arrived; waits for something when there is nothing else to do. Sets *stop in
  // the end.
  std::vector<Message> Receive(bool nothing_else, bool* stop) TERN_EXCLUDES(mutex_);
  // Another engine has sent something.
  void Wake() TERN_EXCLUDES(mutex_);
  void Handle(Message message);
  // Runs a part of the loop. When memory runs out in it, all live requests end with
  // kResourceExhausted, and what they held is free again.
  template <typename Part>
  void SurviveNoMemory(Part part);
  void Publish() TERN_EXCLUDES(mutex_);
  // Checks the KV cache's invariants, not more often than once a second, and logs what is wrong.
  void CheckWhenIdle();
  // Between two waits of an idle engine.
  void SweepWhenIdle();

  const std::unique_ptr<EngineCore> core_;  // the engine thread's; Validate is anybody's
  const std::unique_ptr<EngineMetrics> metrics_;
  const Clock& clock_;
  const int64_t max_queued_requests_;
  const double sweep_idle_fraction_;
  const std::shared_ptr<EngineWaker> waker_;  // null: there is no other engine
  int64_t next_check_us_ = 0;                 // the engine thread's
  bool more_to_sweep_ = true;                 // the engine thread's

  mutable Mutex mutex_;
  CondVar arrived_;  // a message, or stop
  CondVar drained_;  // idle_ became true
  std::vector<Message> inbox_ TERN_GUARDED_BY(mutex_);
  int64_t submits_in_inbox_ TERN_GUARDED_BY(mutex_) = 0;
  RequestId next_id_ TERN_GUARDED_BY(mutex_) = 1;
  EngineStats stats_ TERN_GUARDED_BY(mutex_);
  bool idle_ TERN_GUARDED_BY(mutex_) = true;  // no message and no live request
  bool draining_ TERN_GUARDED_BY(mutex_) = false;
  bool stop_ TERN_GUARDED_BY(mutex_) = false;
  bool woken_ TERN_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace tern
