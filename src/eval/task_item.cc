#include "eval/task_item.h"

#include <fmt/format.h>

#include <utility>

#include "base/file.h"
#include "base/hash.h"

namespace tern {
namespace {

constexpr std::string_view kSpace = " \t\r\n\v\f";

Status CheckMessages(const Json& messages) {
  if (!messages.is_array() || messages.empty()) {
    return InvalidArgument("messages must be a list with at least one message");
  }
  for (const Json& message : messages) {
    if (!message.is_object() || !message.contains("role") || !message["role"].is_string()) {
      return InvalidArgument("each of messages must be an object with a role");
    }
  }
  return OkStatus();
}

bool IsOpenTurn(const Json& message) {
  return message["role"] == "assistant" && JsonMember(message, "content") == nullptr &&
         JsonMember(message, "tool_calls") == nullptr;
}

Result<ExpectedCall> ParseExpectedCall(const Json& json) {
  if (!json.is_object()) return InvalidArgument("expect_tool must be an object");
  ExpectedCall call;
  TERN_ASSIGN_OR_RETURN(call.name, JsonString(json, "name", "", "expect_tool"));
  if (call.name.empty()) return InvalidArgument("expect_tool.name is missing");
  const Json* arguments = JsonMember(json, "arguments");
  if (arguments == nullptr || !arguments->is_object()) {
    return InvalidArgument("expect_tool.arguments must be an object");
  }
  call.arguments = *arguments;
  return call;
}

Result<TaskItem> ParseItem(std::string_view line, int64_t number) {
  TERN_ASSIGN_OR_RETURN(const Json json, ParseJson(line));
  if (!json.is_object()) return InvalidArgument("must be a JSON object");
  TaskItem item;
  const Json* id = JsonMember(json, "id");
  item.id = id == nullptr ? std::to_string(number) : DumpJson(*id);
  TERN_ASSIGN_OR_RETURN(item.kind, JsonString(json, "task", "all", "item"));
  const Json* messages = JsonMember(json, "messages");
  if (messages == nullptr) return InvalidArgument("messages is missing");
  TERN_RETURN_IF_ERROR(CheckMessages(*messages));
  item.messages = *messages;
  for (size_t i = 0; i < messages->size(); ++i) {
    if (IsOpenTurn((*messages)[i])) item.open_turns.push_back(i);
  }
  if (IsOpenTurn(messages->back())) {
    return InvalidArgument("the last of messages must not be an open assistant turn");
  }
  if (const Json* tools = JsonMember(json, "tools")) {
    if (!tools->is_array()) return InvalidArgument("tools must be a list");
    item.tools = *tools;
  }
  const Json* expect = JsonMember(json, "expect");
  const Json* expect_tool = JsonMember(json, "expect_tool");
  if ((expect == nullptr) == (expect_tool == nullptr)) {
    return InvalidArgument("needs one of expect and expect_tool");
  }
  if (expect != nullptr) {
    if (!expect->is_string()) return InvalidArgument("expect must be a string");
    item.expect = expect->get<std::string>();
  } else {
    TERN_ASSIGN_OR_RETURN(item.expect_tool, ParseExpectedCall(*expect_tool));
  }
  item.hash = Hash64(DumpJson(json));
  return item;
}

}  // namespace

Result<std::vector<TaskItem>> LoadTaskItems(const std::string& path, int64_t limit) {
  TERN_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  std::vector<TaskItem> items;
  int64_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line(text.data() + at, end - at);
    at = end + 1;
    ++number;
    if (line.find_first_not_of(kSpace) == std::string_view::npos) continue;
    const std::string where = fmt::format("{}: line {}", path, number);
    Result<TaskItem> item = ParseItem(line, number);
    if (!item.ok()) return item.status().WithContext(where);
    item->where = where;
    items.push_back(std::move(item).value());
    if (limit > 0 && static_cast<int64_t>(items.size()) == limit) break;
  }
  if (items.empty()) return InvalidArgument(fmt::format("{} holds no task items", path));
  return items;
}

Json MessagesOfTurn(const TaskItem& item, const std::vector<std::string>& said) {
  const size_t end =
      said.size() < item.open_turns.size() ? item.open_turns[said.size()] : item.messages.size();
  Json messages = Json::array();
  for (size_t i = 0; i < end; ++i) messages.push_back(item.messages[i]);
  for (size_t turn = 0; turn < said.size(); ++turn) {
    messages[item.open_turns[turn]]["content"] = said[turn];
  }
  return messages;
}

std::string_view FinalAnswer(std::string_view text) {
  constexpr std::string_view kThinkEnd = "</think>";
  if (const size_t at = text.rfind(kThinkEnd); at != std::string_view::npos) {
    text.remove_prefix(at + kThinkEnd.size());
  }
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

bool IsCorrect(const TaskItem& item, const TaskAnswer& answer) {
  if (item.expect) return FinalAnswer(answer.text) == *item.expect;
  if (!answer.call || answer.call->name != item.expect_tool->name) return false;
  const Result<Json> arguments = ParseJson(answer.call->arguments);
  return arguments.ok() && JsonEqual(*arguments, item.expect_tool->arguments);
}

bool JsonEqual(const Json& a, const Json& b) {
  if (a.is_object() && b.is_object()) {
    if (a.size() != b.size()) return false;
    for (const auto& [key, value] : a.items()) {
      const auto other = b.find(key);
      if (other == b.end() || !JsonEqual(value, *other)) return false;
    }
    return true;
  }
  if (a.is_array() && b.is_array()) {
    if (a.size() != b.size()) return false;
    for (size_t i = 0; i < a.size(); ++i) {
      if (!JsonEqual(a[i], b[i])) return false;
    }
    return true;
  }
  return a == b;
}

}  // namespace tern
