#include "server/endpoint_context.h"

#include <fmt/format.h>

#include "base/rng.h"
#include "server/errors.h"

namespace tern {

void StartGeneration(const EndpointContext& context, std::vector<ChoiceSpec> choices,
                     std::shared_ptr<GenerationListener> listener,
                     const std::shared_ptr<ResponseWriter>& writer, bool chunked) {
  Result<std::shared_ptr<Generation>> generation =
      Generation::Start(*context.model.engine, writer->executor(), context.model.tokenizer,
                        std::move(choices), std::move(listener), context.clock);
  if (!generation.ok()) return SendError(*writer, generation.status(), chunked);
  writer->OnDisconnect([weak = std::weak_ptr<Generation>(*generation)] {
    if (const auto live = weak.lock()) live->Cancel();
  });
}

std::string NewRequestId(std::string_view prefix) {
  thread_local Rng rng(RandomSeed());
  return fmt::format("{}{:016x}{:016x}", prefix, rng.Next(), rng.Next());
}

}  // namespace tern
