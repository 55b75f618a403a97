// tern bench step.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "base/env.h"
#include "base/log.h"
#include "base/topology.h"
#include "bench/bench_machine.h"
#include "bench/step_bench.h"
#include "cmd/bench.h"
#include "cmd/bench_model.h"
#include "cmd/progress_bar.h"

namespace tern {

int BenchStepCommand(const std::vector<std::string>& args) {
  ModelOptions model;
  StepBenchOptions o;
  int64_t seed = 1;
  BenchOutputs outputs;
  OptionTable table("tern bench step",
                    "Where the time of the engine's steps goes: model, sampler, and the rest; and "
                    "what a prompt costs\nthat is in the prefix cache.");
  table.Add("--batch", &o.batch, "N", "sequences that decode").Range(1, 4096).Group("What");
  table.Add("--prompt-tokens", &o.prompt_tokens, "N", "of each").Range(1, 1 << 20).Group("What");
  table.Add("--steps", &o.steps, "N", "that count").Range(1, 1 << 20).Group("What");
  table.Add("--repeated-prompt", &o.repeated_prompt, "N", "tokens; 0: not measured")
      .Range(0, 1 << 20)
      .Group("What");
  table.Add("--seed", &seed, "N", "of token ids and draws").Range(0, 9e15).Group("What");
  DeclareBenchOutputs(table, outputs);
  DeclareModelOptions(table, model);
  SetLogLevel(LogLevel::kWarning);
  return RunBench(table, "tern bench step", args, [&]() -> Status {
    if (model.model_path.empty()) return InvalidArgument("--model-path is required");
    TERN_RETURN_IF_ERROR(CheckBenchOutputs(outputs));
    o.seed = static_cast<uint64_t>(seed);
    ThreadPool pool(model.threads > 0 ? static_cast<int>(model.threads) : AvailableThreads());
    TERN_ASSIGN_OR_RETURN(const auto ops, Ops::Create(EnvIsa().value_or(""), pool));
    ops->set_activations(ActivationsOf(model));
    TERN_ASSIGN_OR_RETURN(const auto loaded, LoadedBenchModel::Load(model, *ops));
    TERN_ASSIGN_OR_RETURN(o.kv_format,
                          ChooseKvFormat(model.kv_cache_dtype, loaded->model().info()));
    const BenchMachine machine = BenchMachine::Here(ops->isa(), pool.threads());
    ProgressBar bar("bench step", "cases");
    TERN_ASSIGN_OR_RETURN(
        const StepBenchResult result,
        RunStepBench(loaded->model(), pool, o,
                     [&bar](int64_t done, int64_t total) { bar.Update(done, total); }));
    const std::string text =
        fmt::format("{}, {}\n{}", model.model_path, machine.ToText(), StepBenchTable(o, result));
    return WriteBenchOutputs(outputs, text, StepBenchJson(machine, o, result),
                             StepBenchPicture(machine, result));
  });
}

}  // namespace tern
