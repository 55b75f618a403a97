// EngineMetrics: the engine's numbers under SGLang's names. Owner: the Engine.
// Thread: the engine thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "base/metrics.h"
#include "engine/engine.h"
#include "engine/memory_plan.h"

namespace tern {

class EngineMetrics {
 public:
  // `registry` outlives this. A prefill or decode engine's metrics are labelled with its role.
  explicit EngineMetrics(MetricRegistry& registry, EngineRole role = EngineRole::kUnified);

  // What does not change while the engine runs.
  void SetPlan(const MemoryPlan& plan, int64_t page_tokens);
  // Gauges take the snapshot's values, counters grow by the difference to the last one.
  void Publish(const EngineStats& stats, int64_t evicted_tokens);

  void ObserveTransfer(const HandoffTimes& times);
  void ObserveQueueTime(int64_t us);
  void ObserveFirstToken(int64_t us);
  void ObserveTokenGap(int64_t us);
  // `decode_us`: since the first token; meaningless where none was generated.
  void ObserveFinished(int64_t e2e_us, int64_t decode_us, int64_t prompt_tokens,
                       int64_t generated_tokens);

 private:
  // Those that only a prefill or decode engine has.
  struct HandoffMetrics;

  MetricRegistry& registry_;
  const MetricLabels labels_;
  const std::shared_ptr<HandoffMetrics> handoff_;
  EngineStats last_;
  int64_t last_evicted_ = 0;

  Gauge &running_, &queued_, &used_, &kv_used_, &full_usage_, &usage_, &utilization_, &available_,
      &evictable_, &protected_, &hit_rate_, &throughput_;
  // Of KV integrity.
  std::array<Counter*, kKvViolationKinds> violations_;
  Counter &ended_, &healed_, &exposed_, &verified_, &swept_, &sealed_;
  Gauge &quarantined_, &integrity_share_;

  Counter &prompt_, &generated_, &cached_, &requests_, &aborted_, &retracted_, &evicted_;
  Counter &computed_now_, &reused_now_, &decoded_now_;  // realtime_tokens_total by its modes
  Histogram &queue_time_, &first_token_, &token_gap_, &token_time_, &e2e_, &prompt_sizes_,
      &generated_sizes_;
};

}  // namespace tern
