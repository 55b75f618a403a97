// Load on a server: requests of made-up prompts through /v1/completions, streamed, in a closed loop
// (so many at a time) or an open one (arrivals by a Poisson process, whatever the server does).
// Owner: the command. Thread: one for each connection.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "report/svg_chart.h"

namespace tern {

struct ServeBenchOptions {
  std::string url, model, api_key;
  int64_t requests = 64;
  int64_t warm_ups = 4;     // before them, not counted
  int64_t concurrency = 8;  // closed loop: requests at a time; open loop: connections at most
  double rate = 0;          // open loop: mean arrivals per second; 0: closed loop
  int64_t prompt_tokens = 128, output_tokens = 64;
  // Prompts are random ids of [token_low, token_high): byte tokens of most vocabularies.
  int64_t token_low = 100, token_high = 250;
  bool ignore_eos = true;  // answers then have exactly output_tokens
  double ttft_goal_ms = 1000, itl_goal_ms = 100;
  uint64_t seed = 1;
  int64_t timeout_us = 600'000'000;
};

// One request. Times are seconds from the start of the run; an open loop's begin when the request
// was due, so that waiting for a connection counts.
struct RequestRecord {
  double start = 0, first = 0, last = 0;  // first and last piece of text
  std::vector<double> gaps;               // between pieces
  int64_t output_tokens = 0;              // as the server counts, else pieces
  std::string error;                      // empty: answered

  double ttft() const { return first - start; }
  // Seconds per token after the first. REQUIRES: output_tokens > 1.
  double tpot() const { return (last - first) / static_cast<double>(output_tokens - 1); }
};

struct ServeBenchResult {
  std::vector<RequestRecord> records;
  double seconds = 0;  // from the first start to the last piece
};

// Errors: kInvalidArgument (url), the first request's error when none is answered.
Result<ServeBenchResult> RunServeBench(
    const ServeBenchOptions& options,
    const std::function<void(int64_t done, int64_t total)>& progress);

// p50, p90 and p99 in milliseconds.
struct LatencyFigures {
  double p50 = 0, p90 = 0, p99 = 0, mean = 0;
};
struct ServeFigures {
  int64_t answered = 0, failed = 0;
  LatencyFigures ttft, itl, tpot, whole;
  double requests_per_s = 0, output_tokens_per_s = 0;
  // Requests per second, of those with TTFT and mean ITL within their goals; and their share.
  double goodput = 0, good_share = 0;
};
ServeFigures FiguresOf(const ServeBenchOptions& options, const ServeBenchResult& result);

Json ServeBenchJson(const ServeBenchOptions& options, const ServeBenchResult& result);
std::string ServeBenchTable(const ServeBenchOptions& options, const ServeBenchResult& result);
SvgPicture ServeBenchPicture(const ServeBenchOptions& options, const ServeBenchResult& result);

// Server-sent events, cut at will: the data of each complete event, in order.
class SseReader {
 public:
  // Calls on_data("...") for each "data:" line that `bytes` completes.
  void Feed(std::string_view bytes, const std::function<void(std::string_view data)>& on_data);

 private:
  std::string rest_;
};

}  // namespace tern
