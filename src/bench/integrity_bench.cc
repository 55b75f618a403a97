#include "bench/integrity_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/rng.h"
#include "bench/statistics.h"
#include "engine/engine_core.h"
#include "report/text_table.h"

namespace tern {
namespace {

constexpr std::pair<KvIntegrity, const char*> kModes[] = {
    {KvIntegrity::kOff, "off"}, {KvIntegrity::kTags, "tags"}, {KvIntegrity::kSealed, "sealed"}};

struct EndSink final : TokenSink {
  void OnToken(TokenEvent) override { ++tokens; }
  void OnFinish(FinishEvent event) override {
    ended = true;
    status = event.status;
  }
  bool ended = false;
  int64_t tokens = 0;
  Status status;
};

// Stands still while it is another mode's turn: seals are verified again after so many seconds.
class TurnClock final : public Clock {
 public:
  int64_t NowUs() const override {
    return begun_us_ < 0 ? own_us_ : own_us_ + SystemClock().NowUs() - begun_us_;
  }
  int64_t UnixSeconds() const override { return SystemClock().UnixSeconds(); }
  void Begin() { begun_us_ = SystemClock().NowUs(); }
  void End() {
    own_us_ = NowUs();
    begun_us_ = -1;
  }

 private:
  int64_t own_us_ = 0;
  int64_t begun_us_ = -1;
};

// An engine and the streams that ask it.
class Streams {
 public:
  Streams(const IntegrityBenchOptions& options, int64_t vocab)
      : options_(options), vocab_(static_cast<uint64_t>(vocab)), sinks_(size_t(options.batch)) {
    Rng rng(options.seed);
    for (int64_t i = 0; i < options.prefix_tokens; ++i) prefix_.push_back(Token(rng));
  }

  Status Start(Model& model, ThreadPool& pool, EngineOptions engine, KvIntegrity mode) {
    engine.integrity.mode = mode;
    engine.max_running_requests = options_.batch;
    engine.random_seed = options_.seed;
    const int64_t page = engine.page_tokens;
    const auto pages = [page](int64_t tokens) { return (tokens + page - 1) / page; };
    const int64_t own = pages(options_.own_tokens + options_.answer_tokens) + 1;
    // What lives, and as much again for what has ended and is cached.
    const int64_t all_pages = pages(options_.prefix_tokens) + 2 * options_.batch * own + 1;
    engine.max_total_tokens = all_pages * page;
    MemoryPlanInput input = MemoryPlanInputOf(engine, uint64_t{1} << 50);
    TERN_ASSIGN_OR_RETURN(const MemoryPlan plan, PlanMemory(model.info(), input));
    TERN_ASSIGN_OR_RETURN(
        core_, EngineCore::Create(model, pool, engine, plan, RandomSeed(), clock_, nullptr));
    // Spread over the answers, so that one stream ends every answer_tokens / batch steps.
    for (size_t i = 0; i < sinks_.size(); ++i) {
      const auto share = static_cast<int64_t>(i + 1) * options_.answer_tokens;
      Ask(i, std::max<int64_t>(1, share / options_.batch));
      while (sinks_[i]->tokens == 0 && !sinks_[i]->ended) TERN_RETURN_IF_ERROR(Step());
    }
    // Until every page has been used: the system clears memory when it is first written, which
    // costs more than all checks, and whoever writes first would seem to. An answer leaves at least
    // one page in the cache, or none ever does. Without a cache pages that were used are used next.
    if (engine.disable_radix_cache) return OkStatus();
    const uint64_t last = asked_ + static_cast<uint64_t>(all_pages);
    while (core_->evicted_tokens() == 0 && asked_ < last) TERN_RETURN_IF_ERROR(Step());
    return OkStatus();
  }

  Status Step() {
    clock_.Begin();
    core_->Step();
    clock_.End();
    for (size_t i = 0; i < sinks_.size(); ++i) {
      if (sinks_[i] == nullptr || !sinks_[i]->ended) continue;
      if (!sinks_[i]->status.ok()) return Internal(sinks_[i]->status.ToString());
      done_tokens_ += sinks_[i]->tokens;
      Ask(i, options_.answer_tokens);
    }
    return OkStatus();
  }

  int64_t tokens() const {
    int64_t sum = done_tokens_;
    for (const auto& sink : sinks_) sum += sink->tokens;
    return sum;
  }
  // Time that steps took.
  int64_t NowUs() const { return clock_.NowUs(); }
  IntegrityStats integrity() const { return core_->Stats().integrity; }

 private:
  int32_t Token(Rng& rng) const { return static_cast<int32_t>(rng.Below(vocab_)); }

  void Ask(size_t stream, int64_t new_tokens) {
    GenerateRequest request;
    if (stream % 2 == 0) request.tokens = prefix_;
    Rng rng(options_.seed + ++asked_);
    for (int64_t i = 0; i < options_.own_tokens; ++i) request.tokens.push_back(Token(rng));
    request.sampling.temperature = 0;
    request.sampling.ignore_eos = true;
    request.sampling.max_new_tokens = new_tokens;
    sinks_[stream] = std::make_shared<EndSink>();
    core_->Submit(asked_, std::move(request), sinks_[stream], clock_.NowUs());
  }

  const IntegrityBenchOptions& options_;
  const uint64_t vocab_;
  TurnClock clock_;  // outlives the engine
  std::unique_ptr<EngineCore> core_;
  std::vector<int32_t> prefix_;
  std::vector<std::shared_ptr<EndSink>> sinks_;
  uint64_t asked_ = 0;
  int64_t done_tokens_ = 0;
};

// One slice of every mode, by turns after each step: the schedule is the same in all of them, so
// that neighbours in time do the same work, and what else the machine does meets all alike.
Status RunSlice(std::vector<std::unique_ptr<Streams>>& streams, int64_t steps,
                std::vector<IntegrityBenchResult>& results) {
  struct Start {
    IntegrityStats integrity;
    int64_t tokens, us;
  };
  std::vector<Start> starts;
  for (const auto& mode : streams) {
    starts.push_back({mode->integrity(), mode->tokens(), mode->NowUs()});
  }
  const size_t modes = streams.size();
  for (int64_t step = 0; step < steps; ++step) {
    for (size_t i = 0; i < modes; ++i) {
      // In six steps, each mode is first, second and last twice, and follows each other as often.
      const size_t turn = step % 2 == 0 ? i : modes - 1 - i;
      const size_t at = (static_cast<size_t>(step / 2) + turn) % modes;
      TERN_RETURN_IF_ERROR(streams[at]->Step());
    }
  }
  for (size_t at = 0; at < modes; ++at) {
    const auto& [before, tokens, start_us] = starts[at];
    const auto us = static_cast<double>(streams[at]->NowUs() - start_us);
    const IntegrityStats after = streams[at]->integrity();
    IntegrityBenchResult& result = results[at];
    result.tokens_per_s.push_back(static_cast<double>(streams[at]->tokens() - tokens) * 1e6 / us);
    result.steps += steps;
    // Sums for now.
    result.share += static_cast<double>(after.check_us - before.check_us);
    result.step_ms += us * 1e-3;
    result.sealed_rows += static_cast<double>(after.sealed_rows - before.sealed_rows);
    result.verified_pages += static_cast<double>(after.verified_pages - before.verified_pages);
    result.swept_pages += static_cast<double>(after.swept_pages - before.swept_pages);
  }
  return OkStatus();
}

// Of a mode to off: slice by slice, the median and its interval. Nothing where a mode ran alone.
struct ToOff {
  double median = 0;
  MedianInterval interval;
};
std::optional<ToOff> RatioToOff(const std::vector<IntegrityBenchResult>& results,
                                const IntegrityBenchResult& result) {
  if (results.size() == 1) return std::nullopt;
  std::vector<double> ratios;
  for (size_t i = 0; i < result.tokens_per_s.size(); ++i) {
    ratios.push_back(result.tokens_per_s[i] / results[0].tokens_per_s[i]);
  }
  return ToOff{MedianOf(ratios), MedianIntervalOf(ratios)};
}

}  // namespace

Result<std::vector<IntegrityBenchResult>> RunIntegrityBench(
    Model& model, Ops& ops, EngineOptions engine, const IntegrityBenchOptions& options,
    const std::function<void(int64_t done, int64_t all)>& progress) {
  std::vector<IntegrityBenchResult> results;
  std::vector<std::unique_ptr<Streams>> streams;
  for (const auto& [mode, name] : kModes) {
    if (options.mode != "all" && options.mode != name) continue;
    results.push_back({.mode = name});
    streams.push_back(std::make_unique<Streams>(options, model.info().vocab_size));
    TERN_RETURN_IF_ERROR(streams.back()->Start(model, ops.pool(), engine, mode));
  }
  for (int64_t slice = 0; slice < options.slices; ++slice) {
    TERN_RETURN_IF_ERROR(RunSlice(streams, options.slice_steps, results));
    progress(slice + 1, options.slices);
  }
  for (IntegrityBenchResult& result : results) {
    const auto steps = static_cast<double>(result.steps);
    result.share /= result.step_ms * 1e3;
    for (double* sum :
         {&result.step_ms, &result.sealed_rows, &result.verified_pages, &result.swept_pages}) {
      *sum /= steps;
    }
  }
  return results;
}

Json IntegrityBenchJson(const BenchMachine& machine, const std::string& model,
                        const IntegrityBenchOptions& options,
                        const std::vector<IntegrityBenchResult>& results) {
  Json json = {{"bench", "integrity"}, {"machine", machine.ToJson()}, {"model", model}};
  json["settings"] = {{"batch", options.batch},
                      {"mode", options.mode},
                      {"prefix_tokens", options.prefix_tokens},
                      {"own_tokens", options.own_tokens},
                      {"answer_tokens", options.answer_tokens},
                      {"slices", options.slices},
                      {"slice_steps", options.slice_steps},
                      {"seed", options.seed}};
  json["results"] = Json::array();
  for (const IntegrityBenchResult& r : results) {
    Json result = {{"mode", r.mode},
                   {"share_of_step_time", r.share},
                   {"step_ms", r.step_ms},
                   {"tokens_per_s", MedianOf(r.tokens_per_s)},
                   {"tokens_per_s_runs", r.tokens_per_s},
                   {"sealed_rows_per_step", r.sealed_rows},
                   {"verified_pages_per_step", r.verified_pages},
                   {"swept_pages_per_step", r.swept_pages}};
    if (const auto ratio = RatioToOff(results, r)) {
      result["ratio_to_off"] = ratio->median;
      result["ratio_low"] = ratio->interval.low;
      result["ratio_high"] = ratio->interval.high;
      result["ratio_coverage"] = ratio->interval.coverage;
    }
    json["results"].push_back(std::move(result));
  }
  return json;
}

std::string IntegrityBenchTable(const std::vector<IntegrityBenchResult>& results) {
  using Align = TextTable::Align;
  TextTable table({{"--kv-integrity"},
                   {"share of step", Align::kRight},
                   {"step ms", Align::kRight},
                   {"tokens/s", Align::kRight},
                   {"to off", Align::kRight},
                   {"interval", Align::kRight},
                   {"rows sealed", Align::kRight},
                   {"pages reused", Align::kRight},
                   {"swept", Align::kRight}});
  for (const IntegrityBenchResult& r : results) {
    const auto ratio = RatioToOff(results, r);
    table.AddRow(
        {r.mode, fmt::format("{:.4f} %", r.share * 100), fmt::format("{:.2f}", r.step_ms),
         fmt::format("{:.1f}", MedianOf(r.tokens_per_s)),
         ratio ? fmt::format("{:.4f}", ratio->median) : "-",
         ratio ? fmt::format("{:.4f}-{:.4f}", ratio->interval.low, ratio->interval.high) : "-",
         fmt::format("{:.1f}", r.sealed_rows), fmt::format("{:.2f}", r.verified_pages),
         fmt::format("{:.2f}", r.swept_pages)});
  }
  const char* ratio = results.size() == 1
                          ? ""
                          : "To off: median ratio over slices of steps by turns, with the interval "
                            "that holds it with at least 95 %.\n";
  return table.ToText() + ratio + "Share: by timers inside the step. Rows and pages: a step.\n";
}

SvgPicture IntegrityBenchPicture(const std::vector<IntegrityBenchResult>& results,
                                 const std::string& subtitle) {
  BarChart share, ratio;
  share.title = "Time of KV integrity";
  share.note = ratio.note = subtitle;
  share.axis.label = "% of step time";
  share.series = {{}};
  ratio.title = "Speed with KV integrity";
  ratio.axis.label = "tokens/s to those without checks";
  ratio.series = {{}};
  ratio.digits = 4;
  for (const IntegrityBenchResult& r : results) {
    share.categories.push_back(r.mode);
    share.series[0].values.push_back({r.share * 100});
    if (const auto to_off = RatioToOff(results, r)) {
      ratio.categories.push_back(r.mode);
      ratio.series[0].values.push_back(
          {to_off->median, to_off->interval.low, to_off->interval.high});
    }
  }
  SvgPicture picture;
  picture.Add(share);
  if (!ratio.categories.empty()) picture.Add(ratio);
  return picture;
}

}  // namespace tern
