#include "sim/simulator.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/log.h"
#include "sim/simulator_schedules.h"

namespace tern {
namespace {

class Simulator : public testing::Test {
 protected:
  void SetUp() override { SetLogLevel(LogLevel::kError); }
  void TearDown() override { SetLogLevel(LogLevel::kInfo); }
};

TEST_F(Simulator, AHundredThousandSchedules) {
  SimCounts total;
  for (uint64_t seed = 0; seed < kSimulatorSchedules; ++seed) {
    const Schedule schedule = MakeSchedule(seed);
    SimCounts counts;
    const Status status = RunSchedule(schedule, {}, &counts);
    ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << status.message() << "\n"
                             << DumpJson(ScheduleToJson(Shrink(schedule, {})));
    total += counts;
  }
  // The schedules did what they are for.
  const auto per_hundred = [](int64_t count) { return count * 100 / int64_t{kSimulatorSchedules}; };
  EXPECT_GT(per_hundred(total.finished), 300);
  EXPECT_GT(per_hundred(total.cancelled), 10);
  EXPECT_GT(per_hundred(total.retractions), 20);
  EXPECT_GT(per_hundred(total.evicted_tokens), 300);
  EXPECT_GT(per_hundred(total.cached_tokens), 300);
  EXPECT_GT(per_hundred(total.copied_rows), 60);
  EXPECT_GT(per_hundred(total.protected_pages), 100);
  EXPECT_GT(per_hundred(total.failed), 5);
  EXPECT_GT(per_hundred(total.masked), 50);
  EXPECT_GT(per_hundred(total.flushes), 102);  // one at the end of each, some between requests
  EXPECT_GT(per_hundred(total.violations), 5);
  EXPECT_GT(per_hundred(total.tampered), 1);
  EXPECT_GT(per_hundred(total.healed), 1);
  EXPECT_GT(total.exposed, 0);
  EXPECT_GT(per_hundred(total.sealed_rows), 300);
}

TEST_F(Simulator, RunsAreReproducible) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SimCounts a, b;
    ASSERT_TRUE(RunSchedule(MakeSchedule(seed), {}, &a).ok());
    ASSERT_TRUE(RunSchedule(MakeSchedule(seed), {}, &b).ok());
    EXPECT_EQ(a.steps, b.steps);
    EXPECT_EQ(a.generated_tokens, b.generated_tokens);
    EXPECT_EQ(a.evicted_tokens, b.evicted_tokens);
  }
}

// Every schedule that once failed.
TEST_F(Simulator, OldBugsStayFixed) {
  int64_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator("tests/bugs")) {
    if (entry.path().extension() != ".json") continue;
    ++files;
    const Result<Json> json = ParseJsonFile(entry.path());
    ASSERT_TRUE(json.ok()) << json.status().message();
    const Result<Schedule> schedule = ScheduleFromJson(*json);
    ASSERT_TRUE(schedule.ok()) << entry.path() << ": " << schedule.status().message();
    SimCounts counts;
    const Status status = RunSchedule(*schedule, {}, &counts);
    EXPECT_TRUE(status.ok()) << entry.path() << ": " << status.message();
  }
  EXPECT_GT(files, 0);
}

#if TERN_FAULTS

// The first seed below `seeds` whose failure says `what`, or -1; the text in *message.
int64_t FirstFailure(const SimOptions& options, uint64_t seeds, std::string* message,
                     std::string_view what = "") {
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    SimCounts counts;
    const Status status = RunSchedule(MakeSchedule(seed), options, &counts);
    if (status.ok() || status.message().find(what) == std::string::npos) continue;
    *message = status.message();
    return static_cast<int64_t>(seed);
  }
  return -1;
}

TEST_F(Simulator, CatchesAPageReusedWithoutANewTag) {
  std::string message;
  ASSERT_GE(FirstFailure({.faults = {.reuse_without_new_tag = true}}, 100, &message), 0);
  EXPECT_NE(message.find("kept its tag"), std::string::npos) << message;
}

TEST_F(Simulator, CatchesAPageFreedWhileReferenced) {
  std::string message;
  ASSERT_GE(FirstFailure({.faults = {.free_while_referenced = true}}, 100, &message), 0);
  // The next check of all invariants, or the tag check of the step after, whichever comes first.
  EXPECT_TRUE(message.find("is not the one it was") != std::string::npos ||
              message.find("failed its tag check") != std::string::npos)
      << message;
}

TEST_F(Simulator, ChainsStopAMatchAcrossSalts) {
  std::string message;
  EXPECT_EQ(FirstFailure({.faults = {.match_across_salts = true}}, 1000, &message), -1) << message;
  const SimOptions unchecked = {.faults = {.match_across_salts = true, .skip_chain_check = true}};
  ASSERT_GE(FirstFailure(unchecked, 300, &message), 0);
  EXPECT_NE(message.find("its tenant had at most"), std::string::npos) << message;
}

TEST_F(Simulator, ChainsStopACopyOfARowTooMany) {
  std::string message;
  EXPECT_EQ(FirstFailure({.faults = {.copy_a_row_too_many = true}}, 1000, &message), -1) << message;
  const SimOptions unchecked = {.faults = {.copy_a_row_too_many = true, .skip_chain_check = true}};
  EXPECT_GE(FirstFailure(unchecked, 300, &message, "are not the reference's"), 0);
}

// What tags are for. Pages that are freed too early end requests with an error as long as tags
// change, and never give a wrong token; when tags don't change, they do: chains and row counts
// alone don't tell pages apart that are not full.
TEST_F(Simulator, TagsTurnWrongAnswersIntoErrors) {
  std::string message;
  const SimOptions tagged = {.faults = {.free_while_referenced = true}, .check_invariants = false};
  int64_t errors = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    SimCounts counts;
    const Status status = RunSchedule(MakeSchedule(seed), tagged, &counts);
    if (status.ok()) continue;
    ++errors;
    ASSERT_NE(status.message().find("ended with"), std::string::npos)
        << seed << ": " << status.message();
  }
  EXPECT_GT(errors, 0);

  SimOptions untagged = tagged;
  untagged.faults.reuse_without_new_tag = true;
  EXPECT_GE(FirstFailure(untagged, 3000, &message, "are not the reference's"), 0);
}

TEST_F(Simulator, ShrinksAFailureAndKeepsIt) {
  const SimOptions options = {.faults = {.match_across_salts = true, .skip_chain_check = true}};
  std::string message;
  const int64_t seed = FirstFailure(options, 300, &message);
  ASSERT_GE(seed, 0);
  const Schedule before = MakeSchedule(static_cast<uint64_t>(seed));
  const Schedule after = Shrink(before, options);
  SimCounts counts;
  EXPECT_FALSE(RunSchedule(after, options, &counts).ok());
  EXPECT_TRUE(RunSchedule(after, {}, &counts).ok());
  EXPECT_EQ(after.requests.size(), 2u);  // one that leaves a prefix, one that must not find it
}

#endif  // TERN_FAULTS

TEST(Schedule, JsonKeepsEverything) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Json json = ScheduleToJson(MakeSchedule(seed));
    const Result<Json> parsed = ParseJson(DumpJson(json));
    ASSERT_TRUE(parsed.ok());
    const Result<Schedule> back = ScheduleFromJson(*parsed);
    ASSERT_TRUE(back.ok()) << back.status().message();
    EXPECT_EQ(ScheduleToJson(*back), json);
  }
}

TEST(Schedule, BadJsonNamesTheField) {
  const std::pair<const char*, const char*> cases[] = {
      {"[]", "object"},
      {R"({"pages": "many"})", "schedule.pages"},
      {R"({"seed": -1})", "schedule.seed"},
      {R"({"requests": 3})", "schedule.requests"},
      {R"({"requests": [{"prompt": ["a"]}]})", "schedule.requests[0].prompt"},
      {R"({"requests": [{}, {"salt": 1}]})", "schedule.requests[1].salt"},
      {R"({"flush_steps": ["now"]})", "schedule.flush_steps"},
      {R"({"damages": [{"step": []}]})", "schedule.damages[0].step"}};
  for (const auto& [text, field] : cases) {
    const Status status = ScheduleFromJson(*ParseJson(text)).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_NE(status.message().find(field), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace tern
