// SseStream: server-sent events over a ResponseWriter. The head goes out with the first event, so
// that an error before it can still be a proper status.
// Owned by the responder of one request. Thread: the network thread.
#pragma once

#include <memory>
#include <string_view>

#include "base/status.h"
#include "net/http.h"

namespace tern {

class SseStream {
 public:
  explicit SseStream(std::shared_ptr<ResponseWriter> writer) : writer_(std::move(writer)) {}

  // "data: <json>\n\n". REQUIRES: `json` has no line break.
  void Event(std::string_view json);
  // Ends the stream with "data: [DONE]\n\n".
  void Done();
  // Before the first event: the error's own status. After it: an error event, then Done.
  void Fail(const Status& status);

  // Of events: still to be sent. Zero before the first one.
  size_t waiting_bytes() const { return begun_ ? writer_->waiting_bytes() : 0; }
  bool begun() const { return begun_; }

 private:
  std::shared_ptr<ResponseWriter> writer_;
  bool begun_ = false;
  bool ended_ = false;
};

}  // namespace tern
