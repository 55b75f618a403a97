// Engine: one thread that owns scheduler, KV cache and batches. Others post messages.
// The step function itself is EngineCore (engine/engine_core.h), which the simulator drives on
// a schedule. Thread: Submit, Cancel and Stats may be called from any thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/metrics.h"
#include "base/result.h"
#include "engine/disaggregation.h"
#include "engine/handoff.h"
#include "engine/integrity.h"
#include "engine/memory_plan.h"
#include "engine/request.h"
#include "kernels/ops.h"
#include "models/model.h"

namespace tern {

struct EngineOptions {
  KvFormat kv_format = KvFormat::kBf16;
  std::vector<int64_t> kv_bf16_layers;  // layers whose rows stay BF16
  int64_t page_tokens = 64;
  int64_t max_total_tokens = 0;      // KV capacity; 0: from mem_fraction_static
  double mem_fraction_static = 0.8;  // of available memory, for weights and KV together
  int64_t max_running_requests = 64;
  int64_t max_queued_requests = 256;
  int64_t chunked_prefill_size = 512;  // token budget of a step, decode rows counted first
  int64_t context_length = 0;          // 0: the model's
  bool disable_radix_cache = false;
  double kv_session_fraction = 0.5;  // of the pages that sessions protect from eviction, at most
  // One form for all rows of latent attention, so that answers may be reused as prompts are, bit
  // for bit; prompts cost more. Grouped-query attention has one form anyway.
  bool deterministic_inference = false;
  IntegrityOptions integrity;
  int64_t kv_verify_interval_us = 1'000'000;  // KvCache::Options::verify_interval_us
  uint64_t random_seed = 0;                   // for requests without a seed; 0: from the system
};

// What PlanMemory gets for an engine on a machine that has `available_bytes` before the weights are
// loaded. Engine::Start and `tern plan` both ask here.
MemoryPlanInput MemoryPlanInputOf(const EngineOptions& options, uint64_t available_bytes);

// A consistent snapshot, taken between steps.
struct EngineStats {
  int64_t running_requests = 0, queued_requests = 0;
  int64_t retracted_requests = 0;  // queued ones that were running before
  int64_t queued_tokens = 0;       // of queued requests, though some may be in the prefix cache
  int64_t max_running_requests = 0;
  int64_t used_tokens = 0, cached_tokens = 0, free_tokens = 0, total_tokens = 0;  // KV, whole pages
  int64_t protected_tokens = 0;  // of the cached and used ones, by sessions
  int64_t context_length = 0;
  int64_t finished_requests = 0, aborted_requests = 0, retractions = 0;
  int64_t prompt_tokens = 0, cached_prompt_tokens = 0;
  int64_t prefill_tokens = 0;         // prompt rows computed, also those computed again
  int64_t prefill_busy_us = 0;        // time of the steps that computed some
  int64_t sampled_tokens = 0;         // of live requests too; later discarded ones included
  int64_t generated_tokens = 0;       // of requests that have ended; discarded ones don't count
  double generated_tokens_per_s = 0;  // over the last second of work
  uint64_t weight_bytes = 0, kv_bytes = 0;
  IntegrityStats integrity;
  HandoffStats handoff;  // of an engine whose role is prefill or decode
};

class Engine {
 public:
  // Plans memory, allocates the pool and starts the thread. Errors: kResourceExhausted with the
  // arithmetic when the plan does not fit, kInvalidArgument for options that contradict.
  // `model` and `ops` stay alive as long as the engine. Metrics are SGLang's names.
  static Result<std::unique_ptr<Engine>> Start(Model& model, Ops& ops, EngineOptions options,
                                               MetricRegistry& metrics,
                                               const Clock& clock = SystemClock(),
                                               Disaggregation disaggregation = {});
  virtual ~Engine() = default;  // stops; requests in flight end with kUnavailable

  // Queues a request. Errors, with no call to the sink: kInvalidArgument (empty prompt, token
  // outside the vocabulary, prompt + 1 over the context or over the whole cache, sampling values),
  // kResourceExhausted (queue full), kUnavailable (stopping).
  virtual Result<RequestId> Submit(GenerateRequest request, std::shared_ptr<TokenSink> sink) = 0;
  // Ends a request. keep_tokens >= 0: only the first keep_tokens generated tokens count (a stop
  // string ended inside token keep_tokens - 1); later ones and their KV are discarded, and the
  // finish reason is kStop. keep_tokens < 0: the client is gone; kAborted. Unknown ids are ignored.
  virtual void Cancel(RequestId id, int64_t keep_tokens = -1) = 0;
  // Cancels every live request whose rid equals `rid` exactly; "" with all: everything.
  virtual void AbortRid(const std::string& rid, bool all) = 0;
  // Drops all cached prefixes that no request holds, then calls `done`: with false when requests
  // are running or the engine is stopping. `done` runs on the engine thread, or at once; it must
  // not block.
  virtual void FlushCache(std::function<void(bool)> done) = 0;
  // A request with this rendezvous was refused before it got here: its other half, which waits for
  // this one at another engine, hears why.
  virtual void RefuseRendezvous(const Rendezvous& /*rendezvous*/, const Status& /*why*/) {}
  // Stops taking requests and waits for the running ones, at most `timeout_us`.
  virtual void Drain(int64_t timeout_us) = 0;
  virtual EngineStats Stats() const = 0;
};

}  // namespace tern
