// Two commands, run by turns N times: numbers that each prints, their medians and spread, and the
// ratio with an interval. What else the machine does then falls on both. Thread: one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "bench/bench_machine.h"
#include "bench/statistics.h"
#include "report/svg_chart.h"

namespace tern {

// What one run of a command printed.
struct CommandOutput {
  std::string out, err;
  int exit_code = 0;  // 128 + signal when it was killed
};

// How a number is found in what a command prints.
class NumberFinder {
 public:
  // "/results/0/tokens_per_s": a JSON pointer (RFC 6901) into standard output. Anything else: a
  // regular expression (ECMAScript) whose group 1, or whole match, is the number; lines of
  // standard output, then of standard error, are tried, and the last match counts. Errors:
  // kInvalidArgument (malformed).
  static Result<NumberFinder> Make(const std::string& spec);
  // Errors: kNotFound, kInvalidArgument (no number there), quoting the spec.
  Result<double> Find(const CommandOutput& output) const;

 private:
  std::string spec_;
};

// One figure: where each command's output has it.
struct ComparedFigure {
  std::string name;
  NumberFinder a, b;
};

// Runs argv[0] from PATH and waits. Errors: kUnavailable (can't be started), kDeadlineExceeded
// (killed after `timeout_us`), kDataLoss (more than 64 MiB of output).
Result<CommandOutput> RunCommand(const std::vector<std::string>& argv, int64_t timeout_us);

struct CompareOptions {
  std::vector<std::string> a, b;  // commands
  std::vector<ComparedFigure> figures;
  int64_t runs = 5;
  int64_t warm_ups = 1;  // not counted
  int64_t timeout_us = 3'600'000'000;
};

struct ComparedResult {
  std::string name;
  std::vector<double> a, b;  // of each run

  // Of a[i] / b[i]: neighbours in time.
  std::vector<double> ratios() const;
};

using CommandRunner = std::function<Result<CommandOutput>(const std::vector<std::string>& argv)>;

// A, B, A, B, ...; the one that goes first alternates. Errors: a command that fails (exit code not
// 0, with the end of its output), or prints no number.
Result<std::vector<ComparedResult>> RunCompare(
    const CompareOptions& options, const CommandRunner& run,
    const std::function<void(int64_t done, int64_t total)>& progress);

Json CompareJson(const BenchMachine& machine, const CompareOptions& options,
                 const std::vector<ComparedResult>& results);
std::string CompareTable(const std::vector<ComparedResult>& results);
SvgPicture ComparePicture(const BenchMachine& machine, const std::vector<ComparedResult>& results);

}  // namespace tern
