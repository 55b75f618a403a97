// Errors: the one mapping of a Status to HTTP, in SGLang's shapes.
// Thread: pure functions, except SendError (network thread).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "net/http.h"

namespace tern {

// 400 for kInvalidArgument, 503 for kResourceExhausted, ... REQUIRES: not kOk.
int HttpStatusOf(StatusCode code);

// {"object":"error","message":...,"type":"BadRequestError","param":null,"code":400}
std::string ErrorBody(int http_status, std::string_view message);
// kInvalidArgument: a prompt, or prompt and answer, do not fit into the context, in OpenAI's words.
// `how` ends the message: "you requested ...".
Status ContextOverflow(int64_t context_length, std::string_view how);
// The same of an error; for ContextOverflow, OpenAI's
// {"error":{"message":...,"type":"invalid_request_error","code":"context_length_exceeded",...}}
std::string ErrorBodyOf(const Status& status);
// The event that ends a stream that had already begun: {"error":{"object":"error",...}}
std::string ErrorEvent(const Status& status);

// Answers with the error. `chunked`: the client asked for a stream: routers wrap that body into an
// event and pass Content-Length on unchanged, which would cut it, so it goes without a length.
void SendError(ResponseWriter& writer, const Status& status, bool chunked = false);

}  // namespace tern
