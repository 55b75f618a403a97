// POST /v1/chat/completions: JSON to a typed request, chat template, tokenizer, engine.
#include <utility>

#include "base/trace.h"
#include "server/chat_messages.h"
#include "server/chat_responder.h"
#include "server/choices.h"
#include "server/disaggregation.h"
#include "server/errors.h"
#include "server/openai.h"
#include "server/session.h"
#include "text/marker.h"
#include "text/prompt_text.h"

namespace tern {
namespace {

Result<PromptText> PromptOf(const ServedModel& model, const ChatRequest& chat) {
  if (model.chat_template == nullptr) {
    return InvalidArgument(
        "the model has no chat template; use /v1/completions, or start with --chat-template");
  }
  Json inputs = chat.template_kwargs;
  inputs["messages"] = chat.messages;
  if (!chat.tools.is_null()) inputs["tools"] = chat.tools;
  if (!inputs.contains("add_generation_prompt")) inputs["add_generation_prompt"] = true;
  if (!model.bos_token.empty()) inputs["bos_token"] = model.bos_token;
  if (!model.eos_token.empty()) inputs["eos_token"] = model.eos_token;
  TERN_TRACE("text.template");
  Result<PromptText> prompt = RenderPrompt(*model.chat_template, *model.tokenizer, inputs);
  if (!prompt.ok()) return prompt.status().WithContext("chat template");
  return prompt;
}

// How to read the answer. Calls are looked for if there are tools to call.
OutputParserOptions ParsingOf(const ServedModel& model, const ChatRequest& chat,
                              std::string_view prompt, int64_t first_call_index) {
  OutputParserOptions parsing;
  parsing.format = model.output_format;
  if (chat.tools.is_null()) parsing.format.tool_calls = ToolCallFormat::kNone;
  parsing.start = ReasoningStartOf(prompt);
  parsing.separate_reasoning = chat.separate_reasoning;
  parsing.stream_reasoning = chat.stream_reasoning;
  parsing.tools = std::make_shared<const Json>(chat.tools);
  parsing.first_call_index = first_call_index;
  return parsing;
}

// Markers may be special tokens, which otherwise give no text.
std::vector<int32_t> SpecialMarkers(const Tokenizer& tokenizer, const OutputFormat& format) {
  std::vector<int32_t> ids;
  for (const MarkerText& marker : MarkersOf(format)) {
    const std::optional<TokenId> id = tokenizer.IdOf(marker.text);
    if (id && tokenizer.IsSpecial(*id)) ids.push_back(*id);
  }
  return ids;
}

}  // namespace

void HandleChatCompletions(const EndpointContext& context, const HttpRequest& request,
                           std::shared_ptr<ResponseWriter> writer) {
  TERN_TRACE("server.openai");
  const ServedModel& model = context.model;
  Result<Json> body = ParseJson(request.body);
  if (!body.ok()) return SendError(*writer, body.status());
  Result<ChatRequest> chat = ParseChatRequest(*body, model.sampling);
  if (!chat.ok()) return SendError(*writer, chat.status());
  const CompletionParams& params = chat->params;
  const Status bounded = CheckChoiceCount(params.n, model);
  if (!bounded.ok()) return SendError(*writer, bounded, params.stream);
  const int64_t first_call_index =
      AdoptToolCallIds(model.output_format.tool_calls, &chat->messages);
  Result<PromptText> prompt = PromptOf(model, *chat);
  if (!prompt.ok()) return SendError(*writer, prompt.status(), params.stream);
  Result<std::vector<int32_t>> tokens = TokenizePrompt(*prompt, model);
  if (!tokens.ok()) return SendError(*writer, tokens.status(), params.stream);
  std::vector<std::vector<int32_t>> prompts;
  prompts.push_back(std::move(tokens).value());
  Result<std::vector<ChoiceSpec>> choices =
      MakeChoices(params, model.context_length, std::move(prompts));
  if (!choices.ok()) return SendError(*writer, choices.status(), params.stream);
  if (const Status status = AddRendezvous(*body, model, &*choices); !status.ok()) {
    return SendError(*writer, status, params.stream);
  }
  if (const Status status = AddSession(*body, request.headers, &*choices); !status.ok()) {
    return SendError(*writer, status, params.stream);
  }
  const OutputParserOptions parsing = ParsingOf(model, *chat, prompt->text, first_call_index);
  const std::vector<int32_t> markers = SpecialMarkers(*model.tokenizer, parsing.format);
  for (ChoiceSpec& choice : *choices) choice.shown_special_tokens = markers;
  auto responder = std::make_shared<ChatResponder>(context, params, *choices, parsing, writer);
  StartGeneration(context, std::move(choices).value(), std::move(responder), writer, params.stream);
}

}  // namespace tern
