#include "server/native.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <optional>

#include "base/trace.h"
#include "server/disaggregation.h"
#include "server/errors.h"
#include "server/generate_request.h"
#include "server/openai_response.h"
#include "server/session.h"
#include "server/sse.h"

namespace tern {
namespace {

class GenerateResponder final : public GenerationListener {
 public:
  GenerateResponder(const EndpointContext& context, const GenerateBody& body,
                    std::shared_ptr<ResponseWriter> writer)
      : tokenizer_(context.model.tokenizer),
        writer_(writer),
        sse_(std::move(writer)),
        is_list_(body.is_list),
        stream_(body.stream),
        logprobs_(body.logprobs),
        top_logprobs_(body.logprobs && body.top_logprobs > 0),
        token_ids_logprobs_(body.token_ids_logprobs),
        text_in_logprobs_(body.text_in_logprobs),
        incremental_(body.stream && context.incremental_streaming),
        choices_(body.choices.size()) {
    if (body.require_reasoning) think_end_ = tokenizer_->IdOf("</think>");
    for (size_t i = 0; i < choices_.size(); ++i) {
      const GenerateRequest& request = body.choices[i].request;
      choices_[i].id = request.rid;
      choices_[i].prompt_tokens = static_cast<int64_t>(request.tokens.size());
      choices_[i].reasoning = think_end_.has_value();
      const auto from = static_cast<size_t>(request.prompt_logprobs_from.value_or(INT32_MAX));
      if (from < request.tokens.size()) choices_[i].first_input = request.tokens[from];
    }
  }

  void OnPromptLogprobs(size_t index, const std::vector<PromptLogprob>& prompt) override {
    Choice& choice = choices_[index];
    if (!choice.first_input) return;
    // Nothing is said of the first one, wherever it is.
    choice.input.tokens.push_back(
        Json::array({nullptr, *choice.first_input, Text(*choice.first_input)}));
    choice.input.tops.push_back(nullptr);
    choice.input.asked.push_back(nullptr);
    for (const PromptLogprob& item : prompt) Add(item.token, item.top, item.asked, &choice.input);
  }

  void OnToken(size_t index, const TokenEvent& token, std::string_view text) override {
    Choice& choice = choices_[index];
    choice.text += text;
    choice.cached_tokens = token.cached_tokens;
    AddToken(token.token, token, &choice);
    if (stream_) SendEvent(index, nullptr);
  }

  void OnEnd(size_t index, std::string_view text, const ChoiceEnd& end) override {
    Choice& choice = choices_[index];
    choice.text += text;
    if (end.reason == ChoiceEnd::Reason::kError) {
      if (stream_) return sse_.Fail(end.status);
      return SendError(*writer_, end.status);
    }
    if (end.matched_token) {
      AddToken(*end.matched_token, end.matched_logprobs.value_or(TokenEvent{}), &choice);
    }
    choice.end = end;
    ++ended_;
    if (stream_) SendEvent(index, &end);
    if (ended_ < choices_.size()) return;
    if (stream_) return sse_.Done();
    Json answer = Json::array();
    for (size_t i = 0; i < choices_.size(); ++i) answer.push_back(Body(i, &choices_[i].end));
    writer_->Send(200, {{"Content-Type", "application/json"}},
                  DumpJson(is_list_ ? answer : answer[0]));
  }

 private:
  // Items as LogprobItem makes them, one for each token; lists of them for the others.
  struct Logprobs {
    Json tokens = Json::array(), tops = Json::array(), asked = Json::array();
  };
  struct Choice {
    std::string id, text;
    std::optional<int32_t> first_input;  // the first token of the prompt that is spoken of
    Logprobs input, output;
    int64_t prompt_tokens = 0, cached_tokens = 0;
    int64_t tokens = 0, reasoning_tokens = 0;  // generated so far
    bool reasoning = false;                    // not over yet
    std::vector<int32_t> output_ids;  // these, texts and output: not sent yet, when incremental
    ChoiceEnd end;
  };

  Json Text(int32_t token) const {
    return text_in_logprobs_ ? Json(std::string(tokenizer_->TokenBytes(token))) : Json();
  }
  // [logprob, id, text or null]
  Json LogprobItem(const TokenLogprob& item) const {
    return Json::array(
        {std::isfinite(item.logprob) ? item.logprob : -9999.0, item.token, Text(item.token)});
  }
  Json LogprobItems(const std::vector<TokenLogprob>& items) const {
    Json list = Json::array();
    for (const TokenLogprob& item : items) list.push_back(LogprobItem(item));
    return list;
  }
  void Add(const TokenLogprob& token, const std::vector<TokenLogprob>& tops,
           const std::vector<TokenLogprob>& asked, Logprobs* logprobs) const {
    logprobs->tokens.push_back(LogprobItem(token));
    if (top_logprobs_) logprobs->tops.push_back(LogprobItems(tops));
    if (token_ids_logprobs_) logprobs->asked.push_back(LogprobItems(asked));
  }
  void AddToken(int32_t id, const TokenEvent& token, Choice* choice) const {
    choice->output_ids.push_back(id);
    ++choice->tokens;
    if (choice->reasoning) ++choice->reasoning_tokens;  // </think> counts, as SGLang counts it
    if (id == think_end_) choice->reasoning = false;
    if (!logprobs_ || !token.logprob) return;
    Add(*token.logprob, token.top_logprobs, token.asked_logprobs, &choice->output);
  }

  void SendEvent(size_t index, const ChoiceEnd* end) {
    sse_.Event(DumpJson(Body(index, end)));
    if (!incremental_) return;
    Choice& choice = choices_[index];
    choice.text.clear();
    choice.output_ids.clear();
    choice.output = {};
  }

  // Everything so far, or what is new of it when incremental; counts are of all. `end`: null while
  // it goes on.
  Json Body(size_t index, const ChoiceEnd* end) const {
    const Choice& choice = choices_[index];
    Json meta = {{"id", choice.id},
                 {"finish_reason", end == nullptr ? Json() : FinishReason(*end, choice.tokens)},
                 {"prompt_tokens", choice.prompt_tokens},
                 {"weight_version", "default"},
                 {"completion_tokens", end == nullptr ? choice.tokens : end->completion_tokens},
                 {"cached_tokens", end == nullptr ? choice.cached_tokens : end->cached_tokens},
                 {"reasoning_tokens", choice.reasoning_tokens}};
    if (end != nullptr) {
      meta["num_retractions"] = end->retractions;
      meta["e2e_latency"] = end->latency_s;
    }
    if (logprobs_) {
      meta["input_token_logprobs"] = choice.input.tokens;
      meta["output_token_logprobs"] = choice.output.tokens;
      meta["output_token_logprobs_length"] = choice.output.tokens.size();
      if (top_logprobs_) {
        meta["input_top_logprobs"] = choice.input.tops;
        meta["output_top_logprobs"] = choice.output.tops;
      }
      if (token_ids_logprobs_) {
        meta["input_token_ids_logprobs"] = choice.input.asked;
        meta["output_token_ids_logprobs"] = choice.output.asked;
      }
    }
    Json body;
    body["text"] = choice.text;
    body["output_ids"] = choice.output_ids;
    body["meta_info"] = std::move(meta);
    if (is_list_ && stream_) body["index"] = index;
    return body;
  }

  static Json FinishReason(const ChoiceEnd& end, int64_t tokens) {
    switch (end.reason) {
      case ChoiceEnd::Reason::kStop: {
        Json reason = {{"type", "stop"}, {"matched", nullptr}};
        if (end.matched_string) reason["matched"] = *end.matched_string;
        if (end.matched_token) reason["matched"] = *end.matched_token;
        return reason;
      }
      case ChoiceEnd::Reason::kLength:
        return {{"type", "length"}, {"length", tokens}};
      default:
        return {{"type", "abort"}, {"message", "Aborted"}};
    }
  }

  const std::shared_ptr<const Tokenizer> tokenizer_;
  const std::shared_ptr<ResponseWriter> writer_;
  SseStream sse_;
  const bool is_list_, stream_, logprobs_, top_logprobs_, token_ids_logprobs_, text_in_logprobs_,
      incremental_;
  std::optional<TokenId> think_end_;  // where reasoning ends, if it is to be counted
  std::vector<Choice> choices_;
  size_t ended_ = 0;
};

}  // namespace

void HandleGenerate(const EndpointContext& context, const HttpRequest& request,
                    std::shared_ptr<ResponseWriter> writer) {
  TERN_TRACE("server.native");
  Result<Json> body = ParseJson(request.body);
  if (!body.ok()) return SendError(*writer, body.status());
  Result<GenerateBody> generate = ParseGenerateBody(*body, context.model);
  if (!generate.ok()) return SendError(*writer, generate.status());
  if (const Status status = AddRendezvous(*body, context.model, &generate->choices); !status.ok()) {
    return SendError(*writer, status, generate->stream);
  }
  if (const Status status = AddSession(*body, request.headers, &generate->choices); !status.ok()) {
    return SendError(*writer, status, generate->stream);
  }
  auto responder = std::make_shared<GenerateResponder>(context, *generate, writer);
  StartGeneration(context, std::move(generate->choices), std::move(responder), writer,
                  generate->stream);
}

}  // namespace tern
