#include "server/chat_responder.h"

#include <fmt/format.h>

#include <utility>

#include "base/trace.h"

namespace tern {
namespace {

std::string DeltaFields(const OutputDelta& delta) {
  switch (delta.kind) {
    case OutputDelta::Kind::kReasoning: {
      const std::string text = JsonQuote(delta.text);
      return fmt::format(R"("delta":{{"content":null,"reasoning_content":{},"reasoning":{}}})",
                         text, text);
    }
    case OutputDelta::Kind::kContent:
      return fmt::format(R"("delta":{{"content":{},"reasoning_content":null}})",
                         JsonQuote(delta.text));
    case OutputDelta::Kind::kToolCall:
      return fmt::format(
          R"("delta":{{"content":null,"reasoning_content":null,"tool_calls":[{{"index":{},"id":{},)"
          R"("type":"function","function":{{"name":{},"arguments":""}}}}]}})",
          delta.index, JsonQuote(delta.id), JsonQuote(delta.name));
    case OutputDelta::Kind::kArguments:
      break;
  }
  return fmt::format(
      R"("delta":{{"content":null,"reasoning_content":null,"tool_calls":[{{"index":{},"id":null,)"
      R"("type":"function","function":{{"name":null,"arguments":{}}}}}]}})",
      delta.index, JsonQuote(delta.text));
}

std::string TextOrNull(const std::string& text) { return text.empty() ? "null" : JsonQuote(text); }

}  // namespace

ChatResponder::ChatResponder(const EndpointContext& context, const CompletionParams& params,
                             const std::vector<ChoiceSpec>& choices,
                             const OutputParserOptions& parsing,
                             std::shared_ptr<ResponseWriter> writer)
    : OpenAiResponder(context, params, "chatcmpl-", choices, std::move(writer)) {
  answers_.reserve(choices.size());
  for (size_t i = 0; i < choices.size(); ++i) answers_.emplace_back(parsing);
}

std::string_view ChatResponder::ObjectName(bool chunk) const {
  return chunk ? "chat.completion.chunk" : "chat.completion";
}

std::string ChatResponder::OpeningFields() const {
  return R"("delta":{"role":"assistant","content":"","reasoning_content":null})";
}

std::vector<std::string> ChatResponder::AddText(size_t choice, std::string_view text, bool last) {
  Answer& answer = answers_[choice];
  const bool reasoned = answer.parser.in_reasoning();
  TERN_TRACE("text.parse_output");
  std::vector<OutputDelta> deltas = answer.parser.Push(text);
  // The tokens of <think> and </think> count, as SGLang counts them.
  if (!last && (reasoned || answer.parser.in_reasoning())) ++answer.reasoning_tokens;
  if (last) {
    for (OutputDelta& delta : answer.parser.Finish()) deltas.push_back(std::move(delta));
  }
  if (!stream()) {
    answer.whole.Add(deltas);
    return {};
  }
  std::vector<std::string> chunks;
  for (const OutputDelta& delta : deltas) chunks.push_back(DeltaFields(delta));
  return chunks;
}

std::string ChatResponder::EndFields() const {
  return R"("delta":{"content":null,"reasoning_content":null})";
}

std::string ChatResponder::WholeFields(size_t choice) const {
  const ParsedOutput& whole = answers_[choice].whole;
  std::string calls;
  for (const ParsedToolCall& call : whole.tool_calls) {
    calls +=
        fmt::format(R"({}{{"id":{},"type":"function","function":{{"name":{},"arguments":{}}}}})",
                    calls.empty() ? "" : ",", JsonQuote(call.id), JsonQuote(call.name),
                    JsonQuote(call.arguments));
  }
  const std::string reasoning = TextOrNull(whole.reasoning);
  return fmt::format(R"("message":{{"role":"assistant","content":{},"reasoning_content":{},)"
                     R"("reasoning":{},"tool_calls":{}}})",
                     TextOrNull(whole.content), reasoning, reasoning,
                     calls.empty() ? "null" : fmt::format("[{}]", calls));
}

std::string_view ChatResponder::FinishReason(size_t choice, const ChoiceEnd& end) const {
  const bool called = answers_[choice].parser.has_tool_calls();
  if (called && end.reason == ChoiceEnd::Reason::kStop) return "tool_calls";
  return OpenAiResponder::FinishReason(choice, end);
}

void ChatResponder::AddLogprob(size_t choice, const TokenEvent& token) {
  std::string& list = answers_[choice].logprobs;
  if (!list.empty()) list += ',';
  list += ChatLogprobJson(tokenizer(), token);
}

std::string ChatResponder::TakeLogprobs(size_t choice) {
  return fmt::format(R"({{"content":[{}]}})", std::exchange(answers_[choice].logprobs, {}));
}

}  // namespace tern
