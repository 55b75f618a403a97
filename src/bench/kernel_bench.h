// The speed of single operations at shapes that models have, each as a share of what memory or
// arithmetic allow. For work on kernels; models are measured by model_bench.h. Thread: one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "bench/bench_machine.h"
#include "bench/machine_limits.h"
#include "kernels/ops.h"
#include "report/svg_chart.h"

namespace tern {

struct KernelRun {
  std::function<void()> run;
  Work work;
};

struct KernelCase {
  std::string name;  // "matmul/int4/2048x2048/rows:1"
  // Makes inputs, run by run; whatever the result holds is dropped after it was measured.
  // Errors: kResourceExhausted, kInvalidArgument.
  std::function<Result<KernelRun>(Ops& ops)> make;
};

// All cases, or those whose name holds `filter`.
std::vector<KernelCase> KernelCases(const std::string& filter);

struct KernelResult {
  std::string name;
  double seconds = 0;  // median of a call
  double fastest_s = 0;
  double bytes = 0, operations = 0;  // of a call
  double limit_s = 0;                // the least time that the limits allow
};

// Calls each case for at least `min_time_us`. Errors: a case's.
Result<std::vector<KernelResult>> RunKernelBench(
    Ops& ops, const MachineLimits& limits, const std::vector<KernelCase>& cases,
    int64_t min_time_us, const std::function<void(int64_t done, int64_t total)>& progress);

Json KernelBenchJson(const BenchMachine& machine, const MachineLimits& limits,
                     const char* activations, const std::vector<KernelResult>& results);
std::string KernelBenchTable(const std::vector<KernelResult>& results);
SvgPicture KernelBenchPicture(const BenchMachine& machine,
                              const std::vector<KernelResult>& results);

}  // namespace tern
