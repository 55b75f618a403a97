// tern serve: a model over HTTP, until a signal says to end.
#include <fmt/format.h>
#include <signal.h>
#include <sys/resource.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "base/args.h"
#include "base/log.h"
#include "base/trace.h"
#include "cmd/commands.h"
#include "cmd/serving.h"

namespace tern {
namespace {

struct ServeOptions {
  ModelOptions model;
  std::string host = "127.0.0.1";
  int64_t port = 30000;
  std::string api_key;
  bool enable_metrics = true;
  bool incremental_streaming = false;
  bool cache_report = true;
  int64_t drain_timeout_s = 30;
  std::string log_level = "info";
  std::string trace_file;
};

OptionTable MakeTable(ServeOptions& o) {
  OptionTable table(
      "tern serve",
      "Serve a model over HTTP: OpenAI's API (/v1/chat/completions, /v1/completions,\n"
      "/v1/models) and SGLang's (/generate, /health, /server_info, /metrics, ...).");
  DeclareModelOptions(table, o.model);
  table
      .Add("--served-model-name", &o.model.served_model_name, "NAME",
           "what /v1/models calls the model; by default its path")
      .Group("Model");
  DeclareDisaggregationOptions(table, o.model.disaggregation);
  table.Add("--host", &o.host, "HOST", "address to listen on; 0.0.0.0 for all").Group("Network");
  table.Add("--port", &o.port, "PORT", "port to listen on; 0 takes a free one")
      .Range(0, 65535)
      .Group("Network");
  table
      .Add("--api-key", &o.api_key, "KEY",
           "ask for this key (Authorization: Bearer KEY) everywhere but on paths that begin with "
           "/health (/health_generate too), /ready or /metrics")
      .Secret()
      .Group("Network");
  table
      .Add("--incremental-streaming-output", &o.incremental_streaming, "BOOL",
           "streams of /generate hold what is new, not all so far")
      .Group("Operation");
  table
      .Add("--enable-cache-report", &o.cache_report, "BOOL",
           "say in `usage` how many tokens of the prompt came from the prefix cache")
      .Group("Operation");
  table.Add("--enable-metrics", &o.enable_metrics, "BOOL", "serve Prometheus metrics on /metrics")
      .Group("Operation");
  table
      .Add(
          "--drain-timeout", &o.drain_timeout_s, "SECONDS",
          "on SIGTERM or SIGINT, how long running requests may go on; a second signal ends at once")
      .Range(0, 86400)
      .Group("Operation");
  table.Add("--log-level", &o.log_level, "LEVEL", "least level of log lines on standard error")
      .Choices({"debug", "info", "warning", "error"})
      .Group("Operation");
  table
      .Add("--trace-file", &o.trace_file, "FILE",
           "write the stops that requests pass, with their times in microseconds")
      .Group("Operation");
  table.AddConfigFile();
  table.SetEpilog(
      "Example:\n  tern serve --model-path SmolLM2-135M-Instruct.Q4_1.gguf --port 30000");
  return table;
}

LogLevel LogLevelNamed(const std::string& name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  return LogLevel::kInfo;
}

// SIGTERM and SIGINT, taken by a thread that waits for them: the first one ends a server in order
// (before it serves: at once), the second one at once.
class EndSignals {
 public:
  // Blocks them in this thread and all that it starts from now on.
  EndSignals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGTERM);
    sigaddset(&set_, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
    std::thread([this] {
      int number = 0;
      sigwait(&set_, &number);
      if (!serving_.load()) std::_Exit(128 + number);
      first_.store(number);
      first_.notify_all();
      sigwait(&set_, &number);
      std::_Exit(128 + number);
    }).detach();
  }
  void WaitForFirst() {
    serving_.store(true);
    first_.wait(0);
  }

 private:
  sigset_t set_;
  std::atomic<bool> serving_{false};
  std::atomic<int> first_{0};
};

// Every connection is a descriptor; the usual soft limit is 1024.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

int Fail(const Status& status, int code) {
  fmt::print(stderr, "tern serve: {}\n", status.message());
  return code;
}

}  // namespace

int ServeCommand(const std::vector<std::string>& args) {
  ServeOptions options;
  OptionTable table = MakeTable(options);
  Result<ParseOutcome> outcome = table.Parse(args);
  if (!outcome.ok()) return Fail(outcome.status(), 2);
  if (*outcome == ParseOutcome::kHelpShown) return 0;
  if (options.model.model_path.empty()) return Fail(InvalidArgument("--model-path is required"), 2);
  if (const Status usage = CheckDisaggregationOptions(options.model.disaggregation); !usage.ok()) {
    return Fail(usage, 2);
  }
  SetLogLevel(LogLevelNamed(options.log_level));
  if (!options.trace_file.empty()) {
    if (const Status status = StartTrace(options.trace_file); !status.ok()) return Fail(status, 1);
  }
  RaiseDescriptorLimit();
  signal(SIGPIPE, SIG_IGN);   // a log that nobody reads must not end the server
  static EndSignals signals;  // its thread outlives this function

  ApiServerOptions api;
  api.api_key = options.api_key;
  api.enable_metrics = options.enable_metrics;
  api.incremental_streaming = options.incremental_streaming;
  api.cache_report = options.cache_report;
  api.server_args = table.ToJson();
  api.version = TERN_VERSION;
  Serving serving(options.model, std::move(api));
  // The port first: that it is taken is known before minutes of loading.
  Status status = serving.Listen(options.host, static_cast<int>(options.port));
  if (status.ok()) status = serving.Load();
  if (!status.ok()) return Fail(status, 1);
  TERN_TRACE("serve");
  const bool ipv6 = options.host.find(':') != std::string::npos;
  TERN_LOG(kInfo, "listening on http://{}:{}", ipv6 ? "[" + options.host + "]" : options.host,
           serving.port());

  signals.WaitForFirst();
  TERN_LOG(kInfo, "ending: running requests have {} s", options.drain_timeout_s);
  serving.Stop(options.drain_timeout_s * 1'000'000);
  StopTrace();
  TERN_LOG(kInfo, "ended");
  return 0;
}

}  // namespace tern
