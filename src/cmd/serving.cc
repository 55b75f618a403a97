#include "cmd/serving.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/clock.h"
#include "base/env.h"
#include "base/file.h"
#include "base/log.h"
#include "base/topology.h"
#include "checkpoint/checkpoint.h"
#include "cmd/load.h"
#include "cmd/local_engines.h"
#include "cmd/model_identity.h"
#include "kv/page_format.h"
#include "models/registry.h"
#include "models/shared_weights.h"
#include "server/errors.h"

namespace tern {
namespace {

constexpr double kMiB = 1 << 20;
constexpr int64_t kProgressUs = 2'000'000;
constexpr int64_t kLastWordsUs = 1'000'000;  // for answers that end with the server
constexpr double kMaxCount = 1e12;
// A prompt that fills a context of a million tokens, as ids, twice.
constexpr uint64_t kBodyLimitBytes = 16 << 20;

Result<SamplingDefaults> SamplingDefaultsOf(const ModelOptions& options) {
  SamplingDefaults defaults;
  if (options.sampling_defaults == "openai") return defaults;
  TERN_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(options.model_path));
  const GenerationConfig& config = checkpoint->generation();
  defaults.temperature = config.temperature.value_or(defaults.temperature);
  defaults.top_p = config.top_p.value_or(defaults.top_p);
  defaults.min_p = config.min_p.value_or(defaults.min_p);
  defaults.top_k = config.top_k.value_or(defaults.top_k);
  if (config.repetition_penalty.value_or(1.0) != 1.0) {
    TERN_LOG(kWarning, "the model's default repetition_penalty {} is ignored: not supported",
             *config.repetition_penalty);
  }
  return defaults;
}

std::string TextOf(const Tokenizer& tokenizer, std::optional<TokenId> id) {
  return id ? std::string(tokenizer.TokenBytes(*id)) : std::string();
}

}  // namespace

Result<KvFormat> ChooseKvFormat(const std::string& name, const ModelInfo& model,
                                bool only_decodes) {
  if (name == "auto" && model.fp8_kv_cache) return KvFormat::kFp8E4m3;
  if (name == "auto") {
    const bool tiled =
        only_decodes && PageFormat::Make(model.kv_layers, KvFormat::kFp8Tiled, 1).ok();
    return tiled ? KvFormat::kFp8Tiled : KvFormat::kBf16;
  }
  Result<KvFormat> format = KvFormatNamed(name);
  if (!format.ok()) return format.status().WithContext("--kv-cache-dtype");
  return format;
}

Activations ActivationsOf(const ModelOptions& options) {
  return options.activation_dtype == "int8" ? Activations::kInt8 : Activations::kFloat;
}

Result<std::vector<int64_t>> ParseKvBf16Layers(const std::string& list) {
  std::vector<int64_t> layers;
  const char* at = list.data();
  const char* const end = at + list.size();
  while (at < end) {
    int64_t layer = 0;
    const auto [next, error] = std::from_chars(at, end, layer);
    if (error != std::errc() || layer < 0 || (next < end && *next != ',') || next + 1 == end) {
      return InvalidArgument(
          fmt::format("--kv-bf16-layers '{}' is not a list of layers like 0,60", list));
    }
    layers.push_back(layer);
    at = next < end ? next + 1 : next;
  }
  return layers;
}

void DeclareModelOptions(OptionTable& table, ModelOptions& o) {
  table.Add("--model-path", &o.model_path, "DIR|FILE.gguf", "checkpoint to load")
      .Alias("--model")
      .Group("Model");
  table
      .Add("--load-format", &o.load_format, "NAME",
           "what the checkpoint is; dummy: made-up weights for DIR/config.json or FILE.json")
      .Choices({"auto", "safetensors", "gguf", "dummy"})
      .Group("Model");
  table
      .Add("--dummy-recipe", &o.dummy_recipe, "NAME",
           "format of made-up weights: bf16, fp8, int4 (routed experts only), fp8-linear or "
           "int4-linear (every linear layer), or what the config's quantization_config says")
      .Choices({"config", "bf16", "fp8", "int4", "fp8-linear", "int4-linear"})
      .Group("Model");
  table
      .Add("--chat-template", &o.chat_template, "FILE",
           "Jinja chat template to use instead of the model's own")
      .Group("Model");
  table
      .Add("--tool-call-parser", &o.tool_call_parser, "NAME",
           "how the model writes tool calls; auto: as its chat template shows them")
      .Choices({"auto", "none", "kimi_k2", "glm45", "glm47"})
      .Group("Model");
  table
      .Add("--reasoning-parser", &o.reasoning_parser, "NAME",
           "how the model writes its reasoning; auto: as its chat template shows it")
      .Choices({"auto", "none", "kimi_k2", "glm45"})
      .Group("Model");
  table
      .Add("--context-length", &o.engine.context_length, "N",
           "most tokens of prompt and answer together; 0: what the model was made for")
      .Range(0, kMaxCount)
      .Group("Model");
  table
      .Add("--sampling-defaults", &o.sampling_defaults, "SOURCE",
           "where sampling values come from that a request leaves out: the model's "
           "generation_config.json, or OpenAI's defaults")
      .Choices({"model", "openai"})
      .Group("Model");
  table
      .Add("--kv-cache-dtype", &o.kv_cache_dtype, "FORMAT",
           "how keys and values are stored: bf16, fp8_e4m3 (half the bytes, one scale per layer), "
           "fp8_tiled (half, a scale per 128 numbers or head), fp8_ds_mla (latent attention only) "
           "or auto: fp8_e4m3 if the checkpoint has a kv_cache_scheme, else bf16")
      .Group("Memory and speed");
  table
      .Add("--kv-bf16-layers", &o.kv_bf16_layers, "LIST",
           "layers whose keys and values stay in BF16, such as 0,60")
      .Group("Memory and speed");
  table
      .Add("--kv-integrity", &o.kv_integrity, "MODE",
           "what is checked of KV pages: nothing, whose they are (tags), or their bytes too "
           "(sealed)")
      .Choices({"off", "tags", "sealed"})
      .Group("KV integrity");
  table
      .Add("--kv-integrity-action", &o.kv_integrity_action, "ACTION",
           "what becomes of requests that hold a page that failed: an error, or computed anew")
      .Choices({"abort", "recompute"})
      .Group("KV integrity");
  table
      .Add("--kv-quarantine-limit", &o.engine.integrity.quarantine_limit, "N",
           "pages that failed, with more of which /health answers 503; /flush_cache frees them")
      .Range(0, kMaxCount)
      .Group("KV integrity");
  table
      .Add("--kv-sweep-idle-fraction", &o.engine.integrity.sweep_idle_fraction, "F",
           "share of one core for verifying sealed pages while there are no requests")
      .Range(0, 1)
      .Group("KV integrity");
  table
      .Add("--enable-deterministic-inference", &o.engine.deterministic_inference, "",
           "latent attention: one form for all rows, so that answers are reused bit for bit, as "
           "prompts are; prompts take longer")
      .Group("Memory and speed");
  table
      .Add("--activation-dtype", &o.activation_dtype, "FORMAT",
           "what 4-bit weights are multiplied by; auto: BF16 or float32, whichever the processor "
           "multiplies; int8: integers with a scale for each 32")
      .Choices({"auto", "int8"})
      .Group("Memory and speed");
  table.Add("--threads", &o.threads, "N", "threads for kernels; 0: all that this process may use")
      .Range(0, 4096)
      .Group("Memory and speed");
  table.Add("--page-size", &o.engine.page_tokens, "N", "tokens per page of the KV cache")
      .Range(1, 1024)
      .Group("Memory and speed");
  table
      .Add("--max-total-tokens", &o.engine.max_total_tokens, "N",
           "tokens that the KV cache holds; 0: as many as --mem-fraction-static leaves room for")
      .Range(0, kMaxCount)
      .Group("Memory and speed");
  table
      .Add("--kv-session-fraction", &o.engine.kv_session_fraction, "F",
           "share of the KV cache that conversations (prompt_cache_key, x-session-affinity) keep "
           "from being evicted before others")
      .Range(0, 1)
      .Group("Memory and speed");
  table
      .Add("--mem-fraction-static", &o.engine.mem_fraction_static, "F",
           "share of the available memory for weights and KV cache together")
      .Range(0.01, 1.0)
      .Group("Memory and speed");
  table
      .Add("--max-running-requests", &o.engine.max_running_requests, "N",
           "requests computed at the same time")
      .Range(1, 65536)
      .Group("Memory and speed");
  table
      .Add("--max-queued-requests", &o.engine.max_queued_requests, "N",
           "requests that may wait; more are answered 503")
      .Range(1, 1 << 20)
      .Group("Memory and speed");
  table
      .Add("--chunked-prefill-size", &o.engine.chunked_prefill_size, "N",
           "most tokens computed in one step, generated ones counted first")
      .Range(1, 1 << 20)
      .Group("Memory and speed");
  table
      .Add("--disable-radix-cache", &o.engine.disable_radix_cache, "",
           "do not reuse the prefixes of earlier prompts")
      .Group("Memory and speed");
  table
      .Add("--random-seed", &o.random_seed, "N",
           "seed for requests that bring none; 0: from the system")
      .Range(0, 9e15)
      .Group("Memory and speed");
}

Serving::Serving(ModelOptions options, ApiServerOptions api)
    : options_(std::move(options)), api_(std::move(api), metrics_) {}

Serving::~Serving() { Stop(0); }

Status Serving::Listen(const std::string& host, int port) {
  host_ = host;
  HttpServerOptions http;
  http.error_body = ErrorBody;
  http.body_limit_bytes = kBodyLimitBytes;
  TERN_ASSIGN_OR_RETURN(
      http_, HttpServer::Start(host, port, std::move(http),
                               [this](HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
                                 api_.Handle(std::move(request), std::move(writer));
                               }));
  return OkStatus();
}

Status Serving::Load() {
  if (options_.model_path.empty()) return InvalidArgument("--model-path is required");
  TERN_ASSIGN_OR_RETURN(options_.engine.kv_bf16_layers, ParseKvBf16Layers(options_.kv_bf16_layers));
  options_.engine.integrity.mode = options_.kv_integrity == "off"    ? KvIntegrity::kOff
                                   : options_.kv_integrity == "tags" ? KvIntegrity::kTags
                                                                     : KvIntegrity::kSealed;
  options_.engine.integrity.action = options_.kv_integrity_action == "abort"
                                         ? IntegrityAction::kAbort
                                         : IntegrityAction::kRecompute;
  options_.engine.random_seed = static_cast<uint64_t>(options_.random_seed);
  const int64_t start_us = SystemClock().NowUs();
  ServedModel served;
  served.path = options_.model_path;
  served.name =
      options_.served_model_name.empty() ? options_.model_path : options_.served_model_name;
  served.max_choices = options_.engine.max_queued_requests;
  TERN_RETURN_IF_ERROR(LoadText(&served));
  if (!IsDummy()) {
    TERN_ASSIGN_OR_RETURN(served.sampling, SamplingDefaultsOf(options_));
  }
  TERN_RETURN_IF_ERROR(StartEngine(&served));
  TERN_LOG(kInfo, "loaded {} in {:.1f} s", options_.model_path,
           static_cast<double>(SystemClock().NowUs() - start_us) * 1e-6);
  api_.SetReady(std::move(served));
  return OkStatus();
}

Status Serving::SetKvFormat(const ModelInfo& model) {
  const bool only_decodes =
      options_.disaggregation.local() || options_.disaggregation.role() == EngineRole::kDecode;
  TERN_ASSIGN_OR_RETURN(options_.engine.kv_format,
                        ChooseKvFormat(options_.kv_cache_dtype, model, only_decodes));
  const char* why = options_.kv_cache_dtype != "auto" ? "as --kv-cache-dtype says"
                    : model.fp8_kv_cache              ? "auto: the checkpoint has a kv_cache_scheme"
                    : only_decodes                    ? "auto: this engine decodes"
                                   : "auto: the checkpoint has no kv_cache_scheme";
  TERN_LOG(kInfo, "KV cache format: {} ({})", KvFormatName(options_.engine.kv_format), why);
  return OkStatus();
}

Status Serving::LoadText(ServedModel* served) const {
  Result<std::shared_ptr<const Tokenizer>> tokenizer =
      IsDummy() ? LoadDummyTokenizer(options_.model_path) : LoadTokenizer(options_.model_path);
  if (!tokenizer.ok()) return tokenizer.status();
  served->tokenizer = std::move(tokenizer).value();
  served->bos_token = TextOf(*served->tokenizer, served->tokenizer->bos());
  served->eos_token = TextOf(*served->tokenizer, served->tokenizer->eos());
  const bool own = options_.chat_template.empty();
  Result<std::string> source =
      own ? LoadChatTemplateSource(options_.model_path) : ReadFile(options_.chat_template);
  if (own && source.status().code() == StatusCode::kNotFound) {
    TERN_LOG(kWarning, "no chat template: {}; chat requests will be refused",
             source.status().message());
    return ChooseOutputFormat("", served);
  }
  if (!source.ok()) return source.status();
  TERN_RETURN_IF_ERROR(ChooseOutputFormat(*source, served));
  auto compiled = ChatTemplate::Compile(std::move(source).value());
  if (!compiled.ok()) {
    return compiled.status().WithContext(
        fmt::format("chat template of {}", own ? options_.model_path : options_.chat_template));
  }
  served->chat_template = std::move(compiled).value();
  return OkStatus();
}

Status Serving::ChooseOutputFormat(std::string_view template_source, ServedModel* served) const {
  OutputFormat format = DetectOutputFormat(template_source);
  if (options_.tool_call_parser != "auto") {
    TERN_ASSIGN_OR_RETURN(format.tool_calls, ToolCallFormatNamed(options_.tool_call_parser));
  }
  if (options_.reasoning_parser != "auto") {
    TERN_ASSIGN_OR_RETURN(format.reasoning, ReasoningFormatNamed(options_.reasoning_parser));
  }
  TERN_LOG(kInfo, "tool calls: {} (--tool-call-parser {}); reasoning: {} (--reasoning-parser {})",
           ToolCallFormatName(format.tool_calls), options_.tool_call_parser,
           ReasoningFormatName(format.reasoning), options_.reasoning_parser);
  served->output_format = format;
  return OkStatus();
}

Status Serving::StartEngine(ServedModel* served) {
  const int all = options_.threads > 0 ? static_cast<int>(options_.threads) : AvailableThreads();
  const auto apart = static_cast<int>(options_.disaggregation.prefill_threads);
  if (apart >= all) {
    return InvalidArgument(
        fmt::format("--prefill-threads {} leaves decode none of {} threads", apart, all));
  }
  const int threads = all - apart;
  pool_ = std::make_unique<ThreadPool>(threads);
  if (apart > 0) {
    prefill_pool_ = std::make_unique<ThreadPool>(apart);
    TERN_LOG(kInfo, "{} threads for prefill alone", apart);
  }
  TERN_ASSIGN_OR_RETURN(ops_, Ops::Create(EnvIsa().value_or(""), *pool_));
  ops_->set_activations(ActivationsOf(options_));
  TERN_LOG(kInfo, "{} threads, {} kernels, {}", threads, ops_->isa(), CpuName());

  SharedWeights shared;
  LoadOptions load;
  if (options_.disaggregation.local()) load.shared = &shared;
  TERN_ASSIGN_OR_RETURN(load.format, LoadFormatNamed(options_.load_format));
  TERN_ASSIGN_OR_RETURN(load.dummy_recipe, WeightRecipeNamed(options_.dummy_recipe));
  int64_t logged_us = SystemClock().NowUs();
  load.progress = [&logged_us](uint64_t done_bytes, uint64_t total_bytes) {
    const int64_t now_us = SystemClock().NowUs();
    if (now_us - logged_us < kProgressUs || total_bytes == 0) return;
    logged_us = now_us;
    TERN_LOG(kInfo, "loading weights: {:.0f} of {:.0f} MiB ({} %)",
             static_cast<double>(done_bytes) / kMiB, static_cast<double>(total_bytes) / kMiB,
             done_bytes * 100 / total_bytes);
  };
  TERN_ASSIGN_OR_RETURN(model_, LoadModel(options_.model_path, *ops_, load));
  const ModelInfo& info = model_->info();
  if (served->tokenizer->vocab_size() > info.vocab_size) {
    return InvalidArgument(fmt::format("{}: the tokenizer has {} tokens, the model only {}",
                                       options_.model_path, served->tokenizer->vocab_size(),
                                       info.vocab_size));
  }
  TERN_RETURN_IF_ERROR(SetKvFormat(info));
  served->kv_cache_format = KvFormatName(options_.engine.kv_format);
  TERN_RETURN_IF_ERROR(MakeEngine(*served, load));
  TERN_ASSIGN_OR_RETURN(served->disaggregation, SettingsOf(options_.disaggregation));
  const EngineStats stats = engine_->Stats();
  served->architecture = info.architecture;
  served->model_type = info.model_type;
  served->context_length = std::min(stats.context_length, stats.total_tokens);
  served->engine = engine_.get();
  return OkStatus();
}

Status Serving::MakeEngine(const ServedModel& served, const LoadOptions& load) {
  const DisaggregationOptions& apart = options_.disaggregation;
  if (apart.mode == "null") {
    TERN_ASSIGN_OR_RETURN(engine_, Engine::Start(*model_, *ops_, options_.engine, metrics_));
    return OkStatus();
  }
  if (IsDummy()) {
    return InvalidArgument("--load-format dummy can't be used with --disaggregation-mode");
  }
  if (apart.local()) return MakeLocalEngines(served, load);
  TERN_ASSIGN_OR_RETURN(const ModelId id, ModelIdOf(options_.model_path, *served.tokenizer));
  TERN_ASSIGN_OR_RETURN(Disaggregation half, MakeWorkerDisaggregation(apart, host_, model_->info(),
                                                                      options_.engine, id));
  TERN_ASSIGN_OR_RETURN(engine_, Engine::Start(*model_, *ops_, options_.engine, metrics_,
                                               SystemClock(), std::move(half)));
  return OkStatus();
}

// Decode's model is loaded; what prefill's has alike is held once.
Status Serving::MakeLocalEngines(const ServedModel& served, const LoadOptions& load) {
  const std::string& path = PrefillPathOf(options_);
  TERN_ASSIGN_OR_RETURN(
      prefill_ops_, Ops::Create(EnvIsa().value_or(""), prefill_pool_ ? *prefill_pool_ : *pool_));
  prefill_ops_->set_activations(ActivationsOf(options_));
  TERN_ASSIGN_OR_RETURN(prefill_model_, LoadModel(path, *prefill_ops_, load));
  TERN_ASSIGN_OR_RETURN(const auto tokenizer, LoadTokenizer(path));
  TERN_ASSIGN_OR_RETURN(
      engine_,
      StartLocalEngines(options_, {path, *prefill_model_, *prefill_ops_, *tokenizer},
                        {options_.model_path, *model_, *ops_, *served.tokenizer}, metrics_));
  return OkStatus();
}

void Serving::Stop(int64_t timeout_us) {
  if (http_ == nullptr) return;
  const int64_t end_us = SystemClock().NowUs() + timeout_us;
  api_.SetDraining();  // who comes now is told 503, not left to guess at a refused connection
  if (engine_ != nullptr && timeout_us > 0) {
    engine_->Drain(timeout_us);
    engine_->AbortRid("", /*all=*/true);  // what is left ends with "abort"
  }
  // The last tokens are on their way to the clients.
  const int64_t left_us = end_us - SystemClock().NowUs();
  http_->Shutdown(timeout_us > 0 ? std::max(left_us, kLastWordsUs) : 0);
  engine_.reset();
  http_.reset();
}

}  // namespace tern
