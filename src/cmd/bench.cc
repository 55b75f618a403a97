// tern bench: speed. What each figure means: docs/performance.md.
#include "cmd/bench.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/env.h"
#include "base/file.h"
#include "base/topology.h"
#include "bench/bench_machine.h"
#include "bench/machine_limits.h"
#include "cmd/commands.h"
#include "report/report_file.h"

namespace tern {
namespace {

struct Part {
  const char* name;
  const char* summary;
  int (*run)(const std::vector<std::string>& args);
};

constexpr Part kParts[] = {
    {"compare", "two commands by turns: medians and the ratio of what they print",
     BenchCompareCommand},
    {"limits", "memory bandwidth and peak arithmetic of this machine", BenchLimitsCommand},
    {"kernels", "single operations at shapes that models have", BenchKernelsCommand},
    {"kv", "KV formats: requests that fit, and the speed of decoding them", BenchKvCommand},
    {"pd", "prefill and decode apart: streams under bursts of prompts, first tokens",
     BenchPdCommand},
    {"serve", "load on a server: latencies, throughput, goodput", BenchServeCommand},
    {"integrity", "what the checks of KV pages cost", BenchIntegrityCommand},
    {"model", "prefill and decode of a model, as shares of the limits", BenchModelCommand},
    {"step", "the engine's steps: model, sampler and the rest; a cached prompt", BenchStepCommand},
};

void PrintUsage(std::FILE* out) {
  fmt::print(out, "tern bench: speed\n\nUsage: tern bench PART [options]\n\nParts:\n");
  for (const Part& part : kParts) fmt::print(out, "  {:<10} {}\n", part.name, part.summary);
  fmt::print(out,
             "\n`tern bench PART --help` explains a part. Each prints a table and writes JSON "
             "(--json) and a picture (--plot).\n");
}

}  // namespace

void DeclareBenchOutputs(OptionTable& table, BenchOutputs& outputs) {
  table.Add("--json", &outputs.json, "FILE", "write the result; -: print it instead of the table")
      .Group("Output");
  table.Add("--plot", &outputs.plot, "FILE.svg", "write a picture").Group("Output");
}

Status CheckBenchOutputs(const BenchOutputs& outputs) {
  for (const std::string& path : {outputs.json, outputs.plot}) {
    if (path.empty() || path == "-") continue;
    const size_t slash = path.rfind('/');
    const std::string folder =
        slash == std::string::npos ? "." : path.substr(0, std::max<size_t>(slash, 1));
    if (IsDirectory(path)) return InvalidArgument(path + " is a folder");
    if (!IsDirectory(folder)) {
      return InvalidArgument(fmt::format("cannot write {}: no folder {}", path, folder));
    }
    if (access(folder.c_str(), W_OK) != 0) {
      return InvalidArgument(fmt::format("cannot write {}: {} is read-only", path, folder));
    }
  }
  return OkStatus();
}

Status WriteBenchOutputs(const BenchOutputs& outputs, const std::string& text, const Json& json,
                         const SvgPicture& picture) {
  fmt::print("{}", outputs.json == "-" ? DumpJson(json, 1) + "\n" : text);
  if (!outputs.json.empty() && outputs.json != "-") {
    TERN_RETURN_IF_ERROR(WriteReportJson(outputs.json, json));
  }
  if (outputs.plot.empty()) return OkStatus();
  return WriteReportFile(outputs.plot, picture.ToSvg());
}

int BenchUsageError(const char* program, const Status& status) {
  fmt::print(stderr, "{}: {}\n", program, status.message());
  return 2;
}

int BenchFailure(const char* program, const Status& status) {
  fmt::print(stderr, "{}: {}\n", program, status.message());
  return 1;
}

int BenchLimitsCommand(const std::vector<std::string>& args) {
  int64_t threads = 0;
  LimitOptions options;
  BenchOutputs outputs;
  OptionTable table("tern bench limits",
                    "How fast this machine reads memory and multiplies, at the kernel level that "
                    "would run, for 1, 2, 4 ... threads.");
  table.Add("--threads", &threads, "N", "only this number of threads").Range(1, 4096);
  table
      .Add("--slices", &options.slices, "N",
           "measurements of each figure, the best of which counts")
      .Range(1, 1e6);
  DeclareBenchOutputs(table, outputs);
  return RunBench(table, "tern bench limits", args, [&]() -> Status {
    TERN_RETURN_IF_ERROR(CheckBenchOutputs(outputs));
    const int most = threads > 0 ? static_cast<int>(threads) : AvailableThreads();
    std::vector<MachineLimits> limits;
    for (int n = threads > 0 ? most : 1;; n = std::min(2 * n, most)) {
      ThreadPool pool(n);
      TERN_ASSIGN_OR_RETURN(MachineLimits measured,
                            MeasureLimits(EnvIsa().value_or(""), pool, options));
      limits.push_back(std::move(measured));
      if (n == most) break;
    }
    const BenchMachine machine = BenchMachine::Here(limits[0].isa, most);
    Json json = {{"bench", "limits"}, {"machine", machine.ToJson()}, {"results", Json::array()}};
    for (const MachineLimits& measured : limits) json["results"].push_back(measured.ToJson());
    return WriteBenchOutputs(outputs, machine.ToText() + "\n" + LimitsTable(limits), json,
                             LimitsPicture(limits, machine.ToText()));
  });
}

int BenchCommand(const std::vector<std::string>& args) {
  if (args.empty()) {
    PrintUsage(stderr);
    return 2;
  }
  if (args[0] == "--help" || args[0] == "-h") {
    PrintUsage(stdout);
    return 0;
  }
  for (const Part& part : kParts) {
    if (args[0] == part.name) return part.run({args.begin() + 1, args.end()});
  }
  fmt::print(stderr, "tern bench: there is no part '{}'; `tern bench --help` lists them\n",
             args[0]);
  return 2;
}

}  // namespace tern
