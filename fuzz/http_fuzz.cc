// Bytes of a connection, sent to a real HttpServer: never a crash, and the server still answers.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "net/http_server.h"

namespace {

tern::HttpServer& Server() {
  static const std::unique_ptr<tern::HttpServer> server = [] {
    tern::HttpServerOptions options;
    options.body_limit_bytes = 1 << 16;
    auto started = tern::HttpServer::Start(
        "127.0.0.1", 0, options,
        [](tern::HttpRequest request, std::shared_ptr<tern::ResponseWriter> writer) {
          request.QueryParameter("x");
          if (request.path == "/stream") {
            writer->BeginStream(200, {});
            writer->Write(request.body);
            return writer->End();
          }
          writer->Send(200, {}, request.path);
        });
    if (!started.ok()) std::abort();
    return std::move(started).value();
  }();
  return *server;
}

// libFuzzer's timer (-timeout) interrupts system calls: every one that blocks is made again. A
// connect made again is done when it says so, or that it was done already.
bool Connect(int fd, const sockaddr_in& address) {
  for (;;) {
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0)
      return true;
    if (errno == EISCONN) return true;
    if (errno != EINTR && errno != EALREADY) return false;
  }
}

void Fail(const char* what) {
  std::perror(what);
  std::abort();
}

// Sends `bytes`, closes the sending side, and reads to the end.
std::string Exchange(int port, std::string_view bytes) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  // Closed connections keep their port for a minute: every thousand runs call from another
  // loopback address (127.1.0.0/16), which has ports of its own.
  static uint32_t runs = 0;
  sockaddr_in source{};
  source.sin_family = AF_INET;
  source.sin_addr.s_addr = htonl(0x7F010001u + (runs++ / 1000 & 0xFFFFu));
  if (::bind(fd, reinterpret_cast<sockaddr*>(&source), sizeof source) != 0) Fail("bind");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (!Connect(fd, address)) Fail("connect");
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  ::shutdown(fd, SHUT_WR);
  std::string answer;
  char buffer[4096];
  for (;;) {
    const ssize_t n = ::recv(fd, buffer, sizeof buffer, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    answer.append(buffer, static_cast<size_t>(n));
  }
  ::close(fd);
  return answer;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::string answer = Exchange(Server().port(), bytes);
  if (!answer.empty() && answer.rfind("HTTP/1.1 ", 0) != 0) std::abort();
  tern::HttpRequest request;
  request.query = bytes;
  request.QueryParameter("a");
  if (const auto url = tern::ParseUrl(bytes); url.ok() && url->host.empty()) std::abort();
  return 0;
}
