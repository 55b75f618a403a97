// HttpConnection: one accepted socket: reads requests one at a time, hands them on, writes answers.
// Private to net/. Thread: the network thread only, except Post and the destructor of a writer.
//
//   kIdle -> kReading -> kHandling -> kIdle ...        a request at a time; pipelined bytes wait,
//                                                      at most 64 KiB of them
//   any   -> kLingering -> kClosed                     after the last answer: send FIN, drain,
//   close
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>

#include "net/asio.h"
#include "net/http_server.h"

namespace tern {

class HttpConnection;

// What connections share; outlives them and their writers. `io` goes last but for `drained`, which
// writers that sit in its queue still ask.
struct HttpServerCore {
  std::atomic<bool> drained{false};  // the network thread has ended for good
  asio::io_context io{1};
  Executor* executor = nullptr;
  HttpServerOptions options;
  HttpHandler handler;
  bool stopping = false;                                            // network thread
  std::unordered_set<std::shared_ptr<HttpConnection>> connections;  // network thread
  std::atomic<int64_t> connection_count{0};
  std::function<void()> on_closed;  // a connection was removed; network thread
};

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(HttpServerCore* core, tcp::socket socket);

  void Start();
  // Graceful stop: an idle connection closes now, a busy one after its answer.
  void Stop();
  // Ends the connection at once; a request in progress hears of it.
  void Cut();

 private:
  class Writer;
  enum class Phase { kIdle, kReading, kHandling, kLingering, kClosed };
  enum class Answer { kNone, kStreaming, kEnded };

  void ReadNext();
  void ReadHead();
  void OnHead(error_code error);
  void SendContinue();
  void ReadBody();
  void OnBody(error_code error, size_t bytes);
  void Dispatch();
  // Answers a request that could not be read, then closes.
  void Refuse(int status, std::string_view message);
  void RefuseForError(error_code error);

  // One wait for readability at a time: starts a request when idle, notices EOF when handling.
  void ArmWait();
  void OnReadable(error_code error);

  // Called by the writer of request number `request`; calls of earlier requests are ignored.
  void Send(uint64_t request, int status, const HttpHeaders& headers, std::string_view body);
  void BeginStream(uint64_t request, int status, const HttpHeaders& headers);
  void Write(uint64_t request, std::string_view data);
  void End(uint64_t request);
  void Abandon(uint64_t request);
  bool Answering(uint64_t request) const;
  size_t WaitingBytes() const { return pending_.size() + in_flight_.size() - sent_; }

  void AppendHead(int status, const HttpHeaders& headers, std::optional<size_t> content_length);
  void Pump();
  void OnWritten(error_code error, size_t bytes);
  void FinishAnswer();
  void Linger();
  void Drain();
  void Close();

  void SetDeadline(int64_t us);
  void OnDeadline();

  HttpServerCore* const core_;
  tcp::socket socket_;
  asio::steady_timer deadline_;
  uint64_t deadline_generation_ = 0;
  Phase phase_ = Phase::kIdle;
  bool waiting_ = false;

  boost::beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  size_t body_window_bytes_ = 0;  // received since the deadline was set
  char discard_[4096];            // what a refused client goes on sending

  uint64_t request_ = 0;  // number of the request being handled
  Answer answer_ = Answer::kNone;
  bool keep_alive_ = false;
  bool refused_ = false;  // the last request could not be read to its end
  bool http11_ = true;
  bool head_only_ = false;
  std::function<void()> on_disconnect_;

  std::string pending_, in_flight_;  // bytes to send; in_flight_ from sent_ on
  size_t sent_ = 0;
  bool writing_ = false;
};

}  // namespace tern
