// TaskItem: one line of a JSONL file of chat tasks, and whether an answer to it is right.
//   {"id": 7, "task": "add", "messages": [...], "tools": [...]?, and one of
//    "expect": "31"                                    compared with the trimmed answer
//    "expect_tool": {"name": "f", "arguments": {...}}  compared with the first call}
// An assistant message without content is an open turn: the model answers it, then the conversation
// goes on with what it said. Only the last answer is judged.
// Thread: values and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace tern {

struct ExpectedCall {
  std::string name;
  Json arguments;
};

struct TaskItem {
  std::string where;  // "tasks.jsonl: line 12", for messages
  std::string id;     // of the line as JSON text, or the line's number
  std::string kind;   // `task`, or "all"
  Json messages;
  std::vector<size_t> open_turns;  // indices into `messages`, rising
  Json tools;                      // null: none
  std::optional<std::string> expect;
  std::optional<ExpectedCall> expect_tool;
  uint64_t hash = 0;  // of the line's content
};

// The first `limit` items (0: all). Blank lines are skipped. Errors: kInvalidArgument naming file,
// line and field; a file without items.
Result<std::vector<TaskItem>> LoadTaskItems(const std::string& path, int64_t limit = 0);

struct AnsweredCall {
  std::string name;
  std::string arguments;  // JSON text, as the model wrote it
};

struct TaskAnswer {
  std::string text;                  // reasoning included, if it was not taken out
  std::optional<AnsweredCall> call;  // the first one
  int64_t completion_tokens = 0;
  bool cut = false;  // ended by the limit of new tokens
};

// What the model is asked when it has answered the first said.size() open turns: the messages
// before the next one, or all, with its answers filled in. REQUIRES: said.size() <=
// open_turns.size().
Json MessagesOfTurn(const TaskItem& item, const std::vector<std::string>& said);

// The answer after the last </think>, without whitespace at its ends.
std::string_view FinalAnswer(std::string_view text);
bool IsCorrect(const TaskItem& item, const TaskAnswer& answer);

// Equal as values: the order of members does not matter, 1 equals 1.0.
bool JsonEqual(const Json& a, const Json& b);

}  // namespace tern
