// Bodies of /generate: never a crash, and what is accepted is in range and bounded.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/json.h"
#include "server/fake_engine.h"
#include "server/generate_request.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const tern::ServedModel* const model = [] {
    auto* made = new tern::ServedModel;
    made->tokenizer = std::make_shared<tern::ByteTokenizer>();
    made->context_length = 200;
    made->longest_token_bytes = 7;
    made->max_choices = 16;
    return made;
  }();
  const tern::Result<tern::Json> body =
      tern::ParseJson({reinterpret_cast<const char*>(data), size});
  if (!body.ok()) return 0;
  const auto generate = tern::ParseGenerateBody(*body, *model);
  if (!generate.ok()) {
    if (generate.status().message().empty()) std::abort();
    return 0;
  }
  if (generate->choices.empty() || generate->choices.size() > 16) std::abort();
  for (const tern::ChoiceSpec& choice : generate->choices) {
    const tern::GenerateRequest& r = choice.request;
    const auto prompt_tokens = static_cast<int64_t>(r.tokens.size());
    if (r.rid.empty() || prompt_tokens == 0) std::abort();
    if (r.sampling.max_new_tokens < 1 || prompt_tokens + r.sampling.max_new_tokens > 200) {
      std::abort();
    }
    if (r.top_logprobs < 0 || r.top_logprobs > 20) std::abort();
    for (const int32_t id : r.tokens) {
      if (id < 0) std::abort();
    }
  }
  return 0;
}
