#include "server/openai_request.h"

#include <fmt/format.h>

#include <optional>
#include <set>

#include "server/chat_messages.h"
#include "server/choices.h"

namespace tern {
namespace {

constexpr int64_t kMaxTopLogprobs = 20;
constexpr int64_t kDefaultCompletionTokens = 16;  // OpenAI's, for text completions
constexpr std::string_view kBody = "body";

Status ParseRids(const Json& body, CompletionParams* params) {
  const Json* rid = JsonMember(body, "rid");
  if (rid == nullptr || !rid->is_array()) {
    TERN_ASSIGN_OR_RETURN(params->rid, JsonString(body, "rid", "", kBody));
    return OkStatus();
  }
  for (const Json& item : *rid) {
    if (!item.is_string()) {
      return InvalidArgument("body.rid must be a string or a list of strings");
    }
    params->rids.push_back(item.get<std::string>());
  }
  if (!params->rids.empty()) params->rid = params->rids.front();
  return OkStatus();
}

// As many as prompts, where there is a list of them.
Status CheckRids(const CompletionParams& params, size_t prompts) {
  if (params.rids.empty() || params.rids.size() == prompts) return OkStatus();
  return InvalidArgument(
      fmt::format("body.rid has {} elements for {} prompts", params.rids.size(), prompts));
}

// `least_tokens`: that an answer may be limited to.
Result<CompletionParams> ParseParams(const Json& body, const SamplingDefaults& defaults,
                                     int64_t least_tokens) {
  CompletionParams p;
  // What SGLang does and tern does not.
  TERN_RETURN_IF_ERROR(
      RefuseKeys(body,
                 {"input_ids", "lora_path", "session_params", "return_hidden_states",
                  "return_routed_experts", "return_meta_info", "return_cached_tokens_details",
                  "return_spec_tokens_details", "max_thinking_tokens"},
                 kBody));
  TERN_ASSIGN_OR_RETURN(p.text, ParseTextParams(body, defaults, kBody));
  for (const char* key : {"max_tokens", "max_completion_tokens"}) {
    if (JsonMember(body, key) == nullptr) continue;
    TERN_ASSIGN_OR_RETURN(p.text.max_tokens, JsonInt(body, key, 0, kBody));
    if (*p.text.max_tokens < least_tokens) {
      return InvalidArgument(fmt::format("body.{} must be at least {}", key, least_tokens));
    }
  }
  TERN_ASSIGN_OR_RETURN(p.n, JsonInt(body, "n", 1, kBody));
  if (p.n < 1 || p.n > kMaxChoicesPerPrompt) {
    return InvalidArgument(fmt::format("body.n must be from 1 to {}", kMaxChoicesPerPrompt));
  }
  TERN_ASSIGN_OR_RETURN(const int64_t best_of, JsonInt(body, "best_of", p.n, kBody));
  if (best_of != p.n) return InvalidArgument("body.best_of is not supported");
  TERN_ASSIGN_OR_RETURN(p.stream, JsonBool(body, "stream", false, kBody));
  if (const Json* options = JsonMember(body, "stream_options")) {
    if (!options->is_object()) return InvalidArgument("body.stream_options must be an object");
    constexpr std::string_view kOptions = "body.stream_options";
    TERN_ASSIGN_OR_RETURN(p.include_usage, JsonBool(*options, "include_usage", false, kOptions));
    TERN_ASSIGN_OR_RETURN(p.continuous_usage,
                          JsonBool(*options, "continuous_usage_stats", false, kOptions));
  }
  TERN_ASSIGN_OR_RETURN(p.token_ids, JsonBool(body, "return_token_ids", false, kBody));
  p.prompt_token_ids = p.token_ids;
  TERN_RETURN_IF_ERROR(ParseRids(body, &p));
  TERN_ASSIGN_OR_RETURN(p.extra_key, JsonString(body, "extra_key", "", kBody));
  TERN_ASSIGN_OR_RETURN(p.cache_salt, JsonString(body, "cache_salt", "", kBody));
  TERN_ASSIGN_OR_RETURN(p.model, JsonString(body, "model", "", kBody));
  return p;
}

Status CheckTopLogprobs(int64_t count, const char* key) {
  if (count >= 0 && count <= kMaxTopLogprobs) return OkStatus();
  return InvalidArgument(fmt::format("body.{} must be from 0 to {}", key, kMaxTopLogprobs));
}

// reasoning_effort, or reasoning.effort and .enabled, as the values that templates know.
Status ParseReasoningEffort(const Json& body, Json* template_kwargs) {
  const Json* effort = JsonMember(body, "reasoning_effort");
  std::string where = "body.reasoning_effort";
  std::optional<bool> enabled;
  if (const Json* reasoning = JsonMember(body, "reasoning")) {
    if (!reasoning->is_object()) return InvalidArgument("body.reasoning must be an object");
    if (JsonMember(*reasoning, "enabled") != nullptr) {
      TERN_ASSIGN_OR_RETURN(enabled, JsonBool(*reasoning, "enabled", true, "body.reasoning"));
    }
    if (effort == nullptr) {
      effort = JsonMember(*reasoning, "effort");
      where = "body.reasoning.effort";
    }
  }
  if (effort != nullptr) {
    static const std::set<std::string> kNames = {"none", "minimal", "low",   "medium",
                                                 "high", "xhigh",   "ultra", "max"};
    const bool known =
        effort->is_number() || (effort->is_string() && kNames.contains(effort->get<std::string>()));
    if (!known) {
      return InvalidArgument(
          where + " must be none, minimal, low, medium, high, xhigh, ultra, max or a number");
    }
    if (!enabled) enabled = *effort != "none";
  }
  // What chat_template_kwargs says itself goes before.
  const auto set_default = [template_kwargs](const char* key, const Json& value) {
    if (!template_kwargs->contains(key)) (*template_kwargs)[key] = value;
  };
  if (effort != nullptr) set_default("reasoning_effort", *effort);
  if (enabled) {
    set_default("thinking", *enabled);         // DeepSeek's and Kimi's name
    set_default("enable_thinking", *enabled);  // Qwen's and GLM's
  }
  return OkStatus();
}

Result<CompletionRequest::Prompt> ParsePrompt(const Json& prompt) {
  CompletionRequest::Prompt parsed;
  if (prompt.is_string()) {
    parsed.is_text = true;
    parsed.text = prompt.get<std::string>();
  } else {
    TERN_ASSIGN_OR_RETURN(parsed.ids, ParseTokenIds(prompt, "body.prompt"));
  }
  return parsed;
}

}  // namespace

Result<ChatRequest> ParseChatRequest(const Json& body, const SamplingDefaults& defaults) {
  if (!body.is_object()) return InvalidArgument("the body must be a JSON object");
  ChatRequest request;
  TERN_ASSIGN_OR_RETURN(request.params, ParseParams(body, defaults, /*least_tokens=*/1));
  CompletionParams& p = request.params;
  TERN_RETURN_IF_ERROR(CheckRids(p, 1));
  TERN_ASSIGN_OR_RETURN(p.logprobs, JsonBool(body, "logprobs", false, kBody));
  TERN_ASSIGN_OR_RETURN(p.top_logprobs, JsonInt(body, "top_logprobs", 0, kBody));
  TERN_RETURN_IF_ERROR(CheckTopLogprobs(p.top_logprobs, "top_logprobs"));
  if (p.top_logprobs > 0 && !p.logprobs) {
    return InvalidArgument("body.top_logprobs needs body.logprobs to be true");
  }
  TERN_ASSIGN_OR_RETURN(const bool prompt_ids,
                        JsonBool(body, "return_prompt_token_ids", false, kBody));
  p.prompt_token_ids |= prompt_ids;
  if (p.stream && p.prompt_token_ids) {
    return InvalidArgument(
        fmt::format("body.{} is not supported with streaming",
                    p.token_ids ? "return_token_ids" : "return_prompt_token_ids"));
  }
  TERN_ASSIGN_OR_RETURN(const bool continue_final,
                        JsonBool(body, "continue_final_message", false, kBody));
  if (continue_final) return InvalidArgument("body.continue_final_message is not supported");
  TERN_ASSIGN_OR_RETURN(request.messages, ParseMessages(body));
  TERN_ASSIGN_OR_RETURN(request.tools, ParseTools(body));
  request.template_kwargs = Json::object();
  if (const Json* kwargs = JsonMember(body, "chat_template_kwargs")) {
    if (!kwargs->is_object()) return InvalidArgument("body.chat_template_kwargs must be an object");
    if (kwargs->contains("chat_template")) {
      return InvalidArgument("body.chat_template_kwargs must not bring its own chat_template");
    }
    request.template_kwargs = *kwargs;
  }
  TERN_RETURN_IF_ERROR(ParseReasoningEffort(body, &request.template_kwargs));
  TERN_ASSIGN_OR_RETURN(request.separate_reasoning,
                        JsonBool(body, "separate_reasoning", true, kBody));
  TERN_ASSIGN_OR_RETURN(request.stream_reasoning, JsonBool(body, "stream_reasoning", true, kBody));
  return request;
}

Result<CompletionRequest> ParseCompletionRequest(const Json& body,
                                                 const SamplingDefaults& defaults) {
  if (!body.is_object()) return InvalidArgument("the body must be a JSON object");
  CompletionRequest request;
  TERN_ASSIGN_OR_RETURN(request.params, ParseParams(body, defaults, /*least_tokens=*/0));
  CompletionParams& p = request.params;
  if (!p.text.max_tokens) p.text.max_tokens = kDefaultCompletionTokens;
  if (JsonMember(body, "logprobs") != nullptr) {
    TERN_ASSIGN_OR_RETURN(p.top_logprobs, JsonInt(body, "logprobs", 0, kBody));
    TERN_RETURN_IF_ERROR(CheckTopLogprobs(p.top_logprobs, "logprobs"));
    p.logprobs = true;
  }
  TERN_ASSIGN_OR_RETURN(request.echo, JsonBool(body, "echo", false, kBody));
  p.prompt_logprobs = request.echo && p.logprobs;
  TERN_ASSIGN_OR_RETURN(const std::string suffix, JsonString(body, "suffix", "", kBody));
  if (!suffix.empty()) return InvalidArgument("body.suffix is not supported");

  const Json* prompt = JsonMember(body, "prompt");
  if (prompt == nullptr) return InvalidArgument("body.prompt is required");
  const bool is_list_of_prompts = prompt->is_array() && !prompt->empty() &&
                                  ((*prompt)[0].is_string() || (*prompt)[0].is_array());
  if (!is_list_of_prompts) {
    TERN_ASSIGN_OR_RETURN(auto parsed, ParsePrompt(*prompt));
    request.prompts.push_back(std::move(parsed));
    TERN_RETURN_IF_ERROR(CheckRids(p, 1));
    return request;
  }
  if (prompt->size() > kMaxPrompts) {
    return InvalidArgument(fmt::format("body.prompt must have at most {} prompts", kMaxPrompts));
  }
  TERN_RETURN_IF_ERROR(CheckRids(p, prompt->size()));
  for (const Json& item : *prompt) {
    TERN_ASSIGN_OR_RETURN(auto parsed, ParsePrompt(item));
    request.prompts.push_back(std::move(parsed));
  }
  return request;
}

}  // namespace tern
