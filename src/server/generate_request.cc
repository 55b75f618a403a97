#include "server/generate_request.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/choices.h"
#include "server/endpoint_context.h"
#include "server/sampling_json.h"

namespace tern {
namespace {

constexpr int64_t kDefaultNewTokens = 128;
constexpr int64_t kMaxTopLogprobs = 20;
constexpr std::string_view kBody = "body";
constexpr std::string_view kSampling = "body.sampling_params";

// The prompts as the body has them; they point into it.
struct Prompts {
  std::vector<const Json*> items;  // strings, or what should be lists of token ids
  bool are_texts = false;
  bool is_list = false;
};

Result<Prompts> FindPrompts(const Json& body) {
  const Json* text = JsonMember(body, "text");
  const Json* ids = JsonMember(body, "input_ids");
  if ((text == nullptr) == (ids == nullptr)) {
    return InvalidArgument("body needs one of text and input_ids");
  }
  Prompts prompts;
  prompts.are_texts = text != nullptr;
  const Json& given = text != nullptr ? *text : *ids;
  prompts.is_list = text != nullptr ? given.is_array()
                                    : given.is_array() && !given.empty() && given[0].is_array();
  if (!prompts.is_list) {
    prompts.items.push_back(&given);
  } else if (given.empty()) {
    return InvalidArgument("body has an empty list of prompts");
  } else if (given.size() > kMaxPrompts) {
    return InvalidArgument(
        fmt::format("body has {} prompts; {} are allowed", given.size(), kMaxPrompts));
  } else {
    for (const Json& item : given) prompts.items.push_back(&item);
  }
  if (!prompts.are_texts) return prompts;
  for (const Json* item : prompts.items) {
    if (!item->is_string()) {
      return InvalidArgument("body.text must be a string or a list of strings");
    }
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

// What one prompt's element of `sampling_params` says.
struct PromptParams {
  TextParams text;
  int64_t n = 1;
  bool default_max_tokens = false;  // nothing was asked for
};

Result<PromptParams> ParsePromptParams(const Json* sampling, const SamplingDefaults& defaults) {
  const Json empty = Json::object();
  if (sampling == nullptr || sampling->is_null()) sampling = &empty;
  if (!sampling->is_object()) return InvalidArgument("body.sampling_params must be an object");
  PromptParams p;
  TERN_ASSIGN_OR_RETURN(p.text, ParseTextParams(*sampling, defaults, kSampling));
  TERN_ASSIGN_OR_RETURN(p.text.max_tokens,
                        JsonInt(*sampling, "max_new_tokens", kDefaultNewTokens, kSampling));
  if (*p.text.max_tokens < 0) {
    return InvalidArgument("body.sampling_params.max_new_tokens must be 0 or more");
  }
  p.default_max_tokens = JsonMember(*sampling, "max_new_tokens") == nullptr;
  TERN_ASSIGN_OR_RETURN(p.n, JsonInt(*sampling, "n", 1, kSampling));
  if (p.n < 1 || p.n > kMaxChoicesPerPrompt) {
    return InvalidArgument(
        fmt::format("body.sampling_params.n must be from 1 to {}", kMaxChoicesPerPrompt));
  }
  return p;
}

// The parameters of every prompt. What they ask for in all is bounded here.
Result<std::vector<PromptParams>> ParseParams(const Json& body, size_t prompts,
                                              const ServedModel& model) {
  TERN_RETURN_IF_ERROR(CheckChoiceCount(static_cast<int64_t>(prompts), model));
  std::vector<PromptParams> all;
  int64_t choices = 0;
  for (size_t i = 0; i < prompts; ++i) {
    TERN_ASSIGN_OR_RETURN(const Json* sampling, PerPrompt(JsonMember(body, "sampling_params"), i,
                                                          prompts, "sampling_params"));
    TERN_ASSIGN_OR_RETURN(PromptParams params, ParsePromptParams(sampling, model.sampling));
    choices += params.n;
    all.push_back(std::move(params));
  }
  TERN_RETURN_IF_ERROR(CheckChoiceCount(choices, model));
  return all;
}

}  // namespace

Result<GenerateBody> ParseGenerateBody(const Json& body, const ServedModel& model) {
  if (!body.is_object()) return InvalidArgument("the body must be a JSON object");
  // What SGLang does and tern does not.
  TERN_RETURN_IF_ERROR(
      RefuseKeys(body,
                 {"image_data", "video_data", "audio_data", "input_embeds", "lora_path",
                  "session_params", "custom_logit_processor", "return_hidden_states",
                  "return_routed_experts", "max_thinking_tokens"},
                 kBody));
  GenerateBody g;
  TERN_ASSIGN_OR_RETURN(g.stream, JsonBool(body, "stream", false, kBody));
  TERN_ASSIGN_OR_RETURN(g.logprobs, JsonBool(body, "return_logprob", false, kBody));
  TERN_ASSIGN_OR_RETURN(g.text_in_logprobs,
                        JsonBool(body, "return_text_in_logprobs", false, kBody));
  TERN_ASSIGN_OR_RETURN(g.top_logprobs, JsonInt(body, "top_logprobs_num", 0, kBody));
  if (g.top_logprobs < 0 || g.top_logprobs > kMaxTopLogprobs) {
    return InvalidArgument(
        fmt::format("body.top_logprobs_num must be from 0 to {}", kMaxTopLogprobs));
  }
  TERN_ASSIGN_OR_RETURN(const int64_t logprob_start, JsonInt(body, "logprob_start_len", -1, kBody));
  if (logprob_start < -1) {
    return InvalidArgument("body.logprob_start_len must be -1 (no prompt token) or a position");
  }
  TERN_ASSIGN_OR_RETURN(g.prompt_token_ids,
                        JsonBool(body, "return_prompt_token_ids", false, kBody));
  TERN_ASSIGN_OR_RETURN(g.require_reasoning, JsonBool(body, "require_reasoning", false, kBody));
  GenerateRequest common;
  common.return_logprobs = g.logprobs;
  if (g.logprobs) {
    common.top_logprobs = g.top_logprobs;
    if (logprob_start >= 0) common.prompt_logprobs_from = logprob_start;
    if (const Json* ids = JsonMember(body, "token_ids_logprob")) {
      TERN_ASSIGN_OR_RETURN(common.logprob_token_ids,
                            ParseTokenIds(*ids, "body.token_ids_logprob"));
    }
  }
  g.token_ids_logprobs = !common.logprob_token_ids.empty();
  TERN_ASSIGN_OR_RETURN(common.extra_key, JsonString(body, "extra_key", "", kBody));
  TERN_ASSIGN_OR_RETURN(common.cache_salt, JsonString(body, "cache_salt", "", kBody));
  TERN_ASSIGN_OR_RETURN(const Prompts prompts, FindPrompts(body));
  const size_t count = prompts.items.size();
  TERN_ASSIGN_OR_RETURN(std::vector<PromptParams> params, ParseParams(body, count, model));

  g.is_list = prompts.is_list;
  for (size_t i = 0; i < count; ++i) {
    TERN_ASSIGN_OR_RETURN(const Json* rid, PerPrompt(JsonMember(body, "rid"), i, count, "rid"));
    if (rid != nullptr && !rid->is_null() && !rid->is_string()) {
      return InvalidArgument("body.rid must be a string or a list of strings");
    }
    common.rid = rid != nullptr && rid->is_string() ? rid->get<std::string>() : "";
    Result<std::vector<int32_t>> tokens =
        prompts.are_texts ? TokenizePrompt(prompts.items[i]->get_ref<const std::string&>(),
                                           /*framed=*/true, model)
                          : ParseTokenIds(*prompts.items[i], "body.input_ids");
    if (!tokens.ok()) return tokens.status();
    if (common.prompt_logprobs_from.value_or(0) > static_cast<int64_t>(tokens->size())) {
      return InvalidArgument(
          fmt::format("body.logprob_start_len {} is more than the {} tokens of "
                      "the prompt",
                      *common.prompt_logprobs_from, tokens->size()));
    }
    TextParams& text = params[i].text;
    if (params[i].default_max_tokens) {
      // The default shrinks to what the context has room for.
      const int64_t room = model.context_length - static_cast<int64_t>(tokens->size());
      text.max_tokens = std::min(*text.max_tokens, std::max<int64_t>(room, 1));
    }
    g.is_list |= params[i].n > 1;
    TERN_RETURN_IF_ERROR(AppendChoices(std::move(tokens).value(), params[i].n, std::move(text),
                                       common, model.context_length, &g.choices));
  }
  TERN_RETURN_IF_ERROR(CheckPromptLogprobs(g.choices));
  for (ChoiceSpec& choice : g.choices) {
    if (choice.request.rid.empty()) choice.request.rid = NewRequestId("");
  }
  return g;
}

}  // namespace tern
