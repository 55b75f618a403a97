// HTTP messages as tern sees them: plain values, free of the library that carries them.
// Thread: values; a ResponseWriter belongs to the network thread (see there).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/executor.h"
#include "base/result.h"

namespace tern {

struct HttpHeader {
  std::string name, value;
};
using HttpHeaders = std::vector<HttpHeader>;

// The value of the first header of that name, case ignored; null when there is none.
const std::string* FindHeader(const HttpHeaders& headers, std::string_view name);

struct HttpRequest {
  std::string method;  // "POST"
  std::string path;    // "/v1/models/a b": percent-decoded, without the query
  std::string query;   // "x=1&y=2", as received
  HttpHeaders headers;
  std::string body;  // chunks already joined

  // The decoded value of a query parameter.
  std::optional<std::string> QueryParameter(std::string_view name) const;
};

struct HttpResponse {
  int status = 0;
  HttpHeaders headers;
  std::string body;
};

// The answer to one request: either Send, or BeginStream, Write..., End. Shared: whoever works on
// the request holds it. Destroyed without an answer, it sends a 500 (or cuts a begun stream).
// Thread: methods on the network thread only; it may be destroyed on any thread.
class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;

  // A whole answer with a Content-Length.
  virtual void Send(int status, HttpHeaders headers, std::string body) = 0;
  // Sends the head at once; the body follows in chunks.
  virtual void BeginStream(int status, HttpHeaders headers) = 0;
  // One chunk. Never blocks: a client that reads too slowly is cut when more than
  // HttpServerOptions::stream_buffer_bytes wait for it.
  virtual void Write(std::string_view data) = 0;
  virtual void End() = 0;
  // Of what Write took: not yet in the system's hands. Who can say the same with less waits for it.
  virtual size_t waiting_bytes() const = 0;

  // Called once, on the network thread, when the client goes away before the answer has ended.
  // A client that closes only its sending side counts as gone.
  virtual void OnDisconnect(std::function<void()> callback) = 0;
  // False after a disconnect; what is sent then is dropped.
  virtual bool open() const = 0;
  // Runs tasks on the network thread; may be used from any thread.
  virtual Executor& executor() = 0;
};

// "OK" for 200; "Unknown" for a number that has no name.
std::string_view HttpReason(int status);

// Bytes of %XX (and, in a query, '+' as space). Malformed escapes stay as they are.
std::string PercentDecode(std::string_view text, bool plus_is_space);

struct Url {
  std::string host;    // without brackets
  std::string port;    // "80" by default
  std::string target;  // path and query, at least "/"
};
// "http://host[:port][/path]". Errors: kInvalidArgument; kUnimplemented for https.
Result<Url> ParseUrl(std::string_view text);

}  // namespace tern
