#include "server/choices.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/trace.h"
#include "server/errors.h"

namespace tern {

Status CheckChoiceCount(int64_t choices, const ServedModel& model) {
  const int64_t limit = std::min(model.max_choices, static_cast<int64_t>(kMaxPrompts));
  if (choices <= limit) return OkStatus();
  return InvalidArgument(
      fmt::format("the request asks for {} answers (prompts times n); one request may ask for {}",
                  choices, limit));
}

int64_t LongestTokenBytes(const Tokenizer& tokenizer) {
  size_t longest = 1;
  for (int64_t id = 0; id < tokenizer.vocab_size(); ++id) {
    longest = std::max(longest, tokenizer.TokenBytes(static_cast<TokenId>(id)).size());
  }
  return static_cast<int64_t>(longest);
}

namespace {

Status CheckPromptBytes(size_t size, const ServedModel& model) {
  const int64_t limit_bytes = model.context_length * model.longest_token_bytes;
  if (static_cast<int64_t>(size) <= limit_bytes) return OkStatus();
  return ContextOverflow(
      model.context_length,
      fmt::format("the prompt has {} bytes; the longest token has {}, so there is room for {} "
                  "bytes. Please reduce the length of the messages.",
                  size, model.longest_token_bytes, limit_bytes));
}

}  // namespace

Result<std::vector<int32_t>> TokenizePrompt(std::string_view text, bool framed,
                                            const ServedModel& model) {
  TERN_RETURN_IF_ERROR(CheckPromptBytes(text.size(), model));
  TERN_TRACE("text.tokenize");
  return framed ? model.tokenizer->EncodeFramed(text) : model.tokenizer->Encode(text);
}

Result<std::vector<int32_t>> TokenizePrompt(const PromptText& prompt, const ServedModel& model) {
  if (prompt.disguise.empty()) return TokenizePrompt(prompt.text, /*framed=*/false, model);
  TERN_RETURN_IF_ERROR(CheckPromptBytes(prompt.Plain().size(), model));
  TERN_TRACE("text.tokenize");
  return model.tokenizer->EncodeDisguised(prompt.text, prompt.disguise);
}

Status CheckPromptLogprobs(const std::vector<ChoiceSpec>& choices) {
  int64_t count = 0;
  for (const ChoiceSpec& choice : choices) {
    const GenerateRequest& r = choice.request;
    if (!r.prompt_logprobs_from) continue;
    const auto tokens = static_cast<int64_t>(r.tokens.size());
    count += std::max<int64_t>(tokens - *r.prompt_logprobs_from, 0) *
             (1 + r.top_logprobs + static_cast<int64_t>(r.logprob_token_ids.size()));
  }
  if (count <= kMaxPromptLogprobs) return OkStatus();
  return InvalidArgument(fmt::format(
      "the request asks for {} log probabilities of prompts; one request may ask for {}", count,
      kMaxPromptLogprobs));
}

Status AppendChoices(std::vector<int32_t> prompt, int64_t n, TextParams text,
                     const GenerateRequest& common, int64_t context_length,
                     std::vector<ChoiceSpec>* choices) {
  TERN_RETURN_IF_ERROR(
      ResolveMaxTokens(static_cast<int64_t>(prompt.size()), context_length, &text));
  for (int64_t i = 0; i < n; ++i) {
    ChoiceSpec spec;
    spec.request = common;
    spec.request.tokens = i + 1 < n ? prompt : std::move(prompt);
    spec.request.sampling = text.sampling;
    // One seed would make equal choices.
    if (text.sampling.seed) {
      spec.request.sampling.seed = *text.sampling.seed + static_cast<uint64_t>(i);
    }
    spec.stops = text.stops;
    spec.stop_regexes = text.stop_regexes;
    spec.no_stop_trim = text.no_stop_trim;
    spec.skip_special_tokens = text.skip_special_tokens;
    choices->push_back(std::move(spec));
  }
  return OkStatus();
}

}  // namespace tern
