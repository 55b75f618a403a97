// The speed of a model's forward passes: prefill of several lengths, decode at several batch sizes
// and context depths, each with its share of what the machine could do. Neither scheduler nor
// sampler run. docs/performance.md says how to read the figures. Thread: one.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "bench/bench_machine.h"
#include "bench/bench_model.h"
#include "bench/machine_limits.h"
#include "bench/operation_profile.h"
#include "bench/work_counter.h"
#include "kernels/ops.h"
#include "report/svg_chart.h"

namespace tern {

// A prompt of `tokens` tokens (context 0, batch 1), or `tokens` steps of `batch` sequences, each
// from `context` positions on.
struct ModelWork {
  enum class Kind { kPrefill, kDecode } kind = Kind::kPrefill;
  int64_t tokens = 0, batch = 1, context = 0;

  // "prefill 512", "decode 8 at 512"
  std::string Name() const;
};

// "512,2048". Errors: kInvalidArgument.
Result<std::vector<ModelWork>> PrefillWorks(const std::string& lengths);
// "1@0,1@4096,8@512": sequences @ positions each, `steps` steps. Errors: kInvalidArgument.
Result<std::vector<ModelWork>> DecodeWorks(const std::string& points, int64_t steps);

struct ModelBenchOptions {
  std::vector<ModelWork> works;
  int64_t chunk = 512;        // rows of a prefill pass
  int64_t repetitions = 3;    // after one that is not counted
  int64_t real_context = 64;  // positions of each context that are computed; 0: all
  uint64_t seed = 1;          // of the token ids
  // Profiles passes of their own, as many, as OperationProfile does with these limits.
  std::optional<MachineLimits> profile;
};

struct ModelResult {
  ModelWork work;
  BenchModelFacts model;
  std::string weight_format, activation_format, isa;
  int threads = 0;
  std::vector<double> tokens_per_s;  // of each repetition
  double step_s = 0;                 // median of all passes
  // All of it, and the least time that the machine's limits allow for it.
  Work total;
  double memory_s = 0, arithmetic_s = 0;
  // A mean pass of the repetition that took the median time; empty without a profile.
  std::vector<OperationTime> operations;

  double median_tokens_per_s() const;
  double tokens() const;   // of the work
  double seconds() const;  // at the median
  // Of the limit, whichever is nearer: "memory" or "arithmetic".
  double share() const;
  const char* bound() const;
};

// Called before each piece of work with its number.
using BenchProgress = std::function<void(const std::string& what, int64_t done, int64_t total)>;

// Results without memory_s and arithmetic_s: those need limits, ApplyLimits. Errors: the model's.
Result<std::vector<ModelResult>> RunModelBench(BenchModel& model, Ops& ops,
                                               const ModelBenchOptions& options,
                                               const BenchProgress& progress);
void ApplyLimits(const MachineLimits& limits, std::vector<ModelResult>& results);

Json ModelBenchJson(const BenchMachine& machine, const MachineLimits& limits,
                    const ModelBenchOptions& options, const std::vector<ModelResult>& results);
std::string ModelBenchTable(const std::vector<ModelResult>& results);
// Of each result that has a profile; empty when none has.
std::string OperationsTable(const std::vector<ModelResult>& results);
// With profiles, a roofline each: the five operations that take the most time and are counted.
SvgPicture ModelBenchPicture(const BenchMachine& machine, const MachineLimits& limits,
                             const std::vector<ModelResult>& results);

}  // namespace tern
