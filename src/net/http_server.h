// HttpServer: HTTP/1.1 over plain TCP: keep-alive, pipelining, chunked bodies both ways, limits and
// time-outs, and notice of clients that leave.
// One network thread accepts, parses, calls the handler and writes. Owned by whoever serves.
// Thread: Start, StopAccepting, Shutdown and the destructor on the owner's thread; the handler and
// all ResponseWriter methods run on the network thread; executor() takes tasks from any thread.
// Must outlive everything that holds its executor or a ResponseWriter.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/executor.h"
#include "base/result.h"
#include "net/http.h"

namespace tern {

struct HttpServerOptions {
  uint64_t header_limit_bytes = 32 << 10;   // larger heads: 431
  uint64_t body_limit_bytes = 64 << 20;     // larger bodies: 413
  uint64_t stream_buffer_bytes = 16 << 20;  // a stream that already has more unsent is cut
  int64_t idle_timeout_us = 75'000'000;     // a kept-alive connection without a request
  int64_t header_timeout_us = 15'000'000;   // from a request's first byte to its whole head
  int64_t body_timeout_us = 30'000'000;     // for each 64 KiB of body
  int64_t write_timeout_us = 30'000'000;    // a client that takes no byte for so long is cut
  int64_t max_connections = 8192;           // more wait in the kernel's queue
  // The body (JSON) of an answer that the server itself gives: malformed, too large, too slow.
  std::function<std::string(int status, std::string_view message)> error_body;
};

using HttpHandler =
    std::function<void(HttpRequest request, std::shared_ptr<ResponseWriter> writer)>;

class HttpServer {
 public:
  // Listens on host:port (port 0: a free one) and starts the network thread. Errors:
  // kInvalidArgument (host), kFailedPrecondition naming the port when it is in use.
  static Result<std::unique_ptr<HttpServer>> Start(const std::string& host, int port,
                                                   HttpServerOptions options, HttpHandler handler);
  ~HttpServer();  // Shutdown(0)
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;
  Executor& executor();
  // Open connections; for tests and metrics. Any thread.
  int64_t connections() const;

  // Takes no new connections and closes idle ones; answers in progress go on and then close.
  void StopAccepting();
  // StopAccepting, waits at most `timeout_us` for answers in progress, cuts the rest, ends the
  // thread.
  void Shutdown(int64_t timeout_us);

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tern
