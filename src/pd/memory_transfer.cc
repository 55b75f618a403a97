#include "pd/memory_transfer.h"

#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "base/mutex.h"

namespace tern {
namespace {

using Frame = std::vector<std::byte>;

// What both ends of one link share. Side 0 is the receiver, side 1 the sender.
struct Pipe {
  PdFrameFilter* filter = nullptr;
  PdHello hellos[2];
  std::optional<PdRows> wire_rows;
  Mutex mutex;
  std::deque<Frame> to[2] TERN_GUARDED_BY(mutex);
  bool closed TERN_GUARDED_BY(mutex) = false;
};

// What both transports share.
struct Hub {
  PdHello hellos[2];
  std::function<void()> wake[2];
  Mutex mutex;
  std::deque<std::shared_ptr<Pipe>> accepted TERN_GUARDED_BY(mutex);

  void Wake(int side) const {
    if (wake[side]) wake[side]();
  }
};

class MemoryLink final : public PdLink {
 public:
  MemoryLink(std::shared_ptr<Hub> hub, std::shared_ptr<Pipe> pipe, int side, Status refused)
      : hub_(std::move(hub)), pipe_(std::move(pipe)), side_(side), refused_(std::move(refused)) {}
  ~MemoryLink() override { Close(); }

  bool Poll(PdEvent* event) override {
    if (ended_) return false;
    if (!opened_) {
      opened_ = true;
      if (refused_.ok()) {
        *event = {.kind = PdEvent::Kind::kOpen};
        return true;
      }
      return End(event, refused_);
    }
    while (std::optional<Frame> frame = Take()) {
      const Result<PdHeader> header = DecodePdHeader(std::span(*frame).first<kPdHeaderBytes>());
      if (!header.ok()) return End(event, header.status());
      *event = {.kind = PdEvent::Kind::kFrame, .header = *header};
      if (header->type == PdFrameType::kPage) {
        if (!pipe_->filter->Wants(*header)) {
          Send(EncodePdFrame({.type = PdFrameType::kAck,
                              .generation = header->generation,
                              .room = header->room,
                              .slot = header->slot,
                              .page = header->page}));
          continue;
        }
        Frame& landed = landed_[header->slot];
        if (!landed.empty()) return End(event, DataLoss("a landing slot is in use"));
        landed = std::move(*frame);
        event->body = std::span(landed).subspan(kPdHeaderBytes);
      } else {
        current_ = std::move(*frame);
        event->body = std::span(current_).subspan(kPdHeaderBytes);
      }
      return true;
    }
    MutexLock lock(pipe_->mutex);
    if (!pipe_->closed) return false;
    ended_ = true;
    *event = {.kind = PdEvent::Kind::kClosed, .status = Unavailable("it closed the connection")};
    return true;
  }

  void Send(Frame frame) override {
    StampPdFrame(frame, ++sequence_, false, static_cast<size_t>(wire_rows().format.layers()));
    const Result<PdHeader> header = DecodePdHeader(std::span(frame).first<kPdHeaderBytes>());
    if (side_ == 0 && header.ok() && header->type == PdFrameType::kAck) landed_.erase(header->slot);
    {
      MutexLock lock(pipe_->mutex);
      if (pipe_->closed) return;
      pipe_->to[1 - side_].push_back(std::move(frame));
    }
    hub_->Wake(1 - side_);
  }

  void Close() override {
    ended_ = true;
    {
      MutexLock lock(pipe_->mutex);
      if (pipe_->closed) return;
      pipe_->closed = true;
    }
    hub_->Wake(1 - side_);
  }

  const PdHello& peer() const override { return pipe_->hellos[1 - side_]; }
  const PdRows& wire_rows() const override { return *pipe_->wire_rows; }
  std::string peer_name() const override { return "of this process"; }

 private:
  std::optional<Frame> Take() {
    MutexLock lock(pipe_->mutex);
    std::deque<Frame>& queue = pipe_->to[side_];
    if (queue.empty()) return std::nullopt;
    Frame frame = std::move(queue.front());
    queue.pop_front();
    return frame;
  }
  bool End(PdEvent* event, Status why) {
    Close();
    *event = {.kind = PdEvent::Kind::kClosed, .status = std::move(why)};
    return true;
  }

  const std::shared_ptr<Hub> hub_;
  const std::shared_ptr<Pipe> pipe_;
  const int side_;
  const Status refused_;
  bool opened_ = false, ended_ = false;
  uint64_t sequence_ = 0;
  Frame current_;
  std::map<uint32_t, Frame> landed_;  // by slot
};

Status Negotiate(Pipe& pipe) {
  if (pipe.hellos[0].model_id != pipe.hellos[1].model_id) {
    return FailedPrecondition("prefill and decode worker serve different models");
  }
  TERN_ASSIGN_OR_RETURN(const PdRows receiver, RowsOf(pipe.hellos[0]));
  TERN_ASSIGN_OR_RETURN(const PdRows sender, RowsOf(pipe.hellos[1]));
  TERN_ASSIGN_OR_RETURN(pipe.wire_rows,
                        NegotiateRows(sender, receiver, pipe.hellos[0].convert_at_receiver));
  return OkStatus();
}

class MemoryTransport final : public PdTransport {
 public:
  MemoryTransport(std::shared_ptr<Hub> hub, int side) : hub_(std::move(hub)), side_(side) {}

  std::unique_ptr<PdLink> Connect(const std::string& /*host*/, int /*port*/,
                                  PdFrameFilter* filter) override {
    auto pipe = std::make_shared<Pipe>();
    pipe->filter = filter;
    pipe->hellos[0] = hub_->hellos[0];
    pipe->hellos[1] = hub_->hellos[1];
    const Status status = Negotiate(*pipe);
    if (status.ok()) {
      {
        MutexLock lock(hub_->mutex);
        hub_->accepted.push_back(pipe);
      }
      hub_->Wake(1);
    }
    return std::make_unique<MemoryLink>(hub_, std::move(pipe), side_, status);
  }

  std::unique_ptr<PdLink> Accept() override {
    MutexLock lock(hub_->mutex);
    if (side_ == 0 || hub_->accepted.empty()) return nullptr;
    auto link =
        std::make_unique<MemoryLink>(hub_, std::move(hub_->accepted.front()), side_, OkStatus());
    hub_->accepted.pop_front();
    return link;
  }

 private:
  const std::shared_ptr<Hub> hub_;
  const int side_;
};

}  // namespace

MemoryTransports MakeMemoryTransports(PdHello receiver, PdHello sender,
                                      std::function<void()> wake_receiver,
                                      std::function<void()> wake_sender) {
  auto hub = std::make_shared<Hub>();
  hub->hellos[0] = std::move(receiver);
  hub->hellos[1] = std::move(sender);
  hub->wake[0] = std::move(wake_receiver);
  hub->wake[1] = std::move(wake_sender);
  return {std::make_unique<MemoryTransport>(hub, 0), std::make_unique<MemoryTransport>(hub, 1)};
}

}  // namespace tern
