#include "pd/tcp_transfer.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mutex.h"
#include "net/tcp.h"
#include "pd/session.h"

namespace tern {
namespace {

constexpr int64_t kTickUs = 50'000;
constexpr size_t kMaxHttpHeadBytes = 8 << 10;
constexpr size_t kMinSecretBytes = 16;

class Connection;

// What connections and links share with their transport; all but `mutex`'s fields and the counters
// belong to the network thread.
struct Shared {
  TcpTransportOptions options;
  PdRows rows;
  TcpLoop* loop = nullptr;
  std::set<std::shared_ptr<Connection>> connections;
  Mutex mutex;
  std::deque<std::unique_ptr<PdLink>> accepted TERN_GUARDED_BY(mutex);
  std::atomic<int64_t> refused_addresses{0}, refused_handshakes{0}, health_checks{0};
  std::atomic<int64_t> dropped_frames{0}, duplicate_frames{0};
  std::atomic<uint64_t> bytes_sent{0}, bytes_received{0};

  int64_t Now() const { return SystemClock().NowUs(); }
  void Wake() const {
    if (options.wake) options.wake();
  }
};

// One socket and its session. Lives on the network thread; its queue of events is the door to the
// engine thread.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Shared& shared, std::string name) : shared_(shared), name_(std::move(name)) {}

  // ---- Network thread

  void StartReceiver(std::unique_ptr<TcpStream> stream, PdFrameFilter* filter) {
    stream_ = std::move(stream);
    StartSession(filter);
    Continue();
    Read();
  }
  // A connection that was accepted: HTTP or this protocol, as its first bytes say.
  void StartAccepted(std::unique_ptr<TcpStream> stream) {
    stream_ = std::move(stream);
    accepted_us_ = shared_.Now();
    Sniff();
  }
  // What could not be connected.
  void FailToConnect(Status why) {
    MutexLock lock(mutex_);
    events_.push_back({.kind = PdEvent::Kind::kClosed, .status = std::move(why)});
  }
  void Send(std::vector<std::byte> frame) {
    if (session_ == nullptr || !stream_) return;
    session_->Send(std::move(frame), shared_.Now());
    Continue();
  }
  void OnTick(int64_t now_us) {
    if (session_ == nullptr) {
      if (stream_ && now_us >= accepted_us_ + shared_.options.link.timeouts.handshake_us) Shut();
      return;
    }
    session_->OnTime(now_us);
    Continue();
    // A REFUSE that the peer does not take.
    if (session_->closed() && now_us >= closed_us_ + 1'000'000) Shut();
  }
  void Shut() {
    if (stream_) stream_->Close();
    stream_.reset();
    shared_.connections.erase(shared_from_this());
  }

  // ---- Engine thread

  bool Poll(PdIncoming* incoming) {
    MutexLock lock(mutex_);
    if (events_.empty()) return false;
    *incoming = std::move(events_.front());
    events_.pop_front();
    return true;
  }
  // Set before the engine sees kOpen, and never again.
  const PdHello& peer() const { return peer_; }
  const PdRows& wire_rows() const { return *wire_rows_; }
  const std::string& name() const { return name_; }
  Shared& shared() { return shared_; }

 private:
  void StartSession(PdFrameFilter* filter) {
    PdLinkOptions options = shared_.options.link;
    options.self.nonce = RandomBytes32();
    session_ = std::make_unique<PdSession>(options, shared_.rows, filter, shared_.Now());
  }

  void Sniff() {
    stream_->Read(std::span(sniffed_).subspan(sniffed_bytes_),
                  [self = shared_from_this()](Status status, size_t bytes) {
                    if (!status.ok()) return self->Shut();
                    self->sniffed_bytes_ += bytes;
                    self->OnSniffed();
                  });
  }
  void OnSniffed() {
    if (sniffed_bytes_ < 4) return Sniff();
    if (std::memcmp(sniffed_.data(), "TNPD", 4) != 0) return AnswerHttp();
    StartSession(nullptr);
    // A header is as long as what was sniffed at most.
    std::span<const std::byte> bytes = std::span(sniffed_).first(sniffed_bytes_);
    while (!bytes.empty()) {
      const std::span<std::byte> to = session_->ReadBuffer();
      if (to.empty()) break;
      const size_t count = std::min(to.size(), bytes.size());
      std::copy_n(bytes.begin(), count, to.begin());
      bytes = bytes.subspan(count);
      OnBytes(count);
    }
    Read();
  }
  // GET /health, and nothing else.
  void AnswerHttp() {
    const std::string_view head(reinterpret_cast<const char*>(sniffed_.data()), sniffed_bytes_);
    if (head.find("\r\n\r\n") == std::string_view::npos) {
      if (sniffed_bytes_ < sniffed_.size()) return Sniff();
      return Shut();
    }
    const bool health = head.starts_with("GET /health ") || head.starts_with("GET /health?");
    if (health) ++shared_.health_checks;
    http_answer_ = fmt::format(
        "HTTP/1.1 {}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: "
        "close\r\n\r\n{}",
        health ? "200 OK" : "404 Not Found", health ? 2 : 9, health ? "OK" : "Not Found");
    stream_->Write(std::as_bytes(std::span(http_answer_.data(), http_answer_.size())),
                   [self = shared_from_this()](Status, size_t) { self->Shut(); });
  }

  void Read() {
    if (!stream_) return;
    if (session_->closed()) return Drain();
    stream_->Read(session_->ReadBuffer(), [self = shared_from_this()](Status status, size_t bytes) {
      if (status.ok()) {
        self->OnBytes(bytes);
      } else {
        self->session_->OnClosed(std::move(status));
        self->Continue();
      }
      self->Read();
    });
  }
  void OnBytes(size_t bytes) {
    shared_.bytes_received += bytes;
    session_->OnRead(bytes, shared_.Now());
    Continue();
  }

  // Hands events on, writes what there is to write, and ends what is over.
  void Continue() {
    Deliver();
    Write();
    if (!session_->closed() || writing_ || !stream_) return;
    if (session_->lingers()) return stream_->CloseSend();
    Shut();
  }
  // Closing with unread bytes would take the REFUSE away from the peer: what it still sends is read
  // over, until it closes or a tick ends this.
  void Drain() {
    stream_->Read(std::span(sniffed_), [self = shared_from_this()](Status status, size_t) {
      return status.ok() && self->stream_ ? self->Drain() : self->Shut();
    });
  }
  void Deliver() {
    const PdSessionStats& stats = session_->stats();
    shared_.dropped_frames += stats.dropped_frames - counted_.dropped_frames;
    shared_.duplicate_frames += stats.duplicate_frames - counted_.duplicate_frames;
    counted_ = stats;
    PdIncoming incoming;
    bool any = false;
    while (session_->Poll(&incoming)) {
      any = true;
      if (incoming.kind == PdEvent::Kind::kOpen) OnOpen();
      if (incoming.kind == PdEvent::Kind::kClosed) OnSessionClosed(incoming.status);
      MutexLock lock(mutex_);
      events_.push_back(std::move(incoming));
    }
    if (any) shared_.Wake();
  }
  void OnOpen();
  void OnSessionClosed(const Status& why) {
    closed_us_ = shared_.Now();
    if (!session_->refused()) return;
    ++shared_.refused_handshakes;
    TERN_LOG(kWarning, "hand-off with {}: {}", name_, why.message());
  }
  void Write() {
    if (writing_ || !stream_) return;
    const std::span<const std::byte> bytes = session_->Output();
    if (bytes.empty()) return;
    writing_ = true;
    stream_->Write(bytes, [self = shared_from_this()](Status status, size_t count) {
      self->writing_ = false;
      self->shared_.bytes_sent += count;
      if (status.ok()) {
        self->session_->OnWritten(count, self->shared_.Now());
      } else {
        self->session_->OnClosed(std::move(status));
      }
      self->Continue();
    });
  }

  Shared& shared_;
  const std::string name_;
  std::unique_ptr<TcpStream> stream_;
  std::unique_ptr<PdSession> session_;
  bool writing_ = false;
  int64_t accepted_us_ = 0, closed_us_ = 0;
  std::array<std::byte, kMaxHttpHeadBytes> sniffed_;
  size_t sniffed_bytes_ = 0;
  std::string http_answer_;
  PdSessionStats counted_;
  PdHello peer_;
  std::optional<PdRows> wire_rows_;
  Mutex mutex_;
  std::deque<PdIncoming> events_ TERN_GUARDED_BY(mutex_);
};

class TcpLink final : public PdLink {
 public:
  explicit TcpLink(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {}
  ~TcpLink() override { Close(); }

  bool Poll(PdEvent* event) override {
    if (closed_ || !connection_->Poll(&current_)) return false;
    *event = {.kind = current_.kind,
              .header = current_.header,
              .body = current_.body(),
              .status = current_.status};
    return true;
  }
  void Send(std::vector<std::byte> frame) override {
    if (closed_) return;
    loop().Post([connection = connection_, frame = std::move(frame)]() mutable {
      connection->Send(std::move(frame));
    });
  }
  // Waits for the network thread, which may be about to ask the filter.
  void Close() override {
    if (std::exchange(closed_, true)) return;
    loop().Run([this] { connection_->Shut(); });
  }
  const PdHello& peer() const override { return connection_->peer(); }
  const PdRows& wire_rows() const override { return connection_->wire_rows(); }
  std::string peer_name() const override { return connection_->name(); }

 private:
  TcpLoop& loop() { return *connection_->shared().loop; }

  const std::shared_ptr<Connection> connection_;
  PdIncoming current_;
  bool closed_ = false;
};

void Connection::OnOpen() {
  peer_ = session_->peer();
  wire_rows_ = session_->wire_rows();
  if (shared_.options.link.self.role == PdHello::Role::kReceiver) return;
  MutexLock lock(shared_.mutex);
  shared_.accepted.push_back(std::make_unique<TcpLink>(shared_from_this()));
}

class TcpTransportImpl final : public TcpTransport {
 public:
  TcpTransportImpl(TcpTransportOptions options, PdRows rows) {
    shared_.options = std::move(options);
    shared_.rows = std::move(rows);
    shared_.loop = &loop_;
  }
  ~TcpTransportImpl() override {
    {
      // Links that nobody took: they close on the loop, which must still be there.
      std::deque<std::unique_ptr<PdLink>> accepted;
      MutexLock lock(shared_.mutex);
      accepted.swap(shared_.accepted);
    }
    loop_.Run([this] {
      listener_.reset();
      while (!shared_.connections.empty()) (*shared_.connections.begin())->Shut();
    });
  }

  Status Listen() {
    const TcpTransportOptions& options = shared_.options;
    if (options.listen) {
      TERN_ASSIGN_OR_RETURN(
          listener_, TcpListener::Start(loop_, options.host, options.port,
                                        [this](auto stream) { OnStream(std::move(stream)); }));
    }
    loop_.PostAfter(kTickUs, [this] { Tick(); });
    return OkStatus();
  }

  std::unique_ptr<PdLink> Connect(const std::string& host, int port,
                                  PdFrameFilter* filter) override {
    auto connection = std::make_shared<Connection>(shared_, fmt::format("{}:{}", host, port));
    loop_.Post([this, connection, host, port, filter] {
      TcpStream::Connect(loop_, host, port, shared_.options.link.timeouts.handshake_us,
                         [this, connection, filter](Result<std::unique_ptr<TcpStream>> stream) {
                           if (!stream.ok()) {
                             connection->FailToConnect(stream.status());
                             return shared_.Wake();
                           }
                           shared_.connections.insert(connection);
                           connection->StartReceiver(std::move(stream).value(), filter);
                         });
    });
    return std::make_unique<TcpLink>(std::move(connection));
  }

  std::unique_ptr<PdLink> Accept() override {
    MutexLock lock(shared_.mutex);
    if (shared_.accepted.empty()) return nullptr;
    std::unique_ptr<PdLink> link = std::move(shared_.accepted.front());
    shared_.accepted.pop_front();
    return link;
  }

  int port() const override { return listener_ ? listener_->port() : 0; }
  TcpTransportStats stats() const override {
    return {.refused_addresses = shared_.refused_addresses,
            .refused_handshakes = shared_.refused_handshakes,
            .health_checks = shared_.health_checks,
            .dropped_frames = shared_.dropped_frames,
            .duplicate_frames = shared_.duplicate_frames,
            .bytes_sent = shared_.bytes_sent,
            .bytes_received = shared_.bytes_received};
  }

 private:
  void OnStream(std::unique_ptr<TcpStream> stream) {
    if (!shared_.options.peers.Allows(stream->peer_address())) {
      ++shared_.refused_addresses;
      TERN_LOG(kWarning, "hand-off: {} is not among --disaggregation-peers", stream->peer_name());
      return;
    }
    if (static_cast<int64_t>(shared_.connections.size()) >= shared_.options.max_connections) {
      TERN_LOG(kWarning, "hand-off: {} connections are open, {} is refused",
               shared_.connections.size(), stream->peer_name());
      return;
    }
    auto connection = std::make_shared<Connection>(shared_, stream->peer_name());
    shared_.connections.insert(connection);
    connection->StartAccepted(std::move(stream));
  }
  void Tick() {
    const int64_t now = shared_.Now();
    const auto connections = shared_.connections;  // some end meanwhile
    for (const auto& connection : connections) connection->OnTick(now);
    loop_.PostAfter(kTickUs, [this] { Tick(); });
  }

  Shared shared_;
  TcpLoop loop_;  // ends first
  std::unique_ptr<TcpListener> listener_;
};

}  // namespace

Result<std::unique_ptr<TcpTransport>> TcpTransport::Start(TcpTransportOptions options) {
  if (!options.link.secret.empty() && options.link.secret.size() < kMinSecretBytes) {
    return InvalidArgument(
        fmt::format("the hand-off secret is shorter than {} bytes", kMinSecretBytes));
  }
  TERN_ASSIGN_OR_RETURN(PdRows rows, RowsOf(options.link.self));
  auto transport = std::make_unique<TcpTransportImpl>(std::move(options), std::move(rows));
  TERN_RETURN_IF_ERROR(transport->Listen());
  return std::unique_ptr<TcpTransport>(std::move(transport));
}

Result<std::string> ReadPdSecret(const std::string& path) {
  TERN_ASSIGN_OR_RETURN(std::string secret, ReadFile(path, 1 << 16));
  while (!secret.empty() && (secret.back() == '\n' || secret.back() == '\r')) secret.pop_back();
  if (secret.size() < kMinSecretBytes) {
    return InvalidArgument(
        fmt::format("{}: a secret of at least {} bytes is needed", path, kMinSecretBytes));
  }
  struct stat info {};
  if (stat(path.c_str(), &info) == 0 && (info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return InvalidArgument(path + ": others may read this secret; chmod 600 it");
  }
  return secret;
}

}  // namespace tern
