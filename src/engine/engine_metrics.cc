#include "engine/engine_metrics.h"

#include <algorithm>
#include <string>
#include <vector>

namespace tern {
namespace {

std::vector<double> Seconds() {
  return {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500};
}
std::vector<double> Tokens() {
  std::vector<double> bounds;
  for (double n = 1; n <= 1 << 18; n *= 2) bounds.push_back(n);
  return bounds;
}
std::array<Counter*, kKvViolationKinds> ViolationCounters(MetricRegistry& registry,
                                                          const MetricLabels& labels) {
  std::array<Counter*, kKvViolationKinds> counters;
  for (int i = 0; i < kKvViolationKinds; ++i) {
    MetricLabels all = labels;
    all["class"] = KvViolationName(static_cast<KvViolationKind>(i));
    counters[size_t(i)] = &registry.AddCounter("tern:kv_integrity_violations_total",
                                               "Failed checks of KV pages.", std::move(all));
  }
  return counters;
}
Counter& RealtimeTokens(MetricRegistry& registry, const MetricLabels& labels, const char* mode) {
  MetricLabels all = labels;
  all["mode"] = mode;
  return registry.AddCounter("sglang:realtime_tokens_total",
                             "Tokens: prompt rows computed, prompt tokens found in the cache, and "
                             "those sampled, also when they are discarded later.",
                             std::move(all));
}
double ToSeconds(int64_t us) { return static_cast<double>(us) * 1e-6; }
double Share(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

}  // namespace

struct EngineMetrics::HandoffMetrics {
  HandoffMetrics(MetricRegistry& r, const MetricLabels& l)
      : bootstrap_queue(r.AddGauge("sglang:num_prefill_bootstrap_queue_reqs",
                                   "Prompts that no decode worker has asked for yet.", l)),
        inflight_queue(r.AddGauge("sglang:num_prefill_inflight_queue_reqs",
                                  "Computed prompts whose rows are on their way.", l)),
        prealloc_queue(r.AddGauge("sglang:num_decode_prealloc_queue_reqs",
                                  "Requests that wait for pages to receive rows.", l)),
        transfer_queue(r.AddGauge("sglang:num_decode_transfer_queue_reqs",
                                  "Requests whose rows are awaited.", l)),
        retracted_queue(
            r.AddGauge("sglang:num_retracted_reqs", "Retracted requests that wait for pages.", l)),
        pending(r.AddGauge("sglang:pending_prealloc_token_usage",
                           "Share of the KV cache that rows are awaited for, 0..1.", l)),
        transfer_failed(r.AddCounter("sglang:num_transfer_failed_reqs_total",
                                     "Requests whose hand-off failed.", l)),
        bootstrap_failed(r.AddCounter("sglang:num_bootstrap_failed_reqs_total",
                                      "Requests whose other half was not reached.", l)),
        retries(r.AddCounter("sglang:num_prefill_retries_total",
                             "Prompts asked for again, after a retraction.", l)),
        local(r.AddCounter("tern:decode_local_recomputes_total",
                           "Prompts that a decode worker had to compute itself.", l)),
        speed(r.AddHistogram("sglang:kv_transfer_speed_gb_s", "Rows of a prompt, in GB/s.",
                             {0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50}, l)),
        latency(r.AddHistogram("sglang:kv_transfer_latency_ms",
                               "First page of a prompt to its end.",
                               {0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000}, l)),
        bootstrap(r.AddHistogram(
            "sglang:kv_transfer_bootstrap_ms", "Until both halves knew of each other.",
            {0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000}, l)),
        alloc(r.AddHistogram("sglang:kv_transfer_alloc_ms",
                             "What a request waited for pages to receive rows.",
                             {0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000}, l)),
        total(r.AddHistogram("sglang:kv_transfer_total_mb", "Rows of a prompt, in MB.",
                             {0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000}, l)) {}

  void Publish(const HandoffStats& now, const HandoffStats& before, int64_t total_tokens) {
    bootstrap_queue.Set(double(now.bootstrap_queue));
    inflight_queue.Set(double(now.inflight_queue));
    prealloc_queue.Set(double(now.prealloc_queue));
    transfer_queue.Set(double(now.transfer_queue));
    retracted_queue.Set(double(now.retracted_queue));
    pending.Set(Share(now.receiving_tokens, total_tokens));
    transfer_failed.Add(double(now.transfer_failures - before.transfer_failures));
    bootstrap_failed.Add(double(now.bootstrap_failures - before.bootstrap_failures));
    retries.Add(double(now.asked_again - before.asked_again));
    local.Add(double(now.local_recomputes - before.local_recomputes));
  }

  Gauge &bootstrap_queue, &inflight_queue, &prealloc_queue, &transfer_queue, &retracted_queue,
      &pending;
  Counter &transfer_failed, &bootstrap_failed, &retries, &local;
  Histogram &speed, &latency, &bootstrap, &alloc, &total;
};

EngineMetrics::EngineMetrics(MetricRegistry& r, EngineRole role)
    : registry_(r),
      labels_(role == EngineRole::kUnified ? MetricLabels{}
                                           : MetricLabels{{"engine_type", EngineRoleName(role)}}),
      handoff_(role == EngineRole::kUnified ? nullptr
                                            : std::make_shared<HandoffMetrics>(r, labels_)),
      running_(r.AddGauge("sglang:num_running_reqs", "Requests that hold KV pages.", labels_)),
      queued_(r.AddGauge("sglang:num_queue_reqs", "Requests that wait for pages.", labels_)),
      used_(r.AddGauge("sglang:num_used_tokens", "KV tokens held by running requests.", labels_)),
      kv_used_(r.AddGauge("sglang:kv_used_tokens", "The same.", labels_)),
      full_usage_(r.AddGauge("sglang:full_token_usage",
                             "As token_usage: every layer attends all positions.", labels_)),
      usage_(
          r.AddGauge("sglang:token_usage", "Share of the KV cache that is held, 0..1.", labels_)),
      utilization_(r.AddGauge("sglang:utilization", "As token_usage.", labels_)),
      available_(r.AddGauge("sglang:kv_available_tokens", "KV tokens in free pages.", labels_)),
      evictable_(
          r.AddGauge("sglang:kv_evictable_tokens", "KV tokens cached and not in use.", labels_)),
      protected_(r.AddGauge("tern:kv_protected_tokens",
                            "KV tokens that conversations keep cached longer.", labels_)),
      hit_rate_(r.AddGauge("sglang:cache_hit_rate", "Share of prompt tokens found in the cache.",
                           labels_)),
      throughput_(r.AddGauge("sglang:gen_throughput", "Generated tokens per second.", labels_)),
      violations_(ViolationCounters(r, labels_)),
      ended_(r.AddCounter("tern:kv_integrity_ended_requests_total",
                          "Requests that a failed KV page ended.", labels_)),
      healed_(r.AddCounter("tern:kv_integrity_healed_total",
                           "Requests computed anew after a KV page failed.", labels_)),
      exposed_(r.AddCounter("tern:kv_integrity_exposed_requests_total",
                            "Requests that had finished when a page that they held failed.",
                            labels_)),
      verified_(r.AddCounter("tern:kv_integrity_verified_pages_total",
                             "KV pages verified by their seals when they were reused.", labels_)),
      swept_(r.AddCounter("tern:kv_integrity_swept_pages_total",
                          "KV pages verified by their seals in the sweep.", labels_)),
      sealed_(r.AddCounter("tern:kv_integrity_sealed_rows_total", "KV rows sealed.", labels_)),
      quarantined_(r.AddGauge("tern:kv_quarantined_pages", "KV pages taken out of use.", labels_)),
      integrity_share_(r.AddGauge("tern:kv_integrity_time_share",
                                  "Share of the time of steps that KV integrity took, 0..1.",
                                  labels_)),
      prompt_(r.AddCounter("sglang:prompt_tokens_total", "Prompt tokens of admitted requests.",
                           labels_)),
      generated_(r.AddCounter("sglang:generation_tokens_total",
                              "Generated tokens of ended requests.", labels_)),
      cached_(
          r.AddCounter("sglang:cached_tokens_total", "Prompt tokens found in the cache.", labels_)),
      requests_(r.AddCounter("sglang:num_requests_total", "Requests that ended.", labels_)),
      aborted_(r.AddCounter("sglang:num_aborted_requests_total", "Requests aborted or failed.",
                            labels_)),
      retracted_(r.AddCounter("sglang:num_retracted_requests_total", "Retractions.", labels_)),
      evicted_(r.AddCounter("sglang:evicted_tokens_total", "Cached KV tokens evicted.", labels_)),
      computed_now_(RealtimeTokens(r, labels_, "prefill_compute")),
      reused_now_(RealtimeTokens(r, labels_, "prefill_cache")),
      decoded_now_(RealtimeTokens(r, labels_, "decode")),
      queue_time_(
          r.AddHistogram("sglang:queue_time_seconds", "Arrival to admission.", Seconds(), labels_)),
      first_token_(r.AddHistogram("sglang:time_to_first_token_seconds", "Arrival to first token.",
                                  Seconds(), labels_)),
      token_gap_(r.AddHistogram("sglang:inter_token_latency_seconds", "Between two tokens.",
                                Seconds(), labels_)),
      token_time_(r.AddHistogram("sglang:request_time_per_output_token_seconds",
                                 "First token to the end, for each token behind the first.",
                                 Seconds(), labels_)),
      e2e_(r.AddHistogram("sglang:e2e_request_latency_seconds", "Arrival to end.", Seconds(),
                          labels_)),
      prompt_sizes_(r.AddHistogram("sglang:prompt_tokens_histogram", "Prompt tokens of a request.",
                                   Tokens(), labels_)),
      generated_sizes_(r.AddHistogram("sglang:generation_tokens_histogram",
                                      "Generated tokens of a request.", Tokens(), labels_)) {}

void EngineMetrics::SetPlan(const MemoryPlan& plan, int64_t page_tokens) {
  const auto set = [&](const char* name, const char* help, double value) {
    registry_.AddGauge(name, help, labels_).Set(value);
  };
  constexpr double kGb = 1 << 30;
  set("sglang:max_total_num_tokens", "KV capacity in tokens.", double(plan.total_tokens));
  set("sglang:page_size", "Tokens of a KV page.", double(page_tokens));
  set("sglang:num_pages", "KV pages.", double(plan.pages));
  set("sglang:context_len", "Longest sequence in tokens.", double(plan.context_length));
  set("sglang:kv_cache_memory_usage_gb", "KV pool in GiB.", double(plan.kv_bytes) / kGb);
  set("sglang:weight_memory_usage_gb", "Weights in GiB.", double(plan.weight_bytes) / kGb);
}

void EngineMetrics::Publish(const EngineStats& stats, int64_t evicted_tokens) {
  running_.Set(double(stats.running_requests));
  queued_.Set(double(stats.queued_requests));
  used_.Set(double(stats.used_tokens));
  kv_used_.Set(double(stats.used_tokens));
  full_usage_.Set(Share(stats.used_tokens, stats.total_tokens));
  usage_.Set(Share(stats.used_tokens, stats.total_tokens));
  utilization_.Set(Share(stats.used_tokens, stats.total_tokens));
  available_.Set(double(stats.free_tokens));
  evictable_.Set(double(stats.cached_tokens));
  protected_.Set(double(stats.protected_tokens));
  hit_rate_.Set(Share(stats.cached_prompt_tokens, stats.prompt_tokens));
  throughput_.Set(stats.running_requests > 0 ? stats.generated_tokens_per_s : 0);

  prompt_.Add(double(stats.prompt_tokens - last_.prompt_tokens));
  generated_.Add(double(stats.generated_tokens - last_.generated_tokens));
  cached_.Add(double(stats.cached_prompt_tokens - last_.cached_prompt_tokens));
  computed_now_.Add(double(stats.prefill_tokens - last_.prefill_tokens));
  reused_now_.Add(double(stats.cached_prompt_tokens - last_.cached_prompt_tokens));
  decoded_now_.Add(double(stats.sampled_tokens - last_.sampled_tokens));
  requests_.Add(double(stats.finished_requests + stats.aborted_requests - last_.finished_requests -
                       last_.aborted_requests));
  aborted_.Add(double(stats.aborted_requests - last_.aborted_requests));
  retracted_.Add(double(stats.retractions - last_.retractions));
  evicted_.Add(double(evicted_tokens - last_evicted_));

  const IntegrityStats &now = stats.integrity, &then = last_.integrity;
  for (size_t i = 0; i < violations_.size(); ++i) {
    violations_[i]->Add(double(now.violations[i] - then.violations[i]));
  }
  ended_.Add(double(now.ended_requests - then.ended_requests));
  healed_.Add(double(now.healed_requests - then.healed_requests));
  exposed_.Add(double(now.exposed_requests - then.exposed_requests));
  verified_.Add(double(now.verified_pages - then.verified_pages));
  swept_.Add(double(now.swept_pages - then.swept_pages));
  sealed_.Add(double(now.sealed_rows - then.sealed_rows));
  quarantined_.Set(double(now.quarantined_pages));
  integrity_share_.Set(Share(now.check_us, now.step_us));
  if (handoff_ != nullptr) handoff_->Publish(stats.handoff, last_.handoff, stats.total_tokens);
  last_ = stats;
  last_evicted_ = evicted_tokens;
}

void EngineMetrics::ObserveTransfer(const HandoffTimes& times) {
  if (handoff_ == nullptr) return;
  const auto us = double(std::max<int64_t>(times.transfer_us, 1));
  handoff_->speed.Observe(double(times.bytes) / us / 1e3);
  handoff_->latency.Observe(us / 1e3);
  handoff_->bootstrap.Observe(double(times.bootstrap_us) / 1e3);
  if (times.alloc_us >= 0) handoff_->alloc.Observe(double(times.alloc_us) / 1e3);
  handoff_->total.Observe(double(times.bytes) / 1e6);
}

void EngineMetrics::ObserveQueueTime(int64_t us) { queue_time_.Observe(ToSeconds(us)); }
void EngineMetrics::ObserveFirstToken(int64_t us) { first_token_.Observe(ToSeconds(us)); }
void EngineMetrics::ObserveTokenGap(int64_t us) { token_gap_.Observe(ToSeconds(us)); }
void EngineMetrics::ObserveFinished(int64_t e2e_us, int64_t decode_us, int64_t prompt_tokens,
                                    int64_t generated_tokens) {
  e2e_.Observe(ToSeconds(e2e_us));
  if (generated_tokens > 1) {
    token_time_.Observe(ToSeconds(decode_us) / double(generated_tokens - 1));
  }
  prompt_sizes_.Observe(double(prompt_tokens));
  generated_sizes_.Observe(double(generated_tokens));
}

}  // namespace tern
