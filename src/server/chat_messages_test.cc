// Ids of tool calls in a conversation, and what templates get to see of messages.
#include "server/chat_messages.h"

#include <gtest/gtest.h>

namespace tern {
namespace {

Json Messages(const char* list) {
  Json body;
  body["messages"] = ParseJson(list).value();
  return ParseMessages(body).value();
}

TEST(ChatMessages, ForeignIdsBecomeKimis) {
  Json messages = Messages(R"([
    {"role":"user","content":"q"},
    {"role":"assistant","tool_calls":[
      {"id":"call_abc","type":"function","function":{"name":"get_weather","arguments":"{}"}},
      {"id":"call_def","type":"function","function":{"name":"add","arguments":"{}"}}]},
    {"role":"tool","tool_call_id":"call_def","content":"2"},
    {"role":"tool","tool_call_id":"call_abc","content":"1"},
    {"role":"tool","tool_call_id":"call_unknown","content":"?"},
    {"role":"assistant","tool_calls":[{"id":"call_abc","function":{"name":"add"}}]},
    {"role":"tool","tool_call_id":"call_abc","content":"3"},
    {"role":"assistant","tool_calls":[{"function":{"name":"now"}}]}])");
  EXPECT_EQ(AdoptToolCallIds(ToolCallFormat::kKimiK2, &messages), 4);
  EXPECT_EQ(messages[1]["tool_calls"][0]["id"], "functions.get_weather:0");
  EXPECT_EQ(messages[1]["tool_calls"][1]["id"], "functions.add:1");
  EXPECT_EQ(messages[2]["tool_call_id"], "functions.add:1");
  EXPECT_EQ(messages[3]["tool_call_id"], "functions.get_weather:0");
  EXPECT_EQ(messages[4]["tool_call_id"], "call_unknown");
  // An id that a client uses twice means the call before it.
  EXPECT_EQ(messages[5]["tool_calls"][0]["id"], "functions.add:2");
  EXPECT_EQ(messages[6]["tool_call_id"], "functions.add:2");
  EXPECT_EQ(messages[7]["tool_calls"][0]["id"], "functions.now:3");
}

TEST(ChatMessages, ADeveloperIsTheSystem) {
  const Json messages =
      Messages(R"([{"role":"developer","content":"be nice"},{"role":"user","content":"q"}])");
  EXPECT_EQ(messages[0]["role"], "system");
  EXPECT_EQ(messages[0]["content"], "be nice");
  EXPECT_EQ(messages[1]["role"], "user");
}

TEST(ChatMessages, KimisOwnIdsStay) {
  const Json original = Messages(R"([
    {"role":"assistant","tool_calls":[{"id":"functions.a:0","function":{"name":"a"}},
                                      {"id":"functions.b.c:1","function":{"name":"b.c"}}]},
    {"role":"tool","tool_call_id":"functions.a:0","content":"1"},
    {"role":"assistant","tool_calls":[{"id":"functions.a:7","function":{"name":"a"}}]}])");
  Json messages = original;
  // The client has cut the calls in between: the next is after the last, not after the count.
  EXPECT_EQ(AdoptToolCallIds(ToolCallFormat::kKimiK2, &messages), 8);
  EXPECT_EQ(messages, original);

  // Numbered from 0 in every message, another name's, a number out of range: not counted over the
  // conversation.
  messages = Messages(R"([
    {"role":"assistant","tool_calls":[{"id":"functions.a:0","function":{"name":"a"}}]},
    {"role":"tool","tool_call_id":"functions.a:0","content":"1"},
    {"role":"assistant","tool_calls":[{"id":"functions.a:0","function":{"name":"a"}},
      {"id":"functions.b:5","function":{"name":"a"}},
      {"id":"functions.a:99999999999999999999","function":{"name":"a"}},
      {"id":"functions.a:-1","function":{"name":"a"}}]},
    {"role":"tool","tool_call_id":"functions.a:0","content":"2"}])");
  EXPECT_EQ(AdoptToolCallIds(ToolCallFormat::kKimiK2, &messages), 5);
  EXPECT_EQ(messages[1]["tool_call_id"], "functions.a:0");
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(messages[2]["tool_calls"][static_cast<size_t>(i)]["id"],
              "functions.a:" + std::to_string(i + 1));
  }
  EXPECT_EQ(messages[3]["tool_call_id"], "functions.a:1");
}

TEST(ChatMessages, OtherFormatsKeepTheirIds) {
  const Json original =
      Messages(R"([{"role":"assistant","tool_calls":[{"id":"call_1","function":{"name":"a"}}]}])");
  for (const ToolCallFormat format : {ToolCallFormat::kNone, ToolCallFormat::kGlm47}) {
    Json messages = original;
    EXPECT_EQ(AdoptToolCallIds(format, &messages), 0);
    EXPECT_EQ(messages, original);
  }
}

TEST(ChatMessages, ReasoningGoesByEitherName) {
  const Json messages = Messages(R"([
    {"role":"assistant","content":"a","reasoning":"r"},
    {"role":"assistant","content":"a","reasoning":"r","reasoning_content":"c"},
    {"role":"assistant","content":"a","reasoning":null}])");
  EXPECT_EQ(messages[0]["reasoning_content"], "r");
  EXPECT_EQ(messages[1]["reasoning_content"], "c");
  EXPECT_FALSE(messages[2].contains("reasoning_content"));
}

}  // namespace
}  // namespace tern
