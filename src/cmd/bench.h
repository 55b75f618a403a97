// The parts of `tern bench`: each parses its own options and runs. Exit codes as commands.h.
// Thread: the main thread.
#pragma once

#include <string>
#include <vector>

#include "base/args.h"
#include "base/json.h"
#include "base/result.h"
#include "report/svg_chart.h"

namespace tern {

int BenchCompareCommand(const std::vector<std::string>& args);
int BenchIntegrityCommand(const std::vector<std::string>& args);
int BenchKernelsCommand(const std::vector<std::string>& args);
int BenchKvCommand(const std::vector<std::string>& args);
int BenchLimitsCommand(const std::vector<std::string>& args);
int BenchModelCommand(const std::vector<std::string>& args);
int BenchPdCommand(const std::vector<std::string>& args);
int BenchServeCommand(const std::vector<std::string>& args);
int BenchStepCommand(const std::vector<std::string>& args);

// --json and --plot.
struct BenchOutputs {
  std::string json, plot;  // json "-": standard output, in the table's place
};
void DeclareBenchOutputs(OptionTable& table, BenchOutputs& outputs);
// A long run is not lost to a misspelled folder. Errors name the path.
Status CheckBenchOutputs(const BenchOutputs& outputs);
// Prints `text`, or the JSON, and writes the files.
Status WriteBenchOutputs(const BenchOutputs& outputs, const std::string& text, const Json& json,
                         const SvgPicture& picture);

// Parses `args` and runs `run`, whose error goes to standard error behind `program`.
template <typename Run>
int RunBench(OptionTable& table, const char* program, const std::vector<std::string>& args,
             const Run& run);

// The exit code of a usage error or of a failure, after printing it.
int BenchUsageError(const char* program, const Status& status);
int BenchFailure(const char* program, const Status& status);

template <typename Run>
int RunBench(OptionTable& table, const char* program, const std::vector<std::string>& args,
             const Run& run) {
  const Result<ParseOutcome> outcome = table.Parse(args);
  if (!outcome.ok()) return BenchUsageError(program, outcome.status());
  if (*outcome == ParseOutcome::kHelpShown) return 0;
  const Status status = run();
  return status.ok() ? 0 : BenchFailure(program, status);
}

}  // namespace tern
