#include "net/tcp.h"

#include <fmt/format.h>

#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "net/asio.h"

namespace tern {
namespace {

Status Broken(error_code error) {
  return Unavailable(error == asio::error::eof ? "the peer closed the connection"
                                               : error.message());
}

// "127.0.0.1" also for ::ffff:127.0.0.1.
std::string TextOf(const asio::ip::address& address) {
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()).to_string();
  }
  return address.to_string();
}

}  // namespace

struct TcpLoopImpl {
  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{io.get_executor()};
  std::thread thread;
};

TcpLoop::TcpLoop() : impl_(std::make_unique<TcpLoopImpl>()) {
  impl_->thread = std::thread([this] { impl_->io.run(); });
}

TcpLoop::~TcpLoop() {
  impl_->io.stop();
  impl_->thread.join();
}

void TcpLoop::Post(std::function<void()> task) { asio::post(impl_->io, std::move(task)); }

void TcpLoop::PostAfter(int64_t delay_us, std::function<void()> task) {
  auto timer = std::make_shared<asio::steady_timer>(impl_->io, std::chrono::microseconds(delay_us));
  timer->async_wait([timer, task = std::move(task)](error_code error) {
    if (!error) task();
  });
}

void TcpLoop::Run(std::function<void()> task) {
  std::mutex mutex;
  std::condition_variable done_cv;
  bool done = false;
  Post([&] {
    task();
    std::lock_guard<std::mutex> lock(mutex);
    done = true;
    done_cv.notify_one();
  });
  std::unique_lock<std::mutex> lock(mutex);
  done_cv.wait(lock, [&] { return done; });
}

// Outlives its stream as long as an operation is pending, so that buffers and callbacks of a
// closed stream are simply not touched.
struct TcpStream::Impl {
  explicit Impl(tcp::socket s) : socket(std::move(s)) {
    error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    const tcp::endpoint remote = socket.remote_endpoint(ignored);
    address = TextOf(remote.address());
    name = fmt::format("{}:{}", address, remote.port());
  }
  tcp::socket socket;
  bool closed = false;
  std::string address, name;
};

TcpStream::TcpStream(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
TcpStream::~TcpStream() { Close(); }

void TcpStream::Connect(TcpLoop& loop, const std::string& address, int port, int64_t timeout_us,
                        std::function<void(Result<std::unique_ptr<TcpStream>>)> done) {
  struct Attempt {
    Attempt(asio::io_context& io, int64_t us)
        : socket(io), timer(io, std::chrono::microseconds(us)) {}
    tcp::socket socket;
    asio::steady_timer timer;
    bool over = false;
  };
  error_code error;
  const auto ip = asio::ip::make_address(address, error);
  if (error || port < 1 || port > 65535) {
    return done(Unavailable(fmt::format("{}:{} is no address", address, port)));
  }
  auto attempt = std::make_shared<Attempt>(loop.impl_->io, timeout_us);
  auto finish = [attempt, done = std::move(done)](Status status) {
    if (std::exchange(attempt->over, true)) return;
    attempt->timer.cancel();
    if (status.ok()) {
      auto impl = std::make_shared<Impl>(std::move(attempt->socket));
      done(std::unique_ptr<TcpStream>(new TcpStream(std::move(impl))));
      return;
    }
    error_code ignored;
    attempt->socket.close(ignored);
    done(std::move(status));
  };
  attempt->socket.async_connect({ip, static_cast<uint16_t>(port)}, [finish](error_code result) {
    finish(result ? Unavailable(result.message()) : OkStatus());
  });
  attempt->timer.async_wait([finish](error_code result) {
    if (!result) finish(Unavailable("it did not take the connection in time"));
  });
}

void TcpStream::Read(std::span<std::byte> buffer, OnBytes done) {
  impl_->socket.async_read_some(
      asio::buffer(buffer.data(), buffer.size()),
      [impl = impl_, done = std::move(done)](error_code error, size_t bytes) {
        if (impl->closed) return;
        done(error ? Broken(error) : OkStatus(), bytes);
      });
}

void TcpStream::Write(std::span<const std::byte> bytes, OnBytes done) {
  impl_->socket.async_write_some(
      asio::buffer(bytes.data(), bytes.size()),
      [impl = impl_, done = std::move(done)](error_code error, size_t written) {
        if (impl->closed) return;
        done(error ? Broken(error) : OkStatus(), written);
      });
}

void TcpStream::CloseSend() {
  error_code ignored;
  impl_->socket.shutdown(tcp::socket::shutdown_send, ignored);
}

void TcpStream::Close() {
  if (std::exchange(impl_->closed, true)) return;
  error_code ignored;
  impl_->socket.shutdown(tcp::socket::shutdown_both, ignored);
  impl_->socket.close(ignored);
}

std::string TcpStream::peer_address() const { return impl_->address; }
std::string TcpStream::peer_name() const { return impl_->name; }

struct TcpListener::Impl : std::enable_shared_from_this<TcpListener::Impl> {
  explicit Impl(asio::io_context& io) : acceptor(io), retry(io) {}
  void Accept() {
    acceptor.async_accept([self = shared_from_this()](error_code error, tcp::socket socket) {
      if (self->closed) return;
      if (!error) {
        self->on_stream(std::unique_ptr<TcpStream>(
            new TcpStream(std::make_shared<TcpStream::Impl>(std::move(socket)))));
        return self->Accept();
      }
      // Out of file descriptors, most likely: again, a little later.
      self->retry.expires_after(std::chrono::milliseconds(100));
      self->retry.async_wait([self](error_code) {
        if (!self->closed) self->Accept();
      });
    });
  }
  tcp::acceptor acceptor;
  asio::steady_timer retry;
  std::function<void(std::unique_ptr<TcpStream>)> on_stream;
  bool closed = false;
  int port = 0;
};

TcpListener::TcpListener(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

TcpListener::~TcpListener() {
  impl_->closed = true;
  error_code ignored;
  impl_->acceptor.close(ignored);
  impl_->retry.cancel();
}

int TcpListener::port() const { return impl_->port; }

Result<std::unique_ptr<TcpListener>> TcpListener::Start(
    TcpLoop& loop, const std::string& host, int port,
    std::function<void(std::unique_ptr<TcpStream>)> on_stream) {
  TERN_ASSIGN_OR_RETURN(const std::vector<std::string> addresses, ResolveHost(host));
  auto impl = std::make_shared<Impl>(loop.impl_->io);
  impl->on_stream = std::move(on_stream);
  const tcp::endpoint endpoint(asio::ip::make_address(addresses.front()),
                               static_cast<uint16_t>(port));
  error_code error;
  impl->acceptor.open(endpoint.protocol(), error);
  if (!error) impl->acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) impl->acceptor.bind(endpoint, error);
  if (!error) impl->acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    return FailedPrecondition(
        fmt::format("cannot listen on {}:{}: {}", host, port, error.message()));
  }
  impl->port = impl->acceptor.local_endpoint(error).port();
  loop.Post([impl] { impl->Accept(); });
  return std::unique_ptr<TcpListener>(new TcpListener(std::move(impl)));
}

Result<std::vector<std::string>> ResolveHost(const std::string& host) {
  std::string name = host;
  if (name.size() > 2 && name.front() == '[' && name.back() == ']') {
    name = name.substr(1, name.size() - 2);
  }
  error_code error;
  if (const auto ip = asio::ip::make_address(name, error); !error) return {{TextOf(ip)}};
  asio::io_context io;
  tcp::resolver resolver(io);
  std::vector<std::string> addresses;
  if (!name.empty()) {
    for (const auto& entry : resolver.resolve(name, "", error)) {
      addresses.push_back(TextOf(entry.endpoint().address()));
    }
  }
  if (addresses.empty()) return InvalidArgument(fmt::format("host '{}' has no address", host));
  return addresses;
}

}  // namespace tern
