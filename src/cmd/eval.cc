// tern eval: perplexity, KL divergence and task accuracy, with intervals, and whether a run is
// equivalent to an earlier one. docs/eval.md has the formulas.
#include <fmt/format.h>

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
#include "cmd/eval_options.h"
#include "cmd/local_engines.h"
#include "cmd/progress_bar.h"
#include "eval/comparison.h"
#include "eval/engine_answers.h"
#include "eval/eval_report.h"
#include "eval/journal.h"
#include "eval/url_answers.h"
#include "models/shared_weights.h"
#include "report/report_file.h"

namespace tern {
namespace {

constexpr uint64_t kMaxTextBytes = uint64_t{1} << 30;

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
  Status LoadPrefill(SharedWeights* shared);
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
  std::unique_ptr<Ops> ops_, prefill_ops_;
  std::unique_ptr<EvalModel> model_, prefill_, reference_;  // prefill_: of two engines; else null
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
  SharedWeights shared;  // of two engines
  TERN_ASSIGN_OR_RETURN(model_,
                        EvalModel::Load(o_.model, o_.precision, *ops_,
                                        o_.model.disaggregation.local() ? &shared : nullptr));
  Json& settings = result_.settings;
  settings["precision"] = o_.precision;
  settings["kv_cache_dtype"] = KvFormatName(model_->kv_format());
  settings["activation_dtype"] = o_.model.activation_dtype;
  settings["isa"] = ops_->isa();
  settings["threads"] = threads;
  settings["weight_bytes"] = model_->model().info().weight_bytes;
  settings["kv_bytes_per_token"] = model_->kv_bytes_per_token();
  if (o_.model.disaggregation.local()) TERN_RETURN_IF_ERROR(LoadPrefill(&shared));
  if (o_.kl_against.empty()) return OkStatus();
  ModelOptions other = o_.model;
  other.disaggregation = {};
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

Status EvalRun::LoadPrefill(SharedWeights* shared) {
  ModelOptions options = o_.model;
  options.disaggregation = {};
  options.model_path = PrefillPathOf(o_.model);
  TERN_ASSIGN_OR_RETURN(prefill_ops_, Ops::Create(EnvIsa().value_or(""), *pool_));
  TERN_ASSIGN_OR_RETURN(prefill_, EvalModel::Load(options, o_.precision, *prefill_ops_, shared));
  TERN_RETURN_IF_ERROR(
      OneModelId(prefill_->path(), *prefill_->tokenizer(), model_->path(), *model_->tokenizer())
          .status());
  TERN_ASSIGN_OR_RETURN(
      const EngineOptions engine,
      PrefillEngineOptions(o_.model.disaggregation, o_.model.engine, prefill_->model().info()));
  Json& settings = result_.settings;
  settings["prefill_model"] = prefill_->path();
  settings["prefill_kv_cache_dtype"] = KvFormatName(engine.kv_format);
  settings["prefill_weight_bytes"] = prefill_->model().info().weight_bytes;
  settings["prefill_shared_weight_bytes"] = prefill_->model().info().shared_weight_bytes;
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
  std::unique_ptr<LogitSource> source;
  if (prefill_) {
    TERN_ASSIGN_OR_RETURN(source, model_->MakeHandOffSource(*prefill_));
  } else {
    source = model_->MakeLogitSource();
  }
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
  TERN_ASSIGN_OR_RETURN(engine_, prefill_ ? model_->StartEngines(*prefill_, metrics_)
                                          : model_->StartEngine(metrics_));
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
    if (prefill_) run["prefill"] = {prefill_->path(), result_.settings["prefill_kv_cache_dtype"]};
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
  size_t done = items_.size() - wanted.size();
  ProgressBar bar("tasks", "items", static_cast<int64_t>(done));
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
  TERN_RETURN_IF_ERROR(CheckEvalOutputs(o_));
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
  OptionTable table = MakeEvalTable(options);
  const Result<ParseOutcome> outcome = table.Parse(args);
  Status usage = outcome.status();
  if (usage.ok() && *outcome == ParseOutcome::kHelpShown) return 0;
  if (usage.ok()) usage = CheckEvalUsage(options);
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
