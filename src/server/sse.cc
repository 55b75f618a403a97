#include "server/sse.h"

#include <string>

#include "base/trace.h"
#include "server/errors.h"

namespace tern {

void SseStream::Event(std::string_view json) {
  if (ended_) return;
  if (!begun_) {
    begun_ = true;
    TERN_TRACE("server.sse");
    writer_->BeginStream(200, {{"Content-Type", "text/event-stream; charset=utf-8"},
                               {"Cache-Control", "no-cache"},
                               {"X-Accel-Buffering", "no"}});
  }
  std::string event;
  event.reserve(json.size() + 8);
  event.append("data: ").append(json).append("\n\n");
  writer_->Write(event);
}

void SseStream::Done() {
  if (ended_) return;
  Event("[DONE]");
  ended_ = true;
  writer_->End();
}

void SseStream::Fail(const Status& status) {
  if (ended_) return;
  if (!begun_) {
    ended_ = true;
    return SendError(*writer_, status, /*chunked=*/true);
  }
  Event(ErrorEvent(status));
  Done();
}

}  // namespace tern
