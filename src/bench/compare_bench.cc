#include "bench/compare_bench.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <regex>
#include <utility>

#include "base/clock.h"
#include "report/text_table.h"

extern char** environ;

namespace tern {
namespace {

constexpr size_t kMaxOutputBytes = size_t{64} << 20;
// Longer lines are not searched: the regular expressions of the library recurse.
constexpr size_t kMaxLine = 4096;
constexpr size_t kQuotedTail = 400;

Result<double> NumberIn(std::string_view text, const std::string& spec) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) {
    return InvalidArgument(fmt::format("'{}' finds '{}', which is no number", spec, text));
  }
  return value;
}

Result<double> FindByPointer(const std::string& spec, std::string_view output) {
  const Result<Json> parsed = ParseJson(output);
  if (!parsed.ok()) return parsed.status().WithContext("standard output");
  const Json& json = *parsed;
  const Json::json_pointer pointer(spec);  // Make has checked it
  if (!json.contains(pointer)) return NotFound(fmt::format("'{}' is not in the output", spec));
  const Json& value = json[pointer];
  if (!value.is_number()) {
    return InvalidArgument(fmt::format("'{}' is no number: {}", spec, DumpJson(value)));
  }
  return value.get<double>();
}

std::string Tail(const std::string& text) {
  return text.size() <= kQuotedTail ? text : "..." + text.substr(text.size() - kQuotedTail);
}

std::string Joined(const std::vector<std::string>& argv) {
  return fmt::format("{}", fmt::join(argv, " "));
}

// The pipe's reading end, closed with the object.
struct Pipe {
  int read = -1, write = -1;
  ~Pipe() {
    CloseRead();
    CloseWrite();
  }
  void CloseRead() {
    if (read >= 0) ::close(read);
    read = -1;
  }
  void CloseWrite() {
    if (write >= 0) ::close(write);
    write = -1;
  }
};

Status Open(Pipe& pipe) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return Unavailable(std::strerror(errno));
  pipe.read = ends[0];
  pipe.write = ends[1];
  return OkStatus();
}

Result<pid_t> Spawn(const std::vector<std::string>& argv, Pipe& out, Pipe& err) {
  TERN_RETURN_IF_ERROR(Open(out));
  TERN_RETURN_IF_ERROR(Open(err));
  std::vector<char*> pointers;
  for (const std::string& arg : argv) pointers.push_back(const_cast<char*>(arg.c_str()));
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out.write, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err.write, STDERR_FILENO);
  pid_t pid = 0;
  const int error = ::posix_spawnp(&pid, pointers[0], &actions, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  out.CloseWrite();
  err.CloseWrite();
  if (error != 0) {
    return Unavailable(fmt::format("can't start '{}': {}", argv[0], std::strerror(error)));
  }
  return pid;
}

// Reads until the other ends close. Errors: kDeadlineExceeded, kDataLoss.
Status ReadAll(Pipe& out, Pipe& err, int64_t timeout_us, CommandOutput* output) {
  const int64_t end_us = SystemClock().NowUs() + timeout_us;
  char buffer[1 << 16];
  while (out.read >= 0 || err.read >= 0) {
    const int64_t left_ms = (end_us - SystemClock().NowUs()) / 1000;
    if (left_ms <= 0) return {StatusCode::kDeadlineExceeded, "it took too long"};
    pollfd waits[] = {{out.read, POLLIN, 0}, {err.read, POLLIN, 0}};  // -1 is left out
    if (::poll(waits, 2, static_cast<int>(std::min<int64_t>(left_ms, 60'000))) <= 0) continue;
    for (int i = 0; i < 2; ++i) {
      if (waits[i].fd < 0 || waits[i].revents == 0) continue;
      const ssize_t n = ::read(waits[i].fd, buffer, sizeof(buffer));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {
        (i == 0 ? out : err).CloseRead();
        continue;
      }
      (i == 0 ? output->out : output->err).append(buffer, static_cast<size_t>(n));
      if (output->out.size() + output->err.size() > kMaxOutputBytes) {
        return DataLoss("it prints more than 64 MiB");
      }
    }
  }
  return OkStatus();
}

}  // namespace

Result<NumberFinder> NumberFinder::Make(const std::string& spec) {
  NumberFinder finder;
  finder.spec_ = spec;
  if (spec.empty()) return InvalidArgument("an empty regular expression finds no number");
  try {
    if (spec[0] == '/') {
      const Json::json_pointer pointer(spec);
    } else {
      const std::regex regex(spec);
    }
  } catch (const std::exception&) {
    return InvalidArgument(
        fmt::format("'{}' is no {}", spec, spec[0] == '/' ? "JSON pointer" : "regular expression"));
  }
  return finder;
}

Result<double> NumberFinder::Find(const CommandOutput& output) const {
  if (spec_[0] == '/') return FindByPointer(spec_, output.out);
  const std::regex regex(spec_);
  std::string found;
  bool any = false;
  for (std::string_view text : {std::string_view(output.out), std::string_view(output.err)}) {
    while (!text.empty()) {
      const size_t end = text.find('\n');
      const std::string_view line = text.substr(0, end);
      std::match_results<std::string_view::const_iterator> match;
      if (line.size() <= kMaxLine && std::regex_search(line.begin(), line.end(), match, regex)) {
        found = match.size() > 1 ? match[1].str() : match[0].str();
        any = true;
      }
      text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    }
    if (any) break;
  }
  if (!any) return NotFound(fmt::format("'{}' matches no line of the output", spec_));
  return NumberIn(found, spec_);
}

Result<CommandOutput> RunCommand(const std::vector<std::string>& argv, int64_t timeout_us) {
  Pipe out, err;
  TERN_ASSIGN_OR_RETURN(const pid_t pid, Spawn(argv, out, err));
  CommandOutput output;
  const Status status = ReadAll(out, err, timeout_us, &output);
  if (!status.ok()) ::kill(pid, SIGKILL);
  int state = 0;
  while (::waitpid(pid, &state, 0) < 0 && errno == EINTR) {
  }
  if (!status.ok()) return status.WithContext(Joined(argv));
  output.exit_code = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
  return output;
}

std::vector<double> ComparedResult::ratios() const {
  std::vector<double> ratios;
  for (size_t i = 0; i < a.size(); ++i) ratios.push_back(a[i] / b[i]);
  return ratios;
}

Result<std::vector<ComparedResult>> RunCompare(
    const CompareOptions& options, const CommandRunner& run,
    const std::function<void(int64_t done, int64_t total)>& progress) {
  std::vector<ComparedResult> results;
  for (const ComparedFigure& figure : options.figures) results.push_back({figure.name, {}, {}});
  const int64_t rounds = options.warm_ups + options.runs;
  for (int64_t round = 0; round < rounds; ++round) {
    for (int turn = 0; turn < 2; ++turn) {
      progress(2 * round + turn, 2 * rounds);
      const bool is_a = (turn == 0) == (round % 2 == 0);
      const std::vector<std::string>& argv = is_a ? options.a : options.b;
      TERN_ASSIGN_OR_RETURN(const CommandOutput output, run(argv));
      if (output.exit_code != 0) {
        return FailedPrecondition(
            fmt::format("{}: exit code {}: {}", Joined(argv), output.exit_code, Tail(output.err)));
      }
      for (size_t i = 0; i < results.size(); ++i) {
        const ComparedFigure& figure = options.figures[i];
        const Result<double> value = (is_a ? figure.a : figure.b).Find(output);
        if (!value.ok()) return value.status().WithContext(Joined(argv));
        if (!(*value > 0)) {
          return InvalidArgument(
              fmt::format("{}: {} is {}, which has no ratio", Joined(argv), figure.name, *value));
        }
        if (round >= options.warm_ups) (is_a ? results[i].a : results[i].b).push_back(*value);
      }
    }
  }
  return results;
}

Json CompareJson(const BenchMachine& machine, const CompareOptions& options,
                 const std::vector<ComparedResult>& results) {
  Json json = {{"bench", "compare"},      {"machine", machine.ToJson()},
               {"a", options.a},          {"b", options.b},
               {"runs", options.runs},    {"warm_ups", options.warm_ups},
               {"results", Json::array()}};
  for (const ComparedResult& r : results) {
    const std::vector<double> ratios = r.ratios();
    const MedianInterval interval = MedianIntervalOf(ratios);
    json["results"].push_back({{"name", r.name},
                               {"a", r.a},
                               {"b", r.b},
                               {"a_median", MedianOf(r.a)},
                               {"b_median", MedianOf(r.b)},
                               {"ratio", MedianOf(ratios)},
                               {"ratio_interval", {interval.low, interval.high}},
                               {"ratio_coverage", interval.coverage}});
  }
  return json;
}

std::string CompareTable(const std::vector<ComparedResult>& results) {
  using Align = TextTable::Align;
  TextTable table({{"figure"},
                   {"A", Align::kRight},
                   {"A range", Align::kRight},
                   {"B", Align::kRight},
                   {"B range", Align::kRight},
                   {"A / B", Align::kRight},
                   {"interval", Align::kRight},
                   {"coverage", Align::kRight}});
  const auto range = [](const std::vector<double>& values) {
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    return fmt::format("{:.4g}-{:.4g}", *low, *high);
  };
  for (const ComparedResult& r : results) {
    const std::vector<double> ratios = r.ratios();
    const MedianInterval interval = MedianIntervalOf(ratios);
    table.AddRow({r.name, fmt::format("{:.4g}", MedianOf(r.a)), range(r.a),
                  fmt::format("{:.4g}", MedianOf(r.b)), range(r.b),
                  fmt::format("{:.3f}", MedianOf(ratios)),
                  fmt::format("{:.3f}-{:.3f}", interval.low, interval.high),
                  fmt::format("{:.1f} %", interval.coverage * 100)});
  }
  return table.ToText();
}

SvgPicture ComparePicture(const BenchMachine& machine, const std::vector<ComparedResult>& results) {
  BarChart chart;
  chart.title = "A / B";
  chart.note = "median of the ratios of neighbouring runs, with its interval; " + machine.ToText();
  chart.axis.label = "ratio";
  chart.series = {{}};
  chart.marks = {{1.0, "equal"}};
  for (const ComparedResult& r : results) {
    const MedianInterval interval = MedianIntervalOf(r.ratios());
    chart.categories.push_back(r.name);
    chart.series[0].values.push_back({MedianOf(r.ratios()), interval.low, interval.high});
  }
  SvgPicture picture;
  picture.Add(chart);
  return picture;
}

}  // namespace tern
