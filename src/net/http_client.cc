#include "net/http_client.h"

#include <fmt/format.h>

#include "net/asio.h"

namespace tern {

namespace {
constexpr size_t kReadBytes = 16 << 10;
// Of a body that nobody takes in pieces.
constexpr size_t kMaxKeptBytes = size_t{64} << 20;

// The piece of a body that has just come. http::string_body would set aside as much memory as the
// server's Content-Length says, whatever it says.
struct PieceBody {
  using value_type = std::string;
  class reader {
   public:
    template <bool kIsRequest, class Fields>
    reader(http::header<kIsRequest, Fields>& /*header*/, value_type& piece) : piece_(piece) {}
    void init(const boost::optional<uint64_t>& /*length*/, error_code& error) { error = {}; }
    template <class Buffers>
    size_t put(const Buffers& buffers, error_code& error) {
      error = {};
      const size_t bytes = asio::buffer_size(buffers), before = piece_.size();
      piece_.resize(before + bytes);
      return asio::buffer_copy(asio::buffer(piece_.data() + before, bytes), buffers);
    }
    void finish(error_code& error) { error = {}; }

   private:
    value_type& piece_;
  };
};
}  // namespace

struct HttpClient::Impl {
  explicit Impl(Url base) : url(std::move(base)) {}

  Status Connect(int64_t timeout_us);
  // Runs what was started until it has set `done`; cancels it on time-out or when told to.
  Status Wait(const bool& done, int64_t timeout_us, const KeepGoing& keep_going);
  Result<HttpResponse> Exchange(const std::string& request, bool is_head, const OnData& on_data,
                                const KeepGoing& keep_going, int64_t timeout_us);
  Status Broken(std::string_view what) {
    Close();
    return Unavailable(fmt::format("http://{}:{}: {}", url.host, url.port, what));
  }
  void Close() {
    error_code ignored;
    socket.close(ignored);
    buffer.clear();
  }

  const Url url;
  asio::io_context io;
  tcp::socket socket{io};
  boost::beast::flat_buffer buffer;
};

Status HttpClient::Impl::Wait(const bool& done, int64_t timeout_us, const KeepGoing& keep_going) {
  constexpr int64_t kSliceUs = 100'000;
  io.restart();
  int64_t waited = 0;
  while (!done) {
    io.run_for(std::chrono::microseconds(std::min(kSliceUs, timeout_us)));
    if (done) break;
    io.restart();
    waited += kSliceUs;
    const bool cancelled = keep_going && !keep_going();
    if (!cancelled && waited < timeout_us) continue;
    Close();
    io.run();
    if (cancelled) return Cancelled("the request was stopped");
    return {StatusCode::kDeadlineExceeded,
            fmt::format("http://{}:{} did not answer in time", url.host, url.port)};
  }
  return OkStatus();
}

Status HttpClient::Impl::Connect(int64_t timeout_us) {
  error_code error;
  tcp::resolver resolver(io);
  const auto found = resolver.resolve(url.host, url.port, error);
  if (error) return Broken(error.message());
  bool done = false;
  asio::async_connect(socket, found, [&](error_code result, const tcp::endpoint&) {
    error = result;
    done = true;
  });
  TERN_RETURN_IF_ERROR(Wait(done, timeout_us, nullptr));
  if (error) return Broken(error.message());
  socket.set_option(tcp::no_delay(true), error);
  return OkStatus();
}

Result<HttpResponse> HttpClient::Impl::Exchange(const std::string& request, bool is_head,
                                                const OnData& on_data, const KeepGoing& keep_going,
                                                int64_t timeout_us) {
  error_code error;
  bool done = false;
  asio::async_write(socket, asio::buffer(request), [&](error_code result, size_t) {
    error = result;
    done = true;
  });
  TERN_RETURN_IF_ERROR(Wait(done, timeout_us, keep_going));
  if (error) return Broken(error.message());

  http::response_parser<PieceBody> parser;
  parser.body_limit(boost::none);
  parser.skip(is_head);
  done = false;
  http::async_read_header(socket, buffer, parser, [&](error_code result, size_t) {
    error = result;
    done = true;
  });
  TERN_RETURN_IF_ERROR(Wait(done, timeout_us, keep_going));
  if (error) return Broken(error.message());

  HttpResponse response;
  response.status = static_cast<int>(parser.get().result_int());
  for (const auto& field : parser.get()) {
    response.headers.push_back({std::string(field.name_string()), std::string(field.value())});
  }
  // Not http::async_read_some: it withholds a chunk until the line break behind it is followed by
  // the next one.
  parser.eager(true);
  while (true) {
    if (!parser.is_done()) buffer.consume(parser.put(buffer.data(), error));
    if (error && error != http::error::need_more) return Broken(error.message());
    std::string& body = parser.get().body();
    if (on_data && response.status / 100 == 2) {
      if (!body.empty() && !on_data(body)) {
        Close();
        return Cancelled("the request was stopped");
      }
    } else {
      if (body.size() > kMaxKeptBytes - response.body.size()) {
        return Broken(fmt::format("its answer is larger than {} MiB", kMaxKeptBytes >> 20));
      }
      response.body += body;
    }
    body.clear();
    if (parser.is_done()) break;
    done = false;
    socket.async_read_some(buffer.prepare(kReadBytes), [&](error_code result, size_t bytes) {
      buffer.commit(bytes);
      error = result;
      done = true;
    });
    TERN_RETURN_IF_ERROR(Wait(done, timeout_us, keep_going));
    if (error == asio::error::eof) parser.put_eof(error);
    if (error) return Broken(error.message());
  }
  if (!parser.keep_alive()) Close();
  return response;
}

HttpClient::HttpClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpClient::~HttpClient() = default;

Result<std::unique_ptr<HttpClient>> HttpClient::Create(std::string_view base_url) {
  TERN_ASSIGN_OR_RETURN(Url url, ParseUrl(base_url));
  while (!url.target.empty() && url.target.back() == '/') url.target.pop_back();
  return std::unique_ptr<HttpClient>(new HttpClient(std::make_unique<Impl>(std::move(url))));
}

Result<HttpResponse> HttpClient::Request(std::string_view method, std::string_view target,
                                         const HttpHeaders& headers, std::string_view body,
                                         int64_t timeout_us) {
  return Stream(method, target, headers, body, nullptr, nullptr, timeout_us);
}

Result<HttpResponse> HttpClient::Stream(std::string_view method, std::string_view target,
                                        const HttpHeaders& headers, std::string_view body,
                                        OnData on_data, KeepGoing keep_going, int64_t timeout_us) {
  std::string request = fmt::format("{} {}{} HTTP/1.1\r\nHost: {}:{}\r\n", method,
                                    impl_->url.target, target, impl_->url.host, impl_->url.port);
  for (const HttpHeader& header : headers) {
    request += fmt::format("{}: {}\r\n", header.name, header.value);
  }
  if (!body.empty() || method == "POST" || method == "PUT") {
    request += fmt::format("Content-Length: {}\r\n", body.size());
  }
  request += "\r\n";
  request += body;

  const bool reused = impl_->socket.is_open();
  if (!reused) TERN_RETURN_IF_ERROR(impl_->Connect(timeout_us));
  bool answered = false;
  OnData counting = on_data;
  if (on_data) {
    counting = [&](std::string_view data) {
      answered = true;
      return on_data(data);
    };
  }
  Result<HttpResponse> response =
      impl_->Exchange(request, method == "HEAD", counting, keep_going, timeout_us);
  // The server may have closed a kept-alive connection in the meantime: once more, on a new one.
  if (reused && !answered && !response.ok() &&
      response.status().code() == StatusCode::kUnavailable) {
    TERN_RETURN_IF_ERROR(impl_->Connect(timeout_us));
    response = impl_->Exchange(request, method == "HEAD", counting, keep_going, timeout_us);
  }
  return response;
}

}  // namespace tern
