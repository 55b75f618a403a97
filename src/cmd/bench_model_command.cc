// tern bench model.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/log.h"
#include "base/topology.h"
#include "bench/bench_machine.h"
#include "bench/machine_limits.h"
#include "bench/model_bench.h"
#include "cmd/bench.h"
#include "cmd/bench_model.h"
#include "cmd/progress_bar.h"

namespace tern {
namespace {

struct ModelBenchCommandOptions {
  ModelOptions model;
  std::string recipes, kv_formats, activations;
  std::string prefill = "512", decode = "1@0,1@512,8@512";
  int64_t decode_tokens = 64;
  ModelBenchOptions bench;
  int64_t seed = 1;
  bool operations = false;
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
           "positions of each context that are computed, whole pages; the rest repeats their "
           "rows; 0: all")
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
  table
      .Add("--operations", &o.operations, "",
           "time each kind of operation too, in passes of their own, and draw a roofline of the "
           "five that take the most")
      .Group("What");
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
  if (o.operations) bench.profile = limits;

  std::vector<ModelResult> results;
  for (const std::string& recipe : Items(o.recipes, o.model.dummy_recipe)) {
    ModelOptions options = o.model;
    options.dummy_recipe = recipe;
    TERN_ASSIGN_OR_RETURN(const auto model, LoadedBenchModel::Load(options, *ops));
    for (const std::string& kv : Items(o.kv_formats, o.model.kv_cache_dtype)) {
      TERN_RETURN_IF_ERROR(model->SetKvFormat(kv));
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
  std::string text = fmt::format("{}, {}\n{}\n{}", o.model.model_path, machine.ToText(),
                                 LimitsTable({limits}), ModelBenchTable(results));
  if (bench.real_context > 0) {
    text += fmt::format(
        "Contexts: the first {} positions of each computed, their rows repeated beyond.\n",
        bench.real_context);
  }
  text += OperationsTable(results);
  return WriteBenchOutputs(o.outputs, text, ModelBenchJson(machine, limits, bench, results),
                           ModelBenchPicture(machine, limits, results));
}

}  // namespace

int BenchModelCommand(const std::vector<std::string>& args) {
  ModelBenchCommandOptions options;
  OptionTable table = ModelBenchTableOf(options);
  SetLogLevel(LogLevel::kWarning);
  return RunBench(table, "tern bench model", args, [&] { return RunModelBenchCommand(options); });
}

}  // namespace tern
