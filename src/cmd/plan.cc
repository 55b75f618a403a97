// tern plan: what a model needs of a machine and how fast it can be there, before either is at
// hand. How it counts: docs/plan.md.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/args.h"
#include "base/env.h"
#include "base/file.h"
#include "base/log.h"
#include "base/topology.h"
#include "bench/kernel_speeds.h"
#include "bench/machine_limits.h"
#include "cmd/commands.h"
#include "cmd/disaggregation_options.h"
#include "cmd/load.h"
#include "cmd/load_model.h"
#include "cmd/plan_report.h"
#include "cmd/progress_bar.h"
#include "cmd/serving.h"
#include "engine/engine.h"
#include "engine/local_plan.h"
#include "models/registry.h"
#include "models/shared_weights.h"
#include "report/report_file.h"

namespace tern {
namespace {

constexpr double kMost = 1e18;  // bytes, operations or bytes per second: more is a slip
constexpr int64_t kMostDevices = 1 << 16;

struct PlanOptions {
  std::string path, recipe;
  std::string kv_cache_dtype = "auto", kv_bf16_layers, activation_dtype = "auto";
  EngineOptions engine;
  DisaggregationOptions disaggregation;
  std::string prefill_recipe;
  int64_t gpus = 0, tp = 0, threads = 0;
  std::string gpu_memory, kv_memory, reserve, bandwidth, flops;
  double bandwidth_efficiency = 1, arithmetic_efficiency = 1, price = 0;
  int64_t prompt_tokens = 0, batch = 0;
  bool json = false;
  std::string plot;
};

OptionTable PlanTable(PlanOptions& o) {
  OptionTable table(
      "tern plan",
      "What a model needs of a machine, and how fast it can be there: bytes, tokens, "
      "requests at once,\nexpected speed and cost. Of GPUs that flags describe, or of "
      "this machine, as `tern serve` would allocate.");
  table
      .Add("--model-path", &o.path, "DIR|FILE", "a config.json, a folder with one, or a .gguf file")
      .Positional()
      .Required();
  table
      .Add("--recipe", &o.recipe, "NAME",
           "how weights are stored (see `tern inspect --help`); default: as the config says")
      .Choices({"config", "bf16", "fp8", "int4", "kimi", "fp8-linear", "int4-linear"})
      .Group("Model");
  table
      .Add("--kv-cache-dtype", &o.kv_cache_dtype, "FORMAT",
           "bf16, fp8_e4m3, fp8_tiled, fp8_ds_mla or auto, as `tern serve` has them")
      .Group("Model");
  table.Add("--kv-bf16-layers", &o.kv_bf16_layers, "LIST", "layers that stay in BF16: 0,60")
      .Group("Model");
  table.Add("--page-size", &o.engine.page_tokens, "N", "tokens per page")
      .Range(1, 1024)
      .Group("Model");
  table
      .Add("--context-length", &o.engine.context_length, "N",
           "tokens of a request, for requests at once and for decode's speed; 0: the model's")
      .Range(0, 1 << 24)
      .Group("Model");
  table.Add("--prompt-tokens", &o.prompt_tokens, "N", "for prefill; 0: the context, at most 4096")
      .Range(0, 1 << 24)
      .Group("Model");
  table
      .Add("--batch", &o.batch, "N",
           "requests of a replica at once, for decode's speed; 0: as many as fit")
      .Range(0, 1 << 20)
      .Group("Model");
  table
      .Add("--mem-fraction-static", &o.engine.mem_fraction_static, "X",
           "share of memory for weights and KV cache")
      .Range(0, 1)
      .Group("Memory");
  table.Add("--chunked-prefill-size", &o.engine.chunked_prefill_size, "N", "rows of a prefill pass")
      .Range(1, 1 << 20)
      .Group("Memory");
  table
      .Add("--max-running-requests", &o.engine.max_running_requests, "N",
           "this machine: as `tern serve` has it")
      .Range(1, 1 << 20)
      .Group("Memory");
  table
      .Add("--max-total-tokens", &o.engine.max_total_tokens, "N",
           "KV capacity in tokens; 0: what fits")
      .Range(0, 1e12)
      .Group("Memory");
  table.Add("--gpus", &o.gpus, "N", "devices in all; without it: this machine")
      .Range(1, kMostDevices)
      .Group("Machine");
  table.Add("--tp", &o.tp, "N", "ranks of a replica; default: all devices")
      .Range(1, 4096)
      .Group("Machine");
  table.Add("--gpu-memory", &o.gpu_memory, "SIZE", "of a device: 141GB, 131.3GiB").Group("Machine");
  table
      .Add("--kv-memory", &o.kv_memory, "SIZE",
           "of a device for KV alone, instead of --gpu-memory and its fraction")
      .Group("Machine");
  table
      .Add("--reserve", &o.reserve, "SIZE",
           "of a device for activations and graphs, besides what the fraction leaves")
      .Group("Machine");
  table.Add("--bandwidth", &o.bandwidth, "RATE", "of a device's memory: 4.8TB/s").Group("Machine");
  table.Add("--flops", &o.flops, "RATE", "operations per second of a device: 989T")
      .Group("Machine");
  table.Add("--activation-dtype", &o.activation_dtype, "NAME", "as in serve; this machine's speed")
      .Choices({"auto", "int8"})
      .Group("Machine");
  table.Add("--threads", &o.threads, "N", "of this machine; 0: all")
      .Range(0, 4096)
      .Group("Machine");
  table
      .Add("--bandwidth-efficiency", &o.bandwidth_efficiency, "X",
           "share of --bandwidth, or of the speed measured here, reached")
      .Range(0.001, 1)
      .Group("Free parameters");
  table
      .Add("--arithmetic-efficiency", &o.arithmetic_efficiency, "X",
           "share of --flops, or of the speeds measured here, reached")
      .Range(0.001, 1)
      .Group("Free parameters");
  table.Add("--price", &o.price, "X", "of an hour of all devices, in any currency")
      .Range(0, 1e9)
      .Group("Free parameters");
  DeclareLocalMode(table, o.disaggregation);
  table
      .Add("--prefill-recipe", &o.prefill_recipe, "NAME",
           "local: how prefill's weights are stored; default: as --recipe says")
      .Choices({"config", "bf16", "fp8", "int4", "kimi", "fp8-linear", "int4-linear"})
      .Group("Prefill and decode apart");
  table.Add("--json", &o.json, "", "print one JSON object").Group("Output");
  table.Add("--plot", &o.plot, "FILE.svg", "write a picture").Group("Output");
  return table;
}

struct Unit {
  const char* name;
  double factor;
};
constexpr Unit kSizes[] = {{"", 1},         {"B", 1},       {"KB", 1e3},     {"MB", 1e6},
                           {"GB", 1e9},     {"TB", 1e12},   {"KiB", 0x1p10}, {"MiB", 0x1p20},
                           {"GiB", 0x1p30}, {"TiB", 0x1p40}};
constexpr Unit kRates[] = {{"", 1}, {"M", 1e6}, {"G", 1e9}, {"T", 1e12}, {"P", 1e15}};

// "141GB" by `units`; `example` goes into the error. `suffix` may follow: "/s", "FLOPS".
Result<double> Quantity(const char* flag, std::string_view text, std::span<const Unit> units,
                        std::string_view suffix, const char* example) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  std::string_view unit(rest, static_cast<size_t>(end - rest));
  if (unit.ends_with(suffix)) unit.remove_suffix(suffix.size());
  const auto found =
      std::find_if(units.begin(), units.end(), [&](const Unit& u) { return unit == u.name; });
  if (error != std::errc() || found == units.end() || !std::isfinite(number)) {
    return InvalidArgument(fmt::format("{} '{}' is not a quantity like {}", flag, text, example));
  }
  const double value = number * found->factor;
  if (!(value >= 1 && value <= kMost)) {
    return InvalidArgument(fmt::format("{} '{}' must be more than 0 and at most 1e18", flag, text));
  }
  return value;
}

Result<uint64_t> Size(const char* flag, const std::string& text) {
  TERN_ASSIGN_OR_RETURN(const double bytes, Quantity(flag, text, kSizes, "", "141GB or 131.3GiB"));
  return static_cast<uint64_t>(bytes);
}

Status SetLimits(const PlanOptions& o, SpeedMachine* limits) {
  if (!o.bandwidth.empty()) {
    TERN_ASSIGN_OR_RETURN(limits->bytes_per_s,
                          Quantity("--bandwidth", o.bandwidth, kSizes, "/s", "4.8TB/s"));
  }
  if (!o.flops.empty()) {
    TERN_ASSIGN_OR_RETURN(limits->operations_per_s,
                          Quantity("--flops", o.flops, kRates, "FLOPS", "989T"));
  }
  return OkStatus();
}

Status CheckMachine(const PlanOptions& o) {
  if (o.gpus == 0) {
    for (const auto& [flag, given] :
         {std::pair("--tp", o.tp > 1), std::pair("--gpu-memory", !o.gpu_memory.empty()),
          std::pair("--kv-memory", !o.kv_memory.empty()),
          std::pair("--reserve", !o.reserve.empty())}) {
      if (given) return InvalidArgument(fmt::format("{} needs --gpus", flag));
    }
    return OkStatus();
  }
  if (o.gpu_memory.empty() == o.kv_memory.empty()) {
    return InvalidArgument("--gpus needs --gpu-memory or --kv-memory, one of them");
  }
  if (!o.kv_memory.empty() && !o.reserve.empty()) {
    return InvalidArgument("--reserve has no meaning beside --kv-memory");
  }
  if (o.tp > 0 && o.gpus % o.tp != 0) {
    return InvalidArgument(fmt::format("--tp {}: --gpus {} is no multiple of it", o.tp, o.gpus));
  }
  return OkStatus();
}

// What is wrong with the flags alone.
Status CheckUsage(const PlanOptions& o) {
  TERN_RETURN_IF_ERROR(CheckMachine(o));
  TERN_RETURN_IF_ERROR(CheckDisaggregationOptions(o.disaggregation));
  if (o.disaggregation.local() && o.gpus > 0) {
    return InvalidArgument("--disaggregation-mode local is for this machine, not for --gpus");
  }
  if (!o.prefill_recipe.empty() && !o.disaggregation.local()) {
    return InvalidArgument("--prefill-recipe needs --disaggregation-mode local");
  }
  if (!o.recipe.empty() && o.path.ends_with(".gguf")) {
    return InvalidArgument(fmt::format("--recipe is for a config.json, not for {}", o.path));
  }
  SpeedMachine limits;
  TERN_RETURN_IF_ERROR(SetLimits(o, &limits));
  for (const auto& [flag, text] :
       {std::pair("--gpu-memory", &o.gpu_memory), std::pair("--kv-memory", &o.kv_memory),
        std::pair("--reserve", &o.reserve)}) {
    if (text->empty()) continue;
    TERN_RETURN_IF_ERROR(Size(flag, *text).status());
  }
  return ParseKvBf16Layers(o.kv_bf16_layers).status();
}

// The memory of one device. Workspace is --reserve: tern has no kernels there that would tell.
Status PlanDevices(PlanOptions& o, PlanReport* report) {
  ModelInfo info;
  info.context_length = report->model.config.max_position_embeddings;
  info.kv_layers = report->model.kv_layers;
  info.weight_bytes = report->model.rank_weight_bytes;
  if (!o.reserve.empty()) {
    TERN_ASSIGN_OR_RETURN(report->reserve_bytes, Size("--reserve", o.reserve));
    info.scratch_bytes = report->reserve_bytes;
  }
  uint64_t available = 0;
  if (!o.kv_memory.empty()) {
    TERN_ASSIGN_OR_RETURN(available, Size("--kv-memory", o.kv_memory));
    available += info.weight_bytes;
    o.engine.mem_fraction_static = 1;
  } else {
    TERN_ASSIGN_OR_RETURN(available, Size("--gpu-memory", o.gpu_memory));
  }
  // How many requests run is an answer here, no setting.
  o.engine.max_running_requests = int64_t{1} << 40;
  TERN_ASSIGN_OR_RETURN(report->memory, PlanMemory(info, MemoryPlanInputOf(o.engine, available)));
  report->gpus = o.gpus;
  report->machine = fmt::format("{} devices, {} ranks a replica", o.gpus, report->model.tp);
  const bool known = report->limits.bytes_per_s > 0 && report->limits.operations_per_s > 0;
  report->limits_from = known ? "--bandwidth and --flops" : "not given";
  return OkStatus();
}

// How `serve` would load a checkpoint, or made-up weights by a recipe where there is none.
Result<LoadOptions> LoadOptionsOf(const std::string& path, const std::string& recipe) {
  const bool files = path.ends_with(".gguf") || FileExists(path + "/model.safetensors") ||
                     FileExists(path + "/model.safetensors.index.json");
  LoadOptions load;
  load.format = files && recipe.empty() ? LoadFormat::kAuto : LoadFormat::kDummy;
  TERN_ASSIGN_OR_RETURN(load.dummy_recipe, WeightRecipeNamed(recipe.empty() ? "config" : recipe));
  return load;
}

std::string PrefillPathOf(const PlanOptions& o) {
  return o.disaggregation.prefill_model_path.empty() ? o.path : o.disaggregation.prefill_model_path;
}
const std::string& PrefillRecipeOf(const PlanOptions& o) {
  return o.prefill_recipe.empty() ? o.recipe : o.prefill_recipe;
}

// The prefill side beside `model`, which is loaded, as `serve` would have both.
Status PlanBoth(const PlanOptions& o, Ops& ops, const Model& model, uint64_t available,
                SharedWeights* shared, PlanReport* report) {
  const std::string path = PrefillPathOf(o);
  TERN_ASSIGN_OR_RETURN(LoadOptions load, LoadOptionsOf(path, PrefillRecipeOf(o)));
  load.shared = shared;
  TERN_ASSIGN_OR_RETURN(const auto prefill, LoadWithProgress(path, ops, load));
  TERN_ASSIGN_OR_RETURN(const EngineOptions options,
                        PrefillEngineOptions(o.disaggregation, o.engine, prefill->info()));
  PrefillPool pool = {.path = path,
                      .recipe = PrefillRecipeOf(o).empty() ? "config" : PrefillRecipeOf(o),
                      .kv_format = KvFormatName(options.kv_format)};
  TERN_ASSIGN_OR_RETURN(pool.plan,
                        PlanLocal(prefill->info(), options, model.info(), o.engine, available));
  report->memory = pool.plan.decode;
  report->prefill_pool = std::move(pool);
  return OkStatus();
}

// This machine, as far as a plan uses it.
struct Host {
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<MeasuredKernels> kernels;
};

// What `serve` would allocate: the model is loaded, as only its packed weights say what they take.
Status PlanHost(PlanOptions& o, Host* host, PlanReport* report) {
  const int threads = o.threads > 0 ? static_cast<int>(o.threads) : AvailableThreads();
  host->pool = std::make_unique<ThreadPool>(threads);
  ThreadPool& pool = *host->pool;
  TERN_ASSIGN_OR_RETURN(host->ops, Ops::Create(EnvIsa().value_or(""), pool));
  Ops* const ops = host->ops.get();
  if (o.activation_dtype == "int8") ops->set_activations(Activations::kInt8);
  const bool local = o.disaggregation.local();
  SharedWeights shared;
  TERN_ASSIGN_OR_RETURN(LoadOptions load, LoadOptionsOf(o.path, o.recipe));
  if (local) load.shared = &shared;
  const uint64_t available = AvailableMemoryBytes();
  // As `serve` has it besides weights, workspace and pages: no list of parts would say it.
  const auto tokenizer =
      load.format == LoadFormat::kDummy ? LoadDummyTokenizer(o.path) : LoadTokenizer(o.path);
  const uint64_t heap = ResidentBytes() - ResidentFileBytes();
  {
    TERN_ASSIGN_OR_RETURN(const auto model, LoadWithProgress(o.path, *ops, load));
    TERN_ASSIGN_OR_RETURN(o.engine.kv_format,
                          ChooseKvFormat(o.kv_cache_dtype, model->info(), local));
    if (local) {
      TERN_RETURN_IF_ERROR(PlanBoth(o, *ops, *model, available, &shared, report));
    } else {
      TERN_ASSIGN_OR_RETURN(report->memory,
                            PlanMemory(model->info(), MemoryPlanInputOf(o.engine, available)));
      // Code that has run by now; what the allocator keeps of loading is no part of it.
      report->program_bytes = heap + ResidentFileBytes();
    }
  }
  report->host = true;
  report->machine = fmt::format("this machine: {}, {} threads, {}", CpuName(), threads, ops->isa());
  SpeedMachine& limits = report->limits;
  if (limits.bytes_per_s > 0 && limits.operations_per_s > 0) {
    report->limits_from = "--bandwidth and --flops";
    return OkStatus();
  }
  TERN_ASSIGN_OR_RETURN(const MachineLimits measured, MeasureLimits(ops->isa(), pool, {}));
  if (limits.bytes_per_s == 0) limits.bytes_per_s = measured.read.best;
  if (limits.operations_per_s == 0) {
    limits.operations_per_s = std::max(measured.bf16.best, measured.f32.best);
  }
  // A rate that is given stands for all kernels, in decode as in prefill.
  if (!o.flops.empty()) {
    report->limits_from = "memory measured here; --flops";
    return OkStatus();
  }
  report->limits_from = o.bandwidth.empty()
                            ? "measured here; decode by its kernels' speeds"
                            : "--bandwidth; the rest measured here, decode by its kernels' speeds";
  host->kernels = std::make_unique<MeasuredKernels>(
      *ops, PlannedLayerOf(report->model.config, o.engine.kv_format));
  limits.kernels = host->kernels.get();
  return OkStatus();
}

// Kernels that say how many of `questions` they have answered: each may take a while.
class AskedKernels final : public KernelSpeeds {
 public:
  AskedKernels(KernelSpeeds& kernels, int64_t questions)
      : kernels_(kernels), questions_(questions), bar_("measuring kernels", "figures") {}

  double MatMul(const WeightGroup& weights, double rows) override {
    return Answered(kernels_.MatMul(weights, rows));
  }
  double Attention(int64_t batch, int64_t positions) override {
    return Answered(kernels_.Attention(batch, positions));
  }
  double RestOfLayer(int64_t rows) override { return Answered(kernels_.RestOfLayer(rows)); }
  double RegionSeconds() override { return Answered(kernels_.RegionSeconds()); }

  // What DecodeStep asks besides one question for each group of weights.
  static constexpr int64_t kOfAStep = 3;

 private:
  double Answered(double figure) {
    bar_.Update(++answered_, questions_);
    return figure;
  }

  KernelSpeeds& kernels_;
  const int64_t questions_;
  int64_t answered_ = 0;
  ProgressBar bar_;
};

void PlanDecode(const PlanOptions& o, PlanReport* report) {
  SpeedMachine limits = report->limits;
  const SpeedModel& speed = report->model.speed;
  const auto replicas = static_cast<double>(report->replicas());
  const int64_t context = report->memory.context_length;
  int64_t most = o.batch > 0 ? o.batch : std::max<int64_t>(report->memory.full_contexts, 1);
  if (report->host && o.batch == 0) most = std::min(most, o.engine.max_running_requests);
  std::vector<int64_t> batches;
  for (int64_t batch = 1; batch < most; batch *= 2) batches.push_back(batch);
  batches.push_back(most);
  std::optional<AskedKernels> kernels;
  if (limits.kernels != nullptr) {
    const auto of_a_step = static_cast<int64_t>(speed.groups.size()) + AskedKernels::kOfAStep;
    kernels.emplace(*limits.kernels, static_cast<int64_t>(batches.size()) * of_a_step);
    limits.kernels = &*kernels;
  }
  for (const int64_t batch : batches) {
    PlanPoint point{.batch = batch, .tokens = context};
    point.cost = DecodeStep(speed, limits, batch, context);
    point.tokens_per_s = replicas * static_cast<double>(batch) / point.cost.seconds;
    report->curve.push_back(point);
  }
  report->decode.push_back(report->curve.front());
  if (most > 1) report->decode.push_back(report->curve.back());
}

void PlanSpeed(const PlanOptions& o, PlanReport* report) {
  const SpeedMachine& limits = report->limits;
  if (limits.bytes_per_s == 0 || limits.operations_per_s == 0) return;
  PlanDecode(o, report);
  const int64_t context = report->memory.context_length;
  const int64_t prompt = o.prompt_tokens > 0 ? o.prompt_tokens : std::min<int64_t>(context, 4096);
  PlanPoint prefill{.tokens = prompt};
  prefill.cost = PrefillPrompt(report->prefill_speed ? *report->prefill_speed : report->model.speed,
                               limits, prompt, o.engine.chunked_prefill_size);
  prefill.tokens_per_s =
      static_cast<double>(report->replicas()) * static_cast<double>(prompt) / prefill.cost.seconds;
  report->prefill.push_back(prefill);
}

// Prompts are computed with prefill's weights and rows.
Status SetPrefillSpeed(const PlanOptions& o, PlanReport* report) {
  const PrefillPool& pool = *report->prefill_pool;
  TERN_ASSIGN_OR_RETURN(const WeightRecipe recipe, WeightRecipeNamed(pool.recipe));
  TERN_ASSIGN_OR_RETURN(PlannedModel model, PlanModel(pool.path, recipe, 1));
  TERN_ASSIGN_OR_RETURN(const KvFormat format, KvFormatNamed(pool.kv_format));
  TERN_RETURN_IF_ERROR(
      SetCacheBytes(model.kv_layers, format, o.engine.page_tokens, {}, &model.speed));
  report->prefill_speed = model.speed;
  return OkStatus();
}

Status RunPlan(PlanOptions& o) {
  PlanReport report{.path = o.path, .recipe = o.recipe.empty() ? "config" : o.recipe};
  TERN_RETURN_IF_ERROR(SetLimits(o, &report.limits));
  report.limits.bandwidth_efficiency = o.bandwidth_efficiency;
  report.limits.arithmetic_efficiency = o.arithmetic_efficiency;
  report.price_per_hour = o.price;
  report.page_tokens = o.engine.page_tokens;
  report.kv_memory_given = !o.kv_memory.empty();
  TERN_ASSIGN_OR_RETURN(o.engine.kv_bf16_layers, ParseKvBf16Layers(o.kv_bf16_layers));
  TERN_ASSIGN_OR_RETURN(const WeightRecipe recipe, WeightRecipeNamed(report.recipe));
  const int64_t tp = o.tp > 0 ? o.tp : std::max<int64_t>(o.gpus, 1);
  TERN_ASSIGN_OR_RETURN(report.model, PlanModel(o.path, recipe, tp));
  ModelInfo of_config;
  of_config.fp8_kv_cache = report.model.config.quantization.fp8_kv_cache;
  of_config.kv_layers = report.model.kv_layers;
  TERN_ASSIGN_OR_RETURN(o.engine.kv_format,
                        ChooseKvFormat(o.kv_cache_dtype, of_config, o.disaggregation.local()));
  report.kv_format = KvFormatName(o.engine.kv_format);
  TERN_RETURN_IF_ERROR(SetCacheBytes(report.model.kv_layers, o.engine.kv_format,
                                     o.engine.page_tokens, o.engine.kv_bf16_layers,
                                     &report.model.speed));
  Host host;
  TERN_RETURN_IF_ERROR(o.gpus > 0 ? PlanDevices(o, &report) : PlanHost(o, &host, &report));
  report.mem_fraction_static = o.engine.mem_fraction_static;
  if (report.prefill_pool) {
    TERN_RETURN_IF_ERROR(SetPrefillSpeed(o, &report));
  }
  if (o.prompt_tokens > report.memory.context_length) {
    return InvalidArgument(fmt::format("--prompt-tokens {} is more than the context of {}",
                                       o.prompt_tokens, report.memory.context_length));
  }
  PlanSpeed(o, &report);
  if (!o.plot.empty()) {
    TERN_RETURN_IF_ERROR(WriteReportFile(o.plot, PlanPicture(report).ToSvg()));
  }
  fmt::print("{}", o.json ? DumpJson(PlanJson(report), 2) + "\n" : PlanText(report));
  return OkStatus();
}

}  // namespace

int PlanCommand(const std::vector<std::string>& args) {
  PlanOptions options;
  OptionTable table = PlanTable(options);
  SetLogLevel(LogLevel::kWarning);
  const Result<ParseOutcome> outcome = table.Parse(args);
  if (!outcome.ok()) {
    fmt::print(stderr, "tern plan: {}\n", outcome.status().message());
    return 2;
  }
  if (*outcome == ParseOutcome::kHelpShown) return 0;
  if (const Status usage = CheckUsage(options); !usage.ok()) {
    fmt::print(stderr, "tern plan: {}\n", usage.message());
    return 2;
  }
  const Status status = RunPlan(options);
  if (status.ok()) return 0;
  fmt::print(stderr, "tern plan: {}\n", status.message());
  return 1;
}

}  // namespace tern
