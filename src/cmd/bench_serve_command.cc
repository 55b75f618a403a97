// tern bench serve.
#include <string>
#include <vector>

#include "bench/serve_bench.h"
#include "cmd/bench.h"
#include "cmd/progress_bar.h"

namespace tern {

int BenchServeCommand(const std::vector<std::string>& args) {
  ServeBenchOptions o;
  int64_t seed = 1, timeout_s = 600;
  bool stop_at_eos = false;
  BenchOutputs outputs;
  OptionTable table(
      "tern bench serve",
      "Load on a server with /v1/completions: latencies, throughput and goodput. "
      "Closed loop: --concurrency\nrequests at a time; open loop: arrivals at --rate.");
  table.Add("--url", &o.url, "URL", "http://host:port").Required().Group("Server");
  table.Add("--served-model-name", &o.model, "NAME", "model to ask for").Group("Server");
  table.Add("--api-key", &o.api_key, "KEY", "key that the server asks for")
      .Secret()
      .Group("Server");
  table.Add("--timeout", &timeout_s, "SECONDS", "longest wait for a piece of an answer")
      .Range(1, 86400)
      .Group("Server");
  table
      .Add("--concurrency", &o.concurrency, "N",
           "closed loop: requests at a time; open loop: most connections")
      .Range(1, 4096)
      .Group("Load");
  table
      .Add("--rate", &o.rate, "R",
           "open loop: mean arrivals per second, by a Poisson process; 0: closed loop")
      .Range(0, 1e6)
      .Group("Load");
  table.Add("--requests", &o.requests, "N", "requests that count").Range(1, 1e7).Group("Load");
  table.Add("--warm-ups", &o.warm_ups, "N", "requests before them").Range(0, 1e6).Group("Load");
  table.Add("--prompt-tokens", &o.prompt_tokens, "N", "length of a prompt")
      .Range(1, 1 << 24)
      .Group("Load");
  table.Add("--output-tokens", &o.output_tokens, "N", "length of an answer")
      .Range(1, 1 << 24)
      .Group("Load");
  table.Add("--stop-at-eos", &stop_at_eos, "", "let answers end earlier").Group("Load");
  table.Add("--token-low", &o.token_low, "ID", "prompts are random ids from this one on")
      .Range(0, 1e9)
      .Group("Load");
  table.Add("--token-high", &o.token_high, "ID", "and below this one").Range(1, 1e9).Group("Load");
  table.Add("--seed", &seed, "N", "of prompts and arrivals").Range(0, 9e15).Group("Load");
  table.Add("--ttft-goal", &o.ttft_goal_ms, "MS", "goodput counts requests within this")
      .Range(0, 1e9)
      .Group("Goals");
  table.Add("--itl-goal", &o.itl_goal_ms, "MS", "and within this per token after the first")
      .Range(0, 1e9)
      .Group("Goals");
  DeclareBenchOutputs(table, outputs);
  return RunBench(table, "tern bench serve", args, [&]() -> Status {
    TERN_RETURN_IF_ERROR(CheckBenchOutputs(outputs));
    o.seed = static_cast<uint64_t>(seed);
    o.timeout_us = timeout_s * 1'000'000;
    o.ignore_eos = !stop_at_eos;
    ProgressBar bar("bench serve", "requests");
    TERN_ASSIGN_OR_RETURN(
        const ServeBenchResult result,
        RunServeBench(o, [&bar](int64_t done, int64_t total) { bar.Update(done, total); }));
    return WriteBenchOutputs(outputs, ServeBenchTable(o, result), ServeBenchJson(o, result),
                             ServeBenchPicture(o, result));
  });
}

}  // namespace tern
