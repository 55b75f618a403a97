// POST /v1/completions: texts or token ids in, text out; no template.
#include <fmt/format.h>

#include <span>
#include <utility>

#include "base/trace.h"
#include "base/utf8.h"
#include "server/choices.h"
#include "server/disaggregation.h"
#include "server/errors.h"
#include "server/openai.h"
#include "server/openai_responder.h"
#include "server/session.h"

namespace tern {
namespace {

// What an answer that echoes begins with: the prompt but for tokens that its text did not have.
struct Echo {
  std::string text;
  size_t before = 0, after = 0;  // those tokens
};

class TextResponder final : public OpenAiResponder {
 public:
  TextResponder(const EndpointContext& context, const CompletionParams& params,
                const std::vector<ChoiceSpec>& choices, std::vector<Echo> echoes,
                std::shared_ptr<ResponseWriter> writer)
      : OpenAiResponder(context, params, "cmpl-", choices, std::move(writer)),
        echoes_(std::move(echoes)),
        logprobs_(choices.size(), CompletionLogprobs(tokenizer())) {
    for (const ChoiceSpec& choice : choices) first_tokens_.push_back(choice.request.tokens.front());
    for (Echo& echo : echoes_) texts_.push_back(std::move(echo.text));
  }

  // As OpenAI has it, the stop token is among the log probabilities though it is not in the text.
  // Chat answers leave it out: there the tokens make up the message.
  void OnEnd(size_t choice, std::string_view text, const ChoiceEnd& end) override {
    if (end.matched_logprobs) TellLogprob(choice, *end.matched_logprobs);
    OpenAiResponder::OnEnd(choice, text, end);
  }

 private:
  std::string_view ObjectName(bool) const override { return "text_completion"; }
  std::vector<std::string> AddText(size_t choice, std::string_view text, bool) override {
    std::string& held = texts_[choice];
    held += text;
    if (!stream() || held.empty()) return {};
    return {TextField(std::exchange(held, std::string()))};
  }
  std::string EndFields() const override { return TextField(""); }
  std::string_view TokenIdsName() const override { return "token_ids"; }
  std::string WholeFields(size_t choice) const override { return TextField(texts_[choice]); }
  void AddPromptLogprobs(size_t choice, const std::vector<PromptLogprob>& prompt) override {
    const Echo& echo = echoes_[choice];
    logprobs_[choice].AddPrompt(first_tokens_[choice], prompt, echo.before, echo.after);
  }
  void AddLogprob(size_t choice, const TokenEvent& token) override { logprobs_[choice].Add(token); }
  std::string TakeLogprobs(size_t choice) override { return logprobs_[choice].Take(); }

  static std::string TextField(std::string_view text) {
    return fmt::format(R"("text":{})", JsonQuote(text));
  }

  std::vector<Echo> echoes_;                  // per choice; their texts are in texts_
  std::vector<std::string> texts_;            // per choice: not sent yet, an echo first
  std::vector<CompletionLogprobs> logprobs_;  // per choice
  std::vector<int32_t> first_tokens_;         // of each choice's prompt
};

}  // namespace

void HandleCompletions(const EndpointContext& context, const HttpRequest& request,
                       std::shared_ptr<ResponseWriter> writer) {
  TERN_TRACE("server.openai");
  Result<Json> body = ParseJson(request.body);
  if (!body.ok()) return SendError(*writer, body.status());
  Result<CompletionRequest> completion = ParseCompletionRequest(*body, context.model.sampling);
  if (!completion.ok()) return SendError(*writer, completion.status());
  const CompletionParams& params = completion->params;
  std::vector<std::vector<int32_t>> prompts;
  const auto count = static_cast<int64_t>(completion->prompts.size());
  const Status bounded = CheckChoiceCount(count * params.n, context.model);
  if (!bounded.ok()) return SendError(*writer, bounded, params.stream);
  for (CompletionRequest::Prompt& prompt : completion->prompts) {
    if (!prompt.is_text) {
      prompts.push_back(std::move(prompt.ids));
      continue;
    }
    Result<std::vector<int32_t>> tokens =
        TokenizePrompt(prompt.text, /*framed=*/true, context.model);
    if (!tokens.ok()) return SendError(*writer, tokens.status(), params.stream);
    prompts.push_back(std::move(tokens).value());
  }
  Result<std::vector<ChoiceSpec>> choices =
      MakeChoices(params, context.model.context_length, std::move(prompts));
  if (!choices.ok()) return SendError(*writer, choices.status(), params.stream);
  if (const Status status = AddRendezvous(*body, context.model, &*choices); !status.ok()) {
    return SendError(*writer, status, params.stream);
  }
  if (const Status status = AddSession(*body, request.headers, &*choices); !status.ok()) {
    return SendError(*writer, status, params.stream);
  }
  std::vector<Echo> echoes(choices->size());
  const Tokenizer& tokenizer = *context.model.tokenizer;
  for (size_t i = 0; completion->echo && i < choices->size(); ++i) {
    std::span<const int32_t> ids = (*choices)[i].request.tokens;
    if (completion->prompts[i / static_cast<size_t>(params.n)].is_text) {
      echoes[i].before = tokenizer.frame().before.size();
      echoes[i].after = tokenizer.frame().after.size();
      ids = ids.subspan(echoes[i].before, ids.size() - echoes[i].before - echoes[i].after);
    }
    echoes[i].text = ReplaceInvalidUtf8(tokenizer.Decode(ids, /*skip_special=*/false));
  }
  auto responder =
      std::make_shared<TextResponder>(context, params, *choices, std::move(echoes), writer);
  StartGeneration(context, std::move(choices).value(), std::move(responder), writer, params.stream);
}

}  // namespace tern
