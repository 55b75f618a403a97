#include "net/http_connection.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "base/trace.h"

namespace tern {
namespace {

constexpr size_t kReadBytes = 64 << 10;
constexpr size_t kBodyWindowBytes = 64 << 10;
constexpr size_t kPipelineLimitBytes = 64 << 10;  // of requests that came early
constexpr int64_t kLingerUs = 200'000;
constexpr int64_t kRefusedLingerUs = 2'000'000;  // it may still be sending a large body

}  // namespace

// The ResponseWriter of one request: forwards to the connection, which knows whether it still
// handles that request.
class HttpConnection::Writer final : public ResponseWriter {
 public:
  Writer(std::shared_ptr<HttpConnection> connection, uint64_t request)
      : connection_(std::move(connection)), request_(request) {}
  ~Writer() override {
    if (connection_->core_->drained.load()) return;
    // The last holder may be any thread; the connection is touched on its own only.
    asio::io_context& io = connection_->core_->io;
    asio::post(io, [connection = std::move(connection_), request = request_] {
      connection->Abandon(request);
    });
  }

  void Send(int status, HttpHeaders headers, std::string body) override {
    connection_->Send(request_, status, headers, body);
  }
  void BeginStream(int status, HttpHeaders headers) override {
    connection_->BeginStream(request_, status, headers);
  }
  void Write(std::string_view data) override { connection_->Write(request_, data); }
  void End() override { connection_->End(request_); }
  size_t waiting_bytes() const override {
    return connection_->Answering(request_) ? connection_->WaitingBytes() : 0;
  }
  void OnDisconnect(std::function<void()> callback) override {
    if (connection_->Answering(request_)) connection_->on_disconnect_ = std::move(callback);
  }
  bool open() const override { return connection_->Answering(request_); }
  Executor& executor() override { return *connection_->core_->executor; }

 private:
  std::shared_ptr<HttpConnection> connection_;
  const uint64_t request_;
};

HttpConnection::HttpConnection(HttpServerCore* core, tcp::socket socket)
    : core_(core), socket_(std::move(socket)), deadline_(core_->io) {}

void HttpConnection::Start() {
  error_code ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  socket_.non_blocking(true, ignored);
  ReadNext();
}

void HttpConnection::Stop() {
  // A request that has not arrived whole is not in progress: it would hold up the end.
  if (phase_ == Phase::kIdle || phase_ == Phase::kReading) Close();
}

void HttpConnection::Cut() {
  std::function<void()> callback = std::move(on_disconnect_);
  on_disconnect_ = nullptr;
  Close();
  if (callback) callback();
}

// ---- reading ----

void HttpConnection::ReadNext() {
  phase_ = Phase::kIdle;
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(core_->options.header_limit_bytes));
  parser_->body_limit(core_->options.body_limit_bytes);
  if (buffer_.size() > 0) return ReadHead();
  SetDeadline(core_->options.idle_timeout_us);
  ArmWait();
}

void HttpConnection::ArmWait() {
  if (waiting_) return;
  waiting_ = true;
  socket_.async_wait(tcp::socket::wait_read,
                     [self = shared_from_this()](error_code error) { self->OnReadable(error); });
}

void HttpConnection::OnReadable(error_code error) {
  waiting_ = false;
  if (error || phase_ == Phase::kClosed) return;
  if (phase_ == Phase::kIdle) return ReadHead();
  if (phase_ != Phase::kHandling) return;
  // Something arrived while an answer is being made: either the end of the stream, or a pipelined
  // request, which waits in the buffer. Whoever sends more than fits is cut: unread bytes would
  // hide the end of the stream behind them.
  if (buffer_.size() >= kPipelineLimitBytes) {
    TERN_LOG(kWarning, "cut a client that sent more than {} bytes ahead of its answer",
             kPipelineLimitBytes);
    return Cut();
  }
  const size_t bytes = socket_.read_some(buffer_.prepare(4096), error);
  if (error == asio::error::would_block) return ArmWait();
  if (error) return Cut();
  buffer_.commit(bytes);
  ArmWait();
}

void HttpConnection::ReadHead() {
  phase_ = Phase::kReading;
  SetDeadline(core_->options.header_timeout_us);
  http::async_read_header(
      socket_, buffer_, *parser_,
      [self = shared_from_this()](error_code error, size_t) { self->OnHead(error); });
}

void HttpConnection::OnHead(error_code error) {
  if (phase_ != Phase::kReading) return;  // closed, or refused for being slow
  if (error) return RefuseForError(error);
  const auto& head = parser_->get();
  http11_ = head.version() >= 11;
  if (http11_ && head.count(http::field::host) != 1) {
    return Refuse(400, "an HTTP/1.1 request needs one Host header");
  }
  if (head.count(http::field::transfer_encoding) != 0 && !parser_->chunked()) {
    // Read as an empty body, its payload would count as the next request.
    return Refuse(501, "of transfer encodings, only chunked is supported");
  }
  const auto target = head.target();
  if (target.empty() || (target[0] != '/' && target != "*")) {
    return Refuse(400, "the request target must be a path");
  }
  if (boost::beast::iequals(head[http::field::expect], "100-continue")) return SendContinue();
  ReadBody();
}

void HttpConnection::SendContinue() {
  static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  asio::async_write(socket_, asio::buffer(kContinue),
                    [self = shared_from_this()](error_code error, size_t) {
                      if (self->phase_ != Phase::kReading) return;
                      if (error) return self->Close();
                      self->ReadBody();
                    });
}

void HttpConnection::ReadBody() {
  if (parser_->is_done()) return Dispatch();
  parser_->eager(true);
  body_window_bytes_ = 0;
  SetDeadline(core_->options.body_timeout_us);
  OnBody({}, 0);
}

void HttpConnection::OnBody(error_code error, size_t bytes) {
  if (phase_ != Phase::kReading) return;
  buffer_.commit(bytes);
  if (error == asio::error::eof) error = http::error::partial_message;
  if (!error) buffer_.consume(parser_->put(buffer_.data(), error));
  if (error && error != http::error::need_more) return RefuseForError(error);
  if (parser_->is_done()) return Dispatch();
  body_window_bytes_ += bytes;
  if (body_window_bytes_ >= kBodyWindowBytes) {
    body_window_bytes_ = 0;
    SetDeadline(core_->options.body_timeout_us);
  }
  socket_.async_read_some(buffer_.prepare(kReadBytes),
                          [self = shared_from_this()](error_code read_error, size_t read_bytes) {
                            self->OnBody(read_error, read_bytes);
                          });
}

void HttpConnection::Dispatch() {
  phase_ = Phase::kHandling;
  answer_ = Answer::kNone;
  TERN_TRACE("net.http");
  ++request_;
  ++deadline_generation_;  // no deadline while the answer is being made
  auto message = parser_->release();
  keep_alive_ = message.keep_alive() && !core_->stopping;
  head_only_ = message.method() == http::verb::head;

  HttpRequest request;
  request.method = std::string(message.method_string());
  const std::string_view target(message.target().data(), message.target().size());
  const size_t question = std::min(target.find('?'), target.size());
  request.path = PercentDecode(target.substr(0, question), false);
  request.query = target.substr(std::min(question + 1, target.size()));
  for (const auto& field : message) {
    request.headers.push_back({std::string(field.name_string()), std::string(field.value())});
  }
  request.body = std::move(message.body());
  parser_.reset();

  auto writer = std::make_shared<Writer>(shared_from_this(), request_);
  ArmWait();
  try {
    core_->handler(std::move(request), std::move(writer));
  } catch (const std::exception& e) {  // out of memory, at most: the server must live on
    TERN_LOG(kError, "a request handler threw: {}", e.what());
    Abandon(request_);
  }
}

void HttpConnection::RefuseForError(error_code error) {
  if (error == http::error::end_of_stream) return Close();
  if (error == http::error::body_limit) {
    return Refuse(413, fmt::format("the request body is larger than {} bytes",
                                   core_->options.body_limit_bytes));
  }
  if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    return Refuse(431, fmt::format("the request head is larger than {} bytes",
                                   core_->options.header_limit_bytes));
  }
  if (error == http::error::bad_version)
    return Refuse(505, "only HTTP/1.0 and HTTP/1.1 are spoken");
  if (error == http::error::partial_message) return Refuse(400, "the request ended too early");
  if (error.category() == http::make_error_code(http::error::bad_method).category()) {
    return Refuse(400, fmt::format("malformed HTTP request: {}", error.message()));
  }
  Close();  // the socket broke
}

void HttpConnection::Refuse(int status, std::string_view message) {
  phase_ = Phase::kHandling;
  answer_ = Answer::kNone;
  ++request_;
  refused_ = true;
  keep_alive_ = false;
  head_only_ = false;
  const auto& error_body = core_->options.error_body;
  if (error_body) {
    Send(request_, status, {{"Content-Type", "application/json"}}, error_body(status, message));
  } else {
    Send(request_, status, {{"Content-Type", "text/plain"}}, message);
  }
}

// ---- writing ----

bool HttpConnection::Answering(uint64_t request) const {
  return phase_ == Phase::kHandling && request == request_ && answer_ != Answer::kEnded;
}

void HttpConnection::AppendHead(int status, const HttpHeaders& headers,
                                std::optional<size_t> content_length) {
  auto out = std::back_inserter(pending_);
  fmt::format_to(out, "HTTP/1.1 {} {}\r\n", status, HttpReason(status));
  for (const HttpHeader& header : headers) {
    fmt::format_to(out, "{}: {}\r\n", header.name, header.value);
  }
  if (content_length) {
    fmt::format_to(out, "Content-Length: {}\r\n", *content_length);
  } else if (http11_) {
    pending_ += "Transfer-Encoding: chunked\r\n";
  } else {
    keep_alive_ = false;  // HTTP/1.0: the end of the connection ends the body
  }
  if (core_->stopping) keep_alive_ = false;
  if (!keep_alive_) {
    pending_ += "Connection: close\r\n";
  } else if (!http11_) {
    pending_ += "Connection: keep-alive\r\n";
  }
  pending_ += "\r\n";
}

void HttpConnection::Send(uint64_t request, int status, const HttpHeaders& headers,
                          std::string_view body) {
  if (!Answering(request) || answer_ != Answer::kNone) return;
  AppendHead(status, headers, body.size());
  if (!head_only_) pending_ += body;
  answer_ = Answer::kEnded;
  on_disconnect_ = nullptr;
  Pump();
}

void HttpConnection::BeginStream(uint64_t request, int status, const HttpHeaders& headers) {
  if (!Answering(request) || answer_ != Answer::kNone) return;
  AppendHead(status, headers, std::nullopt);
  answer_ = Answer::kStreaming;
  Pump();
}

void HttpConnection::Write(uint64_t request, std::string_view data) {
  if (!Answering(request) || answer_ != Answer::kStreaming || data.empty()) return;
  if (head_only_) return;
  // What waits already decides, so that one chunk may have any size.
  const size_t waiting = WaitingBytes();
  if (waiting > core_->options.stream_buffer_bytes) {
    TERN_LOG(kWarning, "cut a stream whose client does not read: {} bytes were waiting", waiting);
    return Cut();
  }
  if (http11_) fmt::format_to(std::back_inserter(pending_), "{:x}\r\n", data.size());
  pending_ += data;
  if (http11_) pending_ += "\r\n";
  Pump();
}

void HttpConnection::End(uint64_t request) {
  if (!Answering(request) || answer_ != Answer::kStreaming) return;
  if (http11_ && !head_only_) pending_ += "0\r\n\r\n";
  answer_ = Answer::kEnded;
  on_disconnect_ = nullptr;
  if (!writing_ && pending_.empty()) return FinishAnswer();
  Pump();
}

void HttpConnection::Abandon(uint64_t request) {
  if (!Answering(request)) return;
  if (answer_ == Answer::kStreaming) return Cut();
  on_disconnect_ = nullptr;
  keep_alive_ = false;
  const auto& error_body = core_->options.error_body;
  constexpr std::string_view kMessage = "the request was dropped without an answer";
  Send(request, 500, {{"Content-Type", "application/json"}},
       error_body ? error_body(500, kMessage) : std::string(kMessage));
}

void HttpConnection::Pump() {
  if (writing_ || phase_ == Phase::kClosed) return;
  if (sent_ == in_flight_.size()) {
    in_flight_.clear();
    sent_ = 0;
    if (pending_.empty()) return;
    in_flight_.swap(pending_);
  }
  writing_ = true;
  SetDeadline(core_->options.write_timeout_us);
  socket_.async_write_some(asio::buffer(in_flight_.data() + sent_, in_flight_.size() - sent_),
                           [self = shared_from_this()](error_code error, size_t bytes) {
                             self->OnWritten(error, bytes);
                           });
}

void HttpConnection::OnWritten(error_code error, size_t bytes) {
  writing_ = false;
  if (phase_ == Phase::kClosed) return;
  if (error) return Cut();
  sent_ += bytes;
  if (sent_ < in_flight_.size() || !pending_.empty()) return Pump();
  ++deadline_generation_;  // nothing is being written
  if (answer_ == Answer::kEnded) FinishAnswer();
}

void HttpConnection::FinishAnswer() {
  if (keep_alive_ && !core_->stopping) return ReadNext();
  Linger();
}

// ---- ending ----

void HttpConnection::Linger() {
  // Closing with unread input would send a reset, which can overtake the answer: say that no more
  // is coming, then read until the client closes.
  phase_ = Phase::kLingering;
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  SetDeadline(refused_ ? kRefusedLingerUs : kLingerUs);
  Drain();
}

void HttpConnection::Drain() {
  socket_.async_read_some(asio::buffer(discard_),
                          [self = shared_from_this()](error_code error, size_t) {
                            if (self->phase_ == Phase::kClosed) return;
                            if (error) return self->Close();
                            self->Drain();
                          });
}

void HttpConnection::Close() {
  if (phase_ == Phase::kClosed) return;
  phase_ = Phase::kClosed;
  ++deadline_generation_;
  deadline_.cancel();
  error_code ignored;
  socket_.close(ignored);
  const auto self = shared_from_this();
  core_->connections.erase(self);
  core_->connection_count.store(static_cast<int64_t>(core_->connections.size()));
  if (core_->on_closed) core_->on_closed();
}

void HttpConnection::SetDeadline(int64_t us) {
  const uint64_t generation = ++deadline_generation_;
  deadline_.expires_after(std::chrono::microseconds(us));
  deadline_.async_wait([self = shared_from_this(), generation](error_code error) {
    if (!error && generation == self->deadline_generation_) self->OnDeadline();
  });
}

void HttpConnection::OnDeadline() {
  if (phase_ != Phase::kReading) return phase_ == Phase::kHandling ? Cut() : Close();
  // The read in progress ends with an error that finds the phase changed.
  error_code ignored;
  socket_.cancel(ignored);
  Refuse(408, "the request took too long to arrive");
}

}  // namespace tern
