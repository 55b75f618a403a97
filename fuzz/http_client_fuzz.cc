// Any bytes as a server's answer: a response or an error from HttpClient, never a crash or a hang.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "net/http_client.h"

namespace {

// Answers every connection with the same bytes, whatever it is asked.
class ByteServer {
 public:
  ByteServer() : listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;  // any address: see Url
    if (::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
        ::listen(listener_, 16) != 0) {
      std::abort();
    }
    socklen_t size = sizeof address;
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    std::thread([this] { Serve(); }).detach();
  }
  void SetAnswer(std::string_view bytes) {
    std::lock_guard lock(mutex_);
    answer_ = bytes;
  }
  // Closed connections keep their ports for a minute: every thousand runs call another loopback
  // address (127.1.0.0/16), which has ports of its own.
  std::string Url() {
    const uint32_t block = runs_++ / 1000;
    return fmt::format("http://127.1.{}.{}:{}", block / 250 % 250, 1 + block % 250, port_);
  }

 private:
  void Serve() {
    while (true) {
      const int fd = ::accept(listener_, nullptr, nullptr);
      if (fd < 0) continue;
      std::string answer;
      {
        std::lock_guard lock(mutex_);
        answer = answer_;
      }
      ::send(fd, answer.data(), answer.size(), MSG_NOSIGNAL);
      ::shutdown(fd, SHUT_WR);
      char sink[4096];
      while (::recv(fd, sink, sizeof sink, 0) > 0) {
      }
      ::close(fd);
    }
  }

  const int listener_;
  int port_ = 0;
  uint32_t runs_ = 0;
  std::mutex mutex_;
  std::string answer_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static ByteServer* const server = new ByteServer;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  server->SetAnswer(bytes);
  const auto client = tern::HttpClient::Create(server->Url());
  if (!client.ok()) std::abort();
  size_t streamed = 0;
  const auto on_data = [&](std::string_view piece) {
    streamed += piece.size();
    return true;
  };
  const auto answer =
      size % 4 == 0 ? (*client)->Stream("GET", "/", {}, "", on_data, nullptr, 2'000'000)
                    : (*client)->Request(size % 4 == 1 ? "HEAD" : "POST", "/", {}, "x", 2'000'000);
  // The server has closed: whoever waits for more has missed that.
  if (answer.status().code() == tern::StatusCode::kDeadlineExceeded) std::abort();
  if (streamed > size || (answer.ok() && answer->body.size() > size)) std::abort();
  return 0;
}
