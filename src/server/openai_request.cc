#include "server/openai_request.h"

#include <fmt/format.h>

#include "server/choices.h"

namespace tern {
namespace {

constexpr int64_t kMaxTopLogprobs = 20;
constexpr int64_t kDefaultCompletionTokens = 16;  // OpenAI's, for text completions
constexpr std::string_view kBody = "body";

// Content is null, a string, or a list of parts of type "text", which are joined by a space.
Result<Json> ParseContent(const Json* content, const std::string& where) {
  if (content == nullptr) return Json("");
  if (content->is_string()) return *content;
  if (!content->is_array()) {
    return InvalidArgument(where + " must be a string or a list of parts");
  }
  std::string joined;
  for (size_t i = 0; i < content->size(); ++i) {
    const Json& part = (*content)[i];
    const std::string part_where = fmt::format("{}[{}]", where, i);
    if (!part.is_object()) return InvalidArgument(part_where + " must be an object");
    TERN_ASSIGN_OR_RETURN(const std::string type, JsonString(part, "type", "", part_where));
    if (type != "text") {
      return InvalidArgument(
          fmt::format("{}.type '{}' is not supported, only 'text' is", part_where, type));
    }
    TERN_ASSIGN_OR_RETURN(const std::string text, JsonString(part, "text", "", part_where));
    if (i > 0) joined += ' ';
    joined += text;
  }
  return Json(std::move(joined));
}

// Templates want the arguments of earlier tool calls as objects; OpenAI sends them as JSON text.
Status ParseToolCalls(Json& message, const std::string& where) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end()) return OkStatus();
  if (calls->is_null()) {
    message.erase("tool_calls");
    return OkStatus();
  }
  if (!calls->is_array()) return InvalidArgument(where + ".tool_calls must be a list");
  for (size_t i = 0; i < calls->size(); ++i) {
    Json& call = (*calls)[i];
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) {
      return InvalidArgument(fmt::format("{}.tool_calls[{}].function must be an object", where, i));
    }
    const auto arguments = call["function"].find("arguments");
    if (arguments == call["function"].end() || !arguments->is_string()) continue;
    Result<Json> parsed = ParseJson(arguments->get_ref<const std::string&>());
    if (parsed.ok() && parsed->is_object()) *arguments = std::move(parsed).value();
  }
  return OkStatus();
}

Result<Json> ParseMessages(const Json& body) {
  const Json* list = JsonMember(body, "messages");
  if (list == nullptr) return InvalidArgument("body.messages is required");
  if (!list->is_array()) return InvalidArgument("body.messages must be a list");
  if (list->empty()) return InvalidArgument("body.messages must not be empty");
  Json messages = Json::array();
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string where = fmt::format("body.messages[{}]", i);
    Json message = (*list)[i];
    if (!message.is_object()) return InvalidArgument(where + " must be an object");
    TERN_ASSIGN_OR_RETURN(const std::string role, JsonString(message, "role", "", where));
    if (role.empty()) return InvalidArgument(where + ".role is required");
    TERN_ASSIGN_OR_RETURN(Json content,
                          ParseContent(JsonMember(message, "content"), where + ".content"));
    message["content"] = std::move(content);
    TERN_RETURN_IF_ERROR(ParseToolCalls(message, where));
    messages.push_back(std::move(message));
  }
  return messages;
}

Result<Json> ParseTools(const Json& body) {
  const Json* tools = JsonMember(body, "tools");
  if (tools != nullptr) {
    if (!tools->is_array()) return InvalidArgument("body.tools must be a list");
    for (size_t i = 0; i < tools->size(); ++i) {
      const Json& tool = (*tools)[i];
      const Json* function = tool.is_object() ? JsonMember(tool, "function") : nullptr;
      if (function == nullptr || !function->is_object() || !function->contains("name")) {
        return InvalidArgument(
            fmt::format("body.tools[{}].function must be an object with a name", i));
      }
    }
  }
  if (const Json* choice = JsonMember(body, "tool_choice")) {
    if (!choice->is_string() || (*choice != "auto" && *choice != "none")) {
      return InvalidArgument(
          "body.tool_choice must be \"auto\" or \"none\"; others are not supported");
    }
    if (*choice == "none") return Json();
  }
  return tools == nullptr || tools->empty() ? Json() : *tools;
}

Result<CompletionParams> ParseParams(const Json& body, const SamplingDefaults& defaults) {
  CompletionParams p;
  TERN_ASSIGN_OR_RETURN(p.text, ParseTextParams(body, defaults, kBody));
  for (const char* key : {"max_tokens", "max_completion_tokens"}) {
    if (JsonMember(body, key) == nullptr) continue;
    TERN_ASSIGN_OR_RETURN(p.text.max_tokens, JsonInt(body, key, 0, kBody));
    if (*p.text.max_tokens < 1)
      return InvalidArgument(fmt::format("body.{} must be at least 1", key));
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
  TERN_ASSIGN_OR_RETURN(p.rid, JsonString(body, "rid", "", kBody));
  TERN_ASSIGN_OR_RETURN(p.extra_key, JsonString(body, "extra_key", "", kBody));
  TERN_ASSIGN_OR_RETURN(p.cache_salt, JsonString(body, "cache_salt", "", kBody));
  TERN_ASSIGN_OR_RETURN(p.model, JsonString(body, "model", "", kBody));
  return p;
}

Status CheckTopLogprobs(int64_t count, const char* key) {
  if (count >= 0 && count <= kMaxTopLogprobs) return OkStatus();
  return InvalidArgument(fmt::format("body.{} must be from 0 to {}", key, kMaxTopLogprobs));
}

Result<CompletionRequest::Prompt> ParsePrompt(const Json& prompt) {
  CompletionRequest::Prompt parsed;
  if (prompt.is_string()) {
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
  TERN_ASSIGN_OR_RETURN(request.params, ParseParams(body, defaults));
  CompletionParams& p = request.params;
  TERN_ASSIGN_OR_RETURN(p.logprobs, JsonBool(body, "logprobs", false, kBody));
  TERN_ASSIGN_OR_RETURN(p.top_logprobs, JsonInt(body, "top_logprobs", 0, kBody));
  TERN_RETURN_IF_ERROR(CheckTopLogprobs(p.top_logprobs, "top_logprobs"));
  if (p.top_logprobs > 0 && !p.logprobs) {
    return InvalidArgument("body.top_logprobs needs body.logprobs to be true");
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
  return request;
}

Result<CompletionRequest> ParseCompletionRequest(const Json& body,
                                                 const SamplingDefaults& defaults) {
  if (!body.is_object()) return InvalidArgument("the body must be a JSON object");
  CompletionRequest request;
  TERN_ASSIGN_OR_RETURN(request.params, ParseParams(body, defaults));
  CompletionParams& p = request.params;
  if (!p.text.max_tokens) p.text.max_tokens = kDefaultCompletionTokens;
  if (JsonMember(body, "logprobs") != nullptr) {
    TERN_ASSIGN_OR_RETURN(p.top_logprobs, JsonInt(body, "logprobs", 0, kBody));
    TERN_RETURN_IF_ERROR(CheckTopLogprobs(p.top_logprobs, "logprobs"));
    p.logprobs = true;
  }
  TERN_ASSIGN_OR_RETURN(const bool echo, JsonBool(body, "echo", false, kBody));
  if (echo) return InvalidArgument("body.echo is not supported");
  TERN_ASSIGN_OR_RETURN(const std::string suffix, JsonString(body, "suffix", "", kBody));
  if (!suffix.empty()) return InvalidArgument("body.suffix is not supported");

  const Json* prompt = JsonMember(body, "prompt");
  if (prompt == nullptr) return InvalidArgument("body.prompt is required");
  const bool is_list_of_prompts = prompt->is_array() && !prompt->empty() &&
                                  ((*prompt)[0].is_string() || (*prompt)[0].is_array());
  if (!is_list_of_prompts) {
    TERN_ASSIGN_OR_RETURN(auto parsed, ParsePrompt(*prompt));
    request.prompts.push_back(std::move(parsed));
    return request;
  }
  if (prompt->size() > kMaxPrompts) {
    return InvalidArgument(fmt::format("body.prompt must have at most {} prompts", kMaxPrompts));
  }
  for (const Json& item : *prompt) {
    TERN_ASSIGN_OR_RETURN(auto parsed, ParsePrompt(item));
    request.prompts.push_back(std::move(parsed));
  }
  return request;
}

}  // namespace tern
