// Simulator: runs a schedule through the real engine core, page pool and prefix cache with the toy
// model, in one thread, and after every event checks all invariants and every answer against the
// naive reference. Events happen at numbers of steps; the clock only counts them (1 ms each) and
// decides nothing, for nothing in the engine core waits for a time. Thread: one run at a time per
// thread; runs share nothing.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "kv/kv_fault.h"
#include "sim/schedule.h"

namespace tern {

struct SimOptions {
  KvFaults faults;               // mistakes to make, to see that they are caught
  bool check_invariants = true;  // off: only what requests see counts
};

// What happened, so that tests can tell that schedules do what they are for.
struct SimCounts {
  int64_t steps = 0, finished = 0, cancelled = 0, retractions = 0, cached_tokens = 0;
  int64_t evicted_tokens = 0, generated_tokens = 0, tampered = 0, resource_errors = 0;
  int64_t failed = 0, masked = 0, flushes = 0;
  int64_t violations = 0, healed = 0, exposed = 0, quarantined = 0, sealed_rows = 0;
  int64_t copied_rows = 0, protected_pages = 0;
  SimCounts& operator+=(const SimCounts& other);
};

// Ok, or kInternal with the first thing that went wrong and the step it was seen at.
Status RunSchedule(const Schedule& schedule, const SimOptions& options, SimCounts* counts);

// A smaller schedule that still fails: requests, damages, cancels and tokens are removed one by one
// as long as something fails. REQUIRES: `schedule` fails.
Schedule Shrink(Schedule schedule, const SimOptions& options);

}  // namespace tern
