#include "cmd/eval_model.h"

#include <fmt/format.h>

#include <utility>

#include "base/file.h"
#include "cmd/hand_off_logits.h"
#include "cmd/load.h"
#include "cmd/load_model.h"
#include "cmd/local_engines.h"
#include "models/registry.h"
#include "models/single_sequence.h"

namespace tern {
namespace {

class SequenceLogits final : public LogitSource {
 public:
  SequenceLogits(Model& model, Ops& ops, KvFormat kv_format, const ModelOptions& options)
      : model_(model), ops_(ops), kv_format_(kv_format), options_(options) {}

  const std::string& name() const override { return options_.model_path; }
  int64_t vocab_size() const override { return model_.info().vocab_size; }
  int64_t context_length() const override { return model_.info().context_length; }
  Status Begin(int64_t tokens) override {
    TERN_ASSIGN_OR_RETURN(
        sequence_, SingleSequence::Make(model_, kv_format_, options_.engine.page_tokens, tokens,
                                        options_.engine.kv_bf16_layers));
    return OkStatus();
  }
  Status Append(std::span<const int32_t> tokens, float* logits) override {
    ops_.set_activations(ActivationsOf(options_));  // of two models that share it
    return sequence_->Append(tokens, RowForm::kPrefill, logits);
  }

 private:
  Model& model_;
  Ops& ops_;
  const KvFormat kv_format_;
  const ModelOptions& options_;
  std::optional<SingleSequence> sequence_;
};

std::string TextOf(const Tokenizer& tokenizer, std::optional<TokenId> id) {
  return id ? std::string(tokenizer.TokenBytes(*id)) : std::string();
}

}  // namespace

Result<std::unique_ptr<EvalModel>> EvalModel::Load(const ModelOptions& options,
                                                   const std::string& precision, Ops& ops,
                                                   SharedWeights* shared) {
  std::unique_ptr<EvalModel> eval(new EvalModel(options, ops));
  const bool reference = precision == "reference";
  const bool dummy = options.load_format == "dummy";
  Result<std::shared_ptr<const Tokenizer>> tokenizer =
      dummy ? LoadDummyTokenizer(options.model_path) : LoadTokenizer(options.model_path);
  if (!tokenizer.ok()) return tokenizer.status();
  eval->tokenizer_ = std::move(tokenizer).value();
  Result<std::string> source = options.chat_template.empty()
                                   ? LoadChatTemplateSource(options.model_path)
                                   : ReadFile(options.chat_template);
  eval->template_status_ = source.status();
  if (source.ok()) eval->template_source_ = std::move(source).value();

  LoadOptions load;
  load.shared = shared;
  load.precision = reference ? Precision::kReference : Precision::kProduction;
  TERN_ASSIGN_OR_RETURN(load.format, LoadFormatNamed(options.load_format));
  TERN_ASSIGN_OR_RETURN(load.dummy_recipe, WeightRecipeNamed(options.dummy_recipe));
  TERN_ASSIGN_OR_RETURN(eval->model_, LoadWithProgress(options.model_path, ops, load));
  eval->kv_format_ = KvFormat::kF32;
  if (!reference || options.kv_cache_dtype != "auto") {
    TERN_ASSIGN_OR_RETURN(eval->kv_format_,
                          ChooseKvFormat(options.kv_cache_dtype, eval->model_->info(),
                                         options.disaggregation.local()));
  }
  TERN_ASSIGN_OR_RETURN(eval->options_.engine.kv_bf16_layers,
                        ParseKvBf16Layers(options.kv_bf16_layers));
  const int64_t vocab = eval->model_->info().vocab_size;
  if (eval->tokenizer_->vocab_size() > vocab) {
    return InvalidArgument(fmt::format("{}: the tokenizer has {} tokens, the model only {}",
                                       options.model_path, eval->tokenizer_->vocab_size(), vocab));
  }
  return eval;
}

int64_t EvalModel::kv_bytes_per_token() const {
  const auto format = PageFormat::Make(model_->info().kv_layers, kv_format_,
                                       options_.engine.page_tokens, options_.engine.kv_bf16_layers);
  return format.ok() ? format->bytes_per_token() : 0;
}

std::string EvalModel::bos_text() const { return TextOf(*tokenizer_, tokenizer_->bos()); }
std::string EvalModel::eos_text() const { return TextOf(*tokenizer_, tokenizer_->eos()); }

Result<std::shared_ptr<const ChatTemplate>> EvalModel::CompileTemplate() const {
  if (!template_status_.ok()) {
    return template_status_.WithContext("tasks need a chat template (--chat-template FILE)");
  }
  auto compiled = ChatTemplate::Compile(template_source_);
  if (compiled.ok()) return compiled;
  const bool own = options_.chat_template.empty();
  return compiled.status().WithContext(
      fmt::format("chat template of {}", own ? options_.model_path : options_.chat_template));
}

std::optional<TokenId> EvalModel::NaturalBos() const {
  const std::string bos = bos_text();
  if (bos.empty()) return std::nullopt;
  const auto chat_template = CompileTemplate();
  if (!chat_template.ok()) return tokenizer_->bos();
  Json inputs = Json::object();
  inputs["messages"] = Json::array();
  for (const char* role : {"user", "assistant", "user"}) {
    inputs["messages"].push_back({{"role", role}, {"content", "x"}});
  }
  inputs["bos_token"] = bos;
  inputs["eos_token"] = eos_text();
  const Result<std::string> text = (*chat_template)->Render(inputs);
  const bool once = text.ok() && text->starts_with(bos) && text->rfind(bos) == 0;
  return once ? tokenizer_->bos() : std::nullopt;
}

Result<std::optional<TokenId>> EvalModel::BosNamed(const std::string& name) const {
  if (name == "auto") return NaturalBos();
  if (name == "none") return std::optional<TokenId>();
  const std::optional<TokenId> id = tokenizer_->IdOf(name);
  if (!id) return InvalidArgument(fmt::format("--bos '{}' is not one token of the model", name));
  return id;
}

std::unique_ptr<LogitSource> EvalModel::MakeLogitSource() {
  return std::make_unique<SequenceLogits>(*model_, ops_, kv_format_, options_);
}

EngineOptions EvalModel::engine_options() const {
  EngineOptions engine = options_.engine;
  engine.kv_format = kv_format_;
  return engine;
}

Result<std::unique_ptr<Engine>> EvalModel::StartEngine(MetricRegistry& metrics) {
  ops_.set_activations(ActivationsOf(options_));
  return Engine::Start(*model_, ops_, engine_options(), metrics);
}

Result<std::unique_ptr<LogitSource>> EvalModel::MakeHandOffSource(EvalModel& prefill) {
  TERN_ASSIGN_OR_RETURN(
      const EngineOptions prefill_options,
      PrefillEngineOptions(options_.disaggregation, engine_options(), prefill.model_->info()));
  const Activations activations = ActivationsOf(options_);
  return MakeHandOffLogits(
      {prefill.path(), *prefill.model_, prefill.ops_, activations, prefill_options},
      {path(), *model_, ops_, activations, engine_options()});
}

Result<std::unique_ptr<Engine>> EvalModel::StartEngines(EvalModel& prefill,
                                                        MetricRegistry& metrics) {
  ModelOptions options = options_;
  options.engine = engine_options();
  for (Ops* ops : {&ops_, &prefill.ops_}) ops->set_activations(ActivationsOf(options_));
  return StartLocalEngines(options,
                           {prefill.path(), *prefill.model_, prefill.ops_, *prefill.tokenizer_},
                           {path(), *model_, ops_, *tokenizer_}, metrics);
}

}  // namespace tern
