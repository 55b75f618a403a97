// Serving: a model behind an HTTP port: what `serve` runs and `chat` talks to.
// Owner: the command. Thread: the command's; requests are handled on the network thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/args.h"
#include "base/json.h"
#include "base/metrics.h"
#include "base/thread_pool.h"
#include "cmd/disaggregation_options.h"
#include "engine/engine.h"
#include "kernels/ops.h"
#include "models/model.h"
#include "models/registry.h"
#include "net/http_server.h"
#include "server/api_server.h"

namespace tern {

// Which model, and how it runs. Names and defaults follow SGLang where it has them.
struct ModelOptions {
  std::string model_path;
  std::string served_model_name;  // empty: model_path
  std::string chat_template;      // a file; empty: the model's own
  std::string tool_call_parser = "auto";
  std::string reasoning_parser = "auto";
  std::string load_format = "auto";
  std::string dummy_recipe = "config";
  std::string kv_cache_dtype = "auto";
  std::string kv_bf16_layers;
  std::string activation_dtype = "auto";
  std::string kv_integrity = "tags";
  std::string kv_integrity_action = "abort";
  std::string sampling_defaults = "model";
  int64_t threads = 0;  // 0: all that this process may use
  EngineOptions engine;
  int64_t random_seed = 0;
  DisaggregationOptions disaggregation;
};

// The format that --kv-cache-dtype comes to for a model: auto is fp8_e4m3 where the checkpoint
// brings a kv_cache_scheme; else fp8_tiled for an engine that only decodes, if the model can have
// it; else BF16. Errors: kInvalidArgument, naming the flag.
Result<KvFormat> ChooseKvFormat(const std::string& name, const ModelInfo& model,
                                bool only_decodes = false);
// --activation-dtype.
Activations ActivationsOf(const ModelOptions& options);
// The layers of --kv-bf16-layers, "0,60". Errors: kInvalidArgument, naming the flag.
Result<std::vector<int64_t>> ParseKvBf16Layers(const std::string& list);

// Declares --model-path and what else ModelOptions holds. `options` outlives the table.
void DeclareModelOptions(OptionTable& table, ModelOptions& options);

class Serving {
 public:
  // `api.server_args` and `api.version` are for /server_info.
  Serving(ModelOptions options, ApiServerOptions api);
  ~Serving();

  // Takes the port; requests get 503 until Load is done. Errors: HttpServer::Start's.
  Status Listen(const std::string& host, int port);
  // Loads the model and starts the engine; logs progress. Errors name the file or flag.
  Status Load();
  int port() const { return http_->port(); }

  // Takes no new requests, lets the running ones end for at most `timeout_us`, ends the rest.
  void Stop(int64_t timeout_us);

 private:
  // Sets the KV cache's format, and logs which one --kv-cache-dtype came to, and why.
  Status SetKvFormat(const ModelInfo& model);
  bool IsDummy() const { return options_.load_format == "dummy"; }
  Status LoadText(ServedModel* served) const;
  // Sets how answers are read: as the flags say, or as the chat template shows.
  Status ChooseOutputFormat(std::string_view template_source, ServedModel* served) const;
  Status StartEngine(ServedModel* served);
  // The engine, or the two of --disaggregation-mode local, of the loaded model. `load`: as it was
  // loaded.
  Status MakeEngine(const ServedModel& served, const LoadOptions& load);
  Status MakeLocalEngines(const ServedModel& served, const LoadOptions& load);

  ModelOptions options_;
  std::string host_;  // that Listen was given
  MetricRegistry metrics_;
  // In the order of death, last first: the engine's last events still find the network thread's
  // queue, and requests that arrive during the end still find the API.
  ApiServer api_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Model> model_;
  // The prefill side of --disaggregation-mode local; its pool if it has threads of its own.
  std::unique_ptr<ThreadPool> prefill_pool_;
  std::unique_ptr<Ops> prefill_ops_;
  std::unique_ptr<Model> prefill_model_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace tern
