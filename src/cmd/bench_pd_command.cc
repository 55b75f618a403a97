// tern bench pd.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/log.h"
#include "base/topology.h"
#include "bench/bench_machine.h"
#include "bench/pd_bench.h"
#include "cmd/bench.h"
#include "cmd/disaggregation_options.h"
#include "cmd/progress_bar.h"
#include "cmd/serving.h"
#include "engine/local_pair.h"
#include "models/registry.h"
#include "models/shared_weights.h"

namespace tern {
namespace {

struct PdBenchCommandOptions {
  ModelOptions model;
  std::string transport = "tcp";
  PdBenchOptions bench;
  BenchOutputs outputs;
};

OptionTable PdBenchTableOf(PdBenchCommandOptions& o) {
  OptionTable table(
      "tern bench pd",
      "Prefill and decode apart: the time between tokens of steady streams under bursts of long "
      "prompts, with one\nengine on all threads and with two on half of them each; and the time to "
      "a prompt's first token with a\nhand-off, against one engine with prefill's threads.");
  PdBenchOptions& b = o.bench;
  table.Add("--streams", &b.streams, "N", "that decode at a time").Range(1, 4096).Group("Load");
  table.Add("--stream-prompt-tokens", &b.stream_prompt_tokens, "N", "of each")
      .Range(1, 1 << 24)
      .Group("Load");
  table.Add("--stream-output-tokens", &b.stream_output_tokens, "N", "of each; another follows")
      .Range(2, 1 << 24)
      .Group("Load");
  table.Add("--burst", &b.burst, "N", "prompts that come at once").Range(1, 4096).Group("Load");
  table.Add("--burst-prompt-tokens", &b.burst_prompt_tokens, "N", "of each")
      .Range(1, 1 << 24)
      .Group("Load");
  table.Add("--bursts", &b.bursts, "N", "of a turn").Range(1, 10000).Group("Load");
  table.Add("--interval", &b.interval_s, "SECONDS", "from burst to burst")
      .Range(0, 1e6)
      .Group("Load");
  table.Add("--quiet", &b.quiet_s, "SECONDS", "of a turn, before the first burst")
      .Range(0, 1e6)
      .Group("Load");
  table.Add("--turns", &b.turns, "N", "of each system; 0: no bursts at all")
      .Range(0, 10000)
      .Group("Load");
  table
      .Add("--transfer-pairs", &b.transfer_pairs, "N",
           "prompts for the time to first token with and without a hand-off, by turns; 0: none")
      .Range(0, 10000)
      .Group("Load");
  table.Add("--transport", &o.transport, "NAME", "between the two engines; tcp: over loopback")
      .Choices({"tcp", "memory"})
      .Group("Load");
  DeclareBenchOutputs(table, o.outputs);
  DeclareModelOptions(table, o.model);
  table.SetEpilog(
      "Prompts are random ids of the same lengths for every system; systems take turns. Rows are "
      "as "
      "--kv-cache-dtype says\nin decode and where there is one engine, BF16 in prefill.");
  return table;
}

// An engine with threads of its own; all have one set of weights.
struct EngineParts {
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Model> model;
  EngineOptions options;
};

class Systems {
 public:
  explicit Systems(const PdBenchCommandOptions& o) : o_(o) {}

  // "together" on all threads, "apart" on half of them each, "alone" on prefill's half.
  Status Make() {
    const int all = o_.model.threads > 0 ? static_cast<int>(o_.model.threads) : AvailableThreads();
    const int half = std::max(all / 2, 1);
    TERN_RETURN_IF_ERROR(Load(all, false, &together_));
    TERN_RETURN_IF_ERROR(Load(half, false, &alone_));
    TERN_RETURN_IF_ERROR(Load(half, true, &prefill_));
    TERN_RETURN_IF_ERROR(Load(std::max(all - half, 1), false, &decode_));
    TERN_ASSIGN_OR_RETURN(together_engine_, Start(together_, {}));
    TERN_ASSIGN_OR_RETURN(alone_engine_, Start(alone_, {}));
    TERN_RETURN_IF_ERROR(StartPair());
    together = {fmt::format("together, {}", Threads(all)), together_engine_.get()};
    alone = {fmt::format("one engine, {}", Threads(half)), alone_engine_.get()};
    apart = {fmt::format("apart, {} + {}", half, Threads(decode_.pool->threads())),
             apart_engine_.get()};
    return OkStatus();
  }

  const Model& model() const { return *together_.model; }
  PdBenchSubject subject() const {
    return {.model = o_.model.model_path,
            .transport = o_.transport,
            .kv_format = KvFormatName(decode_.options.kv_format),
            .prefill_kv_format = KvFormatName(prefill_.options.kv_format)};
  }
  const Ops& ops() const { return *together_.ops; }
  int threads() const { return together_.pool->threads(); }

  PdBenchSystem together, apart, alone;

 private:
  static std::string Threads(int n) { return fmt::format("{} thread{}", n, n == 1 ? "" : "s"); }

  Status Load(int threads, bool prefill, EngineParts* parts) {
    parts->pool = std::make_unique<ThreadPool>(threads);
    TERN_ASSIGN_OR_RETURN(parts->ops, Ops::Create(EnvIsa().value_or(""), *parts->pool));
    parts->ops->set_activations(ActivationsOf(o_.model));
    LoadOptions load;
    load.shared = &shared_;
    TERN_ASSIGN_OR_RETURN(load.format, LoadFormatNamed(o_.model.load_format));
    TERN_ASSIGN_OR_RETURN(load.dummy_recipe, WeightRecipeNamed(o_.model.dummy_recipe));
    TERN_ASSIGN_OR_RETURN(parts->model, LoadModel(o_.model.model_path, *parts->ops, load));
    parts->options = o_.model.engine;
    EngineOptions& e = parts->options;
    TERN_ASSIGN_OR_RETURN(e.kv_bf16_layers, ParseKvBf16Layers(o_.model.kv_bf16_layers));
    TERN_ASSIGN_OR_RETURN(e.kv_format,
                          ChooseKvFormat(o_.model.kv_cache_dtype, parts->model->info()));
    if (prefill) {
      e.kv_format = KvFormat::kBf16;
      e.kv_bf16_layers.clear();
    }
    // All that may be there at once, and what is cached of earlier prompts makes way.
    const PdBenchOptions& b = o_.bench;
    const auto whole = [&](int64_t tokens) { return (tokens / e.page_tokens + 2) * e.page_tokens; };
    const int64_t needed = b.streams * whole(b.stream_prompt_tokens + b.stream_output_tokens) +
                           std::max(b.bursts, int64_t{1}) * b.burst * whole(b.burst_prompt_tokens);
    if (e.max_total_tokens == 0) e.max_total_tokens = needed;
    return OkStatus();
  }

  Result<std::unique_ptr<Engine>> Start(EngineParts& parts, Disaggregation disaggregation) {
    return Engine::Start(*parts.model, *parts.ops, parts.options, metrics_, SystemClock(),
                         std::move(disaggregation));
  }

  Status StartPair() {
    TERN_ASSIGN_OR_RETURN(LocalDisaggregation local,
                          MakeLocalDisaggregation({}, {}, prefill_.model->info(), prefill_.options,
                                                  decode_.model->info(), decode_.options,
                                                  o_.transport == "memory" ? LocalTransport::kMemory
                                                                           : LocalTransport::kTcp));
    TERN_ASSIGN_OR_RETURN(auto first, Start(prefill_, std::move(local.prefill)));
    TERN_ASSIGN_OR_RETURN(auto second, Start(decode_, std::move(local.decode)));
    apart_engine_ =
        std::make_unique<LocalPair>(std::move(first), std::move(second), std::move(local.meeting));
    return OkStatus();
  }

  const PdBenchCommandOptions& o_;
  SharedWeights shared_;
  EngineParts together_, alone_, prefill_, decode_;
  MetricRegistry metrics_;
  std::unique_ptr<Engine> together_engine_, alone_engine_, apart_engine_;  // die first
};

Status RunPdBenchCommand(PdBenchCommandOptions& o) {
  if (o.model.model_path.empty()) return InvalidArgument("--model-path is required");
  TERN_RETURN_IF_ERROR(CheckBenchOutputs(o.outputs));
  Systems systems(o);
  TERN_RETURN_IF_ERROR(systems.Make());
  o.bench.vocab_size = systems.model().info().vocab_size;
  const BenchMachine machine = BenchMachine::Here(systems.ops().isa(), systems.threads());
  PdTransferResult transfer;
  if (o.bench.transfer_pairs > 0) {
    ProgressBar bar("bench pd: first tokens", "pairs");
    TERN_ASSIGN_OR_RETURN(
        transfer, RunPdTransferBench(systems.alone, systems.apart, o.bench,
                                     [&](int64_t done, int64_t all) { bar.Update(done, all); }));
  }
  std::vector<PdBenchResult> results;
  if (o.bench.turns > 0) {
    ProgressBar bar("bench pd: bursts", "turns");
    TERN_ASSIGN_OR_RETURN(results,
                          RunPdBench({systems.together, systems.apart}, o.bench,
                                     [&](int64_t done, int64_t all) { bar.Update(done, all); }));
  }
  const std::string text = fmt::format("{}, {}\n{}", o.model.model_path, machine.ToText(),
                                       PdBenchTable(o.bench, results, transfer));
  return WriteBenchOutputs(o.outputs, text,
                           PdBenchJson(machine, o.bench, systems.subject(), results, transfer),
                           PdBenchPicture(machine, o.bench, results, transfer));
}

}  // namespace

int BenchPdCommand(const std::vector<std::string>& args) {
  PdBenchCommandOptions options;
  OptionTable table = PdBenchTableOf(options);
  SetLogLevel(LogLevel::kWarning);
  return RunBench(table, "tern bench pd", args, [&] { return RunPdBenchCommand(options); });
}

}  // namespace tern
