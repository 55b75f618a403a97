#include "net/http_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "net/http_client.h"

namespace tern {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::HasSubstr;
using testing::StartsWith;

// A TCP client that speaks bytes, not HTTP.
class RawSocket {
 public:
  explicit RawSocket(int port, int receive_buffer = 0) {
    fd_ = ::socket(AF_INET, SOCK_STREAM, 0);
    if (receive_buffer > 0) {
      ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    }
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  RawSocket(RawSocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~RawSocket() { Close(); }

  void Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
  }
  // Reads until `until` appears (empty: until the end of the stream) or `wait` has passed.
  std::string Read(std::string_view until = "", milliseconds wait = milliseconds(3000)) {
    const auto deadline = steady_clock::now() + wait;
    std::string text;
    while (until.empty() || text.find(until) == std::string::npos) {
      const auto left = std::chrono::duration_cast<milliseconds>(deadline - steady_clock::now());
      pollfd entry{fd_, POLLIN, 0};
      if (left.count() <= 0 || ::poll(&entry, 1, static_cast<int>(left.count())) <= 0) {
        return text + "<timed out>";
      }
      char buffer[16384];
      const ssize_t n = ::recv(fd_, buffer, sizeof buffer, 0);
      if (n == 0) return until.empty() ? text : text + "<closed>";
      if (n < 0) return text + "<reset>";
      text.append(buffer, static_cast<size_t>(n));
    }
    return text;
  }
  void CloseSendingSide() { ::shutdown(fd_, SHUT_WR); }
  void Close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

template <typename Condition>
bool Eventually(Condition condition, milliseconds wait = milliseconds(3000)) {
  const auto deadline = steady_clock::now() + wait;
  while (steady_clock::now() < deadline) {
    if (condition()) return true;
    std::this_thread::sleep_for(milliseconds(2));
  }
  return condition();
}

// /echo: method, path, query and body back. /slow: answers when told. /stream: events until told.
// /hang: never answers; /hold: begins and never goes on. /drop: lets go of the writer.
class HttpServerTest : public testing::Test {
 protected:
  void SetUp() override { StartServer({}); }
  void StartServer(HttpServerOptions options) {
    server_.reset();
    options.error_body = [](int status, std::string_view message) {
      return fmt::format("{{\"code\":{},\"message\":\"{}\"}}", status, message);
    };
    auto server =
        HttpServer::Start("127.0.0.1", 0, options,
                          [this](HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
                            Handle(std::move(request), std::move(writer));
                          });
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(server).value();
  }

  void Handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
    ++requests_;
    if (request.path == "/drop") return;
    if (request.path == "/throw") throw std::runtime_error("handler");
    if (request.path == "/hang" || request.path == "/hold") {
      if (request.path == "/hold") {
        writer->BeginStream(200, {});
        writer->Write("first");
      }
      writer->OnDisconnect([this] { ++disconnects_; });
      std::lock_guard lock(mutex_);
      held_.push_back(std::move(writer));
      return;
    }
    if (request.path == "/stream") {
      auto gone = std::make_shared<bool>(false);
      writer->OnDisconnect([this, gone] {
        *gone = true;
        ++disconnects_;
      });
      writer->BeginStream(200, {{"Content-Type", "text/event-stream"}});
      const int events = std::stoi(request.QueryParameter("events").value_or("3"));
      const int bytes = std::stoi(request.QueryParameter("bytes").value_or("1"));
      Tick(std::move(writer), gone, 0, events, std::string(static_cast<size_t>(bytes), 'x'));
      return;
    }
    writer->Send(
        200, {{"Content-Type", "text/plain"}},
        fmt::format("{} {} [{}] {}", request.method, request.path, request.query, request.body));
  }
  void Tick(std::shared_ptr<ResponseWriter> writer, std::shared_ptr<bool> gone, int i, int events,
            std::string text) {
    if (*gone) return;
    if (i == events) return writer->End();
    writer->Write(fmt::format("data: {} {}\n\n", i, text));
    writer->executor().PostAfter(
        5'000, [this, writer, gone, i, events, text] { Tick(writer, gone, i + 1, events, text); });
  }

  // Declared before the server: its thread uses them.
  std::atomic<int> requests_{0}, disconnects_{0};
  std::mutex mutex_;
  std::vector<std::shared_ptr<ResponseWriter>> held_;
  std::unique_ptr<HttpServer> server_;

  void TearDown() override {
    {
      std::lock_guard lock(mutex_);
      held_.clear();
    }
    server_.reset();
  }
};

TEST_F(HttpServerTest, AnswersARequest) {
  RawSocket client(server_->port());
  client.Send("POST /echo%20a?x=1&y=b%2Bc HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello");
  const std::string answer = client.Read("hello");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("\r\nContent-Length: 32\r\n\r\nPOST /echo a [x=1&y=b%2Bc] hello"));
}

TEST_F(HttpServerTest, JoinsAChunkedBodyThatArrivesByteByByte) {
  RawSocket client(server_->port());
  const std::string_view request =
      "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3\r\nabc\r\n0a\r\n0123456789\r\n0\r\n\r\n";
  for (const char c : request) client.Send(std::string_view(&c, 1));
  EXPECT_THAT(client.Read("abc0123456789"), HasSubstr("POST /echo [] abc0123456789"));
}

TEST_F(HttpServerTest, AnswersPipelinedRequestsInOrderOnOneConnection) {
  RawSocket client(server_->port());
  std::string requests;
  for (int i = 0; i < 50; ++i) {
    requests += fmt::format("GET /n{} HTTP/1.1\r\nHost: h\r\n\r\n", i);
    if (i == 20) requests += "GET /stream?events=2 HTTP/1.1\r\nHost: h\r\n\r\n";
  }
  client.Send(requests);
  const std::string answers = client.Read("GET /n49 []");
  size_t at = 0;
  for (int i = 0; i < 50; ++i) {
    at = answers.find(fmt::format("GET /n{} []", i), at);
    ASSERT_NE(at, std::string::npos) << i;
    if (i == 20) {
      EXPECT_GT(answers.find("data: 1 x"), at);
    }
    if (i == 21) {
      EXPECT_LT(answers.find("data: 1 x"), at);
    }
  }
  EXPECT_EQ(requests_, 51);
}

TEST_F(HttpServerTest, Http10ClosesAndStreamsWithoutChunks) {
  RawSocket client(server_->port());
  client.Send("GET /stream?events=2 HTTP/1.0\r\n\r\n");
  const std::string answer = client.Read();
  EXPECT_THAT(answer, HasSubstr("Connection: close\r\n\r\ndata: 0 x\n\ndata: 1 x\n\n"));
  EXPECT_THAT(answer, testing::Not(HasSubstr("chunked")));
}

TEST_F(HttpServerTest, HeadHasTheLengthButNoBody) {
  RawSocket client(server_->port());
  client.Send("HEAD /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  const std::string answer = client.Read();
  EXPECT_THAT(answer, HasSubstr("Content-Length: 11\r\n"));  // "HEAD /a [] "
  EXPECT_THAT(answer, testing::EndsWith("\r\n\r\n"));
}

TEST_F(HttpServerTest, AsksForTheBodyOfExpectContinue) {
  RawSocket client(server_->port());
  client.Send("PUT /e HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_THAT(client.Read("\r\n\r\n"), StartsWith("HTTP/1.1 100 Continue\r\n"));
  client.Send("ok");
  EXPECT_THAT(client.Read("ok"), HasSubstr("PUT /e [] ok"));
}

struct Malformed {
  const char* name;
  std::string bytes;
  const char* status;
};

class MalformedTest : public HttpServerTest, public testing::WithParamInterface<Malformed> {};

TEST_P(MalformedTest, IsRefusedAndTheServerLivesOn) {
  HttpServerOptions options;
  options.header_limit_bytes = 4096;
  options.body_limit_bytes = 1000;
  StartServer(options);
  RawSocket client(server_->port());
  client.Send(GetParam().bytes);
  const std::string answer = client.Read();
  EXPECT_THAT(answer, StartsWith(fmt::format("HTTP/1.1 {} ", GetParam().status)));
  EXPECT_THAT(answer, HasSubstr(fmt::format("{{\"code\":{},\"message\":\"", GetParam().status)));
  EXPECT_EQ(requests_, 0);
  RawSocket next(server_->port());
  next.Send("GET /fine HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_THAT(next.Read("/fine"), StartsWith("HTTP/1.1 200"));
}

const Malformed kMalformed[] = {
    {"Garbage", "\x16\x03\x01\x02\x00 this is TLS, or noise\r\n\r\n", "400"},
    {"NoVersion", "GET /\r\n\r\n", "400"},
    {"BadVersion", "GET / HTTP/3.7\r\nHost: h\r\n\r\n", "505"},
    {"NoHost", "GET / HTTP/1.1\r\n\r\n", "400"},
    {"TwoHosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "400"},
    {"RelativeTarget", "GET nowhere HTTP/1.1\r\nHost: h\r\n\r\n", "400"},
    {"SpaceBeforeColon", "GET / HTTP/1.1\r\nHost : h\r\n\r\n", "400"},
    {"NulInHeader", std::string("GET / HTTP/1.1\r\nHost: a\0b\r\n\r\n", 30), "400"},
    {"NegativeLength", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n", "400"},
    {"HugeLength", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999999999999\r\n\r\n",
     "400"},
    {"TwoLengths", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
     "400"},
    {"LengthAndChunked",
     "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nTransfer-Encoding: "
     "chunked\r\n\r\n0\r\n\r\n",
     "400"},
    {"BadChunkSize", "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
     "400"},
    {"HugeChunkSize",
     "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
     "400"},
    {"BodyOverTheLimit", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1001\r\n\r\n", "413"},
    {"ChunksOverTheLimit",
     "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n" +
         std::string(2000, 'x') + "\r\n0\r\n\r\n",
     "413"},
    {"UnknownTransferEncoding", "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\nxx",
     "501"},
    {"HeadOverTheLimit", "GET / HTTP/1.1\r\nHost: h\r\nX: " + std::string(5000, 'x') + "\r\n\r\n",
     "431"},
};
INSTANTIATE_TEST_SUITE_P(Corpus, MalformedTest, testing::ValuesIn(kMalformed),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_F(HttpServerTest, ARequestCutInTheMiddleIsNoRequest) {
  const std::string whole = "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello";
  for (size_t cut = 0; cut < whole.size(); ++cut) {
    RawSocket client(server_->port());
    client.Send(whole.substr(0, cut));
  }
  EXPECT_TRUE(Eventually([&] { return server_->connections() == 0; }));
  EXPECT_EQ(requests_, 0);
}

TEST_F(HttpServerTest, ALargeUploadOverTheLimitStillReadsItsRefusal) {
  HttpServerOptions options;
  options.body_limit_bytes = 1000;
  StartServer(options);
  RawSocket client(server_->port());
  client.Send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 8000000\r\n\r\n");
  client.Send(std::string(8'000'000, 'x'));
  EXPECT_THAT(client.Read(), StartsWith("HTTP/1.1 413 "));
}

TEST_F(HttpServerTest, SlowSendersAreRefusedAndIdleOnesClosed) {
  HttpServerOptions options;
  options.idle_timeout_us = 100'000;
  options.header_timeout_us = 100'000;
  options.body_timeout_us = 100'000;
  StartServer(options);
  RawSocket idle(server_->port()), head(server_->port()), body(server_->port());
  head.Send("GET / HT");
  body.Send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhel");
  EXPECT_EQ(idle.Read(), "");
  EXPECT_THAT(head.Read(), StartsWith("HTTP/1.1 408 "));
  EXPECT_THAT(body.Read(), StartsWith("HTTP/1.1 408 "));
  EXPECT_TRUE(Eventually([&] { return server_->connections() == 0; }));
  // A byte now and then does not help: the time counts for the whole head.
  RawSocket trickle(server_->port());
  const auto start = steady_clock::now();
  for (int i = 0; i < 20; ++i) {
    trickle.Send("G");
    std::this_thread::sleep_for(milliseconds(20));
  }
  EXPECT_THAT(trickle.Read(), StartsWith("HTTP/1.1 408 "));
  EXPECT_LT(steady_clock::now() - start, milliseconds(2000));
}

TEST_F(HttpServerTest, NoticesAClientThatLeavesBeforeTheAnswer) {
  RawSocket closed(server_->port()), half_closed(server_->port()), pipelined(server_->port());
  closed.Send("GET /hang HTTP/1.1\r\nHost: h\r\n\r\n");
  half_closed.Send("GET /hang HTTP/1.1\r\nHost: h\r\n\r\n");
  pipelined.Send("GET /hang HTTP/1.1\r\nHost: h\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n");
  ASSERT_TRUE(Eventually([&] { return requests_ == 3; }));
  EXPECT_EQ(disconnects_, 0);
  closed.Close();
  EXPECT_TRUE(Eventually([&] { return disconnects_ == 1; }, milliseconds(500)));
  half_closed.CloseSendingSide();
  EXPECT_TRUE(Eventually([&] { return disconnects_ == 2; }, milliseconds(500)));
  pipelined.Close();
  EXPECT_TRUE(Eventually([&] { return disconnects_ == 3; }, milliseconds(500)));
  EXPECT_EQ(requests_, 3);
}

TEST_F(HttpServerTest, NoticesAClientThatLeavesBehindManyPipelinedBytes) {
  // More than is kept of requests that come early: what follows is never read, so its end could
  // not be seen.
  for (const char* path : {"/hang", "/hold"}) {
    const int before = disconnects_;
    RawSocket client(server_->port());
    client.Send(fmt::format("GET {} HTTP/1.1\r\nHost: h\r\n\r\n", path));
    client.Send("GET /next HTTP/1.1\r\nHost: h\r\nX: " + std::string(200'000, 'x'));
    client.Close();
    EXPECT_TRUE(Eventually([&] { return disconnects_ == before + 1; })) << path;
  }
  EXPECT_TRUE(Eventually([&] { return server_->connections() == 0; }));
  EXPECT_EQ(requests_, 2);
}

TEST_F(HttpServerTest, TwoHundredStreamsAndEveryEarlyCloseIsSeen) {
  constexpr int kClients = 200;
  std::vector<RawSocket> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back(server_->port());
    clients.back().Send("GET /stream?events=60 HTTP/1.1\r\nHost: h\r\n\r\n");
  }
  for (auto& client : clients) ASSERT_THAT(client.Read("data: 0 x"), HasSubstr("data: 0 x"));
  for (int i = 0; i < kClients; i += 2) clients[static_cast<size_t>(i)].Close();
  EXPECT_TRUE(Eventually([&] { return disconnects_ == kClients / 2; }));
  for (int i = 1; i < kClients; i += 2) {
    EXPECT_THAT(clients[static_cast<size_t>(i)].Read("\r\n0\r\n\r\n"), HasSubstr("data: 59 x"));
  }
  EXPECT_EQ(disconnects_, kClients / 2);
  // The connections that were read to their end serve another request.
  clients[1].Send("GET /again HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_THAT(clients[1].Read("/again"), HasSubstr("200 OK"));
  EXPECT_EQ(server_->connections(), kClients / 2);
}

TEST_F(HttpServerTest, AStreamThatNobodyReadsIsCut) {
  HttpServerOptions options;
  options.stream_buffer_bytes = 100'000;
  StartServer(options);
  RawSocket client(server_->port(), 4096);
  client.Send("GET /stream?events=100000&bytes=50000 HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_TRUE(Eventually([&] { return disconnects_ == 1; }, milliseconds(10000)));
  EXPECT_EQ(server_->connections(), 0);
}

TEST_F(HttpServerTest, OneChunkMayHaveAnySize) {
  HttpServerOptions options;
  options.stream_buffer_bytes = 1000;
  StartServer(options);
  RawSocket client(server_->port());
  client.Send("GET /stream?events=1&bytes=3000000 HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_GT(client.Read("\r\n0\r\n\r\n").size(), 3'000'000u);
  EXPECT_EQ(disconnects_, 0);
}

TEST_F(HttpServerTest, AHalfSentRequestDoesNotHoldUpTheEnd) {
  StartServer({});
  RawSocket head(server_->port()), body(server_->port());
  head.Send("GET /he");
  body.Send("POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nabc");
  ASSERT_TRUE(Eventually([&] { return server_->connections() == 2; }));
  std::this_thread::sleep_for(milliseconds(50));  // until both are being read
  const auto start = std::chrono::steady_clock::now();
  server_->Shutdown(20'000'000);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST_F(HttpServerTest, AClientThatTakesNoByteOfAnAnswerIsCut) {
  HttpServerOptions options;
  options.write_timeout_us = 100'000;
  StartServer(options);
  RawSocket client(server_->port(), 4096);
  client.Send("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 30000000\r\n\r\n");
  client.Send(std::string(30'000'000, 'x'));
  ASSERT_TRUE(Eventually([&] { return requests_ == 1; }));
  EXPECT_TRUE(Eventually([&] { return server_->connections() == 0; }));
}

TEST_F(HttpServerTest, ADroppedWriterAndAThrowingHandlerAre500) {
  for (const char* path : {"/drop", "/throw"}) {
    RawSocket client(server_->port());
    client.Send(fmt::format("GET {} HTTP/1.1\r\nHost: h\r\n\r\n", path));
    EXPECT_THAT(client.Read(), StartsWith("HTTP/1.1 500 ")) << path;
  }
}

TEST_F(HttpServerTest, ABusyPortIsNamed) {
  auto second = HttpServer::Start("127.0.0.1", server_->port(), {}, nullptr);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(second.status().message(),
              HasSubstr(fmt::format("port {} on 127.0.0.1 is already in use", server_->port())));
  EXPECT_FALSE(HttpServer::Start("no.such.host.invalid", 0, {}, nullptr).ok());
}

TEST_F(HttpServerTest, ShutdownLetsAStreamEndAndClosesIdleConnections) {
  RawSocket idle(server_->port()), busy(server_->port());
  busy.Send("GET /stream?events=30 HTTP/1.1\r\nHost: h\r\n\r\n");
  ASSERT_THAT(busy.Read("data: 0 x"), HasSubstr("data: 0 x"));
  const int port = server_->port();
  std::thread stopper([&] { server_->Shutdown(5'000'000); });
  EXPECT_EQ(idle.Read(), "");
  const std::string rest = busy.Read();
  EXPECT_THAT(rest, HasSubstr("data: 29 x"));
  EXPECT_THAT(rest, testing::EndsWith("0\r\n\r\n"));
  busy.Close();
  stopper.join();
  EXPECT_EQ(disconnects_, 0);
  EXPECT_TRUE(HttpServer::Start("127.0.0.1", port, {}, nullptr).ok());  // the port is free again
}

TEST_F(HttpServerTest, ShutdownCutsWhatDoesNotEnd) {
  RawSocket client(server_->port());
  client.Send("GET /hang HTTP/1.1\r\nHost: h\r\n\r\n");
  ASSERT_TRUE(Eventually([&] { return requests_ == 1; }));
  server_->Shutdown(50'000);
  EXPECT_EQ(disconnects_, 1);
  EXPECT_EQ(client.Read(), "");
}

TEST_F(HttpServerTest, MaxConnectionsMakesTheNextOneWait) {
  HttpServerOptions options;
  options.max_connections = 2;
  StartServer(options);
  RawSocket first(server_->port()), second(server_->port()), third(server_->port());
  third.Send("GET /third HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_THAT(third.Read("third", milliseconds(100)), HasSubstr("<timed out>"));
  first.Close();
  EXPECT_THAT(third.Read("/third"), HasSubstr("200 OK"));
}

TEST_F(HttpServerTest, ClientKeepsItsConnectionStreamsAndStops) {
  auto client = HttpClient::Create(fmt::format("http://127.0.0.1:{}/base/", server_->port()));
  ASSERT_TRUE(client.ok());
  for (int i = 0; i < 3; ++i) {
    auto answer = (*client)->Request("POST", "/x?i=1", {{"X-A", "b"}}, "body");
    ASSERT_TRUE(answer.ok()) << answer.status().message();
    EXPECT_EQ(answer->status, 200);
    EXPECT_EQ(answer->body, "POST /base/x [i=1] body");
  }
  EXPECT_EQ(server_->connections(), 1);

  auto streaming = HttpClient::Create(fmt::format("http://127.0.0.1:{}", server_->port()));
  std::string text;
  auto collect = [&](std::string_view data) {
    text += data;
    return true;
  };
  auto answer = (*streaming)->Stream("GET", "/stream?events=3", {}, "", collect, nullptr);
  ASSERT_TRUE(answer.ok()) << answer.status().message();
  EXPECT_EQ(text, "data: 0 x\n\ndata: 1 x\n\ndata: 2 x\n\n");

  // A chunk is handed over when it has arrived, not when the next one follows.
  answer = (*streaming)
               ->Stream(
                   "GET", "/hold", {}, "", [](std::string_view data) { return data != "first"; },
                   nullptr, 2'000'000);
  EXPECT_EQ(answer.status().code(), StatusCode::kCancelled);
  EXPECT_TRUE(Eventually([&] { return disconnects_ == 1; }));

  answer = (*streaming)->Stream("GET", "/hang", {}, "", collect, [] { return false; });
  EXPECT_EQ(answer.status().code(), StatusCode::kCancelled);
  EXPECT_TRUE(Eventually([&] { return disconnects_ == 2; }));
  answer = (*streaming)->Request("GET", "/hang", {}, "", 200'000);
  EXPECT_EQ(answer.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE((*streaming)->Request("GET", "/after", {}, "").ok());
}

// A server that answers one request with `head`, then with `piece` again and again until the client
// has left.
class OneAnswer {
 public:
  OneAnswer(std::string head, std::string piece) {
    listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(listener_, generic, size), 0);
    EXPECT_EQ(::listen(listener_, 1), 0);
    EXPECT_EQ(::getsockname(listener_, generic, &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, head = std::move(head), piece = std::move(piece)] {
      const int fd = ::accept(listener_, nullptr, nullptr);
      char request[4096];
      EXPECT_GT(::recv(fd, request, sizeof(request), 0), 0);
      EXPECT_EQ(::send(fd, head.data(), head.size(), MSG_NOSIGNAL), std::ssize(head));
      while (!piece.empty() && ::send(fd, piece.data(), piece.size(), MSG_NOSIGNAL) > 0) {
      }
      ::close(fd);
    });
  }
  ~OneAnswer() {
    thread_.join();
    ::close(listener_);
  }
  std::string url() const { return fmt::format("http://127.0.0.1:{}", port_); }

 private:
  int listener_ = -1, port_ = 0;
  std::thread thread_;
};

TEST(HttpClientTest, SetsNoMemoryAsideForWhatAServerPromises) {
  const OneAnswer server("HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\nx", "");
  auto client = HttpClient::Create(server.url());
  ASSERT_TRUE(client.ok());
  auto answer = (*client)->Request("GET", "/", {}, "");
  EXPECT_EQ(answer.status().code(), StatusCode::kUnavailable);
}

TEST(HttpClientTest, AnEndlessErrorIsCut) {
  const OneAnswer server("HTTP/1.1 500 X\r\nContent-Length: 99999999999\r\n\r\n",
                         std::string(1 << 20, 'x'));
  auto client = HttpClient::Create(server.url());
  ASSERT_TRUE(client.ok());
  auto answer = (*client)->Request("GET", "/", {}, "");
  EXPECT_EQ(answer.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(answer.status().message(), HasSubstr("larger than 64 MiB"));
}

TEST(HttpClientTest, SaysWhomItCannotReach) {
  auto client = HttpClient::Create("http://127.0.0.1:1");
  ASSERT_TRUE(client.ok());
  auto answer = (*client)->Request("GET", "/", {}, "");
  EXPECT_EQ(answer.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(answer.status().message(), HasSubstr("http://127.0.0.1:1: "));
}

}  // namespace
}  // namespace tern
