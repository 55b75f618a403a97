#include "sim/pd_simulator.h"

#include <gtest/gtest.h>

#include <string>

namespace tern {
namespace {

TEST(PdSimulator, HundredThousandSchedules) {
  PdSimCounts total;
  for (uint64_t seed = 0; seed < 100'000; ++seed) {
    PdSimCounts counts;
    const Status status = RunPdSchedule(seed, {}, &counts);
    ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << status.message();
    total += counts;
  }
  // The schedules did what they are for.
  EXPECT_GT(total.succeeded, 200'000);
  EXPECT_GT(total.failed, 30'000);
  EXPECT_GT(total.aborted, 10'000);
  EXPECT_GT(total.recomputed, 10'000);
  EXPECT_GT(total.declined, 1'000);
  EXPECT_GT(total.refused, 1'000);
  EXPECT_GT(total.lost, 10'000);
  EXPECT_GT(total.doubled, 10'000);
  EXPECT_GT(total.late, 10'000);
  EXPECT_GT(total.damaged, 10'000);
  EXPECT_GT(total.cut, 10'000);
  EXPECT_GT(total.killed, 5'000);
  EXPECT_GT(total.stopped, 5'000);
  EXPECT_GT(total.bad_pages, 1'000);
  EXPECT_GT(total.stale_frames, 100);
  EXPECT_GT(total.dropped_frames, 500);
  EXPECT_GT(total.duplicate_frames, 5'000);
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
