#include "server/native.h"

#include <fmt/format.h>

#include <cmath>

#include "base/trace.h"
#include "server/errors.h"
#include "server/openai_response.h"
#include "server/sampling_json.h"
#include "server/sse.h"

namespace tern {
namespace {

constexpr int64_t kDefaultNewTokens = 128;
constexpr size_t kMaxPrompts = 1024;
constexpr int64_t kMaxChoices = 128;
constexpr std::string_view kBody = "body";

const Json* Member(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

struct GenerateBody {
  std::vector<ChoiceSpec> choices;
  std::vector<std::string> ids;  // meta_info.id, per choice
  bool is_list = false;          // the answer is a list, events carry an index
  bool stream = false;
  bool logprobs = false;
  int64_t top_logprobs = 0;
  bool text_in_logprobs = false;
};

// Prompts as token ids, from `text` or `input_ids`, one or a list.
Result<std::vector<std::vector<int32_t>>> ParsePrompts(const Json& body, const Tokenizer& tokenizer,
                                                       bool* is_list) {
  const Json* text = Member(body, "text");
  const Json* ids = Member(body, "input_ids");
  if ((text == nullptr) == (ids == nullptr)) {
    return InvalidArgument("body needs one of text and input_ids");
  }
  std::vector<std::vector<int32_t>> prompts;
  if (text != nullptr) {
    *is_list = text->is_array();
    const Json& texts = *is_list ? *text : Json::array({*text});
    for (const Json& item : texts) {
      if (!item.is_string())
        return InvalidArgument("body.text must be a string or a list of strings");
      TERN_TRACE("text.tokenize");
      prompts.push_back(tokenizer.Encode(item.get_ref<const std::string&>()));
    }
  } else {
    *is_list = ids->is_array() && !ids->empty() && (*ids)[0].is_array();
    const Json& lists = *is_list ? *ids : Json::array({*ids});
    for (const Json& item : lists) {
      TERN_ASSIGN_OR_RETURN(auto tokens, ParseTokenIds(item, "body.input_ids"));
      prompts.push_back(std::move(tokens));
    }
  }
  if (prompts.empty()) return InvalidArgument("body has an empty list of prompts");
  if (prompts.size() > kMaxPrompts) {
    return InvalidArgument(fmt::format("body has more than {} prompts", kMaxPrompts));
  }
  return prompts;
}

// The i-th element of a list, or the value itself for every i.
Result<const Json*> PerPrompt(const Json* value, size_t i, size_t prompts, const char* key) {
  if (value == nullptr || !value->is_array()) return value;
  if (value->size() == prompts) return &(*value)[i];
  return InvalidArgument(
      fmt::format("body.{} has {} elements for {} prompts", key, value->size(), prompts));
}

Result<GenerateBody> ParseGenerateBody(const Json& body, const ServedModel& model) {
  if (!body.is_object()) return InvalidArgument("the body must be a JSON object");
  GenerateBody g;
  TERN_ASSIGN_OR_RETURN(g.stream, JsonBool(body, "stream", false, kBody));
  TERN_ASSIGN_OR_RETURN(g.logprobs, JsonBool(body, "return_logprob", false, kBody));
  TERN_ASSIGN_OR_RETURN(g.text_in_logprobs,
                        JsonBool(body, "return_text_in_logprobs", false, kBody));
  TERN_ASSIGN_OR_RETURN(g.top_logprobs, JsonInt(body, "top_logprobs_num", 0, kBody));
  if (g.top_logprobs < 0 || g.top_logprobs > 20) {
    return InvalidArgument("body.top_logprobs_num must be from 0 to 20");
  }
  TERN_ASSIGN_OR_RETURN(const int64_t logprob_start, JsonInt(body, "logprob_start_len", -1, kBody));
  if (g.logprobs && logprob_start != -1) {
    return InvalidArgument(
        "body.logprob_start_len must be -1: logprobs of the prompt are not supported");
  }
  TERN_ASSIGN_OR_RETURN(auto prompts, ParsePrompts(body, *model.tokenizer, &g.is_list));
  TERN_ASSIGN_OR_RETURN(const std::string extra_key, JsonString(body, "extra_key", "", kBody));
  TERN_ASSIGN_OR_RETURN(const std::string cache_salt, JsonString(body, "cache_salt", "", kBody));

  const size_t count = prompts.size();
  for (size_t i = 0; i < count; ++i) {
    TERN_ASSIGN_OR_RETURN(const Json* sampling,
                          PerPrompt(Member(body, "sampling_params"), i, count, "sampling_params"));
    const Json empty = Json::object();
    if (sampling == nullptr || sampling->is_null()) sampling = &empty;
    if (!sampling->is_object()) return InvalidArgument("body.sampling_params must be an object");
    constexpr std::string_view kWhere = "body.sampling_params";
    TERN_ASSIGN_OR_RETURN(TextParams text, ParseTextParams(*sampling, model.sampling, kWhere));
    TERN_ASSIGN_OR_RETURN(text.max_tokens,
                          JsonInt(*sampling, "max_new_tokens", kDefaultNewTokens, kWhere));
    if (*text.max_tokens < 1) {
      return InvalidArgument("body.sampling_params.max_new_tokens must be at least 1");
    }
    const bool by_default = Member(*sampling, "max_new_tokens") == nullptr;
    if (by_default) {
      // The default shrinks to what the context has room for.
      const int64_t room = model.context_length - static_cast<int64_t>(prompts[i].size());
      text.max_tokens = std::min(*text.max_tokens, std::max<int64_t>(room, 1));
    }
    TERN_RETURN_IF_ERROR(
        ResolveMaxTokens(static_cast<int64_t>(prompts[i].size()), model.context_length, &text));
    TERN_ASSIGN_OR_RETURN(const int64_t n, JsonInt(*sampling, "n", 1, kWhere));
    if (n < 1 || n > kMaxChoices) {
      return InvalidArgument(
          fmt::format("body.sampling_params.n must be from 1 to {}", kMaxChoices));
    }
    if (n > 1) g.is_list = true;
    TERN_ASSIGN_OR_RETURN(const Json* rid, PerPrompt(Member(body, "rid"), i, count, "rid"));
    if (rid != nullptr && !rid->is_null() && !rid->is_string()) {
      return InvalidArgument("body.rid must be a string or a list of strings");
    }
    for (int64_t k = 0; k < n; ++k) {
      ChoiceSpec spec;
      spec.request.rid =
          rid != nullptr && rid->is_string() ? rid->get<std::string>() : NewRequestId("");
      spec.request.tokens = prompts[i];
      spec.request.sampling = text.sampling;
      if (text.sampling.seed)
        spec.request.sampling.seed = *text.sampling.seed + static_cast<uint64_t>(k);
      spec.request.return_logprobs = g.logprobs;
      spec.request.top_logprobs = g.top_logprobs;
      spec.request.extra_key = extra_key;
      spec.request.cache_salt = cache_salt;
      spec.stops = text.stops;
      spec.no_stop_trim = text.no_stop_trim;
      spec.skip_special_tokens = text.skip_special_tokens;
      g.ids.push_back(spec.request.rid);
      g.choices.push_back(std::move(spec));
    }
  }
  return g;
}

class GenerateResponder final : public GenerationListener {
 public:
  GenerateResponder(const EndpointContext& context, GenerateBody& body,
                    std::shared_ptr<ResponseWriter> writer)
      : tokenizer_(context.model.tokenizer),
        writer_(writer),
        sse_(std::move(writer)),
        is_list_(body.is_list),
        stream_(body.stream),
        logprobs_(body.logprobs),
        top_logprobs_(body.logprobs && body.top_logprobs > 0),
        text_in_logprobs_(body.text_in_logprobs),
        choices_(body.choices.size()) {
    for (size_t i = 0; i < choices_.size(); ++i) {
      choices_[i].id = body.ids[i];
      choices_[i].prompt_tokens = static_cast<int64_t>(body.choices[i].request.tokens.size());
    }
  }

  void OnToken(size_t index, const TokenEvent& token, std::string_view text) override {
    Choice& choice = choices_[index];
    choice.text += text;
    choice.output_ids.push_back(token.token);
    if (logprobs_ && token.logprob) {
      choice.logprobs.push_back(LogprobItem(*token.logprob));
      Json tops = Json::array();
      for (const TokenLogprob& top : token.top_logprobs) tops.push_back(LogprobItem(top));
      choice.top_logprobs.push_back(std::move(tops));
    }
    if (stream_) sse_.Event(DumpJson(Body(index, nullptr)));
  }

  void OnEnd(size_t index, std::string_view text, const ChoiceEnd& end) override {
    Choice& choice = choices_[index];
    choice.text += text;
    if (end.reason == ChoiceEnd::Reason::kError) {
      if (stream_) return sse_.Fail(end.status);
      return SendError(*writer_, end.status);
    }
    if (end.matched_token) choice.output_ids.push_back(*end.matched_token);
    choice.end = end;
    ++ended_;
    if (stream_) sse_.Event(DumpJson(Body(index, &end)));
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
    std::vector<int32_t> output_ids;
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

  // Everything so far: text and ids of a stream are cumulative. `end`: null while it goes on.
  Json Body(size_t index, const ChoiceEnd* end) const {
    const Choice& choice = choices_[index];
    Json meta = {{"id", choice.id}, {"finish_reason", nullptr}};
    meta["prompt_tokens"] = choice.prompt_tokens;
    meta["weight_version"] = "default";
    if (end == nullptr) {
      meta["completion_tokens"] = choice.output_ids.size();
      meta["cached_tokens"] = 0;
    } else {
      meta["finish_reason"] = FinishReason(*end, choice.output_ids.size());
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

  static Json FinishReason(const ChoiceEnd& end, size_t tokens) {
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
  const bool is_list_, stream_, logprobs_, top_logprobs_, text_in_logprobs_;
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
