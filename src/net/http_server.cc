#include "net/http_server.h"

#include <fmt/format.h>
#include <pthread.h>

#include <thread>

#include "base/log.h"
#include "net/http_connection.h"

namespace tern {
namespace {

class IoExecutor final : public Executor {
 public:
  explicit IoExecutor(HttpServerCore& core) : core_(core) {}
  void Post(std::function<void()> task) override { asio::post(core_.io, std::move(task)); }
  void PostAfter(int64_t delay_us, std::function<void()> task) override {
    auto timer =
        std::make_shared<asio::steady_timer>(core_.io, std::chrono::microseconds(delay_us));
    timer->async_wait([timer, task = std::move(task)](error_code error) {
      if (!error) task();
    });
  }

 private:
  HttpServerCore& core_;
};

}  // namespace

struct HttpServer::Impl {
  Impl() : acceptor(core->io), retry(core->io), executor(*core) {}

  void Accept();
  void OnAccept(error_code error, tcp::socket socket);

  const std::unique_ptr<HttpServerCore> core = std::make_unique<HttpServerCore>();
  tcp::acceptor acceptor;
  asio::steady_timer retry;
  IoExecutor executor;
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work;
  std::thread thread;
  int port = 0;
  bool accepting = false;  // an accept is outstanding
};

void HttpServer::Impl::Accept() {
  if (accepting || core->stopping) return;
  if (static_cast<int64_t>(core->connections.size()) >= core->options.max_connections) return;
  accepting = true;
  acceptor.async_accept([this](error_code error, tcp::socket socket) {
    accepting = false;
    OnAccept(error, std::move(socket));
  });
}

void HttpServer::Impl::OnAccept(error_code error, tcp::socket socket) {
  if (core->stopping) return;
  if (error) {
    // Out of descriptors, most likely: give connections time to end.
    TERN_LOG(kWarning, "accept failed: {}", error.message());
    retry.expires_after(std::chrono::milliseconds(100));
    retry.async_wait([this](error_code cancelled) {
      if (!cancelled) Accept();
    });
    return;
  }
  auto connection = std::make_shared<HttpConnection>(core.get(), std::move(socket));
  core->connections.insert(connection);
  core->connection_count.store(static_cast<int64_t>(core->connections.size()));
  connection->Start();
  Accept();
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& host, int port,
                                                      HttpServerOptions options,
                                                      HttpHandler handler) {
  auto impl = std::make_unique<Impl>();
  HttpServerCore* core = impl->core.get();
  core->executor = &impl->executor;
  core->options = std::move(options);
  core->handler = std::move(handler);

  error_code error;
  tcp::resolver resolver(core->io);
  const auto found = resolver.resolve(
      host, std::to_string(port), tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error || found.empty()) {
    return InvalidArgument(fmt::format("cannot listen on host '{}': {}", host, error.message()));
  }
  const tcp::endpoint endpoint = found.begin()->endpoint();
  impl->acceptor.open(endpoint.protocol(), error);
  if (!error) impl->acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) impl->acceptor.bind(endpoint, error);
  if (!error) impl->acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error == asio::error::address_in_use) {
    return FailedPrecondition(fmt::format(
        "port {} on {} is already in use; stop the other server or choose another --port", port,
        host));
  }
  if (error) {
    return FailedPrecondition(
        fmt::format("cannot listen on {} port {}: {}", host, port, error.message()));
  }
  impl->port = impl->acceptor.local_endpoint(error).port();

  Impl* raw = impl.get();
  core->on_closed = [raw] { raw->Accept(); };
  impl->work.emplace(core->io.get_executor());
  asio::post(core->io, [raw] { raw->Accept(); });
  impl->thread = std::thread([core] { core->io.run(); });
  pthread_setname_np(impl->thread.native_handle(), "tern-net");
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::~HttpServer() { Shutdown(0); }

int HttpServer::port() const { return impl_->port; }
Executor& HttpServer::executor() { return impl_->executor; }
int64_t HttpServer::connections() const { return impl_->core->connection_count.load(); }

void HttpServer::StopAccepting() {
  Impl* impl = impl_.get();
  asio::post(impl->core->io, [impl] {
    impl->core->stopping = true;
    error_code ignored;
    impl->acceptor.close(ignored);
    impl->retry.cancel();
    const auto connections = impl->core->connections;  // Stop removes from the set
    for (const auto& connection : connections) connection->Stop();
  });
}

void HttpServer::Shutdown(int64_t timeout_us) {
  if (!impl_->thread.joinable()) return;
  StopAccepting();
  constexpr int64_t kPollUs = 5'000;
  for (int64_t waited = 0; waited < timeout_us && connections() > 0; waited += kPollUs) {
    std::this_thread::sleep_for(std::chrono::microseconds(kPollUs));
  }
  HttpServerCore* core = impl_->core.get();
  asio::post(core->io, [core] {
    const auto connections = core->connections;
    for (const auto& connection : connections) connection->Cut();
    core->io.stop();
  });
  impl_->work.reset();
  impl_->thread.join();
  core->drained.store(true);
}

}  // namespace tern
