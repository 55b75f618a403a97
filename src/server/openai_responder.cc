#include "server/openai_responder.h"

#include <fmt/format.h>

#include "server/choices.h"
#include "server/errors.h"

namespace tern {

OpenAiResponder::OpenAiResponder(const EndpointContext& context, const CompletionParams& params,
                                 std::string_view id_prefix, const std::vector<ChoiceSpec>& choices,
                                 std::shared_ptr<ResponseWriter> writer)
    : tokenizer_(context.model.tokenizer),
      writer_(writer),
      sse_(std::move(writer)),
      stream_(params.stream),
      include_usage_(params.include_usage),
      continuous_usage_(params.continuous_usage),
      logprobs_(params.logprobs),
      token_ids_(params.token_ids),
      cache_report_(context.cache_report),
      id_(params.rid.empty() ? NewRequestId(id_prefix) : params.rid),
      model_(params.model.empty() ? context.model.name : params.model),
      created_(context.clock.UnixSeconds()),
      choices_per_prompt_(static_cast<size_t>(params.n)),
      choices_(choices.size()) {
  for (size_t i = 0; i < choices.size(); ++i) {
    choices_[i].prompt_tokens = static_cast<int64_t>(choices[i].request.tokens.size());
    if (params.prompt_token_ids) choices_[i].prompt_ids = choices[i].request.tokens;
  }
}

void OpenAiResponder::OnPromptLogprobs(size_t index, const std::vector<PromptLogprob>& logprobs) {
  AddPromptLogprobs(index, logprobs);
  ++choices_[index].untold_logprobs;
}

void OpenAiResponder::TellLogprob(size_t index, const TokenEvent& token) {
  if (!logprobs_ || !token.logprob) return;
  AddLogprob(index, token);
  ++choices_[index].untold_logprobs;
}

void OpenAiResponder::OnToken(size_t index, const TokenEvent& token, std::string_view text) {
  Choice& choice = choices_[index];
  ++choice.tokens;
  choice.cached_tokens = token.cached_tokens;
  TellLogprob(index, token);
  if (token_ids_) choice.token_ids.push_back(token.token);
  TakeText(index, text, /*last=*/false);
}

void OpenAiResponder::OnEnd(size_t index, std::string_view text, const ChoiceEnd& end) {
  Choice& choice = choices_[index];
  choice.end = end;
  ++ended_;
  if (end.reason == ChoiceEnd::Reason::kError) {
    if (stream_) return sse_.Fail(end.status);
    return SendError(*writer_, end.status);
  }
  if (token_ids_ && end.matched_token) choice.token_ids.push_back(*end.matched_token);
  TakeText(index, text, /*last=*/true);
  if (!stream_) {
    if (ended_ == choices_.size()) SendWhole();
    return;
  }
  SendChunk(index, EndFields(), LogprobsOrNull(index),
            fmt::format("\"{}\"", FinishReason(index, end)), MatchedStopJson(end));
  if (ended_ < choices_.size()) return;
  if (include_usage_) {
    sse_.Event(fmt::format(R"({},"choices":[],"usage":{}}})",
                           ResponseHead(id_, ObjectName(true), created_, model_),
                           UsageJson(TotalUsage(), cache_report_)));
  }
  sse_.Done();
}

std::string_view OpenAiResponder::FinishReason(size_t, const ChoiceEnd& end) const {
  return FinishReasonName(end.reason);
}

std::string OpenAiResponder::LogprobsOrNull(size_t index) {
  if (!logprobs_ || choices_[index].untold_logprobs == 0) return "null";
  choices_[index].untold_logprobs = 0;
  return TakeLogprobs(index);
}

std::string OpenAiResponder::TakeTokenIds(size_t index) {
  Choice& choice = choices_[index];
  std::string fields;
  if (!choice.prompt_ids.empty()) {
    fields = fmt::format(R"(,"prompt_token_ids":[{}])", fmt::join(choice.prompt_ids, ","));
    choice.prompt_ids.clear();
  }
  if (token_ids_) {
    fields += fmt::format(R"(,"{}":[{}])", TokenIdsName(), fmt::join(choice.token_ids, ","));
    choice.token_ids.clear();
  }
  return fields;
}

void OpenAiResponder::Open(size_t index) {
  if (choices_[index].opened) return;
  choices_[index].opened = true;
  const std::string fields = OpeningFields();
  if (!fields.empty()) SendChunk(index, fields, "null", "null", "null");
}

void OpenAiResponder::TakeText(size_t index, std::string_view text, bool last) {
  const std::vector<std::string> chunks = AddText(index, text, last);
  if (stream_) Open(index);
  // Log probabilities wait for a chunk, or for the end.
  for (const std::string& fields : chunks) {
    SendChunk(index, fields, LogprobsOrNull(index), "null", "null");
  }
}

void OpenAiResponder::SendChunk(size_t index, std::string_view fields, std::string_view logprobs,
                                std::string_view finish_reason, std::string_view matched_stop) {
  std::string usage;
  if (continuous_usage_) {
    const Choice& choice = choices_[index];
    usage = fmt::format(R"(,"usage":{})", UsageJson({choice.prompt_tokens, choice.tokens,
                                                     choice.cached_tokens, ReasoningTokens(index)},
                                                    cache_report_));
  } else if (include_usage_) {
    usage = R"(,"usage":null)";
  }
  sse_.Event(fmt::format(
      R"({},"choices":[{{"index":{},{},"logprobs":{},"finish_reason":{},"matched_stop":{}{}}}]{}}})",
      ResponseHead(id_, ObjectName(true), created_, model_), index, fields, logprobs, finish_reason,
      matched_stop, TakeTokenIds(index), usage));
}

void OpenAiResponder::SendWhole() {
  std::string list;
  for (size_t i = 0; i < choices_.size(); ++i) {
    fmt::format_to(std::back_inserter(list),
                   R"({}{{"index":{},{},"logprobs":{},"finish_reason":"{}","matched_stop":{}{}}})",
                   i == 0 ? "" : ",", i, WholeFields(i), LogprobsOrNull(i),
                   FinishReason(i, choices_[i].end), MatchedStopJson(choices_[i].end),
                   TakeTokenIds(i));
  }
  writer_->Send(
      200, {{"Content-Type", "application/json"}},
      fmt::format(R"({},"choices":[{}],"usage":{},"metadata":{{"weight_version":"default"}}}})",
                  ResponseHead(id_, ObjectName(false), created_, model_), list,
                  UsageJson(TotalUsage(), cache_report_)));
}

Usage OpenAiResponder::TotalUsage() const {
  Usage usage;
  for (size_t i = 0; i < choices_.size(); ++i) {
    const ChoiceEnd& end = choices_[i].end;
    usage.completion_tokens += end.completion_tokens;
    usage.reasoning_tokens += ReasoningTokens(i);
    if (i % choices_per_prompt_ != 0) continue;
    usage.prompt_tokens += end.prompt_tokens;
    usage.cached_tokens += end.cached_tokens;
  }
  return usage;
}

Result<std::vector<ChoiceSpec>> MakeChoices(const CompletionParams& params, int64_t context_length,
                                            std::vector<std::vector<int32_t>> prompts) {
  GenerateRequest common;
  common.rid = params.rid;
  common.return_logprobs = params.logprobs;
  common.top_logprobs = params.top_logprobs;
  if (params.prompt_logprobs) common.prompt_logprobs_from = 0;
  common.extra_key = params.extra_key;
  common.cache_salt = params.cache_salt;
  std::vector<ChoiceSpec> choices;
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (!params.rids.empty()) common.rid = params.rids[i];
    TERN_RETURN_IF_ERROR(AppendChoices(std::move(prompts[i]), params.n, params.text, common,
                                       context_length, &choices));
  }
  TERN_RETURN_IF_ERROR(CheckPromptLogprobs(choices));
  return choices;
}

}  // namespace tern
