#include "bench/step_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/topology.h"
#include "bench/random_tokens.h"
#include "report/text_table.h"

namespace tern {
namespace {

struct CountingSink final : TokenSink {
  void OnToken(TokenEvent) override { ++tokens; }
  void OnFinish(FinishEvent event) override {
    ++finished;
    if (!event.status.ok()) status = event.status;
  }
  int64_t tokens = 0, finished = 0;
  Status status;
};

Result<std::unique_ptr<EngineCore>> MakeCore(Model& model, ThreadPool& pool,
                                             const StepBenchOptions& options, int64_t tokens) {
  const EngineOptions engine = {.kv_format = options.kv_format,
                                .max_total_tokens = tokens,
                                .max_running_requests = std::max<int64_t>(options.batch, 1),
                                .random_seed = options.seed};
  TERN_ASSIGN_OR_RETURN(
      const MemoryPlan plan,
      PlanMemory(model.info(),
                 MemoryPlanInputOf(engine, AvailableMemoryBytes() + model.info().weight_bytes)));
  return EngineCore::Create(model, pool, engine, plan, options.seed, SystemClock(), nullptr);
}

StepTimes Difference(const StepTimes& after, const StepTimes& before) {
  return {.steps = after.steps - before.steps,
          .total_us = after.total_us - before.total_us,
          .forward_us = after.forward_us - before.forward_us,
          .sample_us = after.sample_us - before.sample_us};
}

// Submits a full batch and runs it until its steps have been measured; then ends it.
Result<StepTimes> RunWave(EngineCore& core, int64_t vocab, const StepBenchOptions& options,
                          const SamplingParams& sampling, RequestId first_id, Rng& rng) {
  const auto sink = std::make_shared<CountingSink>();
  for (int64_t i = 0; i < options.batch; ++i) {
    GenerateRequest request;
    request.tokens = RandomTokens(options.prompt_tokens, vocab, rng);
    request.sampling = sampling;
    request.sampling.seed = options.seed + static_cast<uint64_t>(i);
    request.sampling.ignore_eos = true;
    request.sampling.max_new_tokens = options.warm_steps + options.steps + 8;
    TERN_RETURN_IF_ERROR(core.Validate(request));
    core.Submit(first_id + static_cast<RequestId>(i), std::move(request), sink, 0);
  }
  // All have joined when a step has given as many tokens as there are sequences.
  int64_t full_steps = 0;
  StepTimes before;
  while (full_steps < options.warm_steps + options.steps) {
    if (full_steps == options.warm_steps) before = core.step_times();
    const int64_t tokens_before = sink->tokens;
    if (!core.Step() || sink->finished > 0) break;
    full_steps += sink->tokens - tokens_before == options.batch ? 1 : 0;
  }
  TERN_RETURN_IF_ERROR(sink->status);
  if (full_steps < options.warm_steps + options.steps) {
    return Internal("sequences ended before all steps were measured");
  }
  const StepTimes times = Difference(core.step_times(), before);
  while (sink->finished < options.batch && core.Step()) {
  }
  return times;
}

Result<StepResult> MeasureSteps(Model& model, ThreadPool& pool, const StepBenchOptions& options,
                                const std::string& name, const SamplingParams& sampling) {
  // Whole pages for everybody: nothing is retracted.
  const int64_t tokens = options.prompt_tokens + options.warm_steps + options.steps + 8;
  const int64_t pages = (tokens + 63) / 64 + 1;
  TERN_ASSIGN_OR_RETURN(const auto core,
                        MakeCore(model, pool, options, options.batch * pages * 64));
  // The first wave touches the pool's memory, which the system clears then; the second one finds it
  // full of cached pages, as a server that has run for a while.
  Rng rng(options.seed);
  StepResult result{.sampling = name};
  for (RequestId wave = 0; wave < 2; ++wave) {
    TERN_ASSIGN_OR_RETURN(result.times,
                          RunWave(*core, model.info().vocab_size, options, sampling,
                                  1 + wave * static_cast<RequestId>(options.batch), rng));
  }
  return result;
}

Status MeasureRepeat(Model& model, ThreadPool& pool, const StepBenchOptions& options,
                     StepBenchResult* result) {
  const int64_t prompt = std::min(options.repeated_prompt, model.info().context_length - 1);
  if (prompt < 1) return OkStatus();
  TERN_ASSIGN_OR_RETURN(const auto core, MakeCore(model, pool, options, 2 * (prompt + 64)));
  Rng rng(options.seed);
  const std::vector<int32_t> tokens = RandomTokens(prompt, model.info().vocab_size, rng);
  const auto run = [&](RequestId id) -> Result<double> {
    const auto sink = std::make_shared<CountingSink>();
    GenerateRequest request;
    request.tokens = tokens;
    request.sampling = {.temperature = 0, .max_new_tokens = 1, .ignore_eos = true};
    TERN_RETURN_IF_ERROR(core->Validate(request));
    const int64_t start = SystemClock().NowUs();
    core->Submit(id, std::move(request), sink, start);
    while (core->Step() && sink->finished == 0) {
    }
    const int64_t end = SystemClock().NowUs();
    TERN_RETURN_IF_ERROR(sink->status);
    return static_cast<double>(end - start) * 1e-6;
  };
  result->repeated_prompt = prompt;
  TERN_ASSIGN_OR_RETURN(result->first_s, run(1));
  TERN_ASSIGN_OR_RETURN(result->repeated_s, run(2));
  return OkStatus();
}

double Share(int64_t part_us, int64_t whole_us) {
  return static_cast<double>(part_us) / static_cast<double>(std::max<int64_t>(whole_us, 1));
}

}  // namespace

double StepResult::step_ms() const {
  return static_cast<double>(times.total_us) * 1e-3 /
         static_cast<double>(std::max<int64_t>(times.steps, 1));
}
double StepResult::sampler_share() const { return Share(times.sample_us, times.total_us); }
double StepResult::bookkeeping_share() const {
  return Share(times.bookkeeping_us(), times.total_us);
}

Result<StepBenchResult> RunStepBench(
    Model& model, ThreadPool& pool, const StepBenchOptions& options,
    const std::function<void(int64_t done, int64_t total)>& progress) {
  const std::pair<const char*, SamplingParams> kinds[] = {
      {"greedy", {.temperature = 0}},
      {"temperature 0.8", {.temperature = 0.8}},
      {"temperature 0.8, top_p 0.9", {.temperature = 0.8, .top_p = 0.9}},
      {"temperature 0.8, top_k 50, top_p 0.9", {.temperature = 0.8, .top_k = 50, .top_p = 0.9}},
  };
  const auto total = static_cast<int64_t>(std::size(kinds)) + 1;
  StepBenchResult result;
  for (const auto& [name, sampling] : kinds) {
    progress(static_cast<int64_t>(result.steps.size()), total);
    TERN_ASSIGN_OR_RETURN(StepResult step, MeasureSteps(model, pool, options, name, sampling));
    result.steps.push_back(std::move(step));
  }
  progress(total - 1, total);
  TERN_RETURN_IF_ERROR(MeasureRepeat(model, pool, options, &result));
  return result;
}

Json StepBenchJson(const BenchMachine& machine, const StepBenchOptions& options,
                   const StepBenchResult& result) {
  Json json = {{"bench", "step"},        {"machine", machine.ToJson()},
               {"batch", options.batch}, {"prompt_tokens", options.prompt_tokens},
               {"steps", options.steps}, {"results", Json::array()}};
  for (const StepResult& r : result.steps) {
    json["results"].push_back({{"sampling", r.sampling},
                               {"step_ms", r.step_ms()},
                               {"forward_us", r.times.forward_us},
                               {"sample_us", r.times.sample_us},
                               {"bookkeeping_us", r.times.bookkeeping_us()},
                               {"sampler_share", r.sampler_share()},
                               {"bookkeeping_share", r.bookkeeping_share()}});
  }
  json["repeated_prompt"] = nullptr;
  if (result.repeated_prompt > 0) {
    json["repeated_prompt"] = {{"tokens", result.repeated_prompt},
                               {"first_s", result.first_s},
                               {"repeated_s", result.repeated_s},
                               {"share", result.repeated_s / result.first_s}};
  }
  return json;
}

std::string StepBenchTable(const StepBenchOptions& options, const StepBenchResult& result) {
  using Align = TextTable::Align;
  TextTable table({{fmt::format("batch {}", options.batch)},
                   {"ms/step", Align::kRight},
                   {"model", Align::kRight},
                   {"sampler", Align::kRight},
                   {"the rest", Align::kRight}});
  const auto percent = [](double share) { return fmt::format("{:.2f} %", share * 100); };
  for (const StepResult& r : result.steps) {
    table.AddRow({r.sampling, fmt::format("{:.2f}", r.step_ms()),
                  percent(1 - r.sampler_share() - r.bookkeeping_share()),
                  percent(r.sampler_share()), percent(r.bookkeeping_share())});
  }
  std::string text = table.ToText();
  if (result.repeated_prompt > 0) {
    text +=
        fmt::format("\nA prompt of {} tokens: {:.1f} ms, the same again {:.2f} ms ({:.2f} %).\n",
                    result.repeated_prompt, result.first_s * 1e3, result.repeated_s * 1e3,
                    result.repeated_s / result.first_s * 100);
  }
  return text;
}

SvgPicture StepBenchPicture(const BenchMachine& machine, const StepBenchResult& result) {
  BarChart chart;
  chart.title = "Time of a step outside the model";
  chart.note = machine.ToText();
  chart.axis.label = "% of the step";
  chart.series = {{"sampler", {}}, {"scheduling and bookkeeping", {}}};
  for (const StepResult& r : result.steps) {
    chart.categories.push_back(r.sampling);
    chart.series[0].values.push_back({r.sampler_share() * 100});
    chart.series[1].values.push_back({r.bookkeeping_share() * 100});
  }
  SvgPicture picture;
  picture.Add(chart);
  return picture;
}

}  // namespace tern
