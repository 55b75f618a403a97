// A clock that ticks when it is looked at, to count what is timed. Thread: tests only.
#pragma once

#include "base/clock.h"

namespace tern {

// Each look at it is a microsecond later.
class TickingClock final : public Clock {
 public:
  int64_t NowUs() const override { return ++now_us_; }
  int64_t UnixSeconds() const override { return 0; }

 private:
  mutable int64_t now_us_ = 0;
};

}  // namespace tern
