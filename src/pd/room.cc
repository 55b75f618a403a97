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

Status LostLink(const Status& why, const std::string& whom) {
  const Status status = why.WithContext("lost " + whom);
  switch (why.code()) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kFailedPrecondition:
    case StatusCode::kUnimplemented:
    case StatusCode::kNotFound:
      return Unavailable(status.message());
    default:
      return status;
  }
}

}  // namespace tern
