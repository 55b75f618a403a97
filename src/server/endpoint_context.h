// EndpointContext: what every endpoint needs; made by ApiServer. Thread: the network thread.
#pragma once

#include "base/clock.h"
#include "net/http.h"
#include "server/generation.h"
#include "server/served_model.h"

namespace tern {

struct EndpointContext {
  const ServedModel& model;
  const Clock& clock;
  bool incremental_streaming = false;  // streams of /generate hold what is new, not all so far
  bool cache_report = true;            // usage says how many tokens of the prompt were cached
};

// Starts the choices and ties them to the client: when it leaves, they end. On an error (queue
// full, ...) the answer is the error. `chunked`: as SendError.
void StartGeneration(const EndpointContext& context, std::vector<ChoiceSpec> choices,
                     std::shared_ptr<GenerationListener> listener,
                     const std::shared_ptr<ResponseWriter>& writer, bool chunked);

// `prefix` and 32 random hex digits.
std::string NewRequestId(std::string_view prefix);

}  // namespace tern
