// OpenAI's response bodies and stream chunks. Chunks are built as text: they are made per token.
// Thread: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "engine/request.h"
#include "server/generation.h"
#include "text/tokenizer.h"

namespace tern {

// Prompts are counted once, however many choices they have.
struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
  int64_t reasoning_tokens = 0;  // of the completion's
};
// `cache_report`: with cached tokens; else prompt_tokens_details is null.
std::string UsageJson(const Usage& usage, bool cache_report);

// "stop", "length" or "abort".
std::string_view FinishReasonName(ChoiceEnd::Reason reason);
// The stop string, the stop token's id, or null.
std::string MatchedStopJson(const ChoiceEnd& end);

// JSON has no infinities: a token that cannot come has the probability e^-9999, as OpenAI prints
// it.
double FiniteLogprob(float logprob);

// An element of chat's logprobs.content: {token, bytes, logprob, top_logprobs}.
// REQUIRES: event.logprob
std::string ChatLogprobJson(const Tokenizer& tokenizer, const TokenEvent& event);

// Text completions' logprobs: {text_offset, token_logprobs, tokens, top_logprobs}.
class CompletionLogprobs {
 public:
  explicit CompletionLogprobs(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}
  void Add(const TokenEvent& event);
  // The prompt, echoed: its first token has no log probability. `logprobs`: of those behind it.
  // `before`, `after`: how many tokens at its ends the text does not show.
  void AddPrompt(int32_t first_token, const std::vector<PromptLogprob>& logprobs, size_t before,
                 size_t after);
  // What was added since the last call; offsets, in characters of the text, go on.
  std::string Take();

 private:
  void AddItem(int32_t token, std::optional<float> logprob, const std::vector<TokenLogprob>& tops,
               bool shown);

  const Tokenizer* tokenizer_;
  int64_t offset_ = 0;
  std::string offsets_, logprobs_, tokens_, tops_;  // comma-separated
};

// {"id":...,"object":...,"created":...,"model":... without the closing brace.
std::string ResponseHead(std::string_view id, std::string_view object, int64_t created,
                         std::string_view model);

}  // namespace tern
