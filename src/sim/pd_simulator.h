// PdSimulator: both sides of a hand-off over a lossy network, in one thread on virtual time: real
// PdSender, PdReceiver, sessions and page pools, toy rows. A schedule is made from its seed: when
// rooms come, how fast their rows are computed, who gives up when, which frames are lost, doubled,
// late, damaged or cut, which side is stopped, goes on or is killed. After every event: free + held
// + quarantined pages = all, on both sides; and no byte of a page that holds no live room has
// changed. At the end of every room: what was admitted is verified and is the prompt's rows, bit
// for bit; both sides are final in a stated time. Thread: one run at a time per thread.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace tern {

// Mistakes that the simulation must catch.
struct PdSimFaults {
  bool forge_sums = false;   // the network damages rows and makes their seal sums fit
  bool ignore_tags = false;  // decode frees a live room's pages and writes them all the same
};

// What happened, so that tests can tell that schedules do what they are for.
struct PdSimCounts {
  int64_t rooms = 0, succeeded = 0, failed = 0, aborted = 0, recomputed = 0, declined = 0;
  int64_t refused = 0, pages = 0;
  int64_t lost = 0, doubled = 0, late = 0, damaged = 0, cut = 0;  // frames
  int64_t killed = 0, stopped = 0;                                // processes
  int64_t bad_pages = 0, stale_frames = 0, dropped_frames = 0, duplicate_frames = 0;
  PdSimCounts& operator+=(const PdSimCounts& other);
};

// Ok, or kInternal with the first thing that went wrong. Equal seeds run alike.
Status RunPdSchedule(uint64_t seed, const PdSimFaults& faults, PdSimCounts* counts);

}  // namespace tern
