// tern_sim: runs simulations from the command line. Exit code 0: all passed, 1: one failed (its
// shrunk schedule is written), 2: wrong usage.
#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "base/args.h"
#include "base/log.h"
#include "sim/pd_simulator.h"
#include "sim/simulator.h"

namespace tern {
namespace {

struct Flags {
  int64_t seed = 0;
  int64_t count = 1;
  bool hand_off = false;
  std::string replay;
  std::string bugs_dir = "tests/bugs";
};

int Report(const Schedule& schedule, const Status& status, const Flags& flags) {
  fmt::print(stderr, "seed {}: {}\n", schedule.seed, status.message());
  const Schedule small = Shrink(schedule, {});
  const std::string path = fmt::format("{}/sim_{}.json", flags.bugs_dir, schedule.seed);
  std::ofstream(path) << DumpJson(ScheduleToJson(small), 1) << "\n";
  SimCounts counts;
  fmt::print(stderr, "shrunk to {} requests ({}); replay with tern_sim --replay {}\n",
             small.requests.size(), RunSchedule(small, {}, &counts).message(), path);
  return 1;
}

int Replay(const Flags& flags) {
  Result<Json> json = ParseJsonFile(flags.replay);
  if (!json.ok()) return fmt::print(stderr, "tern_sim: {}\n", json.status().message()), 2;
  const Result<Schedule> schedule = ScheduleFromJson(*json);
  if (!schedule.ok()) {
    fmt::print(stderr, "tern_sim: {}: {}\n", flags.replay, schedule.status().message());
    return 2;
  }
  SimCounts counts;
  const Status status = RunSchedule(*schedule, {}, &counts);
  fmt::print("{}: {}\n", flags.replay, status.ok() ? "passed" : status.message());
  return status.ok() ? 0 : 1;
}

// Both sides of a hand-off; a schedule is its seed.
int SimulateHandOffs(const Flags& flags) {
  PdSimCounts total;
  for (int64_t i = 0; i < flags.count; ++i) {
    PdSimCounts counts;
    const int64_t seed = flags.seed + i;
    const Status status = RunPdSchedule(static_cast<uint64_t>(seed), {}, &counts);
    if (!status.ok()) {
      fmt::print(stderr, "seed {}: {}; replay with tern_sim --hand-off {}\n", seed,
                 status.message(), seed);
      return 1;
    }
    total += counts;
  }
  fmt::print(
      "{} schedules of hand-offs passed: {} rooms, {} succeeded, {} failed; frames: {} lost, {} "
      "doubled, {} late, {} damaged, {} cut; {} processes killed, {} stopped\n",
      flags.count, total.rooms, total.succeeded, total.failed, total.lost, total.doubled,
      total.late, total.damaged, total.cut, total.killed, total.stopped);
  return 0;
}

int Main(const std::vector<std::string>& args) {
  Flags flags;
  OptionTable options("tern_sim", "Simulates the engine on schedules made from seeds.");
  options.Add("--seed", &flags.seed, "SEED", "the first seed").Positional();
  options.Add("--count", &flags.count, "N", "how many seeds, from SEED on").Range(1, 1e12);
  options.Add("--hand-off", &flags.hand_off, "",
              "simulate both sides of a hand-off over a lossy network instead");
  options.Add("--replay", &flags.replay, "FILE", "run this schedule instead");
  options.Add("--bugs-dir", &flags.bugs_dir, "DIR", "where a failing schedule is written");
  const Result<ParseOutcome> outcome = options.Parse(args);
  if (!outcome.ok()) {
    fmt::print(stderr, "tern_sim: {}\n", outcome.status().message());
    return 2;
  }
  if (*outcome == ParseOutcome::kHelpShown) return 0;
  if (flags.hand_off && !flags.replay.empty()) {
    fmt::print(stderr, "tern_sim: --hand-off takes no --replay: its schedule is a seed\n");
    return 2;
  }
  SetLogLevel(LogLevel::kError);
  if (flags.hand_off) return SimulateHandOffs(flags);
  if (!flags.replay.empty()) return Replay(flags);
  SimCounts total;
  for (int64_t i = 0; i < flags.count; ++i) {
    const Schedule schedule = MakeSchedule(static_cast<uint64_t>(flags.seed + i));
    SimCounts counts;
    const Status status = RunSchedule(schedule, {}, &counts);
    if (!status.ok()) return Report(schedule, status, flags);
    total += counts;
  }
  fmt::print(
      "{} schedules passed: {} steps, {} requests finished, {} cancelled, {} retractions, "
      "{} cached tokens, {} evicted\n",
      flags.count, total.steps, total.finished, total.cancelled, total.retractions,
      total.cached_tokens, total.evicted_tokens);
  return 0;
}

}  // namespace
}  // namespace tern

int main(int argc, char** argv) {
  return tern::Main(std::vector<std::string>(argv + 1, argv + argc));
}
