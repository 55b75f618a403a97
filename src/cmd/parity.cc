// tern parity: a model's logits against a reference file.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/args.h"
#include "base/env.h"
#include "base/file.h"
#include "base/topology.h"
#include "checkpoint/safetensors.h"
#include "cmd/commands.h"
#include "cmd/serving.h"
#include "kernels/ops.h"
#include "models/registry.h"
#include "models/single_sequence.h"

namespace tern {
namespace {

constexpr double kOverThreshold = 2e-3;  // of `positions_over`
constexpr int64_t kDefaultChunk = 512;   // bounds the activations of a long prompt

struct ParityOptions {
  std::string model, golden;
  std::string precision = "production";
  std::string rotary_frequencies = "float";
  std::string activation_dtype = "auto";
  std::string kv_cache_dtype;
  int64_t page_size = 64;
  std::optional<int64_t> chunk, decode_from;
  bool greedy = false;
  std::optional<int64_t> threads;
};

// The reference file, see the command's help.
struct Golden {
  std::vector<int32_t> prompt;  // [T]
  std::vector<float> logits;    // [T, vocab]
  int64_t vocab = 0;
  std::vector<int32_t> greedy;  // [N]
  std::vector<float> margin;    // [N]
};

template <typename T>
std::vector<T> CopyOf(const TensorView& view) {
  std::vector<T> values(view.bytes.size() / sizeof(T));
  std::memcpy(values.data(), view.bytes.data(), values.size() * sizeof(T));
  return values;
}

Result<Golden> LoadGolden(const std::string& path) {
  TERN_ASSIGN_OR_RETURN(const auto file, MappedFile::Open(path));
  TERN_ASSIGN_OR_RETURN(const auto tensors, ParseSafetensors(file->bytes(), path));
  const auto find = [&](const char* name, DType dtype, int rank) -> Result<TensorView> {
    for (const SafetensorsTensor& tensor : tensors) {
      if (tensor.name != name) continue;
      if (tensor.view.dtype == dtype && tensor.view.shape.rank() == rank) return tensor.view;
      return InvalidArgument(fmt::format(
          "{}: tensor '{}' must be {} with {} dimensions, it is {} {}", path, name,
          InfoOf(dtype).name, rank, InfoOf(tensor.view.dtype).name, tensor.view.shape.ToString()));
    }
    return InvalidArgument(fmt::format("{}: tensor '{}' is missing", path, name));
  };
  TERN_ASSIGN_OR_RETURN(const TensorView prompt, find("prompt", DType::kI32, 1));
  TERN_ASSIGN_OR_RETURN(const TensorView logits, find("logits", DType::kF32, 2));
  TERN_ASSIGN_OR_RETURN(const TensorView greedy, find("greedy", DType::kI32, 1));
  TERN_ASSIGN_OR_RETURN(const TensorView margin, find("margin", DType::kF32, 1));
  if (prompt.shape[0] < 1 || logits.shape[0] != prompt.shape[0] || logits.shape[1] < 1) {
    return InvalidArgument(fmt::format("{}: prompt {} and logits {} leave nothing to compare", path,
                                       prompt.shape.ToString(), logits.shape.ToString()));
  }
  if (greedy.shape != margin.shape) {
    return InvalidArgument(fmt::format("{}: greedy {} and margin {} differ in length", path,
                                       greedy.shape.ToString(), margin.shape.ToString()));
  }
  return Golden{CopyOf<int32_t>(prompt), CopyOf<float>(logits), logits.shape[1],
                CopyOf<int32_t>(greedy), CopyOf<float>(margin)};
}

// One position's comparison, accumulated in double.
struct Difference {
  double max_abs;  // over the vocabulary
  double kl;       // KL(reference, tern), nats
  bool same_top;
};

double LogSumExp(const float* x, int64_t n) {
  const double top = *std::max_element(x, x + n);
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += std::exp(x[i] - top);
  return top + std::log(sum);
}

Difference Compare(const float* reference, const float* tern, int64_t n) {
  Difference difference{0, 0, false};
  const double reference_sum = LogSumExp(reference, n), tern_sum = LogSumExp(tern, n);
  for (int64_t i = 0; i < n; ++i) {
    const double r = reference[i], t = tern[i];
    difference.max_abs = std::max(difference.max_abs, std::fabs(r - t));
    difference.kl += std::exp(r - reference_sum) * ((r - reference_sum) - (t - tern_sum));
  }
  difference.same_top = std::max_element(reference, reference + n) - reference ==
                        std::max_element(tern, tern + n) - tern;
  return difference;
}

// Sorted value number ceil(percent/100 * n), counted from 1. REQUIRES: values not empty.
double Quantile(std::vector<double> values, int64_t percent) {
  std::sort(values.begin(), values.end());
  const auto n = static_cast<int64_t>(values.size());
  return values[static_cast<size_t>((percent * n + 99) / 100 - 1)];
}

double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

Result<KvFormat> KvFormatOf(const ParityOptions& options, const ModelInfo& model) {
  const std::string& name = options.kv_cache_dtype;
  if (name.empty()) return options.precision == "reference" ? KvFormat::kF32 : KvFormat::kBf16;
  return ChooseKvFormat(name, model);
}

// Logits of every prompt position: the first decode_from through prefill in chunks, the rest
// one by one through decode.
Status RunPrompt(const Golden& golden, const ParityOptions& options, SingleSequence& sequence,
                 std::vector<float>* logits) {
  const auto length = static_cast<int64_t>(golden.prompt.size());
  const int64_t prefill = std::min(options.decode_from.value_or(length), length);
  const int64_t chunk = options.chunk.value_or(kDefaultChunk);
  logits->assign(golden.logits.size(), std::numeric_limits<float>::quiet_NaN());
  while (sequence.position() < length) {
    const int64_t at = sequence.position();
    const bool decode = at >= prefill;
    const int64_t rows = decode ? 1 : std::min(chunk, prefill - at);
    const std::span tokens(golden.prompt.data() + at, static_cast<size_t>(rows));
    TERN_RETURN_IF_ERROR(sequence.Append(tokens, decode ? RowForm::kDecode : RowForm::kPrefill,
                                         logits->data() + at * golden.vocab));
  }
  return OkStatus();
}

// Fills the three greedy fields. `last` holds the logits after the prompt.
Status RunGreedy(const Golden& golden, Ops& ops, SingleSequence& sequence, std::vector<float> last,
                 Json* report) {
  int64_t checked = 0, equal = 0;
  Json margin = nullptr;
  for (size_t step = 0; step < golden.greedy.size(); ++step) {
    const auto token = static_cast<int32_t>(ops.ArgMax(last.data(), golden.vocab));
    ++checked;
    if (token != golden.greedy[step]) {
      margin = golden.margin[step];
      break;
    }
    ++equal;
    if (step + 1 == golden.greedy.size()) break;
    TERN_RETURN_IF_ERROR(sequence.AppendForLast({&token, 1}, RowForm::kDecode, last.data()));
  }
  (*report)["greedy_checked"] = checked;
  (*report)["greedy_equal"] = equal;
  (*report)["first_mismatch_margin"] = margin;
  return OkStatus();
}

Status CheckFits(const Golden& golden, const ParityOptions& options, const ModelInfo& info) {
  if (golden.vocab != info.vocab_size) {
    return InvalidArgument(fmt::format("{}: logits have {} columns, the model's vocabulary is {}",
                                       options.golden, golden.vocab, info.vocab_size));
  }
  for (const auto* tokens : {&golden.prompt, &golden.greedy}) {
    for (const int32_t token : *tokens) {
      if (token >= 0 && token < info.vocab_size) continue;
      return InvalidArgument(fmt::format("{}: token id {} is outside the vocabulary of {}",
                                         options.golden, token, info.vocab_size));
    }
  }
  return OkStatus();
}

Result<Json> RunParity(const ParityOptions& options) {
  TERN_ASSIGN_OR_RETURN(const Golden golden, LoadGolden(options.golden));
  ThreadPool pool(static_cast<int>(options.threads.value_or(AvailableThreads())));
  TERN_ASSIGN_OR_RETURN(const auto ops, Ops::Create(EnvIsa().value_or(""), pool));
  if (options.activation_dtype == "int8") ops->set_activations(Activations::kInt8);
  LoadOptions load;
  load.precision =
      options.precision == "reference" ? Precision::kReference : Precision::kProduction;
  load.bf16_rotary_frequencies = options.rotary_frequencies == "bf16";
  TERN_ASSIGN_OR_RETURN(const auto model, LoadModel(options.model, *ops, load));
  TERN_RETURN_IF_ERROR(CheckFits(golden, options, model->info()));

  const auto length = static_cast<int64_t>(golden.prompt.size());
  // The last greedy token is compared and never fed.
  const auto steps = static_cast<int64_t>(golden.greedy.size());
  const int64_t positions = length + (options.greedy ? std::max<int64_t>(steps - 1, 0) : 0);
  TERN_ASSIGN_OR_RETURN(const KvFormat kv_format, KvFormatOf(options, model->info()));
  TERN_ASSIGN_OR_RETURN(SingleSequence sequence,
                        SingleSequence::Make(*model, kv_format, options.page_size, positions));
  std::vector<float> logits;
  TERN_RETURN_IF_ERROR(RunPrompt(golden, options, sequence, &logits));

  std::vector<double> max_abs, kl;
  int64_t over = 0, same_top = 0;
  for (int64_t position = 0; position < length; ++position) {
    const float* reference = golden.logits.data() + position * golden.vocab;
    const float* tern = logits.data() + position * golden.vocab;
    const auto finite = [](float x) { return std::isfinite(x); };
    if (!std::all_of(tern, tern + golden.vocab, finite)) {
      return DataLoss(
          fmt::format("{}: logits at position {} are not finite", options.model, position));
    }
    if (!std::all_of(reference, reference + golden.vocab, finite)) {
      return InvalidArgument(
          fmt::format("{}: logits at position {} are not finite", options.golden, position));
    }
    const Difference difference = Compare(reference, tern, golden.vocab);
    max_abs.push_back(difference.max_abs);
    kl.push_back(difference.kl);
    over += difference.max_abs > kOverThreshold;
    same_top += difference.same_top;
  }
  Json report = Json::object();
  report["positions"] = length;
  report["max_abs_diff"] = *std::max_element(max_abs.begin(), max_abs.end());
  report["median_abs_diff"] = Quantile(max_abs, 50);
  report["p99_abs_diff"] = Quantile(max_abs, 99);
  report["positions_over"] = over;
  report["mean_kl"] = Mean(kl);
  report["p99_kl"] = Quantile(kl, 99);
  report["top1_agreement"] = static_cast<double>(same_top) / static_cast<double>(length);
  report["greedy_checked"] = nullptr;
  report["greedy_equal"] = nullptr;
  report["first_mismatch_margin"] = nullptr;
  if (options.greedy) {
    std::vector<float> last(logits.end() - golden.vocab, logits.end());
    TERN_RETURN_IF_ERROR(RunGreedy(golden, *ops, sequence, std::move(last), &report));
  }
  return report;
}

}  // namespace

int ParityCommand(const std::vector<std::string>& args) {
  ParityOptions options;
  OptionTable table("tern parity",
                    "Runs the prompt of a reference file, compares the logits at each position, "
                    "and prints one JSON object.");
  table.Add("--model", &options.model, "DIR|FILE.gguf", "checkpoint")
      .Alias("--model-path")
      .Required();
  table
      .Add("--golden", &options.golden, "FILE",
           "safetensors with prompt int32 [T], logits float32 [T, vocab], greedy int32 [N], "
           "margin float32 [N]")
      .Required();
  table
      .Add("--precision", &options.precision, "NAME",
           "reference: float32 on dequantized weights; production: as served")
      .Choices({"reference", "production"});
  table
      .Add("--rotary-frequencies", &options.rotary_frequencies, "NAME",
           "bf16: rounded to BF16, as in references that were computed after casting a whole model "
           "to BF16, which rounds more than its weights")
      .Choices({"float", "bf16"});
  table
      .Add("--activation-dtype", &options.activation_dtype, "NAME",
           "what 4-bit weights are multiplied by, as in serve")
      .Choices({"auto", "int8"});
  table
      .Add("--kv-cache-dtype", &options.kv_cache_dtype, "NAME",
           "f32, bf16, fp8_e4m3, fp8_tiled, fp8_ds_mla or auto; default: f32 with reference "
           "precision, else auto")
      .Choices({"f32", "bf16", "fp8_e4m3", "fp8_tiled", "fp8_ds_mla", "auto"});
  table.Add("--page-size", &options.page_size, "N", "tokens in a KV page, a power of two")
      .Range(1, 1024);
  table.Add("--chunk", &options.chunk, "N", "prefill in chunks of N tokens; default 512")
      .Range(1, 1 << 20);
  table
      .Add("--decode-from", &options.decode_from, "K",
           "prefill K tokens, feed the rest one by one through the decode path")
      .Range(0, 1 << 30);
  table.Add("--greedy", &options.greedy, "",
            "also generate from the prompt, up to the first token that differs");
  table.Add("--threads", &options.threads, "N", "threads; default all that are available")
      .Range(1, 1024);
  table.SetEpilog(
      "Per position: d = largest absolute difference over the vocabulary, kl = KL(reference, tern) "
      "in nats.\npositions_over counts d > 2e-3. Exit code 1 for logits that are not finite.");
  const Result<ParseOutcome> outcome = table.Parse(args);
  if (!outcome.ok()) {
    fmt::print(stderr, "tern parity: {}\n", outcome.status().message());
    return 2;
  }
  if (*outcome == ParseOutcome::kHelpShown) return 0;
  const Result<Json> report = RunParity(options);
  if (!report.ok()) {
    fmt::print(stderr, "tern parity: {}\n", report.status().message());
    return 1;
  }
  fmt::print("{}\n", DumpJson(*report));
  return 0;
}

}  // namespace tern
