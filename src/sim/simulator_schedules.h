// How many schedules the test of each simulator runs. Sanitizers run the same code some ten times
// slower. Thread: a constant.
#pragma once

#include <cstdint>

namespace tern {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr uint64_t kSimulatorSchedules = 3'000;
#else
inline constexpr uint64_t kSimulatorSchedules = 100'000;
#endif

}  // namespace tern
