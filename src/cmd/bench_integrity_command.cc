// tern bench integrity.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "base/env.h"
#include "base/log.h"
#include "base/topology.h"
#include "bench/bench_machine.h"
#include "bench/integrity_bench.h"
#include "cmd/bench.h"
#include "cmd/progress_bar.h"
#include "cmd/serving.h"
#include "models/registry.h"

namespace tern {
namespace {

struct IntegrityCommandOptions {
  ModelOptions model;
  IntegrityBenchOptions bench;
  int64_t seed = 1;
  BenchOutputs outputs;
};

OptionTable IntegrityTableOf(IntegrityCommandOptions& o) {
  OptionTable table("tern bench integrity",
                    "What --kv-integrity tags and sealed cost: the share of step time by timers "
                    "inside the step,\nand speed against off, by turns.");
  table.Add("--batch", &o.bench.batch, "N", "streams at the same time")
      .Range(1, 4096)
      .Group("What");
  table
      .Add("--prefix-tokens", &o.bench.prefix_tokens, "N",
           "beginning that every second stream's prompts share")
      .Range(0, 1 << 20)
      .Group("What");
  table.Add("--own-tokens", &o.bench.own_tokens, "N", "of each prompt, besides")
      .Range(1, 1 << 20)
      .Group("What");
  table
      .Add("--answer-tokens", &o.bench.answer_tokens, "N",
           "of each answer; then the stream asks anew")
      .Range(1, 1 << 20)
      .Group("What");
  table.Add("--slices", &o.bench.slices, "N", "measurements of each mode")
      .Range(1, 1e6)
      .Group("What");
  table.Add("--slice-steps", &o.bench.slice_steps, "N", "steps of each")
      .Range(1, 1e6)
      .Group("What");
  table
      .Add("--mode", &o.bench.mode, "MODE",
           "this one alone, where its instructions are counted: then no ratio to off")
      .Choices({"all", "off", "tags", "sealed"})
      .Group("What");
  table.Add("--seed", &o.seed, "N", "of the token ids").Range(0, 9e15).Group("What");
  DeclareBenchOutputs(table, o.outputs);
  DeclareModelOptions(table, o.model);
  return table;
}

Status RunIntegrityCommand(IntegrityCommandOptions& o) {
  if (o.model.model_path.empty()) return InvalidArgument("--model-path is required");
  TERN_RETURN_IF_ERROR(CheckBenchOutputs(o.outputs));
  o.bench.seed = static_cast<uint64_t>(o.seed);
  const int threads = o.model.threads > 0 ? static_cast<int>(o.model.threads) : AvailableThreads();
  ThreadPool pool(threads);
  TERN_ASSIGN_OR_RETURN(const auto ops, Ops::Create(EnvIsa().value_or(""), pool));
  ops->set_activations(ActivationsOf(o.model));
  LoadOptions load;
  TERN_ASSIGN_OR_RETURN(load.format, LoadFormatNamed(o.model.load_format));
  TERN_ASSIGN_OR_RETURN(load.dummy_recipe, WeightRecipeNamed(o.model.dummy_recipe));
  TERN_ASSIGN_OR_RETURN(const auto model, LoadModel(o.model.model_path, *ops, load));
  EngineOptions engine = o.model.engine;
  TERN_ASSIGN_OR_RETURN(engine.kv_bf16_layers, ParseKvBf16Layers(o.model.kv_bf16_layers));
  TERN_ASSIGN_OR_RETURN(engine.kv_format, ChooseKvFormat(o.model.kv_cache_dtype, model->info()));
  ProgressBar bar("bench integrity", "slices");
  TERN_ASSIGN_OR_RETURN(const auto results, RunIntegrityBench(*model, *ops, engine, o.bench,
                                                              [&bar](int64_t done, int64_t all) {
                                                                bar.Update(done, all);
                                                              }));
  const BenchMachine machine = BenchMachine::Here(ops->isa(), threads);
  const std::string what =
      fmt::format("{}, {} KV, batch {}, half share {} tokens", o.model.model_path,
                  KvFormatName(engine.kv_format), o.bench.batch, o.bench.prefix_tokens);
  const std::string text =
      fmt::format("{}\n{}\n{}", what, machine.ToText(), IntegrityBenchTable(results));
  return WriteBenchOutputs(o.outputs, text, IntegrityBenchJson(machine, what, o.bench, results),
                           IntegrityBenchPicture(results, what));
}

}  // namespace

int BenchIntegrityCommand(const std::vector<std::string>& args) {
  IntegrityCommandOptions options;
  OptionTable table = IntegrityTableOf(options);
  SetLogLevel(LogLevel::kWarning);
  return RunBench(table, "tern bench integrity", args,
                  [&] { return RunIntegrityCommand(options); });
}

}  // namespace tern
