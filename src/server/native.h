// SGLang's own endpoint: POST or PUT /generate. Thread: the network thread.
#pragma once

#include <memory>

#include "net/http.h"
#include "server/endpoint_context.h"

namespace tern {

void HandleGenerate(const EndpointContext& context, const HttpRequest& request,
                    std::shared_ptr<ResponseWriter> writer);

// POST /tokenize and /v1/tokenize: {"prompt": text or list of texts}.
void HandleTokenize(const EndpointContext& context, const HttpRequest& request,
                    std::shared_ptr<ResponseWriter> writer);
// POST /detokenize and /v1/detokenize: {"tokens": ids or list of lists, "skip_special_tokens"?}.
void HandleDetokenize(const EndpointContext& context, const HttpRequest& request,
                      std::shared_ptr<ResponseWriter> writer);

}  // namespace tern
