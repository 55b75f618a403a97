#include "server/chat_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <map>
#include <optional>

namespace tern {
namespace {

constexpr std::string_view kRoles[] = {"system",    "developer", "user",
                                       "assistant", "tool",      "function"};

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

// As far as templates and the typing of arguments look into it.
bool IsObjectSchema(const Json& schema) {
  if (!schema.is_object()) return false;
  const Json* properties = JsonMember(schema, "properties");
  if (properties == nullptr) return true;
  return properties->is_object() &&
         std::all_of(properties->begin(), properties->end(), [](const Json& property) {
           return property.is_object() || property.is_boolean();
         });
}

// Clients give reasoning back under the name that they took it from.
void AdoptReasoning(Json& message) {
  const Json* reasoning = JsonMember(message, "reasoning");
  if (reasoning == nullptr || !reasoning->is_string()) return;
  if (JsonMember(message, "reasoning_content") != nullptr) return;
  Json text = *reasoning;
  message["reasoning_content"] = std::move(text);
}

// The IDX of functions.NAME:IDX, if that is what `id` is.
std::optional<int64_t> IndexInId(std::string_view id, std::string_view name) {
  constexpr std::string_view kPrefix = "functions.";
  if (!id.starts_with(kPrefix)) return {};
  id.remove_prefix(kPrefix.size());
  if (!id.starts_with(name) || id.substr(name.size(), 1) != ":") return {};
  id.remove_prefix(name.size() + 1);
  int64_t index = 0;
  const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), index);
  constexpr int64_t kMost = 1'000'000'000;
  if (error != std::errc() || end != id.data() + id.size()) return {};
  if (index < 0 || index > kMost) return {};
  return index;
}

}  // namespace

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
    // Templates write roles next to control tokens: no others than those they know.
    if (std::find(std::begin(kRoles), std::end(kRoles), role) == std::end(kRoles)) {
      return InvalidArgument(where +
                             ".role must be system, developer, user, assistant, tool or function");
    }
    // OpenAI's newer name, which the templates of the models that tern runs do not know.
    if (role == "developer") message["role"] = "system";
    TERN_ASSIGN_OR_RETURN(Json content,
                          ParseContent(JsonMember(message, "content"), where + ".content"));
    message["content"] = std::move(content);
    AdoptReasoning(message);
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
      const Json* name = function == nullptr ? nullptr : JsonMember(*function, "name");
      if (name == nullptr || !name->is_string()) {
        return InvalidArgument(
            fmt::format("body.tools[{}].function must be an object with a name", i));
      }
      const Json* parameters = JsonMember(*function, "parameters");
      if (parameters != nullptr && !IsObjectSchema(*parameters)) {
        return InvalidArgument(
            fmt::format("body.tools[{}].function.parameters must be a JSON schema, an object whose "
                        "properties are schemas",
                        i));
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

int64_t AdoptToolCallIds(ToolCallFormat format, Json* messages) {
  if (format != ToolCallFormat::kKimiK2) return 0;
  int64_t next = 0;                         // more than every index so far
  std::map<std::string, std::string> made;  // by the foreign id: the last one made for it
  for (Json& message : *messages) {
    if (const Json* answered = JsonMember(message, "tool_call_id");
        answered != nullptr && answered->is_string()) {
      const auto found = made.find(answered->get<std::string>());
      if (found != made.end()) message["tool_call_id"] = found->second;
    }
    const auto calls = message.find("tool_calls");
    if (calls == message.end() || !calls->is_array()) continue;
    for (Json& call : *calls) {
      const Json* name = JsonMember(call["function"], "name");
      if (name == nullptr || !name->is_string()) continue;
      const Json* id = JsonMember(call, "id");
      const std::string old = id != nullptr && id->is_string() ? id->get<std::string>() : "";
      const std::optional<int64_t> index = IndexInId(old, name->get_ref<const std::string&>());
      if (index && *index >= next) {
        next = *index + 1;
        made.erase(old);
        continue;
      }
      const std::string own = fmt::format("functions.{}:{}", name->get<std::string>(), next++);
      call["id"] = own;
      made[old] = own;
    }
  }
  return next;
}

}  // namespace tern
