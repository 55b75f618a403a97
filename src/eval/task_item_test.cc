#include "eval/task_item.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

namespace tern {
namespace {

using ::testing::HasSubstr;

// The items of a file with this text.
Result<std::vector<TaskItem>> Load(const std::string& text, int64_t limit = 0) {
  const std::string path = testing::TempDir() + "tasks_" + std::to_string(getpid()) + ".jsonl";
  std::ofstream(path) << text;
  Result<std::vector<TaskItem>> items = LoadTaskItems(path, limit);
  std::remove(path.c_str());
  return items;
}

constexpr const char* kUser = R"("messages":[{"role":"user","content":"hi"}])";

TEST(LoadTaskItems, ReadsBothKinds) {
  const auto items =
      Load(std::string("{\"id\":7,\"task\":\"add\",") + kUser + ",\"expect\":\"31\"}\n\n{" + kUser +
           ",\"tools\":[],\"expect_tool\":{\"name\":\"f\",\"arguments\":{}}}\n");
  ASSERT_TRUE(items.ok()) << items.status().message();
  ASSERT_EQ(items->size(), 2u);
  EXPECT_EQ((*items)[0].id, "7");
  EXPECT_EQ((*items)[0].kind, "add");
  EXPECT_EQ((*items)[1].id, "3");
  EXPECT_EQ((*items)[1].kind, "all");
  EXPECT_THAT((*items)[1].where, HasSubstr(".jsonl: line 3"));
  EXPECT_NE((*items)[0].hash, (*items)[1].hash);
  EXPECT_TRUE((*items)[1].tools.is_array());
}

TEST(LoadTaskItems, ReadsTheDevelopmentTasks) {
  const std::string path = TERN_SOURCE_DIR "/tests/data/tiny/tasks_dev.jsonl";
  const auto items = LoadTaskItems(path);
  ASSERT_TRUE(items.ok()) << items.status().message();
  EXPECT_EQ(items->size(), 1500u);
  EXPECT_EQ(LoadTaskItems(path, 10)->size(), 10u);
}

TEST(LoadTaskItems, NamesTheLineAndTheField) {
  const std::string good = std::string("{") + kUser + ",\"expect\":\"x\"}\n";
  const std::pair<std::string, const char*> cases[] = {
      {"{\"expect\":\"x\"}", "messages is missing"},
      {"{\"messages\":[],\"expect\":\"x\"}", "messages must be a list"},
      {"{\"messages\":[{\"content\":\"x\"}],\"expect\":\"x\"}", "with a role"},
      {std::string("{") + kUser + "}", "needs one of expect and expect_tool"},
      {std::string("{") + kUser + ",\"expect\":1}", "expect must be a string"},
      {std::string("{") + kUser + ",\"expect\":\"x\",\"expect_tool\":{}}", "needs one of"},
      {std::string("{") + kUser + ",\"expect_tool\":{\"arguments\":{}}}", "expect_tool.name"},
      {std::string("{") + kUser + ",\"expect_tool\":{\"name\":\"f\"}}", "expect_tool.arguments"},
      {std::string("{") + kUser + ",\"tools\":3,\"expect\":\"x\"}", "tools must be a list"},
      {std::string("{") + kUser + ",\"task\":3,\"expect\":\"x\"}", "item.task must be"},
      {R"({"messages":[{"role":"assistant"}],"expect":"x"})", "must not be an open assistant turn"},
      {"[1]", "must be a JSON object"},
      {"{\"messages\":", "line 2"},
      {std::string("{\"a\":\"\xff\"}"), "line 2"},
  };
  for (const auto& [line, message] : cases) {
    const auto items = Load(good + line + "\n" + good);
    ASSERT_FALSE(items.ok()) << line;
    EXPECT_THAT(items.status().message(), HasSubstr("line 2: ")) << line;
    EXPECT_THAT(items.status().message(), HasSubstr(message)) << line;
  }
  EXPECT_THAT(Load("\n \n").status().message(), HasSubstr("holds no task items"));
  EXPECT_EQ(LoadTaskItems("/none/tasks.jsonl").status().code(), StatusCode::kNotFound);
}

TEST(LoadTaskItems, AssistantMessagesWithoutContentAreOpenTurns) {
  const auto items = Load(R"({"messages":[{"role":"user","content":"a"},{"role":"assistant"},)"
                          R"({"role":"user","content":"b"},{"role":"assistant","content":null},)"
                          R"({"role":"user","content":"c"},{"role":"assistant","content":"said"},)"
                          R"({"role":"user","content":"d"}],"expect":"x"})");
  ASSERT_TRUE(items.ok()) << items.status().message();
  const TaskItem& item = (*items)[0];
  EXPECT_EQ(item.open_turns, (std::vector<size_t>{1, 3}));
  const auto turn = [&](std::vector<std::string> said) {
    std::string text;
    for (const Json& message : MessagesOfTurn(item, said)) {
      text += message["content"].get<std::string>() + " ";
    }
    return text;
  };
  EXPECT_EQ(turn({}), "a ");
  EXPECT_EQ(turn({"A"}), "a A b ");
  EXPECT_EQ(turn({"A", "B"}), "a A b B c said d ");
}

TEST(FinalAnswer, IsTrimmedAndAfterTheLastThought) {
  EXPECT_EQ(FinalAnswer("<think>1+2</think> 3\n"), "3");
  EXPECT_EQ(FinalAnswer("<think>a</think><think>b</think>c d"), "c d");
  EXPECT_EQ(FinalAnswer("  \n"), "");
  EXPECT_EQ(FinalAnswer("no thought"), "no thought");
}

TEST(IsCorrect, ComparesTheAnswer) {
  TaskItem item;
  item.expect = "a\nb";
  EXPECT_TRUE(IsCorrect(item, {.text = "<think>x</think>a\nb "}));
  EXPECT_FALSE(IsCorrect(item, {.text = "a\nb\nc"}));
}

TEST(IsCorrect, ComparesTheFirstCallAsValues) {
  TaskItem item;
  item.expect_tool = ExpectedCall{"f", Json::parse(R"({"a":1,"b":[{"x":1,"y":2}]})")};
  const auto right = [&](const char* name, const char* arguments) {
    return IsCorrect(item, {.call = AnsweredCall{name, arguments}});
  };
  EXPECT_TRUE(right("f", R"({"b": [{"y":2, "x":1}], "a": 1.0})"));
  EXPECT_FALSE(right("g", R"({"b": [{"y":2, "x":1}], "a": 1})"));
  EXPECT_FALSE(right("f", R"({"b": [{"y":2, "x":1}], "a": "1"})"));
  EXPECT_FALSE(right("f", R"({"b": [{"y":2, "x":1}]})"));
  EXPECT_FALSE(right("f", R"({"b": [], "a": 1})"));
  EXPECT_FALSE(right("f", "{\"b\":"));
  EXPECT_FALSE(IsCorrect(item, {.text = "f"}));
}

}  // namespace
}  // namespace tern
