// What the engine counts and reports of KV integrity, and what it does when a check fails.
// Thread: values.
#pragma once

#include <array>
#include <cstdint>
#include <limits>

#include "kv/kv_integrity.h"

namespace tern {

enum class IntegrityAction : uint8_t {
  kAbort,      // who holds a page that failed ends with an error
  kRecompute,  // it is computed anew on fresh pages, from its known tokens
};

struct IntegrityOptions {
  KvIntegrity mode = KvIntegrity::kTags;
  IntegrityAction action = IntegrityAction::kAbort;
  int64_t quarantine_limit = 64;      // pages; with more the server says that it is not healthy
  double sweep_idle_fraction = 0.05;  // of one core, while there is nothing else to do
};

struct IntegrityStats {
  std::array<int64_t, kKvViolationKinds> violations{};  // by KvViolationKind
  int64_t ended_requests = 0;                           // with an error
  int64_t healed_requests = 0;                          // how often one was computed anew
  int64_t exposed_requests = 0;  // had finished when a page that they had held failed
  int64_t quarantined_pages = 0;
  int64_t sealed_rows = 0, verified_pages = 0, swept_pages = 0;
  // Time of steps, and of that what integrity took.
  int64_t step_us = 0, check_us = 0;

  // The engine is not healthy before this time of its clock; kNeverHealthy: too many pages are in
  // quarantine. Requests are served all the same.
  static constexpr int64_t kNeverHealthy = std::numeric_limits<int64_t>::max();
  int64_t unhealthy_until_us = 0;

  int64_t all_violations() const {
    int64_t sum = 0;
    for (const int64_t n : violations) sum += n;
    return sum;
  }
};

}  // namespace tern
