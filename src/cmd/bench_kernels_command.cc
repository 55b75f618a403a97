// tern bench kernels.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "base/env.h"
#include "base/topology.h"
#include "bench/bench_machine.h"
#include "bench/kernel_bench.h"
#include "bench/machine_limits.h"
#include "cmd/bench.h"
#include "cmd/progress_bar.h"
#include "kernels/weight_info.h"

namespace tern {

int BenchKernelsCommand(const std::vector<std::string>& args) {
  std::string filter, activations = "auto";
  int64_t threads = 0, min_time_ms = 200;
  bool list = false;
  BenchOutputs outputs;
  OptionTable table("tern bench kernels",
                    "Speed of single operations at shapes that models have, over weights and rows "
                    "that no cache holds.");
  table.Add("--filter", &filter, "TEXT", "only cases whose name holds this");
  table.Add("--list", &list, "", "print the names of the cases");
  table.Add("--min-time", &min_time_ms, "MS", "shortest measurement of a case").Range(1, 1e6);
  table.Add("--activation-dtype", &activations, "NAME", "as in serve").Choices({"auto", "int8"});
  table.Add("--threads", &threads, "N", "0: all that this process may use").Range(0, 4096);
  DeclareBenchOutputs(table, outputs);
  return RunBench(table, "tern bench kernels", args, [&]() -> Status {
    TERN_RETURN_IF_ERROR(CheckBenchOutputs(outputs));
    const std::vector<KernelCase> cases = KernelCases(filter);
    if (cases.empty()) return InvalidArgument(fmt::format("--filter '{}': no case", filter));
    if (list) {
      for (const KernelCase& one : cases) fmt::print("{}\n", one.name);
      return OkStatus();
    }
    ThreadPool pool(threads > 0 ? static_cast<int>(threads) : AvailableThreads());
    TERN_ASSIGN_OR_RETURN(const auto ops, Ops::Create(EnvIsa().value_or(""), pool));
    if (activations == "int8") ops->set_activations(Activations::kInt8);
    const BenchMachine machine = BenchMachine::Here(ops->isa(), pool.threads());
    TERN_ASSIGN_OR_RETURN(const MachineLimits limits, MeasureLimits(ops->isa(), pool, {}));
    ProgressBar bar("bench kernels", "cases");
    TERN_ASSIGN_OR_RETURN(
        const auto results,
        RunKernelBench(*ops, limits, cases, min_time_ms * 1000,
                       [&bar](int64_t done, int64_t total) { bar.Update(done, total); }));
    const char* activation_name = ActivationNameOf(*ops);
    const std::string text =
        fmt::format("{}, {} activations\n{}\n{}", machine.ToText(), activation_name,
                    LimitsTable({limits}), KernelBenchTable(results));
    return WriteBenchOutputs(outputs, text,
                             KernelBenchJson(machine, limits, activation_name, results),
                             KernelBenchPicture(machine, results));
  });
}

}  // namespace tern
