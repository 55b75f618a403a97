// tern eval: perplexity, KL divergence and task accuracy, with intervals, and whether a run is
// equivalent to an earlier one. docs/eval.md has the formulas.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/args.h"
#include "base/clock.h"
#include "base/env.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/topology.h"
#include "cmd/commands.h"
#include "cmd/eval_model.h"
#include "cmd/progress_bar.h"
#include "eval/comparison.h"
#include "eval/engine_answers.h"
#include "eval/eval_report.h"
#include "eval/journal.h"
#include "eval/url_answers.h"
#include "report/report_file.h"

namespace tern {
namespace {

constexpr uint64_t kMaxTextBytes = uint64_t{1} << 30;

struct EvalOptions {
  ModelOptions model;
  std::string precision = "production";
  std::string text;
  int64_t window = 512;
  std::string bos = "auto";
  std::string kl_against, kl_kv_cache_dtype, kl_activation_dtype, kl_precision;
  std::string tasks;
  int64_t limit = 0, max_new_tokens = 64;
  std::string calls_in_content = "auto";
  UrlAnswersOptions server;
  int64_t timeout_s = 600;
  std::string baseline, json, plot;
  bool resume = false;
  BootstrapOptions bootstrap;
  int64_t seed = 1;
};

OptionTable MakeTable(EvalOptions& o) {
  OptionTable table(
      "tern eval",
      "Perplexity of a text, KL divergence between two formats of a model, accuracy "
      "on chat tasks:\neach figure with a 95 % interval. With --baseline: are the two "
      "runs equivalent?");
  table.Add("--perplexity", &o.text, "FILE", "text to score; needs --model-path").Group("What");
  table
      .Add("--kl-against", &o.kl_against, "DIR|FILE.gguf",
           "another format of the model, on the same text: KL(that one || this one)")
      .Group("What");
  table
      .Add("--tasks", &o.tasks, "FILE.jsonl",
           "chat tasks: messages, tools, and expect or expect_tool")
      .Group("What");
  table.Add("--limit", &o.limit, "N", "only the first N tasks; 0: all").Range(0, 1e9).Group("What");
  table
      .Add("--baseline", &o.baseline, "FILE.json",
           "result of an earlier run, compared item by item and block by block")
      .Group("What");
  table.Add("--json", &o.json, "FILE", "write the result, all items included").Group("Output");
  table.Add("--plot", &o.plot, "FILE.svg", "write a picture").Group("Output");
  table
      .Add("--resume", &o.resume, "",
           "go on with the answers that a broken-off run left beside --json")
      .Group("Output");
  table.Add("--resamples", &o.bootstrap.resamples, "N", "resamples of the bootstrap")
      .Range(1000, 1e7)
      .Group("Output");
  table.Add("--seed", &o.seed, "N", "seed of the bootstrap").Range(0, 9e15).Group("Output");
  table.Add("--window", &o.window, "N", "tokens of a window of the text, BOS included")
      .Range(2, 1 << 24)
      .Group("Text");
  table
      .Add("--bos", &o.bos, "TOKEN",
           "token in front of each window; auto: the one that the chat template puts in front of a "
           "conversation; none")
      .Group("Text");
  table
      .Add("--kl-kv-cache-dtype", &o.kl_kv_cache_dtype, "FORMAT",
           "KV cache of the --kl-against model; default: as --kv-cache-dtype")
      .Group("Text");
  table
      .Add("--kl-activation-dtype", &o.kl_activation_dtype, "FORMAT",
           "activations of the --kl-against model; default: as --activation-dtype")
      .Choices({"auto", "int8"})
      .Group("Text");
  table
      .Add("--kl-precision", &o.kl_precision, "NAME",
           "precision of the --kl-against model; default: as --precision")
      .Choices({"production", "reference"})
      .Group("Text");
  table.Add("--max-new-tokens", &o.max_new_tokens, "N", "most tokens of an answer")
      .Range(1, 1 << 20)
      .Group("Tasks");
  table
      .Add("--calls-in-content", &o.calls_in_content, "FORMAT",
           "how tool calls are written in an answer's text; auto: as the chat template has it, or, "
           "with --url, the one whose marker is there")
      .Choices({"auto", "none", "kimi_k2", "glm45", "glm47"})
      .Group("Tasks");
  table.Add("--url", &o.server.url, "URL", "ask a server instead: http://host:port")
      .Group("Server");
  table.Add("--api-key", &o.server.api_key, "KEY", "key that the server asks for")
      .Secret()
      .Group("Server");
  table.Add("--served-model-name", &o.server.model, "NAME", "model to ask for").Group("Server");
  table.Add("--concurrency", &o.server.concurrency, "N", "requests at a time")
      .Range(1, 1024)
      .Group("Server");
  table.Add("--timeout", &o.timeout_s, "SECONDS", "longest wait for an answer")
      .Range(1, 86400)
      .Group("Server");
  table
      .Add("--tries", &o.server.tries, "N",
           "tries of a request while the server is away or busy (429, 502, 503, 504)")
      .Range(1, 100)
      .Group("Server");
  DeclareModelOptions(table, o.model);
  table
      .Add("--precision", &o.precision, "NAME",
           "production: as served; reference: float32 on dequantized weights")
      .Choices({"production", "reference"})
      .Group("Model");
  table.SetEpilog(
      "Verdicts: equivalent (95 % interval of the paired accuracy difference within +-1.0 point "
      "and "
      "of the\nperplexity ratio within +-0.5 %), not equivalent (an interval lies beyond a "
      "margin), "
      "undecided (it\nreaches beyond one), no verdict. Task kinds on which the baseline is outside "
      "60-98 % don't count.");
  return table;
}

Status CheckUsage(const EvalOptions& o) {
  if (o.text.empty() && o.tasks.empty()) {
    return InvalidArgument("nothing to do: give --perplexity FILE, --tasks FILE or both");
  }
  if (o.server.url.empty() == o.model.model_path.empty()) {
    return InvalidArgument("give one of --model-path and --url");
  }
  if (!o.server.url.empty() && !o.text.empty()) {
    return InvalidArgument("--perplexity needs --model-path: servers give no logits");
  }
  if (!o.kl_against.empty() && o.text.empty()) {
    return InvalidArgument("--kl-against needs the text of --perplexity");
  }
  if (o.resume && (o.json.empty() || o.tasks.empty())) {
    return InvalidArgument("--resume needs --tasks and --json, beside which the answers are kept");
  }
  return OkStatus();
}

// A long run is not lost to a misspelled folder.
Status CheckOutputs(const EvalOptions& o) {
  for (const std::string& path : {o.json, o.plot}) {
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

class EvalRun {
 public:
  explicit EvalRun(EvalOptions options) : o_(std::move(options)) {}

  Status Run();
  // What there is, also after a failure.
  const EvalResult& result() const { return result_; }
  const std::optional<Comparison>& comparison() const { return comparison_; }
  Status WriteOutputs();

 private:
  Status LoadInputs();
  Status LoadModels();
  Status ScoreTheText();
  Status AnswerTasks();
  Result<std::unique_ptr<AnswerSource>> MakeSource();
  Status OpenJournal();
  void Take(const TaskItem& item, TaskAnswer answer);

  EvalOptions o_;
  EvalResult result_;
  std::optional<EvalResult> baseline_;
  std::optional<Comparison> comparison_;
  std::string text_;
  std::vector<TaskItem> items_;
  std::vector<std::optional<TaskAnswer>> answers_;

  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<EvalModel> model_, reference_;
  MetricRegistry metrics_;
  std::unique_ptr<Engine> engine_;
  EngineAnswers* offline_ = nullptr;
  std::unique_ptr<Journal> journal_;
};

Status EvalRun::LoadInputs() {
  if (!o_.text.empty()) {
    TERN_ASSIGN_OR_RETURN(text_, ReadFile(o_.text, kMaxTextBytes));
    if (text_.empty()) return InvalidArgument(o_.text + " is empty");
  }
  if (!o_.tasks.empty()) {
    TERN_ASSIGN_OR_RETURN(items_, LoadTaskItems(o_.tasks, o_.limit));
    answers_.resize(items_.size());
    TaskResult tasks;
    tasks.file = o_.tasks;
    tasks.max_new_tokens = o_.max_new_tokens;
    result_.tasks = std::move(tasks);
  }
  if (o_.baseline.empty()) return OkStatus();
  TERN_ASSIGN_OR_RETURN(const Json json, ParseJsonFile(o_.baseline));
  Result<EvalResult> baseline = EvalResultFromJson(json);
  if (!baseline.ok()) return baseline.status().WithContext(o_.baseline);
  baseline_ = std::move(baseline).value();
  baseline_->model = fmt::format("{} ({})", baseline_->model, o_.baseline);
  // Other text and other items are refused before the work, not after it.
  if (baseline_->text && !o_.text.empty() && baseline_->text->text_hash != Hash64(text_)) {
    return InvalidArgument(fmt::format("{}: the baseline is of another text ({}, here {})",
                                       o_.baseline, baseline_->text->file, o_.text));
  }
  if (!baseline_->tasks || !result_.tasks) return OkStatus();
  EvalResult planned;
  planned.tasks = *result_.tasks;
  for (const TaskItem& item : items_) {
    planned.tasks->items.push_back({.id = item.id, .kind = item.kind, .hash = item.hash});
  }
  const Result<Comparison> possible = Compare(*baseline_, planned, {.resamples = 1000});
  return possible.status().WithContext(o_.baseline);
}

Status EvalRun::LoadModels() {
  const int threads =
      o_.model.threads > 0 ? static_cast<int>(o_.model.threads) : AvailableThreads();
  pool_ = std::make_unique<ThreadPool>(threads);
  TERN_ASSIGN_OR_RETURN(ops_, Ops::Create(EnvIsa().value_or(""), *pool_));
  TERN_ASSIGN_OR_RETURN(model_, EvalModel::Load(o_.model, o_.precision, *ops_));
  Json& settings = result_.settings;
  settings["precision"] = o_.precision;
  settings["kv_cache_dtype"] = KvFormatName(model_->kv_format());
  settings["activation_dtype"] = o_.model.activation_dtype;
  settings["isa"] = ops_->isa();
  settings["threads"] = threads;
  settings["weight_bytes"] = model_->model().info().weight_bytes;
  settings["kv_bytes_per_token"] = model_->kv_bytes_per_token();
  if (o_.kl_against.empty()) return OkStatus();
  ModelOptions other = o_.model;
  other.model_path = o_.kl_against;
  if (!o_.kl_kv_cache_dtype.empty()) other.kv_cache_dtype = o_.kl_kv_cache_dtype;
  if (!o_.kl_activation_dtype.empty()) other.activation_dtype = o_.kl_activation_dtype;
  const std::string& precision = o_.kl_precision.empty() ? o_.precision : o_.kl_precision;
  TERN_ASSIGN_OR_RETURN(reference_, EvalModel::Load(other, precision, *ops_));
  settings["kl_precision"] = precision;
  settings["kl_kv_cache_dtype"] = KvFormatName(reference_->kv_format());
  settings["kl_activation_dtype"] = other.activation_dtype;
  settings["kl_weight_bytes"] = reference_->model().info().weight_bytes;
  // The same ids must mean the same text.
  const Tokenizer &a = *model_->tokenizer(), &b = *reference_->tokenizer();
  if (a.vocab_size() != b.vocab_size()) {
    return InvalidArgument(fmt::format("the tokenizers differ: {} has {} tokens, {} has {}",
                                       o_.model.model_path, a.vocab_size(), o_.kl_against,
                                       b.vocab_size()));
  }
  for (TokenId id = 0; id < a.vocab_size(); ++id) {
    if (a.TokenBytes(id) == b.TokenBytes(id)) continue;
    return InvalidArgument(fmt::format("the tokenizers of {} and {} differ in token {}",
                                       o_.model.model_path, o_.kl_against, id));
  }
  return OkStatus();
}

Status EvalRun::ScoreTheText() {
  TextResult text;
  text.file = o_.text;
  text.window = o_.window;
  text.text_hash = Hash64(text_);
  TERN_ASSIGN_OR_RETURN(const std::optional<TokenId> bos, model_->BosNamed(o_.bos));
  if (bos) text.bos = std::string(model_->tokenizer()->TokenBytes(*bos));
  const Result<std::vector<TextTokens>> windows =
      CutWindows(model_->tokenizer()->Encode(text_), o_.window, bos);
  if (!windows.ok()) return windows.status().WithContext(o_.text);
  for (const TextTokens& window : *windows) {
    text.tokens_hash = Hash64(std::as_bytes(std::span(window)), text.tokens_hash + window.size());
  }
  const std::unique_ptr<LogitSource> source = model_->MakeLogitSource();
  const std::unique_ptr<LogitSource> reference =
      reference_ ? reference_->MakeLogitSource() : nullptr;
  ProgressBar bar(reference ? "perplexity and KL" : "perplexity", "tokens");
  TERN_ASSIGN_OR_RETURN(const TextScore score, ScoreText(*source, reference.get(), *windows, *pool_,
                                                         [&bar](int64_t done, int64_t total) {
                                                           bar.Update(done, total);
                                                         }));
  text.losses = LossBlocks(score);
  text.seconds = score.seconds;
  if (reference) {
    text.reference = ReferenceResult{o_.kl_against, ReferenceLossBlocks(score),
                                     DivergenceOf(score, o_.bootstrap), score.reference_seconds};
  }
  result_.text = std::move(text);
  return OkStatus();
}

Result<std::unique_ptr<AnswerSource>> EvalRun::MakeSource() {
  const bool automatic = o_.calls_in_content == "auto";
  TERN_ASSIGN_OR_RETURN(const ToolCallFormat calls,
                        ToolCallFormatNamed(automatic ? "none" : o_.calls_in_content));
  if (!o_.server.url.empty()) {
    UrlAnswersOptions server = o_.server;
    server.max_new_tokens = o_.max_new_tokens;
    server.timeout_us = o_.timeout_s * 1'000'000;
    server.calls_in_content = calls;
    TERN_RETURN_IF_ERROR(HttpClient::Create(server.url).status());
    return std::unique_ptr<AnswerSource>(std::make_unique<UrlAnswers>(std::move(server)));
  }
  TERN_ASSIGN_OR_RETURN(const auto chat_template, model_->CompileTemplate());
  TERN_ASSIGN_OR_RETURN(engine_, model_->StartEngine(metrics_));
  EngineAnswersOptions options;
  options.max_new_tokens = o_.max_new_tokens;
  options.in_flight =
      std::min(2 * o_.model.engine.max_running_requests, o_.model.engine.max_queued_requests);
  options.bos_token = model_->bos_text();
  options.eos_token = model_->eos_text();
  options.format = DetectOutputFormat(model_->template_source());
  if (!automatic) options.format.tool_calls = calls;
  auto offline = std::make_unique<EngineAnswers>(*engine_, model_->tokenizer(), chat_template,
                                                 std::move(options));
  offline_ = offline.get();
  return std::unique_ptr<AnswerSource>(std::move(offline));
}

Status EvalRun::OpenJournal() {
  if (o_.json.empty() || o_.json.starts_with("/dev/")) return OkStatus();
  if (o_.resume && !FileExists(o_.json + ".partial")) {
    fmt::print(stderr, "tern eval: nothing to resume: there is no {}.partial\n", o_.json);
  }
  Json run = Json::object();
  if (model_) {
    run["model"] = result_.model;
    run["precision"] = o_.precision;
    run["kv_cache_dtype"] = KvFormatName(model_->kv_format());
  } else {  // which may come back at another address
    run["served_model_name"] = o_.server.model;
  }
  run["max_new_tokens"] = o_.max_new_tokens;
  TERN_ASSIGN_OR_RETURN(journal_, Journal::Open(o_.json + ".partial", run, o_.resume));
  return OkStatus();
}

void EvalRun::Take(const TaskItem& item, TaskAnswer answer) {
  const bool correct = IsCorrect(item, answer);
  result_.tasks->items.push_back({item.id, item.kind, item.hash, correct, std::move(answer)});
}

Status EvalRun::AnswerTasks() {
  TERN_RETURN_IF_ERROR(OpenJournal());
  std::vector<size_t> wanted;
  for (size_t i = 0; i < items_.size(); ++i) {
    const TaskAnswer* known = journal_ ? journal_->Find(items_[i].hash) : nullptr;
    if (known != nullptr) {
      answers_[i] = *known;
    } else {
      wanted.push_back(i);
    }
  }
  if (wanted.size() < items_.size()) {
    fmt::print(stderr, "tern eval: {} of {} answers are there already\n",
               items_.size() - wanted.size(), items_.size());
  }
  TERN_ASSIGN_OR_RETURN(const std::unique_ptr<AnswerSource> source, MakeSource());
  const int64_t start_us = SystemClock().NowUs();
  ProgressBar bar("tasks", "items");
  size_t done = items_.size() - wanted.size();
  const Status status = source->Answer(items_, wanted, [&](size_t i, TaskAnswer answer) -> Status {
    answers_[i] = std::move(answer);
    ++result_.tasks->answered;
    bar.Update(static_cast<int64_t>(++done), static_cast<int64_t>(items_.size()));
    return journal_ ? journal_->Add(items_[i].hash, *answers_[i]) : OkStatus();
  });
  TaskResult& tasks = *result_.tasks;
  tasks.seconds = static_cast<double>(SystemClock().NowUs() - start_us) * 1e-6;
  if (offline_ != nullptr) {
    tasks.prompt_tokens = offline_->prompt_tokens();
    tasks.completion_tokens = offline_->completion_tokens();
  }
  for (size_t i = 0; i < items_.size(); ++i) {
    if (answers_[i]) Take(items_[i], *answers_[i]);
  }
  if (status.ok()) return OkStatus();
  const std::string kept =
      journal_ ? fmt::format("; {} of {} answers are kept in {}.partial, go on with --resume", done,
                             items_.size(), o_.json)
               : fmt::format(
                     "; the {} of {} answers so far are counted in the table, --json would "
                     "have kept them",
                     done, items_.size());
  return {status.code(), status.message() + kept};
}

Status EvalRun::Run() {
  result_.model = o_.server.url.empty() ? o_.model.model_path : o_.server.url;
  result_.complete = false;
  TERN_RETURN_IF_ERROR(CheckOutputs(o_));
  TERN_RETURN_IF_ERROR(LoadInputs());
  if (o_.server.url.empty()) TERN_RETURN_IF_ERROR(LoadModels());
  if (!o_.text.empty()) TERN_RETURN_IF_ERROR(ScoreTheText());
  if (!o_.tasks.empty()) TERN_RETURN_IF_ERROR(AnswerTasks());
  result_.complete = true;
  if (!baseline_) return OkStatus();
  Result<Comparison> comparison = Compare(*baseline_, result_, o_.bootstrap);
  if (!comparison.ok()) return comparison.status().WithContext(o_.baseline);
  comparison_ = std::move(comparison).value();
  return OkStatus();
}

Status EvalRun::WriteOutputs() {
  if (!o_.json.empty() && result_.complete) {
    Json json = EvalResultToJson(result_, o_.bootstrap);
    if (comparison_) json["comparison"] = ComparisonToJson(*comparison_);
    TERN_RETURN_IF_ERROR(WriteReportJson(o_.json, json));
    if (journal_) journal_->Remove();
  }
  if (o_.plot.empty() || !result_.complete) return OkStatus();
  return WriteReportFile(o_.plot, EvalPicture(result_, comparison_).ToSvg());
}

}  // namespace

int EvalCommand(const std::vector<std::string>& args) {
  EvalOptions options;
  OptionTable table = MakeTable(options);
  const Result<ParseOutcome> outcome = table.Parse(args);
  Status usage = outcome.status();
  if (usage.ok() && *outcome == ParseOutcome::kHelpShown) return 0;
  if (usage.ok()) usage = CheckUsage(options);
  if (!usage.ok()) {
    fmt::print(stderr, "tern eval: {}\n", usage.message());
    return 2;
  }
  SetLogLevel(LogLevel::kWarning);
  options.bootstrap.seed = static_cast<uint64_t>(options.seed);
  const BootstrapOptions bootstrap = options.bootstrap;
  EvalRun run(std::move(options));
  Status status = run.Run();
  const EvalResult& result = run.result();
  const bool has_figures = result.text || (result.tasks && !result.tasks->items.empty());
  if (has_figures) {
    if (!result.complete) fmt::print("not complete: ");
    fmt::print("{}", EvalTable(result, run.comparison(), bootstrap));
  }
  const Status written = run.WriteOutputs();
  if (status.ok()) status = written;
  if (status.ok()) return 0;
  fmt::print(stderr, "tern eval: {}\n", status.message());
  return 1;
}

}  // namespace tern
