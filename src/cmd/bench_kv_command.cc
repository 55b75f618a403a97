// tern bench kv.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/log.h"
#include "base/topology.h"
#include "bench/bench_machine.h"
#include "bench/kv_bench.h"
#include "bench/machine_limits.h"
#include "cmd/bench.h"
#include "cmd/bench_model.h"
#include "cmd/plan_model.h"
#include "cmd/progress_bar.h"
#include "kernels/weight_info.h"

namespace tern {
namespace {

struct KvBenchCommandOptions {
  ModelOptions model;
  std::string formats = "bf16,fp8_e4m3,fp8_tiled", contexts = "4096,7680";
  KvBenchOptions bench;
  BenchOutputs outputs;
};

std::vector<std::string> Items(const std::string& list) {
  std::vector<std::string> items;
  for (size_t at = 0; at <= list.size();) {
    const size_t comma = std::min(list.find(',', at), list.size());
    items.push_back(list.substr(at, comma - at));
    at = comma + 1;
  }
  return items;
}

Status ParseContexts(const std::string& list, std::vector<int64_t>* contexts) {
  contexts->clear();
  for (const std::string& item : Items(list)) {
    int64_t n = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), n);
    if (error != std::errc() || end != item.data() + item.size() || n < 1 || n > 1 << 24) {
      return InvalidArgument(fmt::format("--contexts '{}': not a list like 4096,7680", list));
    }
    contexts->push_back(n);
  }
  return OkStatus();
}

OptionTable KvBenchTableOf(KvBenchCommandOptions& o) {
  OptionTable table("tern bench kv",
                    "What KV formats are worth: requests that fit in the memory of some BF16 ones, "
                    "and the speed of decoding\nthem all, by turns with BF16.");
  table
      .Add("--formats", &o.formats, "NAME,NAME...",
           "the first is what the others are compared with")
      .Group("What");
  table.Add("--contexts", &o.contexts, "N,N...", "positions of a request").Group("What");
  table.Add("--requests", &o.bench.requests, "N", "of the first format, whose memory all get")
      .Range(1, 4096)
      .Group("What");
  table.Add("--steps", &o.bench.steps, "N", "of each turn").Range(1, 1 << 16).Group("What");
  table.Add("--turns", &o.bench.turns, "N", "of each variant, after one that is not counted")
      .Range(1, 10000)
      .Group("What");
  DeclareBenchOutputs(table, o.outputs);
  DeclareModelOptions(table, o.model);
  table.SetEpilog(
      "Memory is that of the first format's requests, and 0.1 % more for formats with one scale "
      "per "
      "layer (page\nheaders), 2.5 % for those with scales in the rows. 'plan' is the ratio that "
      "`tern plan` expects from this\nmachine's limits.");
  return table;
}

// The planner's seconds of a step, from limits measured now and when they are first needed.
Result<StepForecast> ForecastOf(const KvBenchCommandOptions& o, const LoadedBenchModel& model,
                                const MachineLimits& limits, Ops& ops) {
  TERN_ASSIGN_OR_RETURN(const WeightRecipe recipe, WeightRecipeNamed(o.model.dummy_recipe));
  TERN_ASSIGN_OR_RETURN(const PlannedModel planned, PlanModel(o.model.model_path, recipe, 1));
  const SpeedMachine machine = {.bytes_per_s = limits.read.best,
                                .operations_per_s = std::max(limits.bf16.best, limits.f32.best)};
  const int64_t page_tokens = model.page_tokens();
  const auto kernels = std::make_shared<std::map<KvFormat, std::unique_ptr<MeasuredKernels>>>();
  return StepForecast([=, &ops](const BenchModelFacts& facts, int64_t batch, int64_t context) {
    SpeedModel speed = planned.speed;
    const Result<KvFormat> format = KvFormatNamed(facts.kv_format);
    if (!format.ok()) return 0.0;
    if (!SetCacheBytes(planned.kv_layers, *format, page_tokens, {}, &speed).ok()) return 0.0;
    auto& measured = (*kernels)[*format];
    if (measured == nullptr) {
      measured = std::make_unique<MeasuredKernels>(ops, PlannedLayerOf(planned.config, *format));
    }
    SpeedMachine here = machine;
    here.kernels = measured.get();
    return DecodeStep(speed, here, batch, context).seconds;
  });
}

Status RunKvBenchCommand(KvBenchCommandOptions& o) {
  if (o.model.model_path.empty()) return InvalidArgument("--model-path is required");
  TERN_RETURN_IF_ERROR(CheckBenchOutputs(o.outputs));
  TERN_RETURN_IF_ERROR(ParseContexts(o.contexts, &o.bench.contexts));
  ThreadPool pool(o.model.threads > 0 ? static_cast<int>(o.model.threads) : AvailableThreads());
  TERN_ASSIGN_OR_RETURN(const auto ops, Ops::Create(EnvIsa().value_or(""), pool));
  ops->set_activations(ActivationsOf(o.model));
  const BenchMachine machine = BenchMachine::Here(ops->isa(), pool.threads());
  TERN_ASSIGN_OR_RETURN(const MachineLimits limits, MeasureLimits(ops->isa(), pool, {}));
  TERN_ASSIGN_OR_RETURN(const auto first, LoadedBenchModel::Load(o.model, *ops));
  std::vector<std::unique_ptr<LoadedBenchModel>> models;
  std::vector<KvBenchFormat> formats;
  for (const std::string& name : Items(o.formats)) {
    models.push_back(first->SameWeights());
    LoadedBenchModel& model = *models.back();
    TERN_RETURN_IF_ERROR(model.SetKvFormat(name));
    const bool scales_in_rows =
        model.facts().kv_format == "fp8_tiled" || model.facts().kv_format == "fp8_ds_mla";
    formats.push_back({.model = &model,
                       .page_tokens = model.page_tokens(),
                       .page_bytes = model.page_bytes(),
                       .slack = models.size() == 1 ? 0
                                : scales_in_rows   ? 0.025
                                                   : 0.001});
  }
  TERN_ASSIGN_OR_RETURN(const StepForecast forecast, ForecastOf(o, *first, limits, *ops));
  ProgressBar bar("bench kv", "turns");
  TERN_ASSIGN_OR_RETURN(const auto results,
                        RunKvBench(formats, o.bench, forecast, [&bar](int64_t done, int64_t total) {
                          bar.Update(done, total);
                        }));
  const BenchModelFacts& facts = models.front()->facts();
  const std::string text =
      fmt::format("{}, {}, {} activations\n{}\n{}", o.model.model_path, machine.ToText(),
                  ActivationNameOf(*ops), LimitsTable({limits}), KvBenchTable(results));
  return WriteBenchOutputs(o.outputs, text, KvBenchJson(machine, o.bench, facts, results),
                           KvBenchPicture(machine, facts, results));
}

}  // namespace

int BenchKvCommand(const std::vector<std::string>& args) {
  KvBenchCommandOptions options;
  OptionTable table = KvBenchTableOf(options);
  SetLogLevel(LogLevel::kWarning);
  return RunBench(table, "tern bench kv", args, [&] { return RunKvBenchCommand(options); });
}

}  // namespace tern
