#include "server/native.h"

#include <fmt/format.h>

#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>

#include "base/trace.h"
#include "server/disaggregation.h"
#include "server/errors.h"
#include "server/generate_request.h"
#include "server/openai_response.h"
#include "server/session.h"
#include "server/sse.h"

namespace tern {
namespace {

// The inside of a JSON list, as text that grows: an item is serialised once, however many events of
// a cumulative stream it is in.
class ListText {
 public:
  void Add(std::string_view item) {
    if (size_++ > 0) items_ += ',';
    items_ += item;
  }
  size_t size() const { return size_; }
  std::string_view items() const { return items_; }

 private:
  std::string items_;
  size_t size_ = 0;
};

constexpr size_t kMostWaitingBytes = 256 << 10;

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
      if (body.prompt_token_ids) {
        choices_[i].prompt_ids =
            fmt::format(R"(,"prompt_token_ids":[{}])", fmt::join(request.tokens, ","));
      }
      const auto from = static_cast<size_t>(request.prompt_logprobs_from.value_or(INT32_MAX));
      if (from < request.tokens.size()) choices_[i].first_input = request.tokens[from];
    }
  }

  void OnPromptLogprobs(size_t index, const std::vector<PromptLogprob>& prompt) override {
    Choice& choice = choices_[index];
    if (!choice.first_input) return;
    // Nothing is said of the first one, wherever it is.
    choice.input.tokens.Add(
        fmt::format("[null,{},{}]", *choice.first_input, TokenText(*choice.first_input)));
    choice.input.tops.Add("null");
    choice.input.asked.Add("null");
    for (const PromptLogprob& item : prompt) Add(item.token, item.top, item.asked, &choice.input);
  }

  void OnToken(size_t index, const TokenEvent& token, std::string_view text) override {
    Choice& choice = choices_[index];
    AddText(text, &choice);
    choice.cached_tokens = token.cached_tokens;
    AddToken(token.token, token, &choice);
    // The next event has all of this one: a client that reads more slowly than long events are made
    // gets fewer of them.
    if (stream_ && sse_.waiting_bytes() <= kMostWaitingBytes) SendEvent(index, nullptr);
  }

  void OnEnd(size_t index, std::string_view text, const ChoiceEnd& end) override {
    Choice& choice = choices_[index];
    AddText(text, &choice);
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
    std::string answer = is_list_ ? "[" : "";
    for (size_t i = 0; i < choices_.size(); ++i) {
      if (i > 0) answer += ',';
      AppendBody(i, &choices_[i].end, &answer);
    }
    if (is_list_) answer += ']';
    writer_->Send(200, {{"Content-Type", "application/json"}}, std::move(answer));
  }

 private:
  // Items as LogprobItem makes them, one for each token; lists of them for the others.
  struct Logprobs {
    ListText tokens, tops, asked;
  };
  struct Choice {
    std::string id;
    std::string text;                    // as the inside of a JSON string
    std::string prompt_ids;              // the field with a comma before it, or nothing
    std::optional<int32_t> first_input;  // the first token of the prompt that is spoken of
    Logprobs input, output;
    int64_t prompt_tokens = 0, cached_tokens = 0;
    int64_t tokens = 0, reasoning_tokens = 0;  // generated so far
    bool reasoning = false;                    // not over yet
    ListText output_ids;  // these, text and output: not sent yet, when incremental
    ChoiceEnd end;
  };

  static void AddText(std::string_view text, Choice* choice) {
    if (text.empty()) return;
    const std::string quoted = JsonQuote(text);
    choice->text.append(quoted, 1, quoted.size() - 2);
  }
  // A JSON string or null.
  std::string TokenText(int32_t token) const {
    return text_in_logprobs_ ? JsonQuote(tokenizer_->TokenBytes(token)) : "null";
  }
  // [logprob, id, text or null]
  std::string LogprobItem(const TokenLogprob& item) const {
    return fmt::format("[{},{},{}]", FiniteLogprob(item.logprob), item.token,
                       TokenText(item.token));
  }
  std::string LogprobItems(const std::vector<TokenLogprob>& items) const {
    ListText list;
    for (const TokenLogprob& item : items) list.Add(LogprobItem(item));
    return fmt::format("[{}]", list.items());
  }
  void Add(const TokenLogprob& token, const std::vector<TokenLogprob>& tops,
           const std::vector<TokenLogprob>& asked, Logprobs* logprobs) const {
    logprobs->tokens.Add(LogprobItem(token));
    if (top_logprobs_) logprobs->tops.Add(LogprobItems(tops));
    if (token_ids_logprobs_) logprobs->asked.Add(LogprobItems(asked));
  }
  void AddToken(int32_t id, const TokenEvent& token, Choice* choice) const {
    choice->output_ids.Add(std::to_string(id));
    ++choice->tokens;
    if (choice->reasoning) ++choice->reasoning_tokens;  // </think> counts, as SGLang counts it
    if (id == think_end_) choice->reasoning = false;
    if (!logprobs_ || !token.logprob) return;
    Add(*token.logprob, token.top_logprobs, token.asked_logprobs, &choice->output);
  }

  void SendEvent(size_t index, const ChoiceEnd* end) {
    std::string body;
    AppendBody(index, end, &body);
    sse_.Event(body);
    if (!incremental_) return;
    Choice& choice = choices_[index];
    choice.text.clear();
    choice.output_ids = {};
    choice.output = {};
  }

  // Everything so far, or what is new of it when incremental; counts are of all. `end`: null while
  // it goes on.
  void AppendBody(size_t index, const ChoiceEnd* end, std::string* body) const {
    const Choice& choice = choices_[index];
    const auto out = std::back_inserter(*body);
    const auto list = [body](std::string_view key, const ListText& items) {
      // Appended, not formatted: these are nearly all of a long stream's bytes.
      body->append(",\"").append(key).append("\":[").append(items.items()) += ']';
    };
    body->append(R"({"text":")").append(choice.text) += '"';
    list("output_ids", choice.output_ids);
    fmt::format_to(
        out,
        R"(,"meta_info":{{"id":{},"finish_reason":{},"prompt_tokens":{},)"
        R"("weight_version":"default","completion_tokens":{},"cached_tokens":{},)"
        R"("reasoning_tokens":{})",
        JsonQuote(choice.id), end == nullptr ? "null" : DumpJson(FinishReason(*end, choice.tokens)),
        choice.prompt_tokens, end == nullptr ? choice.tokens : end->completion_tokens,
        end == nullptr ? choice.cached_tokens : end->cached_tokens, choice.reasoning_tokens);
    if (end != nullptr) {
      fmt::format_to(out, R"(,"num_retractions":{},"e2e_latency":{})", end->retractions,
                     end->latency_s);
    }
    if (logprobs_) {
      list("input_token_logprobs", choice.input.tokens);
      list("output_token_logprobs", choice.output.tokens);
      fmt::format_to(out, R"(,"output_token_logprobs_length":{})", choice.output.tokens.size());
      if (top_logprobs_) {
        list("input_top_logprobs", choice.input.tops);
        list("output_top_logprobs", choice.output.tops);
      }
      if (token_ids_logprobs_) {
        list("input_token_ids_logprobs", choice.input.asked);
        list("output_token_ids_logprobs", choice.output.asked);
      }
    }
    *body += '}';
    *body += choice.prompt_ids;
    if (is_list_ && stream_) fmt::format_to(out, R"(,"index":{})", index);
    *body += '}';
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
        return {{"type", "abort"},
                {"message", "Aborted"},
                {"status_code", nullptr},
                {"err_type", nullptr}};
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
