// SGLang's own endpoint: POST or PUT /generate. Thread: the network thread.
#pragma once

#include <memory>

#include "net/http.h"
#include "server/endpoint_context.h"

namespace tern {

void HandleGenerate(const EndpointContext& context, const HttpRequest& request,
                    std::shared_ptr<ResponseWriter> writer);

}  // namespace tern
