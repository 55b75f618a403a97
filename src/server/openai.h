// OpenAI's endpoints: POST /v1/chat/completions and /v1/completions.
// Thread: the network thread.
#pragma once

#include <memory>

#include "net/http.h"
#include "server/endpoint_context.h"

namespace tern {

void HandleChatCompletions(const EndpointContext& context, const HttpRequest& request,
                           std::shared_ptr<ResponseWriter> writer);
void HandleCompletions(const EndpointContext& context, const HttpRequest& request,
                       std::shared_ptr<ResponseWriter> writer);

}  // namespace tern
