#include "net/tcp.h"

#include <gtest/gtest.h>

#include <future>
#include <string>

namespace tern {
namespace {

std::span<const std::byte> Bytes(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Sends back what it reads, until its peer closes.
struct Echo {
  explicit Echo(std::unique_ptr<TcpStream> s) : stream(std::move(s)) { Read(); }
  void Read() {
    stream->Read(buffer, [this](Status status, size_t bytes) {
      if (!status.ok()) {
        closed.set_value(status);
        return;
      }
      stream->Write(std::span(buffer).first(bytes), [this](Status, size_t) { Read(); });
    });
  }
  std::unique_ptr<TcpStream> stream;
  std::byte buffer[16];
  std::promise<Status> closed;
};

class TcpTest : public ::testing::Test {
 protected:
  ~TcpTest() override {
    loop_.Run([this] {
      echo_.reset();
      listener_.reset();
      stream_.reset();
    });
  }
  void Listen() {
    listener_ = std::move(TcpListener::Start(loop_, "127.0.0.1", 0, [this](auto stream) {
                  echo_ = std::make_unique<Echo>(std::move(stream));
                  accepted_.set_value();
                })).value();
  }
  Status Connect(const std::string& address, int port) {
    std::promise<Status> done;
    loop_.Post([&] {
      TcpStream::Connect(loop_, address, port, 2'000'000, [&](auto stream) {
        const Status status = stream.status();
        if (stream.ok()) stream_ = std::move(stream).value();
        done.set_value(status);
      });
    });
    return done.get_future().get();
  }

  TcpLoop loop_;
  std::unique_ptr<TcpListener> listener_;
  std::unique_ptr<Echo> echo_;
  std::unique_ptr<TcpStream> stream_;
  std::promise<void> accepted_;
};

TEST_F(TcpTest, BytesGoThereAndBack) {
  Listen();
  ASSERT_TRUE(Connect("127.0.0.1", listener_->port()).ok());
  accepted_.get_future().get();
  EXPECT_EQ(stream_->peer_address(), "127.0.0.1");
  EXPECT_EQ(stream_->peer_name(), "127.0.0.1:" + std::to_string(listener_->port()));
  const std::string sent = "hello";
  std::byte buffer[16];
  std::promise<size_t> got;
  loop_.Post([&] {
    stream_->Write(Bytes(sent), [&](Status, size_t) {
      stream_->Read(buffer, [&](Status, size_t bytes) { got.set_value(bytes); });
    });
  });
  const size_t bytes = got.get_future().get();
  EXPECT_EQ(std::string(reinterpret_cast<char*>(buffer), bytes), sent);
  // The end of what is sent is read; the other direction still works until then.
  loop_.Run([&] { stream_->CloseSend(); });
  EXPECT_EQ(echo_->closed.get_future().get().code(), StatusCode::kUnavailable);
}

TEST_F(TcpTest, ClosingDropsCallbacks) {
  Listen();
  ASSERT_TRUE(Connect("127.0.0.1", listener_->port()).ok());
  std::byte buffer[16];
  bool called = false;
  loop_.Run([&] {
    stream_->Read(buffer, [&](Status, size_t) { called = true; });
    stream_->Close();
  });
  std::promise<void> later;
  loop_.PostAfter(20'000, [&] { later.set_value(); });
  later.get_future().get();
  EXPECT_FALSE(called);
}

TEST_F(TcpTest, ErrorsAreStatuses) {
  EXPECT_EQ(Connect("127.0.0.1", 1).code(), StatusCode::kUnavailable);
  EXPECT_EQ(Connect("no address", 80).code(), StatusCode::kUnavailable);
  Listen();
  const Status taken =
      TcpListener::Start(loop_, "127.0.0.1", listener_->port(), [](auto) {}).status();
  EXPECT_EQ(taken.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(taken.message().find(std::to_string(listener_->port())), std::string::npos);
}

TEST(ResolveHost, NumericAddressesAreThemselves) {
  EXPECT_EQ(ResolveHost("127.0.0.1").value(), std::vector<std::string>{"127.0.0.1"});
  EXPECT_EQ(ResolveHost("[::1]").value(), std::vector<std::string>{"::1"});
  EXPECT_EQ(ResolveHost("::ffff:10.0.0.1").value(), std::vector<std::string>{"10.0.0.1"});
  EXPECT_EQ(ResolveHost("").status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tern
