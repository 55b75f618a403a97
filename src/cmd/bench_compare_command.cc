// tern bench compare.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/env.h"
#include "base/topology.h"
#include "bench/bench_machine.h"
#include "bench/compare_bench.h"
#include "cmd/bench.h"
#include "cmd/progress_bar.h"

namespace tern {
namespace {

struct CompareCommandOptions {
  CompareOptions compare;
  std::vector<std::string> figures;
  int64_t timeout_s = 3600;
  BenchOutputs outputs;
};

OptionTable CompareTableOf(CompareCommandOptions& o) {
  OptionTable table("tern bench compare",
                    "Runs two commands by turns and compares a number that both print:\n"
                    "  tern bench compare [options] -- COMMAND A ::: COMMAND B");
  table
      .Add("--figure", &o.figures, "NAME=A=>B",
           "where the outputs have a number: a JSON pointer into standard output "
           "(/results/0/tokens_per_s) or a regular expression whose group is the number; "
           "=>B may be left out when both are alike; may be given again")
      .Required();
  table.Add("--runs", &o.compare.runs, "N", "runs of each command that count").Range(1, 1000);
  table.Add("--warm-ups", &o.compare.warm_ups, "N", "runs of each before them").Range(0, 100);
  table.Add("--timeout", &o.timeout_s, "SECONDS", "longest run of a command").Range(1, 86400);
  DeclareBenchOutputs(table, o.outputs);
  table.SetEpilog(
      "A / B is the median over runs of the ratio of neighbours in time. Its interval is made of "
      "the runs'\norder statistics and holds the true median with the coverage that is printed: "
      "95 % or more from 6\nruns on. Commands are started without a shell; TERN_ISA and the like: "
      "-- env TERN_ISA=avx2 tern ...");
  return table;
}

// "name=a=>b" or "name=a".
Result<ComparedFigure> FigureOf(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == 0 || equals == std::string::npos || text.compare(equals, 2, "=>") == 0) {
    return InvalidArgument(fmt::format("--figure '{}' is not NAME=A=>B", text));
  }
  const size_t arrow = text.find("=>", equals + 1);
  const std::string a = text.substr(equals + 1, arrow - equals - 1);
  const std::string b = arrow == std::string::npos ? a : text.substr(arrow + 2);
  ComparedFigure figure;
  figure.name = text.substr(0, equals);
  TERN_ASSIGN_OR_RETURN(figure.a, NumberFinder::Make(a));
  TERN_ASSIGN_OR_RETURN(figure.b, NumberFinder::Make(b));
  return figure;
}

Status ParseCommands(const std::vector<std::string>& commands, CompareOptions* options) {
  const auto middle = std::find(commands.begin(), commands.end(), ":::");
  options->a.assign(commands.begin(), middle);
  if (middle != commands.end()) options->b.assign(middle + 1, commands.end());
  if (!options->a.empty() && !options->b.empty()) return OkStatus();
  return InvalidArgument("give two commands: -- COMMAND A ::: COMMAND B");
}

Status RunCompareCommand(CompareCommandOptions& o) {
  TERN_RETURN_IF_ERROR(CheckBenchOutputs(o.outputs));
  const int64_t timeout_us = o.timeout_s * 1'000'000;
  const BenchMachine machine = BenchMachine::Here(EnvIsa().value_or(""), AvailableThreads());
  ProgressBar bar("bench compare", "runs");
  TERN_ASSIGN_OR_RETURN(const auto results,
                        RunCompare(
                            o.compare,
                            [timeout_us](const std::vector<std::string>& argv) {
                              return RunCommand(argv, timeout_us);
                            },
                            [&bar](int64_t done, int64_t total) { bar.Update(done, total); }));
  const std::string text = fmt::format("A: {}\nB: {}\n{} runs each, load {:.2f} before\n{}",
                                       fmt::join(o.compare.a, " "), fmt::join(o.compare.b, " "),
                                       o.compare.runs, machine.load_average, CompareTable(results));
  return WriteBenchOutputs(o.outputs, text, CompareJson(machine, o.compare, results),
                           ComparePicture(machine, results));
}

}  // namespace

int BenchCompareCommand(const std::vector<std::string>& args) {
  constexpr const char* kProgram = "tern bench compare";
  CompareCommandOptions options;
  OptionTable table = CompareTableOf(options);
  const auto dashes = std::find(args.begin(), args.end(), "--");
  const Result<ParseOutcome> outcome = table.Parse({args.begin(), dashes});
  if (!outcome.ok()) return BenchUsageError(kProgram, outcome.status());
  if (*outcome == ParseOutcome::kHelpShown) return 0;
  Status usage = ParseCommands(
      dashes == args.end() ? std::vector<std::string>() : std::vector(dashes + 1, args.end()),
      &options.compare);
  for (const std::string& text : options.figures) {
    if (!usage.ok()) break;
    Result<ComparedFigure> figure = FigureOf(text);
    usage = figure.status();
    if (figure.ok()) options.compare.figures.push_back(std::move(figure).value());
  }
  if (!usage.ok()) return BenchUsageError(kProgram, usage);
  const Status status = RunCompareCommand(options);
  return status.ok() ? 0 : BenchFailure(kProgram, status);
}

}  // namespace tern
