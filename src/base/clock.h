// Clock: the only source of time for the engine, so that the simulator can run on virtual time.
// Thread: implementations are safe from any thread.
#pragma once

#include <cstdint>

namespace tern {

class Clock {
 public:
  virtual ~Clock() = default;
  // Microseconds since an arbitrary start; never goes back.
  virtual int64_t NowUs() const = 0;
  // Seconds since 1970-01-01 UTC, for `created` fields and names.
  virtual int64_t UnixSeconds() const = 0;
};

// The machine's steady and system clocks. Lives for the whole process.
const Clock& SystemClock();

// A clock that moves only when told; single-threaded (sim and tests).
class ManualClock final : public Clock {
 public:
  int64_t NowUs() const override { return now_us_; }
  int64_t UnixSeconds() const override { return now_us_ / 1'000'000; }
  void AdvanceUs(int64_t us) { now_us_ += us; }

 private:
  int64_t now_us_ = 0;
};

}  // namespace tern
