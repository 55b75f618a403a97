// What a KV format is worth in memory and in speed: how many requests of a length fit in the bytes
// of some BF16 ones, and what decoding them all gives, against BF16 at its number; and against BF16
// at the same number. All variants take turns in one process. docs/performance.md says how to read
// the figures. Thread: one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "bench/bench_machine.h"
#include "bench/bench_model.h"
#include "bench/statistics.h"
#include "report/svg_chart.h"

namespace tern {

// One format: a model whose rows are stored so. The first one of a bench is what the others are
// compared with.
struct KvBenchFormat {
  BenchModel* model = nullptr;
  int64_t page_tokens = 0, page_bytes = 0;
  double slack = 0;  // of memory beyond the first format's: its page headers and scales
};

struct KvBenchOptions {
  std::vector<int64_t> contexts = {4096, 7680};
  int64_t requests = 8;       // of the first format
  int64_t steps = 8;          // of each turn
  int64_t turns = 6;          // of each variant, after one that is not counted
  int64_t real_context = 64;  // of each sequence, rounded up to whole pages: computed
  uint64_t seed = 1;
};

struct KvBenchResult {
  int64_t context = 0;
  std::string kv_format;
  int64_t fits = 0;    // requests in the memory
  int64_t memory = 0;  // bytes that they were given
  int64_t batch = 0;   // that decoded: `fits`, or as many as the first format's
  std::vector<double> tokens_per_s, ratios;  // of each turn; to the first format's in that turn
  double plan_ratio = 0;                     // what the planner expects; 0: not asked

  bool same_memory() const { return batch == fits; }
  double median_tokens_per_s() const { return MedianOf(tokens_per_s); }
  double ratio() const { return MedianOf(ratios); }
};

// Seconds of a decode step by the planner; may be empty.
using StepForecast =
    std::function<double(const BenchModelFacts& model, int64_t batch, int64_t context)>;

// Requests of `context` positions that fit in `bytes`, whole pages each.
int64_t RequestsThatFit(const KvBenchFormat& format, int64_t context, int64_t bytes);

// Errors: the models', kInvalidArgument (fewer than two formats).
Result<std::vector<KvBenchResult>> RunKvBench(
    const std::vector<KvBenchFormat>& formats, const KvBenchOptions& options,
    const StepForecast& forecast, const std::function<void(int64_t done, int64_t total)>& progress);

Json KvBenchJson(const BenchMachine& machine, const KvBenchOptions& options,
                 const BenchModelFacts& model, const std::vector<KvBenchResult>& results);
std::string KvBenchTable(const std::vector<KvBenchResult>& results);
SvgPicture KvBenchPicture(const BenchMachine& machine, const BenchModelFacts& model,
                          const std::vector<KvBenchResult>& results);

}  // namespace tern
