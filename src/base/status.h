// Status: the outcome of an operation that can fail, passed by value across areas.
// Exceptions never cross an area; wrappers of third-party calls turn them into a Status.
// Thread: a Status is an immutable value.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace tern {

// What the caller can do about an error. server/errors.cc is the one place that maps these to HTTP.
enum class StatusCode {
  kOk = 0,
  kInvalidArgument,     // the caller's input is wrong: fix it and try again (400)
  kNotFound,            // a named thing does not exist (404)
  kFailedPrecondition,  // the input may be right, the state is not (400)
  kResourceExhausted,   // memory, pages or a queue are full: try again later (503)
  kUnavailable,         // not ready, shutting down, peer gone: try again later (503)
  kCancelled,           // the caller went away or asked to stop
  kDeadlineExceeded,    // a stated timeout passed (504)
  kDataLoss,            // a file or a KV page does not hold what it must (500)
  kUnimplemented,       // a valid request for something tern does not do (501)
  kInternal,            // a bug in tern (500)
};

// "invalid argument", "data loss", ...
std::string_view StatusCodeName(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  // One sentence for a person; names the file, flag or field at fault. Empty when ok.
  const std::string& message() const { return message_; }
  // The same error with "context: " before the message. An ok status is returned as it is.
  Status WithContext(std::string_view context) const;
  std::string ToString() const;

  friend bool operator==(const Status& a, const Status& b) = default;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status OkStatus() { return {}; }
inline Status InvalidArgument(std::string m) {
  return {StatusCode::kInvalidArgument, std::move(m)};
}
inline Status NotFound(std::string m) { return {StatusCode::kNotFound, std::move(m)}; }
inline Status FailedPrecondition(std::string m) {
  return {StatusCode::kFailedPrecondition, std::move(m)};
}
inline Status ResourceExhausted(std::string m) {
  return {StatusCode::kResourceExhausted, std::move(m)};
}
inline Status Unavailable(std::string m) { return {StatusCode::kUnavailable, std::move(m)}; }
inline Status Cancelled(std::string m) { return {StatusCode::kCancelled, std::move(m)}; }
inline Status DataLoss(std::string m) { return {StatusCode::kDataLoss, std::move(m)}; }
inline Status Unimplemented(std::string m) { return {StatusCode::kUnimplemented, std::move(m)}; }
inline Status Internal(std::string m) { return {StatusCode::kInternal, std::move(m)}; }

}  // namespace tern

#define TERN_CONCAT_INNER(a, b) a##b
#define TERN_CONCAT(a, b) TERN_CONCAT_INNER(a, b)

// Returns the Status (or the Result's) from the enclosing function when it is an error.
#define TERN_RETURN_IF_ERROR(expr)                                                  \
  do {                                                                              \
    if (::tern::Status tern_status = (expr); !tern_status.ok()) return tern_status; \
  } while (0)
