// What prefill and decode apart are worth to those who wait: the time between tokens of steady
// streams while bursts of long prompts come, with one engine for both (chunked prefill) and with
// two; and what the hand-off adds to the time to a prompt's first token. Engines take turns in one
// process. docs/performance.md says how to read the figures. Thread: one; tokens come on the
// engines' threads.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "bench/bench_machine.h"
#include "bench/statistics.h"
#include "engine/engine.h"
#include "report/svg_chart.h"

namespace tern {

struct PdBenchSystem {
  std::string name;  // "together, 2 threads"
  Engine* engine = nullptr;
};

struct PdBenchOptions {
  int64_t streams = 4;  // at a time; one that ends is followed by another
  int64_t stream_prompt_tokens = 64, stream_output_tokens = 512;
  int64_t burst = 2;  // prompts that come at once
  int64_t burst_prompt_tokens = 4096;
  int64_t bursts = 3;           // of a turn
  double quiet_s = 3;           // of a turn, before its first burst
  double interval_s = 10;       // from burst to burst, whatever the engine does
  int64_t turns = 3;            // of each system
  int64_t transfer_pairs = 10;  // prompts for each of the two systems of RunPdTransferBench
  int64_t vocab_size = 0;
  uint64_t seed = 1;
  double timeout_s = 600;  // longest wait after the request sent last
};

// One turn of one system. Times in seconds.
struct PdTurn {
  std::vector<double> quiet_gaps;  // between tokens of a stream, before the first burst
  // From the first burst until the last prompt has its first token; those that began by then count
  // to their end.
  std::vector<double> gaps;
  std::vector<double> ttft;  // of the bursts' prompts
  int64_t tokens = 0;        // of streams, while there were bursts
  double seconds = 0;        // that these took
};

struct PdBenchResult {
  std::string name;
  std::vector<PdTurn> turns;
};

// Errors: an engine's, Submit's; kDeadlineExceeded.
Result<std::vector<PdBenchResult>> RunPdBench(
    const std::vector<PdBenchSystem>& systems, const PdBenchOptions& options,
    const std::function<void(int64_t done, int64_t total)>& progress);

// Times to the first token of single prompts, by turns: ttft[0] of one engine, ttft[1] of a pair
// whose prefill is as fast.
struct PdTransferResult {
  std::string names[2];
  std::vector<double> ttft[2];  // seconds, of each pair of prompts

  std::vector<double> Ratios() const;  // ttft[1] / ttft[0] of each pair
};
Result<PdTransferResult> RunPdTransferBench(
    const PdBenchSystem& one, const PdBenchSystem& pair, const PdBenchOptions& options,
    const std::function<void(int64_t done, int64_t total)>& progress);

// In milliseconds, over all turns.
struct PdFigures {
  double quiet_p50 = 0, quiet_p99 = 0;  // between tokens
  double p50 = 0, p99 = 0, worst = 0;   // the same, under bursts
  double ttft_p50 = 0, ttft_p99 = 0;    // of the bursts' prompts
  double tokens_per_s = 0;              // of streams, under bursts
};
PdFigures FiguresOf(const PdBenchResult& result);

// What was measured.
struct PdBenchSubject {
  std::string model;
  std::string transport;                     // between the two engines: tcp, memory
  std::string kv_format, prefill_kv_format;  // of decode and where there is one engine; of prefill
};
Json PdBenchJson(const BenchMachine& machine, const PdBenchOptions& options,
                 const PdBenchSubject& subject, const std::vector<PdBenchResult>& results,
                 const PdTransferResult& transfer);
std::string PdBenchTable(const PdBenchOptions& options, const std::vector<PdBenchResult>& results,
                         const PdTransferResult& transfer);
SvgPicture PdBenchPicture(const BenchMachine& machine, const PdBenchOptions& options,
                          const std::vector<PdBenchResult>& results,
                          const PdTransferResult& transfer);

}  // namespace tern
