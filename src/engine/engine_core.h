// EngineCore: continuous batching as a step function, without threads: the engine thread
// (engine/engine_thread.h) drives it on real time, the simulator (sim/) step by step.
// Owner: whoever drives it. Thread: one at a time, Validate excepted; sinks are called from Submit,
// Cancel, EndAll and Step and must not call back.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "engine/batch.h"
#include "engine/disaggregation.h"
#include "engine/engine.h"
#include "engine/engine_metrics.h"
#include "engine/handoff.h"
#include "engine/integrity_guard.h"
#include "engine/memory_plan.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "models/model.h"

namespace tern {

// Where the time of steps went, summed since the start. Scheduling and bookkeeping are the rest.
struct StepTimes {
  int64_t steps = 0;
  int64_t total_us = 0;
  int64_t forward_us = 0;  // of the model
  int64_t sample_us = 0;

  int64_t bookkeeping_us() const { return total_us - forward_us - sample_us; }
};

class EngineCore {
 public:
  // Allocates the KV pool of `plan`. Everything referred to outlives the core; `metrics` may be
  // null. `boot_nonce` goes into page tags. Errors: kResourceExhausted, kInvalidArgument.
  static Result<std::unique_ptr<EngineCore>> Create(Model& model, ThreadPool& pool,
                                                    const EngineOptions& options,
                                                    const MemoryPlan& plan, uint64_t boot_nonce,
                                                    const Clock& clock, EngineMetrics* metrics);

  // Whether Submit would take the request: Engine::Submit's kInvalidArgument cases. Thread: any.
  Status Validate(const GenerateRequest& request) const;
  // Queues a request. `id` is larger than all before. REQUIRES: Validate(request) is ok.
  void Submit(RequestId id, GenerateRequest request, std::shared_ptr<TokenSink> sink,
              int64_t arrival_us);
  // As Engine::Cancel and Engine::AbortRid.
  void Cancel(RequestId id, int64_t keep_tokens);
  void AbortRid(const std::string& rid, bool all);
  // Ends every live request with an error.
  void EndAll(const Status& status);
  // As Engine::FlushCache.
  bool FlushCache();

  // Computes one batch, and moves hand-offs on. False when nothing could be done: all that is live
  // waits for another engine.
  bool Step();
  // For times without requests: verifies cached pages for at most `budget_us`. False when there is
  // none to verify now.
  bool SweepIdle(int64_t budget_us) { return guard_.SweepIdle(budget_us); }

  // From now on prompts go to, or come from, another engine. `new_id` gives ids to the prompts that
  // the other side wants computed without a request. Before the first Submit, once.
  void SetDisaggregation(Disaggregation disaggregation, std::function<RequestId()> new_id);
  // The other half of a request that was refused here hears why.
  void RefuseRendezvous(const Rendezvous& rendezvous, const Status& why);
  // When Step must run again at the latest, though nothing arrives; INT64_MAX: never.
  int64_t NextDeadlineUs() const;

  bool idle() const { return scheduler_.queues().empty(); }
  EngineStats Stats() const;
  const StepTimes& step_times() const { return step_times_; }
  int64_t evicted_tokens() const { return kv_->evicted_pages() * kv_->format().page_tokens(); }
  // Pages are accounted for, tags agree, only running requests hold pages. Errors: kInternal.
  Status CheckInvariants() const;

  // For tests and the simulator.
  KvCache& kv() { return *kv_; }
  const Queues& queues() const { return scheduler_.queues(); }

 private:
  EngineCore(Model& model, ThreadPool& pool, const EngineOptions& options, const MemoryPlan& plan,
             uint64_t random_seed, const Clock& clock, EngineMetrics* metrics,
             std::unique_ptr<KvCache> kv);

  // Step's parts, in order.
  bool StepHandoff();
  void TakeHandoffEvent(HandoffEvent event);
  void SubmitRecomputes();
  bool EndStuck();
  void NoteAdmissions();
  // Ends these requests, or has them computed anew, and takes them out of the batch.
  void Dismiss(std::span<const IntegrityVictim> victims);
  // Puts it back to wait, to be computed anew from its known tokens. False when that can't be: it
  // has been tried too often without a new token, or its mask can't start again.
  bool Heal(RequestId id);
  Status Forward();
  // The pass failed: all requests of the batch end.
  void EndFailed(const Status& status);
  SampleRequest RequestFor(const Sequence& sequence, int64_t position, int64_t logit_row) const;
  // Derives tokens again that were sent before a page failed. Who gets another one ends: what was
  // sent can't be taken back.
  void Rederive();
  void Sample();
  void Deliver();
  // Once the prompt is computed. False when they failed and the sequence has ended.
  bool DeliverPromptLogprobs(Sequence& sequence);
  void DeliverToken(Sequence& sequence, const Result<SampledToken>& sampled);

  void AppendStopTokens(const Sequence& sequence, std::vector<int32_t>* tokens) const;
  bool IsStopToken(const Sequence& sequence, int32_t token) const;
  // Takes the sequence out, offers its rows to the prefix cache unless it failed, gives its pages
  // back, and only then tells the sink.
  void End(RequestId id, FinishEvent event);
  void EndWithError(RequestId id, const Status& status);
  std::vector<RequestId> LiveIds() const;
  // After a quarantine: no sequence may grow beyond what the pool can still hold.
  void FitToUsablePages();

  Model& model_;
  ThreadPool& pool_;
  const Clock& clock_;
  EngineMetrics* const metrics_;
  const MemoryPlan plan_;
  const uint64_t random_seed_;
  const IntegrityAction integrity_action_;
  const int64_t max_sequence_tokens_;  // min(context, KV capacity)
  const int64_t max_running_requests_;

  const std::unique_ptr<KvCache> kv_;
  Scheduler scheduler_;
  IntegrityGuard guard_;
  std::unique_ptr<Handoff> handoff_;  // null: this engine does both halves itself
  std::function<RequestId()> new_id_;
  std::vector<HandoffEvent> handoff_events_;
  Batch batch_;
  int64_t fitted_pages_;  // usable pages when FitToUsablePages looked last
  Buffer logits_;         // [LogitRows, vocab] float32
  // Sampling, kept from step to step: of each entry that samples, in order.
  std::vector<SampleRequest> sample_requests_;
  std::vector<std::vector<uint32_t>> masks_;
  std::vector<std::vector<int32_t>> bans_;
  std::vector<Result<SampledToken>> sampled_;
  std::vector<SamplerMemory> sampler_memory_;  // of each thread of the pool
  EngineStats totals_;                         // the counters of Stats()
  StepTimes step_times_;
  int64_t window_us_ = 0, window_tokens_ = 0;  // for generated_tokens_per_s
};

}  // namespace tern
