// HttpClient: a small blocking HTTP/1.1 client for commands and tests; keeps its connection.
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "net/http.h"

namespace tern {

class HttpClient {
 public:
  // Called with each piece of a body as it arrives; false ends the request and the connection.
  using OnData = std::function<bool(std::string_view data)>;
  // Asked about ten times a second while waiting; false ends the request and the connection.
  using KeepGoing = std::function<bool()>;

  // `base_url`: "http://host:port"; its path goes in front of every target.
  static Result<std::unique_ptr<HttpClient>> Create(std::string_view base_url);
  ~HttpClient();

  // Waits at most `timeout_us` for each piece. Errors: kUnavailable (cannot connect, connection
  // broke), kDeadlineExceeded, kCancelled (by a callback).
  Result<HttpResponse> Request(std::string_view method, std::string_view target,
                               const HttpHeaders& headers, std::string_view body,
                               int64_t timeout_us = 60'000'000);
  // As Request, but a 2xx body goes to `on_data`; other bodies are in the response.
  Result<HttpResponse> Stream(std::string_view method, std::string_view target,
                              const HttpHeaders& headers, std::string_view body, OnData on_data,
                              KeepGoing keep_going, int64_t timeout_us = 600'000'000);

 private:
  struct Impl;
  explicit HttpClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tern
