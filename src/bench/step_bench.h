// Where the time of an engine's steps goes: the model, the sampler, and the rest (scheduling, tag
// checks, bookkeeping), at a full batch; and what a prompt costs when its pages are cached.
// docs/performance.md says how to read the figures. Thread: one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "bench/bench_machine.h"
#include "engine/engine_core.h"
#include "report/svg_chart.h"

namespace tern {

struct StepBenchOptions {
  int64_t batch = 32;
  int64_t prompt_tokens = 64;  // of each sequence
  int64_t warm_steps = 16;     // not counted
  int64_t steps = 64;
  int64_t repeated_prompt = 4096;  // 0: not measured; cut to the context
  KvFormat kv_format = KvFormat::kBf16;
  uint64_t seed = 1;  // of token ids and draws
};

struct StepResult {
  std::string sampling;  // "greedy", "temperature 0.8, top_p 0.9"
  StepTimes times;       // of the counted steps

  double step_ms() const;
  double sampler_share() const;      // of the step
  double bookkeeping_share() const;  // of the step
};

struct StepBenchResult {
  std::vector<StepResult> steps;
  int64_t repeated_prompt = 0;
  double first_s = 0, repeated_s = 0;  // from arrival to the first token
};

// Errors: the model's, kResourceExhausted.
Result<StepBenchResult> RunStepBench(
    Model& model, ThreadPool& pool, const StepBenchOptions& options,
    const std::function<void(int64_t done, int64_t total)>& progress);

Json StepBenchJson(const BenchMachine& machine, const StepBenchOptions& options,
                   const StepBenchResult& result);
std::string StepBenchTable(const StepBenchOptions& options, const StepBenchResult& result);
SvgPicture StepBenchPicture(const BenchMachine& machine, const StepBenchResult& result);

}  // namespace tern
