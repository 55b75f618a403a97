// What rooms have in common on both sides of a hand-off: states, counters. Thread: values.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace tern {

// SGLang's KVPoll. kFailed and kSuccess are final.
enum class PdState : uint8_t {
  kFailed = 0,
  kBootstrapping = 1,    // sender: no REQUEST yet; receiver: no connection yet
  kWaitingForInput = 2,  // REQUEST is there (is sent), no page is under way
  kTransferring = 3,
  kSuccess = 4,  // sender: DONE came; receiver: every page and LAST are verified and in place
};
const char* PdStateName(PdState state);  // "Bootstrapping"

// Why a room ends whose link is lost, once there was a handshake: what broke it is nothing that the
// client asked for, so the status is one of the server's.
Status LostLink(const Status& why, const std::string& whom);

// Of one room, for kv_transfer_* metrics. Times on the Clock, 0: not yet.
struct PdRoomTimes {
  int64_t opened_us = 0, bootstrapped_us = 0, first_page_us = 0, ended_us = 0;
  int64_t pages = 0, bytes = 0;  // of PAGE frames, headers included
};

// Since the start.
struct PdStats {
  int64_t rooms_opened = 0, rooms_succeeded = 0, rooms_failed = 0, bootstraps_failed = 0;
  int64_t pages = 0, page_bytes = 0;  // sent, or verified in place
  int64_t stale_frames = 0;    // receiver: dropped on the engine thread after their room ended
  int64_t bad_pages = 0;       // receiver: seal sums or check differ; sender: a source page failed
  int64_t unknown_frames = 0;  // for rooms or slots that are not
  int64_t links_opened = 0, links_closed = 0, requests_refused = 0;
};

}  // namespace tern
