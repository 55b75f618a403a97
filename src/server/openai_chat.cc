// POST /v1/chat/completions: JSON to a typed request, chat template, tokenizer, engine.
#include <fmt/format.h>

#include "base/trace.h"
#include "server/choices.h"
#include "server/errors.h"
#include "server/openai.h"
#include "server/openai_responder.h"

namespace tern {
namespace {

class ChatResponder final : public OpenAiResponder {
 public:
  ChatResponder(const EndpointContext& context, const CompletionParams& params,
                const std::vector<ChoiceSpec>& choices, std::shared_ptr<ResponseWriter> writer)
      : OpenAiResponder(context, params, "chatcmpl-", choices, std::move(writer)),
        logprobs_(choices.size()) {}

 private:
  std::string_view ObjectName(bool chunk) const override {
    return chunk ? "chat.completion.chunk" : "chat.completion";
  }
  std::string OpeningFields() const override {
    return R"("delta":{"role":"assistant","content":"","reasoning_content":null},"logprobs":null)";
  }
  std::string TextFields(std::string_view text, std::string_view logprobs) const override {
    return fmt::format(R"("delta":{{"content":{},"reasoning_content":null}},"logprobs":{})",
                       JsonQuote(text), logprobs);
  }
  std::string EndFields(std::string_view logprobs) const override {
    return fmt::format(R"("delta":{{"content":null,"reasoning_content":null}},"logprobs":{})",
                       logprobs);
  }
  std::string WholeFields(std::string_view text, std::string_view logprobs) const override {
    return fmt::format(R"("message":{{"role":"assistant","content":{},"reasoning_content":null,)"
                       R"("tool_calls":null}},"logprobs":{})",
                       JsonQuote(text), logprobs);
  }
  void AddLogprob(size_t choice, const TokenEvent& token) override {
    std::string& list = logprobs_[choice];
    if (!list.empty()) list += ',';
    list += ChatLogprobJson(tokenizer(), token);
  }
  std::string TakeLogprobs(size_t choice) override {
    return fmt::format(R"({{"content":[{}]}})", std::exchange(logprobs_[choice], {}));
  }

  std::vector<std::string> logprobs_;  // per choice, comma-separated
};

Result<std::vector<int32_t>> RenderAndTokenize(const ServedModel& model, ChatRequest& chat) {
  if (model.chat_template == nullptr) {
    return InvalidArgument(
        "the model has no chat template; use /v1/completions, or start with --chat-template");
  }
  Json inputs = std::move(chat.template_kwargs);
  inputs["messages"] = std::move(chat.messages);
  if (!chat.tools.is_null()) inputs["tools"] = std::move(chat.tools);
  if (!inputs.contains("add_generation_prompt")) inputs["add_generation_prompt"] = true;
  if (!model.bos_token.empty()) inputs["bos_token"] = model.bos_token;
  if (!model.eos_token.empty()) inputs["eos_token"] = model.eos_token;
  TERN_TRACE("text.template");
  Result<std::string> prompt = model.chat_template->Render(inputs);
  if (!prompt.ok()) return prompt.status().WithContext("chat template");
  return TokenizePrompt(*prompt, model);
}

}  // namespace

void HandleChatCompletions(const EndpointContext& context, const HttpRequest& request,
                           std::shared_ptr<ResponseWriter> writer) {
  TERN_TRACE("server.openai");
  Result<Json> body = ParseJson(request.body);
  if (!body.ok()) return SendError(*writer, body.status());
  Result<ChatRequest> chat = ParseChatRequest(*body, context.model.sampling);
  if (!chat.ok()) return SendError(*writer, chat.status());
  const CompletionParams& params = chat->params;
  const Status bounded = CheckChoiceCount(params.n, context.model);
  if (!bounded.ok()) return SendError(*writer, bounded, params.stream);
  Result<std::vector<int32_t>> tokens = RenderAndTokenize(context.model, *chat);
  if (!tokens.ok()) return SendError(*writer, tokens.status(), params.stream);
  std::vector<std::vector<int32_t>> prompts;
  prompts.push_back(std::move(tokens).value());
  Result<std::vector<ChoiceSpec>> choices =
      MakeChoices(params, context.model.context_length, std::move(prompts));
  if (!choices.ok()) return SendError(*writer, choices.status(), params.stream);
  auto responder = std::make_shared<ChatResponder>(context, params, *choices, writer);
  StartGeneration(context, std::move(choices).value(), std::move(responder), writer, params.stream);
}

}  // namespace tern
