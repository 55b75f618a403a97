// tern quantize: a checkpoint in, a quantized checkpoint out.
#include "quant/quantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/args.h"
#include "base/env.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/topology.h"
#include "checkpoint/gguf_hf_config.h"
#include "cmd/calibration_text.h"
#include "cmd/commands.h"
#include "cmd/gguf_tokenizer_files.h"
#include "cmd/load.h"
#include "cmd/progress_bar.h"
#include "cmd/quantize_report.h"
#include "kernels/ops.h"
#include "models/observer.h"
#include "models/registry.h"

namespace tern {
namespace {

struct Options {
  std::string model, output;
  std::string format = "int4", recipe = "auto", method = "auto", group = "32", shard_size = "5GB";
  std::vector<std::string> include, exclude;
  std::string calibration;
  bool calibrate_kv = false;
  int64_t calibration_tokens = 0;
  int64_t threads = 0;
};

Result<uint64_t> ParseSize(const std::string& text, const char* flag) {
  static constexpr std::pair<const char*, uint64_t> kUnits[] = {
      {"TB", 1'000'000'000'000}, {"GB", 1'000'000'000}, {"MB", 1'000'000}, {"KB", 1'000}, {"", 1}};
  for (const auto& [unit, factor] : kUnits) {
    const std::string_view ending(unit);
    if (!text.ends_with(ending)) continue;
    const std::string number = text.substr(0, text.size() - ending.size());
    const bool digits = !number.empty() && number.size() < 12 &&
                        number.find_first_not_of("0123456789") == std::string::npos;
    uint64_t bytes = 0;
    if (digits && !__builtin_mul_overflow(std::stoull(number), factor, &bytes) && bytes > 0) {
      return bytes;
    }
    break;
  }
  return InvalidArgument(
      fmt::format("{}: '{}' is no size (a number with KB, MB, GB or TB is)", flag, text));
}

Status ParsePatterns(const std::vector<std::string>& texts, const char* flag,
                     std::vector<ModulePattern>* patterns) {
  for (const std::string& text : texts) {
    Result<ModulePattern> pattern = ModulePattern::Make(text);
    if (!pattern.ok()) return pattern.status().WithContext(flag);
    patterns->push_back(std::move(*pattern));
  }
  return OkStatus();
}

// What the options say by themselves. `recipe` "auto" is left to the model.
Status ReadOptions(const Options& options, QuantizeOptions* out) {
  out->output = options.output;
  QuantSelection& selection = out->selection;
  selection.format = options.format == "fp8" ? QuantFormat::kFp8 : QuantFormat::kInt4;
  selection.recipe = options.recipe == "all-linear" ? QuantRecipe::kAllLinear : QuantRecipe::kKimi;
  selection.group = std::stoll(options.group);
  TERN_RETURN_IF_ERROR(ParsePatterns(options.include, "--include", &selection.include));
  TERN_RETURN_IF_ERROR(ParsePatterns(options.exclude, "--exclude", &selection.exclude));
  TERN_ASSIGN_OR_RETURN(out->shard_bytes, ParseSize(options.shard_size, "--shard-size"));
  const bool fp8 = selection.format == QuantFormat::kFp8;
  if (fp8 && options.method != "auto") {
    return InvalidArgument(
        "--method: FP8 blocks have one scale, the largest magnitude / 448; the methods are int4's");
  }
  if (fp8 && options.calibrate_kv) {
    return InvalidArgument(
        "--calibrate-kv: only int4 output has a place for the scales of the KV cache");
  }
  const bool calibrated = options.method == "calibrated" || options.calibrate_kv;
  if (calibrated != !options.calibration.empty()) {
    return InvalidArgument(calibrated
                               ? "--calibration FILE is needed: the text to calibrate with"
                               : "--calibration is for --method calibrated or --calibrate-kv");
  }
  out->method = options.method == "rtn" ? ScaleMethod::kRoundToNearest : ScaleMethod::kSearch;
  return OkStatus();
}

// config.json of the input, and what a GGUF file says instead of side files.
Result<Json> InputConfig(const Checkpoint& checkpoint, QuantizeOptions* out) {
  if (checkpoint.format() != CheckpointFormat::kGguf) {
    out->side_folder = ModelFolder(checkpoint.path());
    return ParseJsonFile(checkpoint.config().source);
  }
  TERN_ASSIGN_OR_RETURN(const OpenedGguf opened, OpenGgufFile(checkpoint.path()));
  TERN_ASSIGN_OR_RETURN(const auto tokens, opened.gguf.Strings("tokenizer.ggml.tokens"));
  if (tokens) {
    TERN_ASSIGN_OR_RETURN(const GgufTokenizer tokenizer, TokenizerFromGguf(opened.gguf));
    TERN_ASSIGN_OR_RETURN(TokenizerFiles files,
                          TokenizerFilesOf(tokenizer, checkpoint.config().max_position_embeddings,
                                           checkpoint.path()));
    out->texts.emplace_back("tokenizer.json", std::move(files.tokenizer_json));
    out->texts.emplace_back("tokenizer_config.json", std::move(files.tokenizer_config_json));
  } else {
    TERN_LOG(kWarning, "{} has no tokenizer: the output has none either", checkpoint.path());
  }
  out->texts.emplace_back("generation_config.json",
                          DumpJson(HfGenerationConfigOfGguf(checkpoint), 2) + "\n");
  return HfConfigOfGguf(checkpoint);
}

// The model that calibration runs, and its text.
struct Calibrator {
  std::unique_ptr<Ops> ops;
  std::unique_ptr<ObservedModel> model;
  std::optional<Calibration> calibration;
  std::unique_ptr<ProgressBar> bar;
};

Status StartCalibration(const Options& options, ThreadPool& pool, Calibrator* calibrator,
                        QuantizeOptions* out) {
  TERN_ASSIGN_OR_RETURN(const auto tokenizer, LoadTokenizer(options.model));
  std::shared_ptr<const ChatTemplate> chat_template;
  if (Result<std::string> source = LoadChatTemplateSource(options.model); source.ok()) {
    TERN_ASSIGN_OR_RETURN(chat_template, ChatTemplate::Compile(std::move(*source)));
  }
  TERN_ASSIGN_OR_RETURN(auto sequences,
                        LoadCalibrationText(options.calibration, *tokenizer, chat_template.get()));
  TERN_ASSIGN_OR_RETURN(const std::string text, ReadFile(options.calibration));
  out->calibration_id = fmt::format("{:016x}, {} tokens", Hash64(text), options.calibration_tokens);
  TERN_ASSIGN_OR_RETURN(calibrator->ops, Ops::Create(EnvIsa().value_or(""), pool));
  TERN_ASSIGN_OR_RETURN(calibrator->model, ObservedModel::Load(options.model, *calibrator->ops,
                                                               Precision::kProduction));
  calibrator->bar = std::make_unique<ProgressBar>("calibrating", "tokens");
  CalibrationOptions settings;
  settings.max_tokens = options.calibration_tokens;
  // Of JSON lines, the size of the file says little about the text.
  const bool plain =
      !options.calibration.ends_with(".jsonl") && !options.calibration.ends_with(".json");
  settings.text_bytes = plain ? static_cast<int64_t>(text.size()) : 0;
  settings.bos = tokenizer->bos();
  settings.progress = [bar = calibrator->bar.get()](int64_t done, int64_t total) {
    bar->Update(done, total);
  };
  TERN_ASSIGN_OR_RETURN(
      Calibration calibration,
      Calibration::Make(*calibrator->model, options.calibration, std::move(sequences), settings));
  calibrator->calibration.emplace(std::move(calibration));
  // One pass before all else: it judges the text, and shows the range of the KV cache.
  TERN_RETURN_IF_ERROR(calibrator->calibration->Collect({}).status());
  const CalibrationSummary& summary = calibrator->calibration->summary();
  TERN_LOG(kInfo, "calibration: {} tokens in {} windows, perplexity {:.3f}", summary.tokens,
           summary.windows, summary.perplexity);
  for (const std::string& warning : summary.warnings) TERN_LOG(kWarning, "{}", warning);
  if (options.calibrate_kv) {
    for (const KvRange& range : summary.kv) out->kv.push_back({range.k_scale, range.v_scale});
  }
  if (options.method == "calibrated") {
    out->calibration = &*calibrator->calibration;
    out->ops = calibrator->ops.get();
    out->calibration_bytes = AvailableMemoryBytes() / 2;
  }
  return OkStatus();
}

Status Run(const Options& options, QuantizeOptions settings) {
  TERN_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(options.model));
  TERN_ASSIGN_OR_RETURN(std::vector<TensorSpec> specs, TensorList(checkpoint->config()));
  if (options.recipe == "auto") {
    settings.selection.recipe =
        checkpoint->config().moe ? QuantRecipe::kKimi : QuantRecipe::kAllLinear;
  }
  TERN_ASSIGN_OR_RETURN(const Json config, InputConfig(*checkpoint, &settings));
  ThreadPool pool(options.threads > 0 ? static_cast<int>(options.threads) : AvailableThreads());
  Calibrator calibrator;
  if (!options.calibration.empty()) {
    TERN_RETURN_IF_ERROR(StartCalibration(options, pool, &calibrator, &settings));
  }
  constexpr uint64_t kMegabyte = 1'000'000;
  ProgressBar bar("quantizing", "MB");
  settings.progress = [&](const QuantizeProgress& progress) {
    bar.Update(static_cast<int64_t>(progress.done_bytes / kMegabyte),
               static_cast<int64_t>(progress.total_bytes / kMegabyte));
  };
  settings.report = [&](const QuantizeReport& report) {
    return WriteQuantizeReport(report, options.output);
  };
  TERN_ASSIGN_OR_RETURN(const QuantizeReport report,
                        Quantize(*checkpoint, config, std::move(specs), settings, pool));
  if (report.already_complete) {
    TERN_LOG(kInfo, "{} is complete already: nothing to do", options.output);
    return OkStatus();
  }
  if (report.resumed_shards > 0) {
    TERN_LOG(kInfo, "{} of {} files were there from an earlier run", report.resumed_shards,
             report.shards);
  }
  constexpr size_t kNamed = 5;
  for (size_t i = 0; i < std::min(kNamed, report.unknown.size()); ++i) {
    TERN_LOG(kWarning, "tensor '{}' is none of the architecture's: carried along as it is{}",
             report.unknown[i],
             i + 1 == kNamed && report.unknown.size() > kNamed
                 ? fmt::format(", with {} more", report.unknown.size() - kNamed)
                 : "");
  }
  for (size_t i = 0; i < std::min(kNamed, report.notes.size()); ++i) {
    TERN_LOG(kWarning, "{}{}", report.notes[i],
             i + 1 == kNamed && report.notes.size() > kNamed
                 ? fmt::format(" (and {} more, in {})", report.notes.size() - kNamed,
                               kQuantizeReportFile)
                 : "");
  }
  fmt::print("{}\n{}: {} tensors in {} files, {:.3f} GB from {:.3f} GB\n",
             QuantizeReportText(report), options.output, report.tensors, report.shards,
             static_cast<double>(report.output_bytes) / 1e9,
             static_cast<double>(report.input_bytes) / 1e9);
  return OkStatus();
}

void AddOptions(OptionTable& table, Options& o) {
  table.Add("--model-path", &o.model, "DIR|FILE", "BF16, F16, FP8 or GGUF checkpoint")
      .Alias("--model")
      .Required();
  table.Add("--output", &o.output, "DIR", "folder to make: new, empty, or of an unfinished run")
      .Required();
  table
      .Add(
          "--format", &o.format, "NAME",
          "int4: compressed-tensors, groups along the input features; fp8: e4m3 in blocks of 128 x "
          "128")
      .Choices({"int4", "fp8"});
  table
      .Add(
          "--recipe", &o.recipe, "NAME",
          "kimi: routed experts only, as Kimi K2 is published; all-linear: every linear layer, the "
          "head among them; auto: kimi where there are experts")
      .Choices({"auto", "kimi", "all-linear"});
  table.Add("--include", &o.include, "PATTERN",
            "quantize these linear layers too: a module's name, or re: and an expression that "
            "matches from its start");
  table.Add("--exclude", &o.exclude, "PATTERN", "leave these as they are; wins over --include");
  table.Add("--group", &o.group, "N", "int4: input features that share a scale")
      .Choices({"32", "64", "128"});
  table
      .Add("--method", &o.method, "NAME",
           "int4: rtn: the largest magnitude sets the scale; search: the scale of least squared "
           "error; calibrated: GPTQ on --calibration; auto: search")
      .Choices({"auto", "rtn", "search", "calibrated"});
  table.Add("--calibration", &o.calibration, "FILE",
            "text, or .jsonl with \"text\" or \"messages\" on each line, that is like what the "
            "model will see");
  table
      .Add("--calibration-tokens", &o.calibration_tokens, "N",
           "use about N tokens of it, in whole windows of 512, spread evenly; 0: all")
      .Range(0, 1e9);
  table.Add("--calibrate-kv", &o.calibrate_kv, "",
            "also write the KV cache's scales, k_scale of each layer, from --calibration");
  table.Add("--shard-size", &o.shard_size, "SIZE", "most bytes of a file: 500MB, 5GB");
  table.Add("--threads", &o.threads, "N", "threads; 0: all that are available").Range(0, 1024);
  table.SetEpilog(
      "Routers, weights_proj of indexers, norms and embeddings are never quantized. A tied head "
      "that is quantized becomes a tensor of its own.\nWhat is not quantized stays as it is "
      "stored; "
      "of FP8 and GGUF it becomes BF16.\nRun the same command again to go on after an "
      "interruption: "
      "the result has the same bytes. DIR/config.json is written last.");
}

}  // namespace

int QuantizeCommand(const std::vector<std::string>& args) {
  Options options;
  OptionTable table("tern quantize",
                    "Quantizes a checkpoint: INT4 groups or FP8 blocks, in the layout that vLLM, "
                    "SGLang and transformers read. Streams, resumes, writes each file whole or not "
                    "at all.");
  AddOptions(table, options);
  QuantizeOptions settings;
  Result<ParseOutcome> outcome = table.Parse(args);
  Status usage = outcome.status();
  if (outcome.ok()) {
    if (*outcome == ParseOutcome::kHelpShown) return 0;
    usage = ReadOptions(options, &settings);
  }
  if (!usage.ok()) {
    fmt::print(stderr, "tern quantize: {}\n", usage.message());
    return 2;
  }
  const Status status = Run(options, std::move(settings));
  if (!status.ok()) {
    fmt::print(stderr, "tern quantize: {}\n", status.message());
    return 1;
  }
  return 0;
}

}  // namespace tern
