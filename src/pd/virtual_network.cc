#include "pd/virtual_network.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/check.h"

namespace tern {
namespace {

struct Due {
  int64_t at_us = 0;
  uint64_t order = 0;
  std::vector<std::byte> bytes;
  bool breaks = false;  // the connection, after these bytes
};

// Ends are numbered 0: the receiver, 1: the sender.
struct Connection {
  std::unique_ptr<PdSession> session[2];
  int process[2] = {};
  std::vector<Due> to[2];
  bool engine_closed[2] = {};
  size_t writing[2] = {};  // bytes of the frame whose writing has begun, from this side
  bool offered = false;    // the sender's transport has had it
};

}  // namespace

struct VirtualNetwork::State {
  struct Endpoint {
    Process process = 0;
    PdLinkOptions options;
    PdRows rows;
    uint64_t generation = 0;  // of the transport: an old one accepts nothing
  };
  const Clock& clock;
  Policy policy;
  std::map<int, Endpoint> senders;  // by port
  std::vector<std::shared_ptr<Connection>> connections;
  std::set<Process> stopped;
  uint64_t orders = 0, nonces = 0, transports = 0;
  PdSessionStats ended;

  State(const Clock& c, Policy p) : clock(c), policy(std::move(p)) {}
  bool Stopped(Process process) const { return stopped.count(process) > 0; }

  bool Collect(Connection& connection, int side) {
    PdSession& session = *connection.session[side];
    size_t& writing = connection.writing[side];
    bool moved = writing > 0;
    if (writing > 0) session.OnWritten(std::exchange(writing, 0), clock.NowUs());
    while (session.queued_frames() > 0 && writing == 0) {
      moved = true;
      const auto output = session.Output();
      std::vector<std::byte> frame(output.begin(), output.end());
      // As over TCP, an end may come between a write and the word that it is done.
      if (session.queued_frames() == 1) {
        writing = output.size();
      } else {
        session.OnWritten(output.size(), clock.NowUs());
      }
      const VirtualFate fate = policy(side == 0, &frame);
      for (int copy = 0; copy < fate.copies; ++copy) {
        Due due{.at_us = clock.NowUs() + fate.delay_us + copy * fate.copy_delay_us,
                .order = ++orders,
                .bytes = frame};
        if (fate.cut_after_bytes >= 0) {
          due.breaks = true;
          due.bytes.resize(std::min(due.bytes.size(), static_cast<size_t>(fate.cut_after_bytes)));
        }
        connection.to[1 - side].push_back(std::move(due));
      }
    }
    return moved;
  }

  bool Deliver(Connection& connection, int side) {
    bool moved = false;
    while (true) {
      auto& queue = connection.to[side];
      const auto next =
          std::min_element(queue.begin(), queue.end(), [](const Due& a, const Due& b) {
            return std::pair(a.at_us, a.order) < std::pair(b.at_us, b.order);
          });
      if (next == queue.end() || next->at_us > clock.NowUs()) return moved;
      const Due due = std::move(*next);
      queue.erase(next);
      moved = true;
      PdSession& session = *connection.session[side];
      std::span<const std::byte> bytes = due.bytes;
      while (!bytes.empty()) {
        const std::span<std::byte> to = session.ReadBuffer();
        if (to.empty()) break;
        const size_t count = std::min(to.size(), bytes.size());
        std::copy_n(bytes.begin(), count, to.begin());
        bytes = bytes.subspan(count);
        session.OnRead(count, clock.NowUs());
      }
      if (due.breaks) Break(connection, "the connection was cut");
    }
  }

  static void Break(Connection& connection, const char* why) {
    for (const auto& session : connection.session) session->OnClosed(Unavailable(why));
    for (auto& queue : connection.to) queue.clear();
  }

  // A closed end closes the other one when what it sent has arrived.
  void PassOnClosing(Connection& connection) {
    for (const int side : {0, 1}) {
      const bool gone = connection.session[side]->closed() || connection.engine_closed[side];
      if (!gone || connection.session[1 - side]->closed() || !connection.to[1 - side].empty() ||
          Stopped(connection.process[side])) {
        continue;
      }
      connection.session[1 - side]->OnClosed(Unavailable("the peer closed the connection"));
    }
  }
};

class VirtualLink final : public PdLink {
 public:
  VirtualLink(VirtualNetwork::State* state, std::shared_ptr<Connection> connection, int side)
      : state_(state), connection_(std::move(connection)), side_(side) {}
  ~VirtualLink() override { Close(); }

  bool Poll(PdEvent* event) override {
    if (connection_->engine_closed[side_] || !connection_->session[side_]->Poll(&current_)) {
      return false;
    }
    *event = {.kind = current_.kind,
              .header = current_.header,
              .body = current_.body(),
              .status = current_.status};
    return true;
  }
  void Send(std::vector<std::byte> frame) override {
    if (connection_->engine_closed[side_]) return;
    connection_->session[side_]->Send(std::move(frame), state_->clock.NowUs());
  }
  void Close() override {
    if (std::exchange(connection_->engine_closed[side_], true)) return;
    connection_->session[side_]->OnClosed(Cancelled("closed"));
  }
  const PdHello& peer() const override { return connection_->session[side_]->peer(); }
  const PdRows& wire_rows() const override { return connection_->session[side_]->wire_rows(); }
  std::string peer_name() const override { return side_ == 0 ? "prefill" : "decode"; }

 private:
  VirtualNetwork::State* const state_;
  const std::shared_ptr<Connection> connection_;
  const int side_;
  PdIncoming current_;
};

namespace {

// The end of a connection that could not be made.
class DeadLink final : public PdLink {
 public:
  bool Poll(PdEvent* event) override {
    if (std::exchange(told_, true)) return false;
    *event = {.kind = PdEvent::Kind::kClosed, .status = Unavailable("connection refused")};
    return true;
  }
  void Send(std::vector<std::byte> /*frame*/) override {}
  void Close() override { told_ = true; }
  const PdHello& peer() const override { return hello_; }
  const PdRows& wire_rows() const override { return rows_; }
  std::string peer_name() const override { return "prefill"; }

 private:
  bool told_ = false;
  PdHello hello_;
  PdRows rows_;
};

}  // namespace

class VirtualTransport final : public PdTransport {
 public:
  VirtualTransport(VirtualNetwork::State* state, VirtualNetwork::Process process,
                   PdLinkOptions options, int port)
      : state_(state),
        process_(process),
        options_(std::move(options)),
        rows_(RowsOf(options_.self).value()),
        port_(port),
        id_(++state->transports) {
    if (port_ != 0) state_->senders[port_] = {process_, options_, rows_, id_};
  }

  std::unique_ptr<PdLink> Connect(const std::string& /*host*/, int port,
                                  PdFrameFilter* filter) override {
    const auto sender = state_->senders.find(port);
    if (sender == state_->senders.end()) return std::make_unique<DeadLink>();
    auto connection = std::make_shared<Connection>();
    const int64_t now = state_->clock.NowUs();
    connection->session[0] = std::make_unique<PdSession>(WithNonce(options_), rows_, filter, now);
    connection->session[1] = std::make_unique<PdSession>(WithNonce(sender->second.options),
                                                         sender->second.rows, nullptr, now);
    connection->process[0] = process_;
    connection->process[1] = sender->second.process;
    state_->connections.push_back(connection);
    return std::make_unique<VirtualLink>(state_, std::move(connection), 0);
  }

  std::unique_ptr<PdLink> Accept() override {
    const auto self = state_->senders.find(port_);
    if (self == state_->senders.end() || self->second.generation != id_) return nullptr;
    for (const auto& connection : state_->connections) {
      if (connection->offered || connection->process[1] != process_ ||
          !connection->session[1]->open()) {
        continue;
      }
      connection->offered = true;
      return std::make_unique<VirtualLink>(state_, connection, 1);
    }
    return nullptr;
  }

 private:
  // Distinct and repeatable.
  PdLinkOptions WithNonce(PdLinkOptions options) {
    const uint64_t nonce = ++state_->nonces;
    std::copy_n(std::as_bytes(std::span(&nonce, 1)).begin(), sizeof(nonce),
                options.self.nonce.begin());
    return options;
  }

  VirtualNetwork::State* const state_;
  const VirtualNetwork::Process process_;
  const PdLinkOptions options_;
  const PdRows rows_;
  const int port_;
  const uint64_t id_;
};

VirtualNetwork::VirtualNetwork(const Clock& clock, Policy policy)
    : state_(std::make_unique<State>(clock, std::move(policy))) {}
VirtualNetwork::~VirtualNetwork() = default;

std::unique_ptr<PdTransport> VirtualNetwork::AddSender(Process process, int port,
                                                       PdLinkOptions options) {
  TERN_CHECK(port != 0);
  return std::make_unique<VirtualTransport>(state_.get(), process, std::move(options), port);
}

std::unique_ptr<PdTransport> VirtualNetwork::AddReceiver(Process process, PdLinkOptions options) {
  return std::make_unique<VirtualTransport>(state_.get(), process, std::move(options), 0);
}

bool VirtualNetwork::Pump() {
  bool moved = false;
  const int64_t now = state_->clock.NowUs();
  for (size_t i = 0; i < state_->connections.size(); ++i) {
    Connection& connection = *state_->connections[i];
    for (const int side : {0, 1}) {
      if (state_->Stopped(connection.process[side])) continue;
      moved = state_->Deliver(connection, side) || moved;
      PdSession& session = *connection.session[side];
      if (session.NextDeadlineUs() <= now) {
        session.OnTime(now);
        moved = true;
      }
      moved = state_->Collect(connection, side) || moved;
    }
    state_->PassOnClosing(connection);
  }
  std::erase_if(state_->connections, [&](const auto& connection) {
    const bool over = connection->session[0]->closed() && connection->session[1]->closed();
    if (over) {
      for (const auto& session : connection->session) state_->ended += session->stats();
    }
    return over;
  });
  return moved;
}

int64_t VirtualNetwork::NextEventUs() const {
  int64_t next = INT64_MAX;
  for (const auto& connection : state_->connections) {
    for (const int side : {0, 1}) {
      if (state_->Stopped(connection->process[side])) continue;
      next = std::min(next, connection->session[side]->NextDeadlineUs());
      for (const Due& due : connection->to[side]) next = std::min(next, due.at_us);
    }
  }
  return next;
}

void VirtualNetwork::Stop(Process process, bool stopped) {
  if (stopped) {
    state_->stopped.insert(process);
  } else {
    state_->stopped.erase(process);
  }
}

void VirtualNetwork::Kill(Process process) {
  state_->stopped.erase(process);
  std::erase_if(state_->senders, [&](const auto& s) { return s.second.process == process; });
  for (const auto& connection : state_->connections) {
    if (connection->process[0] == process || connection->process[1] == process) {
      State::Break(*connection, "the peer closed the connection");
    }
  }
}

PdSessionStats VirtualNetwork::stats() const {
  PdSessionStats stats = state_->ended;
  for (const auto& connection : state_->connections) {
    for (const auto& session : connection->session) stats += session->stats();
  }
  return stats;
}

}  // namespace tern
