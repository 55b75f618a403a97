#include "pd/room.h"

namespace tern {

const char* PdStateName(PdState state) {
  switch (state) {
    case PdState::kFailed:
      return "Failed";
    case PdState::kBootstrapping:
      return "Bootstrapping";
    case PdState::kWaitingForInput:
      return "WaitingForInput";
    case PdState::kTransferring:
      return "Transferring";
    case PdState::kSuccess:
      return "Success";
  }
  return "unknown";
}

}  // namespace tern
