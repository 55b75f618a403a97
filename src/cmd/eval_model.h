// EvalModel: a model as `tern eval` uses it: tokenizer, template, logits of a text, an engine.
// Owner: the command. Thread: the command's.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/metrics.h"
#include "base/thread_pool.h"
#include "cmd/serving.h"
#include "engine/engine.h"
#include "eval/logit_source.h"
#include "kernels/ops.h"
#include "models/model.h"
#include "models/shared_weights.h"
#include "text/chat_template.h"
#include "text/output_format.h"
#include "text/tokenizer.h"

namespace tern {

class EvalModel {
 public:
  // `precision`: "production" or "reference" (float32 on dequantized weights, float32 KV rows
  // unless options.kv_cache_dtype says otherwise). `pool` and `ops` outlive the result. `shared`:
  // as LoadOptions::shared. Errors name the file or flag.
  static Result<std::unique_ptr<EvalModel>> Load(const ModelOptions& options,
                                                 const std::string& precision, Ops& ops,
                                                 SharedWeights* shared = nullptr);

  const Model& model() const { return *model_; }
  const std::string& path() const { return options_.model_path; }
  const std::shared_ptr<const Tokenizer>& tokenizer() const { return tokenizer_; }
  const std::string& template_source() const { return template_source_; }
  KvFormat kv_format() const { return kv_format_; }
  // Exact bytes of a token's KV rows.
  int64_t kv_bytes_per_token() const;
  std::string bos_text() const;
  std::string eos_text() const;

  // Errors: there is no template, or it does not parse.
  Result<std::shared_ptr<const ChatTemplate>> CompileTemplate() const;
  // The token that the chat template puts in front of a conversation, once: the tokenizer's BOS,
  // where a rendered conversation begins with it and holds it nowhere else. Without a template: the
  // tokenizer's BOS. nullopt: texts are scored without one.
  std::optional<TokenId> NaturalBos() const;
  // `name`: "auto" (NaturalBos), "none", or a token's text. Errors: not one token.
  Result<std::optional<TokenId>> BosNamed(const std::string& name) const;

  // Refer to this.
  std::unique_ptr<LogitSource> MakeLogitSource();
  Result<std::unique_ptr<Engine>> StartEngine(MetricRegistry& metrics);
  // With --disaggregation-mode local: this decodes what `prefill` has computed (its own Ops), which
  // outlives the results. Errors: those of MakeHandOffLogits; of StartLocalEngines.
  Result<std::unique_ptr<LogitSource>> MakeHandOffSource(EvalModel& prefill);
  Result<std::unique_ptr<Engine>> StartEngines(EvalModel& prefill, MetricRegistry& metrics);

 private:
  EvalModel(ModelOptions options, Ops& ops) : options_(std::move(options)), ops_(ops) {}
  EngineOptions engine_options() const;

  ModelOptions options_;
  Ops& ops_;
  KvFormat kv_format_ = KvFormat::kBf16;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::string template_source_;  // empty: none
  Status template_status_;       // why
  std::unique_ptr<Model> model_;
};

}  // namespace tern
