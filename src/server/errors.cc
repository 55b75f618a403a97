#include "server/errors.h"

#include <fmt/format.h>

#include "base/json.h"

namespace tern {
namespace {

std::string_view ErrorType(int http_status) {
  switch (http_status) {
    case 400:
      return "BadRequestError";
    case 401:
      return "AuthenticationError";
    case 403:
      return "PermissionDeniedError";
    case 404:
      return "NotFoundError";
    case 405:
      return "MethodNotAllowedError";
    case 408:
      return "RequestTimeoutError";
    case 413:
      return "RequestEntityTooLargeError";
    case 499:
      return "ClientClosedRequestError";
    case 501:
      return "NotImplementedError";
    case 503:
      return "ServiceUnavailableError";
    case 504:
      return "GatewayTimeoutError";
    default:
      return http_status < 500 ? "BadRequestError" : "InternalServerError";
  }
}

std::string_view ErrorEventType(int http_status) {  // the names of Python's HTTPStatus
  switch (http_status) {
    case 400:
      return "BAD_REQUEST";
    case 404:
      return "NOT_FOUND";
    case 499:
      return "CLIENT_CLOSED_REQUEST";
    case 501:
      return "NOT_IMPLEMENTED";
    case 503:
      return "SERVICE_UNAVAILABLE";
    case 504:
      return "GATEWAY_TIMEOUT";
    default:
      return "INTERNAL_SERVER_ERROR";
  }
}

// OpenAI's words: clients look for them, and so does ErrorBody, which gives this error a body of
// its own; no other message begins so.
constexpr std::string_view kContextOverflow = "This model's maximum context length is";
// A KV page that failed a check has a name of its own, before the first byte and after it.
constexpr std::string_view kIntegrityError = "KvIntegrityError";

std::string ErrorObject(int http_status, std::string_view message, std::string_view type) {
  return fmt::format(R"({{"object":"error","message":{},"type":"{}","param":null,"code":{}}})",
                     JsonQuote(message), type, http_status);
}

}  // namespace

int HttpStatusOf(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kFailedPrecondition:
      return 400;
    case StatusCode::kNotFound:
      return 404;
    case StatusCode::kCancelled:
      return 499;
    case StatusCode::kUnimplemented:
      return 501;
    case StatusCode::kResourceExhausted:
    case StatusCode::kUnavailable:
      return 503;
    case StatusCode::kDeadlineExceeded:
      return 504;
    case StatusCode::kDataLoss:
    case StatusCode::kInternal:
    case StatusCode::kOk:
      break;
  }
  return 500;
}

std::string ErrorBody(int http_status, std::string_view message) {
  return ErrorObject(http_status, message, ErrorType(http_status));
}

Status ContextOverflow(int64_t context_length, std::string_view how) {
  return InvalidArgument(
      fmt::format("{} {} tokens. However, {}", kContextOverflow, context_length, how));
}

std::string ErrorBodyOf(const Status& status) {
  if (!status.message().starts_with(kContextOverflow)) {
    return ErrorBody(HttpStatusOf(status.code()), status.message());
  }
  return fmt::format(R"({{"error":{{"message":{},"type":"invalid_request_error","param":null,)"
                     R"("code":"context_length_exceeded"}}}})",
                     JsonQuote(status.message()));
}

std::string ErrorEvent(const Status& status) {
  const int http_status = HttpStatusOf(status.code());
  const bool integrity = status.code() == StatusCode::kDataLoss;
  return fmt::format(R"({{"error":{}}})",
                     ErrorObject(http_status, status.message(),
                                 integrity ? kIntegrityError : ErrorEventType(http_status)));
}

void SendError(ResponseWriter& writer, const Status& status, bool chunked) {
  const int http_status = HttpStatusOf(status.code());
  std::string body = status.code() == StatusCode::kDataLoss
                         ? ErrorObject(http_status, status.message(), kIntegrityError)
                         : ErrorBodyOf(status);
  HttpHeaders headers = {{"Content-Type", "application/json"}};
  if (!chunked) return writer.Send(http_status, std::move(headers), std::move(body));
  writer.BeginStream(http_status, std::move(headers));
  writer.Write(body);
  writer.End();
}

}  // namespace tern
