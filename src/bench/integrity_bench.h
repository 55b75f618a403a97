// IntegrityBench: what KV integrity costs: the same streams of requests through engines that differ
// in --kv-integrity alone, by turns after each step. Two figures of each mode: the share of its
// step time that its checks take, by timers inside the step; and its speed against the engine
// without checks, slice by slice of some steps. Owner: the command. Thread: one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "bench/bench_machine.h"
#include "engine/engine.h"
#include "report/svg_chart.h"

namespace tern {

struct IntegrityBenchOptions {
  std::string mode = "all";      // or one of off, tags, sealed, alone: no ratios
  int64_t batch = 32;            // streams; each asks anew when its answer is complete
  int64_t prefix_tokens = 2048;  // that every second stream's prompts share
  int64_t own_tokens = 32;       // of each prompt
  int64_t answer_tokens = 64;
  int64_t slices = 12;  // of each mode
  int64_t slice_steps = 66;
  uint64_t seed = 1;
};

struct IntegrityBenchResult {
  std::string mode;
  std::vector<double> tokens_per_s;  // of each slice
  int64_t steps = 0;
  double share = 0;                                             // of step time
  double sealed_rows = 0, verified_pages = 0, swept_pages = 0;  // a step
  double step_ms = 0;
};

// `engine`: format, page size and so on; its mode is replaced. `progress`: called after each slice.
// Errors: EngineCore::Create's and PlanMemory's; kInternal when a request ends with an error.
Result<std::vector<IntegrityBenchResult>> RunIntegrityBench(
    Model& model, Ops& ops, EngineOptions engine, const IntegrityBenchOptions& options,
    const std::function<void(int64_t done, int64_t all)>& progress);

Json IntegrityBenchJson(const BenchMachine& machine, const std::string& model,
                        const IntegrityBenchOptions& options,
                        const std::vector<IntegrityBenchResult>& results);
std::string IntegrityBenchTable(const std::vector<IntegrityBenchResult>& results);
SvgPicture IntegrityBenchPicture(const std::vector<IntegrityBenchResult>& results,
                                 const std::string& subtitle);

}  // namespace tern
