// OpenAI's request bodies as typed values. Unknown keys are ignored (routers add their own); a
// known key of a wrong type or range is an error that names it.
// Thread: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "server/sampling_json.h"

namespace tern {

// What chat and text completions share.
struct CompletionParams {
  TextParams text;
  int64_t n = 1;
  bool stream = false;
  bool include_usage = false;     // stream_options: a last chunk with the usage
  bool continuous_usage = false;  // stream_options: the usage so far in every chunk
  bool logprobs = false;
  bool prompt_logprobs = false;  // of the prompt's tokens too
  int64_t top_logprobs = 0;
  bool prompt_token_ids = false, token_ids = false;  // answers bring the prompt's, and their own
  std::string model;                                 // any name is accepted, and echoed
  std::string rid, extra_key, cache_salt;
  std::vector<std::string> rids;  // one for each prompt, rid being the first; empty: rid is of all
};

struct ChatRequest {
  CompletionParams params;
  Json messages;         // for the template: text parts joined, tool arguments parsed
  Json tools;            // null when there are none
  Json template_kwargs;  // an object; reasoning_effort is in it
  bool separate_reasoning = true, stream_reasoning = true;
};

struct CompletionRequest {
  struct Prompt {
    bool is_text = false;
    std::string text;
    std::vector<int32_t> ids;  // one at least, where it is no text
  };
  CompletionParams params;
  std::vector<Prompt> prompts;
  bool echo = false;  // the text begins with the prompt
};

// Errors: kInvalidArgument naming the field.
Result<ChatRequest> ParseChatRequest(const Json& body, const SamplingDefaults& defaults);
Result<CompletionRequest> ParseCompletionRequest(const Json& body,
                                                 const SamplingDefaults& defaults);

}  // namespace tern
