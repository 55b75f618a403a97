// tern bench: speed. What each figure means: docs/performance.md.
#include "cmd/bench.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/env.h"
#include "base/file.h"
#include "base/log.h"
#include "base/topology.h"
#include "bench/bench_machine.h"
#include "bench/machine_limits.h"
#include "bench/model_bench.h"
#include "cmd/bench_model.h"
#include "cmd/commands.h"
#include "cmd/progress_bar.h"
#include "report/report_file.h"

namespace tern {
namespace {

struct Part {
  const char* name;
  const char* summary;
  int (*run)(const std::vector<std::string>& args);
};

constexpr Part kParts[] = {
    {"limits", "memory bandwidth and peak arithmetic of this machine", BenchLimitsCommand},
    {"model", "prefill and decode of a model, as shares of the limits", BenchModelCommand},
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
  table.Add("--json", &outputs.json, "FILE", "write the result").Group("Output");
  table.Add("--plot", &outputs.plot, "FILE.svg", "write a picture").Group("Output");
}

Status CheckBenchOutputs(const BenchOutputs& outputs) {
  for (const std::string& path : {outputs.json, outputs.plot}) {
    if (path.empty()) continue;
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

Status WriteBenchOutputs(const BenchOutputs& outputs, const Json& json, const SvgPicture& picture) {
  if (!outputs.json.empty()) TERN_RETURN_IF_ERROR(WriteReportJson(outputs.json, json));
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
    fmt::print("{}\n{}", machine.ToText(), LimitsTable(limits));
    return WriteBenchOutputs(outputs, json, LimitsPicture(limits, machine.ToText()));
  });
}

namespace {

struct ModelBenchCommandOptions {
  ModelOptions model;
  std::string recipes, kv_formats, activations;
  std::string prefill = "512", decode = "1@0,1@512,8@512";
  int64_t decode_tokens = 64;
  ModelBenchOptions bench;
  int64_t seed = 1;
  BenchOutputs outputs;
};

std::vector<std::string> Items(const std::string& list, const std::string& fallback) {
  std::vector<std::string> items;
  for (size_t at = 0; at <= list.size() && !list.empty();) {
    const size_t comma = std::min(list.find(',', at), list.size());
    items.push_back(list.substr(at, comma - at));
    at = comma + 1;
  }
  if (items.empty()) items.push_back(fallback);
  return items;
}

OptionTable ModelBenchTableOf(ModelBenchCommandOptions& o) {
  OptionTable table("tern bench model",
                    "Speed of a model's forward passes, without scheduler and sampler, and the "
                    "share of what memory\nbandwidth and arithmetic, measured in the same run, "
                    "allow.");
  table.Add("--prefill", &o.prefill, "N,N...", "prompt lengths; empty: none").Group("What");
  table
      .Add("--decode", &o.decode, "B@N,B@N...",
           "batch sizes and the positions that each sequence has in its cache; empty: none")
      .Group("What");
  table.Add("--decode-tokens", &o.decode_tokens, "N", "steps of each: contexts grow by as many")
      .Range(1, 1 << 20)
      .Group("What");
  table.Add("--repetitions", &o.bench.repetitions, "N", "after one that is not counted")
      .Range(1, 10000)
      .Group("What");
  table
      .Add("--real-context", &o.bench.real_context, "N",
           "positions of a context that are computed, whole pages; the rest repeats their rows; "
           "0: all")
      .Range(0, 1 << 24)
      .Group("What");
  table
      .Add("--dummy-recipes", &o.recipes, "NAME,NAME...",
           "several of --dummy-recipe, one after the other")
      .Group("What");
  table
      .Add("--kv-cache-dtypes", &o.kv_formats, "NAME,NAME...",
           "several of --kv-cache-dtype, one after the other")
      .Group("What");
  table
      .Add("--activation-dtypes", &o.activations, "NAME,NAME...",
           "several of --activation-dtype, one after the other")
      .Group("What");
  table.Add("--seed", &o.seed, "N", "of the token ids").Range(0, 9e15).Group("What");
  DeclareBenchOutputs(table, o.outputs);
  DeclareModelOptions(table, o.model);
  return table;
}

Status RunModelBenchCommand(ModelBenchCommandOptions& o) {
  if (o.model.model_path.empty()) return InvalidArgument("--model-path is required");
  TERN_RETURN_IF_ERROR(CheckBenchOutputs(o.outputs));
  ModelBenchOptions& bench = o.bench;
  bench.seed = static_cast<uint64_t>(o.seed);
  bench.chunk = o.model.engine.chunked_prefill_size;
  bench.real_context = (bench.real_context + o.model.engine.page_tokens - 1) /
                       o.model.engine.page_tokens * o.model.engine.page_tokens;
  TERN_ASSIGN_OR_RETURN(bench.works, PrefillWorks(o.prefill));
  TERN_ASSIGN_OR_RETURN(const auto decode, DecodeWorks(o.decode, o.decode_tokens));
  bench.works.insert(bench.works.end(), decode.begin(), decode.end());
  if (bench.works.empty())
    return InvalidArgument("nothing to do: --prefill and --decode are empty");

  const int threads = o.model.threads > 0 ? static_cast<int>(o.model.threads) : AvailableThreads();
  ThreadPool pool(threads);
  TERN_ASSIGN_OR_RETURN(const auto ops, Ops::Create(EnvIsa().value_or(""), pool));
  const BenchMachine machine = BenchMachine::Here(ops->isa(), threads);
  TERN_ASSIGN_OR_RETURN(MachineLimits limits, MeasureLimits(ops->isa(), pool, {}));

  std::vector<ModelResult> results;
  for (const std::string& recipe : Items(o.recipes, o.model.dummy_recipe)) {
    ModelOptions options = o.model;
    options.dummy_recipe = recipe;
    TERN_ASSIGN_OR_RETURN(const auto model, LoadedBenchModel::Load(options, *ops));
    for (const std::string& kv : Items(o.kv_formats, o.model.kv_cache_dtype)) {
      TERN_ASSIGN_OR_RETURN(const KvFormat format, KvFormatNamed(kv));
      TERN_RETURN_IF_ERROR(model->SetKvFormat(format));
      for (const std::string& activation : Items(o.activations, o.model.activation_dtype)) {
        if (activation != "auto" && activation != "int8") {
          return InvalidArgument(fmt::format("--activation-dtypes: '{}' is unknown", activation));
        }
        ops->set_activations(activation == "int8" ? Activations::kInt8 : Activations::kFloat);
        ProgressBar bar("bench model", "works");
        TERN_ASSIGN_OR_RETURN(
            auto more, RunModelBench(*model, *ops, bench,
                                     [&bar](const std::string&, int64_t done, int64_t total) {
                                       bar.Update(done, total);
                                     }));
        results.insert(results.end(), more.begin(), more.end());
      }
    }
  }
  // Limits before and after: other work on the machine comes and goes.
  TERN_ASSIGN_OR_RETURN(const MachineLimits after, MeasureLimits(ops->isa(), pool, {}));
  limits = MachineLimits::Best(limits, after);
  ApplyLimits(limits, results);
  fmt::print("{}, {}\n{}\n{}", o.model.model_path, machine.ToText(), LimitsTable({limits}),
             ModelBenchTable(results));
  if (bench.real_context > 0) {
    fmt::print("Contexts: the first {} positions computed, their rows repeated beyond.\n",
               bench.real_context);
  }
  return WriteBenchOutputs(o.outputs, ModelBenchJson(machine, limits, bench, results),
                           ModelBenchPicture(machine, results));
}

}  // namespace

int BenchModelCommand(const std::vector<std::string>& args) {
  ModelBenchCommandOptions options;
  OptionTable table = ModelBenchTableOf(options);
  SetLogLevel(LogLevel::kWarning);
  return RunBench(table, "tern bench model", args, [&] { return RunModelBenchCommand(options); });
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
