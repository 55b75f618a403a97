// Bodies of OpenAI's endpoints: never a crash, and what is accepted is in
// range.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/json.h"
#include "server/chat_messages.h"
#include "server/openai_request.h"

namespace {

void CheckParams(const tern::CompletionParams& p, int64_t least_tokens) {
  const tern::SamplingParams& s = p.text.sampling;
  const bool in_range = p.n >= 1 && p.n <= 128 && s.temperature >= 0 && s.top_p > 0 &&
                        s.top_p <= 1 && s.min_p >= 0 && s.min_p <= 1 && s.top_k >= -1 &&
                        p.top_logprobs >= 0 && p.top_logprobs <= 20 &&
                        (!p.text.max_tokens || *p.text.max_tokens >= least_tokens);
  if (!in_range) std::abort();
  for (const std::string& stop : p.text.stops) {
    if (stop.empty()) std::abort();
  }
  for (const int32_t id : s.stop_token_ids) {
    if (id < 0) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const tern::Result<tern::Json> body = tern::ParseJson(text);
  if (!body.ok()) return 0;
  const auto chat = tern::ParseChatRequest(*body, {});
  if (chat.ok()) {
    CheckParams(chat->params, 1);
    tern::Json messages = chat->messages;
    if (tern::AdoptToolCallIds(tern::ToolCallFormat::kKimiK2, &messages) < 0) std::abort();
    tern::DumpJson(chat->messages);
  }
  const auto completion = tern::ParseCompletionRequest(*body, {});
  if (completion.ok()) CheckParams(completion->params, 0);  // 0: log probabilities of the prompt
  return 0;
}
