// ApiServer: routes requests to endpoints, checks the API key, counts. Before the model is loaded
// and while shutting down, /health and everything that generates answer 503.
// Owned by cmd/serve; outlives the HttpServer whose handler it is.
// Thread: Handle on the network thread; SetReady and SetDraining on any, in that order.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/json.h"
#include "base/metrics.h"
#include "net/http.h"
#include "server/endpoint_context.h"
#include "server/served_model.h"

namespace tern {

struct ApiServerOptions {
  std::string api_key;                 // empty: none is asked for
  bool enable_metrics = true;          // GET /metrics
  bool incremental_streaming = false;  // as EndpointContext has it
  bool cache_report = true;            // the same
  Json server_args = Json::object();   // the option table, for /server_info
  std::string version;
};

class ApiServer {
 public:
  ApiServer(ApiServerOptions options, MetricRegistry& registry, const Clock& clock = SystemClock());

  // Publishes the model; once.
  void SetReady(ServedModel model);
  void SetDraining();

  void Handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer);

 private:
  enum class State { kLoading, kReady, kDraining };
  enum class Needs { kNothing, kModel, kReady };  // kModel: also while draining
  struct Route;
  static const Route kRoutes[];

  bool Authorized(const HttpRequest& request) const;
  EndpointContext Context() {
    return {*model_, clock_, options_.incremental_streaming, options_.cache_report};
  }

  using GeneratingHandler = void (*)(const EndpointContext&, const HttpRequest&,
                                     std::shared_ptr<ResponseWriter>);
  void HandleGenerating(GeneratingHandler handler, const HttpRequest& request,
                        std::shared_ptr<ResponseWriter> writer);
  void Health(const HttpRequest&, std::shared_ptr<ResponseWriter>);
  void HealthGenerate(const HttpRequest&, std::shared_ptr<ResponseWriter>);
  void Models(const HttpRequest&, std::shared_ptr<ResponseWriter>);
  void OneModel(const HttpRequest&, std::shared_ptr<ResponseWriter>);
  void ModelInfo(const HttpRequest&, std::shared_ptr<ResponseWriter>);
  void ServerInfo(const HttpRequest&, std::shared_ptr<ResponseWriter>);
  void Loads(const HttpRequest&, std::shared_ptr<ResponseWriter>);
  void OldLoad(const HttpRequest&, std::shared_ptr<ResponseWriter>);
  void Metrics(const HttpRequest&, std::shared_ptr<ResponseWriter>);
  void OpenApi(const HttpRequest&, std::shared_ptr<ResponseWriter>);
  void Chat(const HttpRequest&, std::shared_ptr<ResponseWriter>);
  void Completions(const HttpRequest&, std::shared_ptr<ResponseWriter>);
  void Generate(const HttpRequest&, std::shared_ptr<ResponseWriter>);
  void Tokenize(const HttpRequest&, std::shared_ptr<ResponseWriter>);
  void Detokenize(const HttpRequest&, std::shared_ptr<ResponseWriter>);
  void AbortRequest(const HttpRequest&, std::shared_ptr<ResponseWriter>);
  void FlushCache(const HttpRequest&, std::shared_ptr<ResponseWriter>);

  const ApiServerOptions options_;
  MetricRegistry& registry_;
  const Clock& clock_;
  const int64_t started_at_;  // Unix seconds
  const int64_t created_us_;
  int64_t ready_us_ = 0;  // written before state_ becomes kReady
  std::atomic<State> state_{State::kLoading};
  std::optional<ServedModel> model_;  // written before state_ becomes kReady
};

}  // namespace tern
