#include "engine/handoff.h"

#include <algorithm>

namespace tern {

HandoffTimes HandoffStats::NoteTransfer(const PdRoomTimes& times) {
  const HandoffTimes result = {.bootstrap_us = times.bootstrapped_us - times.opened_us,
                               .transfer_us = times.ended_us - times.first_page_us,
                               .bytes = times.bytes};
  ++transfers;
  transferred_bytes += times.bytes;
  const auto us = static_cast<double>(std::max<int64_t>(result.transfer_us, 1));
  latency_ms = us / 1e3;
  speed_gb_s = static_cast<double>(times.bytes) / us / 1e3;
  return result;
}

}  // namespace tern
