// EngineCore: continuous batching as a step function, without threads: the engine thread
// (engine/engine_thread.h) drives it on real time, the simulator (sim/) step by step.
// Owner: whoever drives it. Thread: one at a time, Validate excepted; sinks are called from Submit,
// Cancel, EndAll and Step and must not call back.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "engine/batch.h"
#include "engine/engine.h"
#include "engine/engine_metrics.h"
#include "engine/integrity_guard.h"
#include "engine/memory_plan.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "models/model.h"

namespace tern {

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

  // Computes one batch. False when there was nothing to do.
  bool Step();
  // For times without requests: verifies cached pages for at most `budget_us`. False when there is
  // none to verify now.
  bool SweepIdle(int64_t budget_us) { return guard_.SweepIdle(budget_us); }

  bool idle() const { return scheduler_.queues().empty(); }
  EngineStats Stats() const;
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
  void EndStuck();
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
  std::vector<Result<SampledToken>> Sample();
  void Deliver(std::vector<Result<SampledToken>> sampled);
  // Once the prompt is computed. False when they failed and the sequence has ended.
  bool DeliverPromptLogprobs(Sequence& sequence);
  void DeliverToken(Sequence& sequence, const Result<SampledToken>& sampled);

  std::vector<int32_t> StopTokensOf(const Sequence& sequence) const;
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

  const std::unique_ptr<KvCache> kv_;
  Scheduler scheduler_;
  IntegrityGuard guard_;
  Batch batch_;
  Buffer logits_;               // [max_running_requests + kRederiveRows, vocab] float32
  EngineStats totals_;          // the counters of Stats()
  int64_t sampled_tokens_ = 0;  // later discarded ones included
  int64_t window_us_ = 0, window_tokens_ = 0;  // for generated_tokens_per_s
};

}  // namespace tern
