#include "sim/pd_simulator.h"

#include <gtest/gtest.h>

#include <string>

#include "sim/simulator_schedules.h"

namespace tern {
namespace {

TEST(PdSimulator, HundredThousandSchedules) {
  PdSimCounts total;
  for (uint64_t seed = 0; seed < kSimulatorSchedules; ++seed) {
    PdSimCounts counts;
    const Status status = RunPdSchedule(seed, {}, &counts);
    ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << status.message();
    total += counts;
  }
  // The schedules did what they are for.
  const auto per_thousand = [](int64_t count) {
    return static_cast<double>(count) * 1000 / double{kSimulatorSchedules};
  };
  EXPECT_GT(per_thousand(total.succeeded), 2000);
  EXPECT_GT(per_thousand(total.failed), 300);
  EXPECT_GT(per_thousand(total.aborted), 100);
  EXPECT_GT(per_thousand(total.recomputed), 100);
  EXPECT_GT(per_thousand(total.declined), 10);
  EXPECT_GT(per_thousand(total.refused), 10);
  EXPECT_GT(per_thousand(total.lost), 100);
  EXPECT_GT(per_thousand(total.doubled), 100);
  EXPECT_GT(per_thousand(total.late), 100);
  EXPECT_GT(per_thousand(total.damaged), 100);
  EXPECT_GT(per_thousand(total.cut), 100);
  EXPECT_GT(per_thousand(total.killed), 50);
  EXPECT_GT(per_thousand(total.stopped), 50);
  EXPECT_GT(per_thousand(total.bad_pages), 10);
  EXPECT_GT(per_thousand(total.stale_frames), 1);
  EXPECT_GT(per_thousand(total.dropped_frames), 5);
  EXPECT_GT(per_thousand(total.duplicate_frames), 50);
}

TEST(PdSimulator, RunsAreReproducible) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    PdSimCounts a, b;
    ASSERT_TRUE(RunPdSchedule(seed, {}, &a).ok());
    ASSERT_TRUE(RunPdSchedule(seed, {}, &b).ok());
    EXPECT_EQ(a.pages, b.pages);
    EXPECT_EQ(a.damaged, b.damaged);
    EXPECT_EQ(a.duplicate_frames, b.duplicate_frames);
  }
}

// The message of the first seed that fails.
std::string FirstFailure(const PdSimFaults& faults, uint64_t seeds) {
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    PdSimCounts counts;
    const Status status = RunPdSchedule(seed, faults, &counts);
    if (!status.ok()) return status.message();
  }
  return "";
}

TEST(PdSimulator, CatchesWrongRowsWhoseSumsFit) {
  EXPECT_NE(FirstFailure({.forge_sums = true}, 100).find("was admitted with wrong rows"),
            std::string::npos);
}

TEST(PdSimulator, CatchesAWriteToAPageThatWasFreed) {
  const std::string message = FirstFailure({.ignore_tags = true}, 2000);
  EXPECT_NE(message.find("though no live room holds it"), std::string::npos) << message;
}

}  // namespace
}  // namespace tern
