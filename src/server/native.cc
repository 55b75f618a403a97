#include "server/native.h"

#include <fmt/format.h>

#include <cmath>

#include "base/trace.h"
#include "server/errors.h"
#include "server/generate_request.h"
#include "server/openai_response.h"
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
        text_in_logprobs_(body.text_in_logprobs),
        incremental_(body.stream && context.incremental_streaming),
        choices_(body.choices.size()) {
    for (size_t i = 0; i < choices_.size(); ++i) {
      choices_[i].id = body.choices[i].request.rid;
      choices_[i].prompt_tokens = static_cast<int64_t>(body.choices[i].request.tokens.size());
    }
  }

  void OnToken(size_t index, const TokenEvent& token, std::string_view text) override {
    Choice& choice = choices_[index];
    choice.text += text;
    choice.output_ids.push_back(token.token);
    ++choice.tokens;
    if (logprobs_ && token.logprob) {
      choice.logprobs.push_back(LogprobItem(*token.logprob));
      Json tops = Json::array();
      for (const TokenLogprob& top : token.top_logprobs) tops.push_back(LogprobItem(top));
      choice.top_logprobs.push_back(std::move(tops));
    }
    if (stream_) SendEvent(index, nullptr);
  }

  void OnEnd(size_t index, std::string_view text, const ChoiceEnd& end) override {
    Choice& choice = choices_[index];
    choice.text += text;
    if (end.reason == ChoiceEnd::Reason::kError) {
      if (stream_) return sse_.Fail(end.status);
      return SendError(*writer_, end.status);
    }
    if (end.matched_token) choice.output_ids.push_back(*end.matched_token);
    if (end.matched_token) ++choice.tokens;
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
  struct Choice {
    std::string id, text;
    int64_t prompt_tokens = 0;
    int64_t tokens = 0;               // generated so far
    std::vector<int32_t> output_ids;  // these, texts and logprobs: not sent yet, when incremental
    Json logprobs = Json::array(), top_logprobs = Json::array();
    ChoiceEnd end;
  };

  // [logprob, id, text or null]
  Json LogprobItem(const TokenLogprob& item) const {
    Json json = Json::array({std::isfinite(item.logprob) ? item.logprob : -9999.0, item.token});
    json.push_back(text_in_logprobs_ ? Json(std::string(tokenizer_->TokenBytes(item.token)))
                                     : Json());
    return json;
  }

  void SendEvent(size_t index, const ChoiceEnd* end) {
    sse_.Event(DumpJson(Body(index, end)));
    if (!incremental_) return;
    Choice& choice = choices_[index];
    choice.text.clear();
    choice.output_ids.clear();
    choice.logprobs = Json::array();
    choice.top_logprobs = Json::array();
  }

  // Everything so far, or what is new of it when incremental; counts are of all. `end`: null while
  // it goes on.
  Json Body(size_t index, const ChoiceEnd* end) const {
    const Choice& choice = choices_[index];
    Json meta = {{"id", choice.id}, {"finish_reason", nullptr}};
    meta["prompt_tokens"] = choice.prompt_tokens;
    meta["weight_version"] = "default";
    if (end == nullptr) {
      meta["completion_tokens"] = choice.tokens;
      meta["cached_tokens"] = 0;
    } else {
      meta["finish_reason"] = FinishReason(*end, choice.tokens);
      meta["completion_tokens"] = end->completion_tokens;
      meta["cached_tokens"] = end->cached_tokens;
      meta["num_retractions"] = end->retractions;
      meta["e2e_latency"] = end->latency_s;
    }
    if (logprobs_) {
      meta["input_token_logprobs"] = Json::array();
      meta["output_token_logprobs"] = choice.logprobs;
      meta["output_token_logprobs_length"] = choice.logprobs.size();
      if (top_logprobs_) {
        meta["input_top_logprobs"] = Json::array();
        meta["output_top_logprobs"] = choice.top_logprobs;
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
  const bool is_list_, stream_, logprobs_, top_logprobs_, text_in_logprobs_, incremental_;
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
  auto responder = std::make_shared<GenerateResponder>(context, *generate, writer);
  StartGeneration(context, std::move(generate->choices), std::move(responder), writer,
                  generate->stream);
}

}  // namespace tern
