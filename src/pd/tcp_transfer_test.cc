#include "pd/tcp_transfer.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "base/log.h"
#include "net/http_client.h"
#include "pd/hand_off_testing.h"

namespace tern {
namespace {

using testing::Destination;
using testing::Prompt;
using testing::WorkerOptions;
using testing::Workers;

class TcpWorkers : public Workers {
 public:
  explicit TcpWorkers(WorkerOptions o = {}, const char* peers = "127.0.0.0/8")
      : Workers(std::move(o)) {
    SetLogLevel(LogLevel::kError);
    TcpTransportOptions listen{.link = Link(PdHello::Role::kSender),
                               .peers = PeerList::Parse(peers).value(),
                               .listen = true,
                               .port = 0};
    sender_transport = std::move(TcpTransport::Start(listen)).value();
    receiver_transport =
        std::move(TcpTransport::Start({.link = Link(PdHello::Role::kReceiver)})).value();
    sender = std::make_unique<PdSender>(SenderOptions(), *ops, SystemClock(), *sender_transport);
    receiver =
        std::make_unique<PdReceiver>(ReceiverOptions(), *ops, SystemClock(), *receiver_transport);
  }
  ~TcpWorkers() {
    sender.reset();
    receiver.reset();
    SetLogLevel(LogLevel::kInfo);
  }
  PdOpen OpenOf(uint64_t room, const Prompt& prompt) const {
    PdOpen open = Workers::OpenOf(room, prompt);
    open.host = "127.0.0.1";
    open.port = sender_transport->port();
    return open;
  }
  // Steps both sides until `done`, for at most 10 s.
  bool StepUntil(const std::function<bool()>& done) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!done()) {
      const bool moved = sender->Step() | receiver->Step();
      if (std::chrono::steady_clock::now() > end) return false;
      if (!moved) std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    return true;
  }
  static bool Final(PdState state) {
    return state == PdState::kSuccess || state == PdState::kFailed;
  }
  void ExpectServed(uint64_t id, int64_t tokens) {
    Prompt prompt(prefill.format, tokens, static_cast<uint32_t>(id));
    Destination to(&pool, tokens);
    ASSERT_TRUE(sender->Open(id, prompt.ids, &prompt).ok());
    ASSERT_TRUE(receiver->Open(OpenOf(id, prompt), &to).ok());
    sender->Finish(id, prompt.first());
    ASSERT_TRUE(StepUntil([&] { return Final(receiver->state(id)) && Final(sender->state(id)); }));
    ASSERT_EQ(receiver->state(id), PdState::kSuccess) << receiver->error(id).message();
    EXPECT_EQ(sender->state(id), PdState::kSuccess) << sender->error(id).message();
    EXPECT_EQ(Differs(prompt, to), "");
    EXPECT_EQ(receiver->first_token(id), prompt.first());
    sender->Forget(id);
    receiver->Forget(id);
  }

  std::unique_ptr<TcpTransport> sender_transport, receiver_transport;
  std::unique_ptr<PdSender> sender;
  std::unique_ptr<PdReceiver> receiver;
};

// A peer that does what it wants.
class RawPeer {
 public:
  explicit RawPeer(int port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ~RawPeer() { Close(); }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  void Send(std::span<const std::byte> bytes) {
    EXPECT_EQ(send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  // All bytes until the other side closes, or what came in `timeout_ms` of silence.
  std::vector<std::byte> Receive(int timeout_ms = 3000) {
    std::vector<std::byte> all;
    closed_ = false;
    pollfd wait{.fd = fd_, .events = POLLIN};
    while (poll(&wait, 1, timeout_ms) > 0) {
      std::byte buffer[4096];
      const ssize_t bytes = recv(fd_, buffer, sizeof(buffer), 0);
      if (bytes <= 0) {
        closed_ = true;
        break;
      }
      all.insert(all.end(), buffer, buffer + bytes);
    }
    return all;
  }
  bool closed() const { return closed_; }

 private:
  int fd_;
  bool closed_ = false;
};

PdEnd RefusalIn(std::span<const std::byte> bytes) {
  if (bytes.size() < kPdHeaderBytes) return {};
  const PdHeader header = DecodePdHeader(bytes.first<kPdHeaderBytes>()).value();
  EXPECT_EQ(header.type, PdFrameType::kRefuse);
  return DecodePdEnd(header, bytes.subspan(kPdHeaderBytes)).value();
}

TEST(TcpTransfer, PagesArriveBitForBit) {
  for (const std::string secret : {"", "sixteen bytes ok"}) {
    TcpWorkers w({.prefill_secret = secret, .decode_secret = secret});
    for (const uint64_t id : {1, 2, 3}) w.ExpectServed(id, 200 + static_cast<int64_t>(id));
    EXPECT_EQ(w.receiver->stats().links_opened, 1);
    EXPECT_GE(w.sender_transport->stats().bytes_sent,
              static_cast<uint64_t>(w.sender->stats().page_bytes));
  }
}

TEST(TcpTransfer, ManyRoomsAtOnce) {
  TcpWorkers w({.landing_slots = 3, .decode_pages = 512});
  std::vector<std::unique_ptr<Prompt>> prompts;
  std::vector<std::unique_ptr<Destination>> to;
  for (uint64_t id = 0; id < 20; ++id) {
    prompts.push_back(std::make_unique<Prompt>(w.prefill.format, 60, static_cast<uint32_t>(id)));
    to.push_back(std::make_unique<Destination>(&w.pool, 60));
    ASSERT_TRUE(w.sender->Open(id, prompts.back()->ids, prompts.back().get()).ok());
    ASSERT_TRUE(w.receiver->Open(w.OpenOf(id, *prompts.back()), to.back().get()).ok());
  }
  for (int64_t rows = 10; rows < 60; rows += 10) {
    for (uint64_t id = 0; id < 20; ++id) w.sender->Computed(id, rows);
    w.sender->Step();
  }
  for (uint64_t id = 0; id < 20; ++id) w.sender->Finish(id, prompts[id]->first());
  ASSERT_TRUE(w.StepUntil([&] {
    for (uint64_t id = 0; id < 20; ++id) {
      if (!TcpWorkers::Final(w.receiver->state(id))) return false;
    }
    return true;
  }));
  for (uint64_t id = 0; id < 20; ++id) {
    EXPECT_EQ(w.receiver->state(id), PdState::kSuccess);
    EXPECT_EQ(w.Differs(*prompts[id], *to[id]), "");
  }
}

TEST(TcpTransfer, AnswersHealthOnTheSamePort) {
  TcpWorkers w;
  auto client =
      HttpClient::Create("http://127.0.0.1:" + std::to_string(w.sender_transport->port())).value();
  EXPECT_EQ(client->Request("GET", "/health", {}, "")->status, 200);
  EXPECT_EQ(client->Request("GET", "/health", {}, "")->body, "OK");
  EXPECT_EQ(client->Request("GET", "/route", {}, "")->status, 404);
  EXPECT_EQ(w.sender_transport->stats().health_checks, 2);
  w.ExpectServed(1, 20);
}

TEST(TcpTransfer, StrangersAreClosedOn) {
  TcpWorkers w({}, "10.0.0.0/8");
  RawPeer peer(w.sender_transport->port());
  EXPECT_TRUE(peer.Receive().empty());
  EXPECT_TRUE(peer.closed());
  EXPECT_EQ(w.sender_transport->stats().refused_addresses, 1);
  EXPECT_EQ(PeerList::Parse("10.0.0.0/8")->Resolve("127.0.0.1").status().code(),
            StatusCode::kInvalidArgument);
}

TEST(TcpTransfer, WrongPeersGetAReason) {
  struct Case {
    WorkerOptions options;
    const char* reason;
  };
  for (const Case& c :
       {Case{{.prefill_secret = "sixteen bytes ok", .decode_secret = "sixteen bytes no"}, "secret"},
        Case{{.prefill_secret = "sixteen bytes ok"}, "secret"},
        Case{{.other_model = true}, "different models"}}) {
    TcpWorkers w(c.options);
    Prompt prompt(w.prefill.format, 9, 1);
    Destination to(&w.pool, 9);
    ASSERT_TRUE(w.receiver->Open(w.OpenOf(1, prompt), &to).ok());
    ASSERT_TRUE(w.StepUntil([&] { return w.receiver->state(1) == PdState::kFailed; }));
    EXPECT_NE(w.receiver->error(1).message().find(c.reason), std::string::npos)
        << w.receiver->error(1).message();
  }
}

TEST(TcpTransfer, AnotherVersionIsAnsweredInThisOne) {
  TcpWorkers w;
  RawPeer peer(w.sender_transport->port());
  PdHello hello = w.Link(PdHello::Role::kReceiver).self;
  std::vector<std::byte> frame = EncodePdFrame({.type = PdFrameType::kHello}, hello);
  frame[4] = std::byte{9};
  peer.Send(frame);
  const PdEnd end = RefusalIn(peer.Receive());
  EXPECT_EQ(end.code, PdCode::kOtherVersion);
  EXPECT_NE(end.text.find("version 9"), std::string::npos);
  w.ExpectServed(1, 20);
}

// What a hostile or broken peer sends, whole or cut: refused or closed on, and others are served.
TEST(TcpTransfer, BrokenPeersHarmNobody) {
  TcpWorkers w;
  const PdHello self = w.Link(PdHello::Role::kReceiver).self;
  const std::vector<std::byte> hello = EncodePdFrame({.type = PdFrameType::kHello}, self);
  std::vector<std::byte> oversized = hello;
  EncodePdHeader({.type = PdFrameType::kHello, .body_bytes = 1u << 30},
                 std::span(oversized).first<kPdHeaderBytes>());
  std::vector<std::byte> damaged = hello;
  damaged[100] ^= std::byte{1};
  for (const auto& bytes :
       {oversized, damaged, EncodePdFrame({.type = PdFrameType::kPing, .sequence = 1}),
        std::vector<std::byte>(9000, std::byte{'G'})}) {
    RawPeer peer(w.sender_transport->port());
    peer.Send(bytes);
    peer.Receive();
    EXPECT_TRUE(peer.closed());
  }
  for (const size_t cut : {size_t{1}, size_t{4}, size_t{63}, size_t{64}, hello.size() - 1}) {
    RawPeer peer(w.sender_transport->port());
    peer.Send(std::span(hello).first(cut));
  }
  // Cut in a REQUEST, after a whole handshake.
  RawPeer peer(w.sender_transport->port());
  peer.Send(hello);
  EXPECT_GT(peer.Receive(200).size(), kPdHeaderBytes);
  peer.Send(EncodePdFrame({.type = PdFrameType::kConfirm}));
  std::vector<std::byte> request =
      EncodePdFrame({.type = PdFrameType::kRequest, .generation = 1, .room = 7},
                    PdRequest{.prompt_tokens = 3, .tags = {1}});
  StampPdFrame(request, 1, false, 0);
  peer.Send(std::span(request).first(request.size() - 3));
  peer.Close();
  w.ExpectServed(1, 20);
}

TEST(TcpTransfer, APeerThatSaysNothingIsCut) {
  WorkerOptions options;
  options.timeouts.handshake_us = 200'000;
  TcpWorkers w(options);
  RawPeer silent(w.sender_transport->port()), half(w.sender_transport->port());
  const std::vector<std::byte> hello =
      EncodePdFrame({.type = PdFrameType::kHello}, w.Link(PdHello::Role::kReceiver).self);
  half.Send(std::span(hello).first(70));
  EXPECT_TRUE(silent.Receive().empty());
  EXPECT_TRUE(silent.closed());
  half.Receive();
  EXPECT_TRUE(half.closed());
}

TEST(TcpTransfer, ASideThatEndsIsNoticedAtOnce) {
  TcpWorkers w;
  Prompt prompt(w.prefill.format, 40, 1);
  Destination to(&w.pool, 40);
  ASSERT_TRUE(w.sender->Open(1, prompt.ids, &prompt).ok());
  ASSERT_TRUE(w.receiver->Open(w.OpenOf(1, prompt), &to).ok());
  w.sender->Computed(1, 20);
  ASSERT_TRUE(w.StepUntil([&] { return to.landed == 2; }));
  const auto begin = std::chrono::steady_clock::now();
  auto receiver = std::move(w.receiver);
  receiver.reset();
  while (w.sender->state(1) != PdState::kFailed &&
         std::chrono::steady_clock::now() - begin < std::chrono::seconds(5)) {
    w.sender->Step();
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  EXPECT_EQ(w.sender->error(1).code(), StatusCode::kUnavailable);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2));
}

TEST(TcpTransfer, NobodyThereIsAnError) {
  TcpWorkers w;
  Prompt prompt(w.prefill.format, 9, 1);
  Destination to(&w.pool, 9);
  PdOpen open = w.OpenOf(1, prompt);
  open.port = 1;
  ASSERT_TRUE(w.receiver->Open(open, &to).ok());
  ASSERT_TRUE(w.StepUntil([&] { return w.receiver->state(1) == PdState::kFailed; }));
  EXPECT_NE(w.receiver->error(1).message().find("no connection to 127.0.0.1:1"), std::string::npos)
      << w.receiver->error(1).message();
}

TEST(TcpTransfer, BadOptionsAreErrors) {
  TcpWorkers w;
  TcpTransportOptions options{
      .link = w.Link(PdHello::Role::kSender), .listen = true, .port = w.sender_transport->port()};
  const Status taken = TcpTransport::Start(options).status();
  EXPECT_EQ(taken.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(taken.message().find(std::to_string(options.port)), std::string::npos);
  options.link.secret = "short";
  EXPECT_EQ(TcpTransport::Start(options).status().code(), StatusCode::kInvalidArgument);
}

TEST(PdSecret, IsReadFromAPrivateFile) {
  const std::string path = ::testing::TempDir() + "tern_pd_secret_" + std::to_string(getpid());
  std::ofstream(path) << "sixteen bytes ok\r\n";
  chmod(path.c_str(), 0600);
  EXPECT_EQ(ReadPdSecret(path).value(), "sixteen bytes ok");
  chmod(path.c_str(), 0644);
  EXPECT_NE(ReadPdSecret(path).status().message().find("chmod 600"), std::string::npos);
  std::ofstream(path) << "short\n";
  EXPECT_NE(ReadPdSecret(path).status().message().find(path), std::string::npos);
  std::filesystem::remove(path);
  EXPECT_EQ(ReadPdSecret(path).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace tern
