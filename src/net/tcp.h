// Tcp: plain byte streams over TCP for protocols that are not HTTP. A TcpLoop runs one network
// thread; streams and listeners belong to it. Owner: a transport (pd/tcp_transfer.cc). Thread:
// everything but TcpLoop's constructor, Post and destructor runs on the loop's thread, callbacks
// included.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/result.h"

namespace tern {

struct TcpLoopImpl;

class TcpLoop : public Executor {
 public:
  TcpLoop();
  // Ends the thread; callbacks that wait are dropped. Destroy or close streams first, on the loop.
  ~TcpLoop() override;
  void Post(std::function<void()> task) override;
  void PostAfter(int64_t delay_us, std::function<void()> task) override;
  // Runs `task` on the loop and waits for it. Not from the loop's thread.
  void Run(std::function<void()> task);

 private:
  friend class TcpStream;
  friend class TcpListener;
  std::unique_ptr<TcpLoopImpl> impl_;
};

// A connected socket. Callbacks of a closed or destroyed stream never run.
class TcpStream {
 public:
  using OnBytes = std::function<void(Status status, size_t bytes)>;
  // Connects to a numeric address. `done` gets the stream, or kUnavailable; once.
  static void Connect(TcpLoop& loop, const std::string& address, int port, int64_t timeout_us,
                      std::function<void(Result<std::unique_ptr<TcpStream>>)> done);
  ~TcpStream();  // closes

  // Some bytes, at least one, into `buffer`, which stays until then. One read at a time.
  // Errors: kUnavailable (closed by the peer, broken).
  void Read(std::span<std::byte> buffer, OnBytes done);
  // Some of `bytes`, which stay until then. One write at a time.
  void Write(std::span<const std::byte> bytes, OnBytes done);
  // No more writes: the peer reads the end of the stream. Reading goes on.
  void CloseSend();
  void Close();
  std::string peer_address() const;  // "127.0.0.1", without port
  std::string peer_name() const;     // "127.0.0.1:41234"

 private:
  friend class TcpListener;
  struct Impl;
  explicit TcpStream(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

class TcpListener {
 public:
  // Listens on host:port (port 0: a free one); `on_stream` gets each connection, on the loop.
  // Errors: kInvalidArgument (host), kFailedPrecondition naming the port when it is in use.
  static Result<std::unique_ptr<TcpListener>> Start(
      TcpLoop& loop, const std::string& host, int port,
      std::function<void(std::unique_ptr<TcpStream>)> on_stream);
  ~TcpListener();  // on the loop
  int port() const;

 private:
  struct Impl;
  explicit TcpListener(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

// Numeric addresses of a host name; a numeric one gives itself. Errors: kInvalidArgument naming the
// host. May wait for a name server. Any thread.
Result<std::vector<std::string>> ResolveHost(const std::string& host);

}  // namespace tern
