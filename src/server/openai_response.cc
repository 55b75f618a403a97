#include "server/openai_response.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>

namespace tern {
namespace {

// {"token":...,"bytes":[...],"logprob":... without the closing brace.
std::string TokenHead(const Tokenizer& tokenizer, int32_t token, float logprob) {
  const std::string_view bytes = tokenizer.TokenBytes(token);
  std::string numbers;
  for (const char c : bytes) {
    fmt::format_to(std::back_inserter(numbers), "{}{}", numbers.empty() ? "" : ",",
                   static_cast<int>(static_cast<unsigned char>(c)));
  }
  return fmt::format(R"({{"token":{},"bytes":[{}],"logprob":{})", JsonQuote(bytes), numbers,
                     FiniteLogprob(logprob));
}

void AppendItem(std::string* list, std::string_view item) {
  if (!list->empty()) *list += ',';
  *list += item;
}

}  // namespace

double FiniteLogprob(float logprob) { return std::isfinite(logprob) ? logprob : -9999.0; }

std::string UsageJson(const Usage& usage, bool cache_report) {
  const std::string prompt_details =
      cache_report ? fmt::format(R"({{"cached_tokens":{}}})", usage.cached_tokens) : "null";
  return fmt::format(R"({{"prompt_tokens":{},"total_tokens":{},"completion_tokens":{},)"
                     R"("prompt_tokens_details":{},"reasoning_tokens":{},)"
                     R"("completion_tokens_details":{{"reasoning_tokens":{}}}}})",
                     usage.prompt_tokens, usage.prompt_tokens + usage.completion_tokens,
                     usage.completion_tokens, prompt_details, usage.reasoning_tokens,
                     usage.reasoning_tokens);
}

std::string_view FinishReasonName(ChoiceEnd::Reason reason) {
  switch (reason) {
    case ChoiceEnd::Reason::kStop:
      return "stop";
    case ChoiceEnd::Reason::kLength:
      return "length";
    case ChoiceEnd::Reason::kAborted:
    case ChoiceEnd::Reason::kError:
      break;
  }
  return "abort";
}

std::string MatchedStopJson(const ChoiceEnd& end) {
  if (end.matched_string) return JsonQuote(*end.matched_string);
  if (end.matched_token) return std::to_string(*end.matched_token);
  return "null";
}

std::string ChatLogprobJson(const Tokenizer& tokenizer, const TokenEvent& event) {
  std::string tops;
  for (const TokenLogprob& top : event.top_logprobs) {
    AppendItem(&tops, TokenHead(tokenizer, top.token, top.logprob) + "}");
  }
  return fmt::format(R"({},"top_logprobs":[{}]}})",
                     TokenHead(tokenizer, event.token, event.logprob->logprob), tops);
}

void CompletionLogprobs::Add(const TokenEvent& event) {
  std::optional<float> logprob;
  if (event.logprob) logprob = event.logprob->logprob;
  AddItem(event.token, logprob, event.top_logprobs, /*shown=*/true);
}

void CompletionLogprobs::AddPrompt(int32_t first_token, const std::vector<PromptLogprob>& logprobs,
                                   size_t before, size_t after) {
  const size_t shown_end = logprobs.size() + 1 - after;
  AddItem(first_token, std::nullopt, {}, before == 0 && shown_end > 0);
  for (size_t i = 0; i < logprobs.size(); ++i) {
    const PromptLogprob& item = logprobs[i];
    AddItem(item.token.token, item.token.logprob, item.top, i + 1 >= before && i + 1 < shown_end);
  }
}

void CompletionLogprobs::AddItem(int32_t token, std::optional<float> logprob,
                                 const std::vector<TokenLogprob>& tops, bool shown) {
  const std::string_view bytes = tokenizer_->TokenBytes(token);
  AppendItem(&offsets_, std::to_string(offset_));
  AppendItem(&tokens_, JsonQuote(bytes));
  AppendItem(&logprobs_, logprob ? fmt::format("{}", FiniteLogprob(*logprob)) : "null");
  // Tokens that are parts of characters may read alike; the most likely one of them stands.
  std::string list;
  std::set<std::string> names;
  for (const TokenLogprob& top : tops) {
    const auto [name, is_new] = names.insert(JsonQuote(tokenizer_->TokenBytes(top.token)));
    if (is_new) AppendItem(&list, fmt::format("{}:{}", *name, FiniteLogprob(top.logprob)));
  }
  AppendItem(&tops_, tops.empty() ? "null" : fmt::format("{{{}}}", list));
  if (!shown) return;
  offset_ += std::count_if(bytes.begin(), bytes.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;  // begins a character
  });
}

std::string CompletionLogprobs::Take() {
  std::string json = fmt::format(
      R"({{"text_offset":[{}],"token_logprobs":[{}],"tokens":[{}],"top_logprobs":[{}]}})", offsets_,
      logprobs_, tokens_, tops_);
  offsets_.clear();
  logprobs_.clear();
  tokens_.clear();
  tops_.clear();
  return json;
}

std::string ResponseHead(std::string_view id, std::string_view object, int64_t created,
                         std::string_view model) {
  return fmt::format(R"({{"id":{},"object":"{}","created":{},"model":{})", JsonQuote(id), object,
                     created, JsonQuote(model));
}

}  // namespace tern
