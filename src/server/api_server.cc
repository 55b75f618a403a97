#include "server/api_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/log.h"
#include "base/sha256.h"
#include "base/trace.h"
#include "server/choices.h"
#include "server/disaggregation.h"
#include "server/errors.h"
#include "server/forwarding_writer.h"
#include "server/info.h"
#include "server/loads.h"
#include "server/native.h"
#include "server/openai.h"
#include "server/openapi.h"

namespace tern {
namespace {

constexpr int64_t kHealthGenerateTimeoutUs = 20'000'000;
constexpr int64_t kMaxFlushTimeoutS = 3600;
constexpr int64_t kFlushRetryUs = 20'000;
constexpr std::string_view kModelsPrefix = "/v1/models/";
constexpr const char* kPrometheusText = "text/plain; version=0.0.4; charset=utf-8";

void SendJson(ResponseWriter& writer, const Json& json) {
  writer.Send(200, {{"Content-Type", "application/json"}}, DumpJson(json));
}

void SendText(ResponseWriter& writer, int status, std::string text) {
  writer.Send(status, {{"Content-Type", "text/plain; charset=utf-8"}}, std::move(text));
}

// Passes everything on and counts the answer by its status.
class CountingWriter final : public ForwardingWriter {
 public:
  CountingWriter(std::shared_ptr<ResponseWriter> next, MetricRegistry& registry, std::string method,
                 std::string endpoint)
      : ForwardingWriter(std::move(next)),
        registry_(registry),
        method_(std::move(method)),
        endpoint_(std::move(endpoint)) {}
  void Send(int status, HttpHeaders headers, std::string body) override {
    Count(status);
    ForwardingWriter::Send(status, std::move(headers), std::move(body));
  }
  void BeginStream(int status, HttpHeaders headers) override {
    Count(status);
    ForwardingWriter::BeginStream(status, std::move(headers));
  }

 private:
  void Count(int status) {
    registry_
        .AddCounter(
            "sglang:http_responses_total", "HTTP answers by status.",
            {{"endpoint", endpoint_}, {"method", method_}, {"status_code", std::to_string(status)}})
        .Add();
  }

  MetricRegistry& registry_;
  const std::string method_, endpoint_;
};

// /health_generate: any sign of life from the engine is an answer.
class HealthListener final : public GenerationListener {
 public:
  explicit HealthListener(std::shared_ptr<ResponseWriter> writer) : writer_(std::move(writer)) {}
  void OnToken(size_t, const TokenEvent&, std::string_view) override {
    SendText(*writer_, 200, "");
  }
  void OnEnd(size_t, std::string_view, const ChoiceEnd& end) override {
    if (end.reason == ChoiceEnd::Reason::kError) return SendError(*writer_, end.status);
    SendText(*writer_, 200, "");  // dropped when a token has already answered
  }

 private:
  const std::shared_ptr<ResponseWriter> writer_;
};

// Asks again and again until no request runs or the time is over.
void FlushWithin(Engine& engine, std::shared_ptr<ResponseWriter> writer, int64_t left_us) {
  // The engine answers between steps, on its own thread.
  Executor& network = writer->executor();
  engine.FlushCache([&engine, &network, writer = std::move(writer), left_us](bool flushed) {
    network.Post([&engine, &network, writer, left_us, flushed] {
      if (flushed) return SendText(*writer, 200, "Cache flushed.\n");
      if (left_us <= 0) {
        return SendText(*writer, 400, "The cache was not flushed: requests are running.\n");
      }
      if (!writer->open()) return;
      const int64_t pause_us = std::min(left_us, kFlushRetryUs);
      network.PostAfter(pause_us, [&engine, writer, left_us = left_us - pause_us] {
        FlushWithin(engine, writer, left_us);
      });
    });
  });
}

// Paths that begin so ask for no API key, as SGLang's.
bool IsOpenPath(std::string_view path) {
  for (const std::string_view open : {"/health", "/ready", "/metrics"}) {
    if (path.starts_with(open)) return true;
  }
  return false;
}

}  // namespace

struct ApiServer::Route {
  const char* methods;  // separated by '|'
  const char* path;
  const char* operation;  // as openapi.h names it
  Needs needs;
  void (ApiServer::*handle)(const HttpRequest&, std::shared_ptr<ResponseWriter>);
};

const ApiServer::Route ApiServer::kRoutes[] = {
    {"POST", "/v1/chat/completions", "chat", Needs::kReady, &ApiServer::Chat},
    {"POST", "/v1/completions", "completions", Needs::kReady, &ApiServer::Completions},
    {"POST|PUT", "/generate", "generate", Needs::kReady, &ApiServer::Generate},
    {"GET|HEAD", "/health", "health", Needs::kNothing, &ApiServer::Health},
    {"GET|HEAD", "/ready", "health", Needs::kNothing, &ApiServer::Health},
    {"GET|HEAD", "/ping", "health", Needs::kNothing, &ApiServer::Health},
    {"POST", "/tokenize", "tokenize", Needs::kModel, &ApiServer::Tokenize},
    {"POST", "/v1/tokenize", "tokenize", Needs::kModel, &ApiServer::Tokenize},
    {"POST", "/detokenize", "detokenize", Needs::kModel, &ApiServer::Detokenize},
    {"POST", "/v1/detokenize", "detokenize", Needs::kModel, &ApiServer::Detokenize},
    {"GET", "/health_generate", "health_generate", Needs::kReady, &ApiServer::HealthGenerate},
    {"GET", "/v1/models", "models", Needs::kModel, &ApiServer::Models},
    {"GET", "/v1/models/", "model", Needs::kModel, &ApiServer::OneModel},
    {"GET", "/model_info", "model_info", Needs::kModel, &ApiServer::ModelInfo},
    {"GET", "/get_model_info", "model_info", Needs::kModel, &ApiServer::ModelInfo},
    {"GET", "/server_info", "server_info", Needs::kModel, &ApiServer::ServerInfo},
    {"GET", "/get_server_info", "server_info", Needs::kModel, &ApiServer::ServerInfo},
    {"GET", "/v1/loads", "loads", Needs::kModel, &ApiServer::Loads},
    {"GET", "/get_load", "get_load", Needs::kModel, &ApiServer::OldLoad},
    {"GET", "/metrics", "metrics", Needs::kNothing, &ApiServer::Metrics},
    {"POST", "/abort_request", "abort_request", Needs::kModel, &ApiServer::AbortRequest},
    {"GET|POST", "/flush_cache", "flush_cache", Needs::kModel, &ApiServer::FlushCache},
    {"GET", "/openapi.json", "openapi", Needs::kNothing, &ApiServer::OpenApi},
};

ApiServer::ApiServer(ApiServerOptions options, MetricRegistry& registry, const Clock& clock)
    : options_(std::move(options)),
      registry_(registry),
      clock_(clock),
      started_at_(clock.UnixSeconds()),
      created_us_(clock.NowUs()) {}

void ApiServer::SetReady(ServedModel model) {
  model_.emplace(std::move(model));
  model_->longest_token_bytes = LongestTokenBytes(*model_->tokenizer);
  ready_us_ = clock_.NowUs();
  state_.store(State::kReady, std::memory_order_release);
  TERN_TRACE("server.ready");
}

void ApiServer::SetDraining() {
  State ready = State::kReady;  // a server that is loading has no model to answer with
  state_.compare_exchange_strong(ready, State::kDraining, std::memory_order_acq_rel);
}

bool ApiServer::Authorized(const HttpRequest& request) const {
  if (options_.api_key.empty() || request.method == "OPTIONS") return true;
  if (IsOpenPath(request.path)) return true;
  const std::string* header = FindHeader(request.headers, "Authorization");
  constexpr std::string_view kBearer = "Bearer ";
  return header != nullptr && std::string_view(*header).substr(0, kBearer.size()) == kBearer &&
         EqualSecrets(std::string_view(*header).substr(kBearer.size()), options_.api_key);
}

void ApiServer::Handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
  const Route* found = nullptr;
  bool path_known = false;
  for (const Route& route : kRoutes) {
    const std::string_view path = route.path;
    const bool same = path == kModelsPrefix
                          ? std::string_view(request.path).substr(0, path.size()) == path
                          : request.path == path;
    if (!same) continue;
    path_known = true;
    const std::string methods = fmt::format("|{}|", route.methods);
    if (methods.find("|" + request.method + "|") != std::string::npos) found = &route;
  }
  // Unknown paths share one label: they must not grow the registry.
  const std::string endpoint = found != nullptr ? found->path : "other";
  const std::string method = found != nullptr ? request.method : "other";
  registry_
      .AddCounter("sglang:http_requests_total", "HTTP requests.",
                  {{"endpoint", endpoint}, {"method", method}})
      .Add();
  writer = std::make_shared<CountingWriter>(std::move(writer), registry_, method, endpoint);

  const auto refuse = [&](int status, std::string_view message) {
    writer->Send(status, {{"Content-Type", "application/json"}}, ErrorBody(status, message));
  };
  if (!Authorized(request)) {
    return writer->Send(401, {{"Content-Type", "application/json"}, {"WWW-Authenticate", "Bearer"}},
                        R"({"error":"Unauthorized"})");
  }
  if (found == nullptr && path_known) {
    return refuse(405, fmt::format("{} is not allowed on {}", request.method, request.path));
  }
  if (found == nullptr) return refuse(404, fmt::format("there is no endpoint {}", request.path));
  const State state = state_.load(std::memory_order_acquire);
  if (found->needs != Needs::kNothing && state == State::kLoading) {
    return refuse(503, "the model is still being loaded");
  }
  if (found->needs == Needs::kReady && state == State::kDraining) {
    if (auto notice = WatchForRefusal(*model_, request, writer)) writer = std::move(notice);
    return refuse(503, "the server is shutting down");
  }
  TERN_LOG(kDebug, "{} {}", request.method, request.path);
  (this->*found->handle)(request, std::move(writer));
}

void ApiServer::Health(const HttpRequest&, std::shared_ptr<ResponseWriter> writer) {
  const State state = state_.load(std::memory_order_acquire);
  if (state == State::kReady) {
    const int64_t until_us = model_->engine->Stats().integrity.unhealthy_until_us;
    if (clock_.NowUs() >= until_us) return SendText(*writer, 200, "");
    return SendText(*writer, 503,
                    until_us == IntegrityStats::kNeverHealthy
                        ? "too many KV pages are in quarantine"
                        : "KV pages have failed their checks in the last minute");
  }
  SendText(*writer, 503, state == State::kLoading ? "loading" : "shutting down");
}

void ApiServer::HealthGenerate(const HttpRequest&, std::shared_ptr<ResponseWriter> writer) {
  ChoiceSpec spec;
  spec.request.rid = NewRequestId("HEALTH_CHECK_");
  spec.request.tokens = {0};
  spec.request.sampling.temperature = 0;
  spec.request.sampling.max_new_tokens = 1;
  spec.request.sampling.ignore_eos = true;
  std::vector<ChoiceSpec> choices;
  choices.push_back(std::move(spec));
  StartGeneration(Context(), std::move(choices), std::make_shared<HealthListener>(writer), writer,
                  /*chunked=*/false);
  writer->executor().PostAfter(kHealthGenerateTimeoutUs, [weak = std::weak_ptr(writer)] {
    if (const auto live = weak.lock()) {
      SendError(*live, Unavailable("the engine has made no progress in 20 seconds"));
    }
  });
}

void ApiServer::Models(const HttpRequest&, std::shared_ptr<ResponseWriter> writer) {
  SendJson(*writer, {{"object", "list"}, {"data", Json::array({ModelCard(*model_, started_at_)})}});
}

void ApiServer::OneModel(const HttpRequest& request, std::shared_ptr<ResponseWriter> writer) {
  const std::string name = request.path.substr(kModelsPrefix.size());
  if (name == model_->name) return SendJson(*writer, ModelCard(*model_, started_at_));
  const Json error = {{"message", fmt::format("The model '{}' does not exist", name)},
                      {"type", "invalid_request_error"},
                      {"param", "model"},
                      {"code", "model_not_found"}};
  writer->Send(404, {{"Content-Type", "application/json"}}, DumpJson({{"error", error}}));
}

void ApiServer::ModelInfo(const HttpRequest&, std::shared_ptr<ResponseWriter> writer) {
  SendJson(*writer, ModelInfoJson(*model_, options_.server_args));
}

void ApiServer::ServerInfo(const HttpRequest&, std::shared_ptr<ResponseWriter> writer) {
  SendJson(*writer, ServerInfoJson(*model_, options_.server_args, options_.version,
                                   static_cast<double>(ready_us_ - created_us_) * 1e-6));
}

void ApiServer::Loads(const HttpRequest& request, std::shared_ptr<ResponseWriter> writer) {
  const Result<LoadsQuery> query = ParseLoadsQuery(request);
  if (!query.ok()) return SendError(*writer, query.status());
  const int64_t now = clock_.UnixSeconds();
  const Json load = LoadJson(*model_, *query, DisaggregationLoads(*model_), now);
  if (!query->prometheus) return SendJson(*writer, LoadsJson(load, options_.version, now));
  writer->Send(200, {{"Content-Type", kPrometheusText}}, LoadsPrometheus(load));
}

void ApiServer::OldLoad(const HttpRequest&, std::shared_ptr<ResponseWriter> writer) {
  SendJson(*writer, OldLoadJson(*model_));
}

void ApiServer::Metrics(const HttpRequest&, std::shared_ptr<ResponseWriter> writer) {
  if (!options_.enable_metrics) {
    return SendError(*writer, NotFound("metrics are off; start with --enable-metrics"));
  }
  writer->Send(200, {{"Content-Type", kPrometheusText}}, registry_.Render());
}

void ApiServer::OpenApi(const HttpRequest&, std::shared_ptr<ResponseWriter> writer) {
  std::vector<ApiRoute> routes;
  for (const Route& route : kRoutes) {
    routes.push_back({route.methods, route.path, route.operation, IsOpenPath(route.path)});
  }
  SendJson(*writer, OpenApiDocument(options_.version, routes));
}

void ApiServer::HandleGenerating(GeneratingHandler handler, const HttpRequest& request,
                                 std::shared_ptr<ResponseWriter> writer) {
  const std::shared_ptr<RefusalNotice> notice = WatchForRefusal(*model_, request, writer);
  if (notice == nullptr) return handler(Context(), request, std::move(writer));
  handler(Context(), request, notice);
  notice->HandlerDone();
}

void ApiServer::Chat(const HttpRequest& request, std::shared_ptr<ResponseWriter> writer) {
  HandleGenerating(HandleChatCompletions, request, std::move(writer));
}

void ApiServer::Completions(const HttpRequest& request, std::shared_ptr<ResponseWriter> writer) {
  HandleGenerating(HandleCompletions, request, std::move(writer));
}

void ApiServer::Generate(const HttpRequest& request, std::shared_ptr<ResponseWriter> writer) {
  HandleGenerating(HandleGenerate, request, std::move(writer));
}

void ApiServer::Tokenize(const HttpRequest& request, std::shared_ptr<ResponseWriter> writer) {
  HandleTokenize(Context(), request, std::move(writer));
}

void ApiServer::Detokenize(const HttpRequest& request, std::shared_ptr<ResponseWriter> writer) {
  HandleDetokenize(Context(), request, std::move(writer));
}

void ApiServer::AbortRequest(const HttpRequest& request, std::shared_ptr<ResponseWriter> writer) {
  Result<Json> body = ParseJson(request.body);
  if (!body.ok()) return SendError(*writer, body.status());
  Result<std::string> rid = JsonString(*body, "rid", "", "body");
  if (!rid.ok()) return SendError(*writer, rid.status());
  Result<bool> all = JsonBool(*body, "abort_all", false, "body");
  if (!all.ok()) return SendError(*writer, all.status());
  if (rid->empty() && !*all) return SendError(*writer, InvalidArgument("body.rid is required"));
  model_->engine->AbortRid(*rid, *all);
  SendText(*writer, 200, "");
}

void ApiServer::FlushCache(const HttpRequest& request, std::shared_ptr<ResponseWriter> writer) {
  const std::string text = request.QueryParameter("timeout").value_or("0");
  double timeout_s = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), timeout_s);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (!whole || !(timeout_s >= 0 && timeout_s <= kMaxFlushTimeoutS)) {
    return SendText(*writer, 400,
                    fmt::format("query.timeout must be from 0 to {} seconds\n", kMaxFlushTimeoutS));
  }
  FlushWithin(*model_->engine, std::move(writer), static_cast<int64_t>(timeout_s * 1e6));
}

}  // namespace tern
