// Tool calls and reasoning through /v1/chat/completions. The answers are scripted; the parsers have
// tests of their own.
#include <gmock/gmock.h>

#include "server/test_server.h"

namespace tern {
namespace {

using testing::HasSubstr;

constexpr const char* kPath = "/v1/chat/completions";
constexpr const char* kCalls =
    "So.<|tool_calls_section_begin|><|tool_call_begin|>functions.add:9<|tool_call_argument_begin|>"
    "{\"a\":1}<|tool_call_end|><|tool_call_begin|>functions.now:10<|tool_call_argument_begin|>"
    "<|tool_call_end|><|tool_calls_section_end|>";

// 258 and 259 are the special tokens <think> and </think>.
class ThinkTokenizer final : public ByteTokenizer {
 public:
  static constexpr TokenId kThink = 258, kThinkEnd = 259;

  std::string_view TokenBytes(TokenId id) const override {
    if (id == kThink) return "<think>";
    return id == kThinkEnd ? "</think>" : ByteTokenizer::TokenBytes(id);
  }
  bool IsSpecial(TokenId id) const override { return id > kAb || ByteTokenizer::IsSpecial(id); }
  std::optional<TokenId> IdOf(std::string_view text) const override {
    for (const TokenId id : {kEnd, kThink, kThinkEnd}) {
      if (text == TokenBytes(id)) return id;
    }
    return std::nullopt;
  }
  int64_t vocab_size() const override { return kThinkEnd + 1; }
};

class ChatToolsTest : public ServerTest {
 protected:
  void SetUp() override {
    ServerTest::SetUp();
    Serve({ToolCallFormat::kKimiK2, ReasoningFormat::kKimiK2});
  }
  void Serve(OutputFormat format) {
    ServedModel model = Model();
    model.context_length = 400;
    model.output_format = format;
    model.tokenizer = std::make_shared<ThinkTokenizer>();
    api_->SetReady(std::move(model));
  }
  static Json ToolBody() {
    Json body = ChatBody();
    body["tools"] =
        Json::array({Json{{"type", "function"},
                          {"function", {{"name", "add"}, {"parameters", {{"type", "object"}}}}}}});
    return body;
  }
  // Reasons "hm", then answers "ok".
  void SetThinkingAnswer(bool opens) {
    std::vector<int32_t> tokens = {'h', 'm', ThinkTokenizer::kThinkEnd, 'o', 'k'};
    if (opens) tokens.insert(tokens.begin(), ThinkTokenizer::kThink);
    engine_.SetScript({tokens, true, OkStatus()});
  }
  static std::string Joined(const std::vector<Json>& events, const char* key) {
    std::string text;
    for (const Json& event : events) {
      if (event["choices"].empty()) continue;
      const Json& delta = event["choices"][0]["delta"];
      if (delta.contains(key) && delta[key].is_string()) text += delta[key].get<std::string>();
    }
    return text;
  }
};

TEST_F(ChatToolsTest, WholeCalls) {
  engine_.SetAnswer(kCalls);
  const Json answer = PostOk(kPath, ToolBody());
  const Json& choice = answer["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], "So.");
  EXPECT_EQ(choice["message"]["tool_calls"], ParseJson(R"([
    {"id":"functions.add:0","type":"function","function":{"name":"add","arguments":"{\"a\":1}"}},
    {"id":"functions.now:1","type":"function","function":{"name":"now","arguments":"{}"}}])")
                                                 .value());
  // No text beside the calls: null, as OpenAI has it.
  engine_.SetAnswer(std::string_view(kCalls).substr(3));
  EXPECT_TRUE(PostOk(kPath, ToolBody())["choices"][0]["message"]["content"].is_null());
}

TEST_F(ChatToolsTest, StreamedCalls) {
  engine_.SetAnswer(kCalls);
  const std::vector<Json> events = PostStream(kPath, ToolBody());
  EXPECT_EQ(Joined(events, "content"), "So.");
  std::vector<Json> calls;
  for (const Json& event : events) {
    const Json& delta = event["choices"][0]["delta"];
    EXPECT_TRUE(delta.contains("reasoning_content"));
    if (!delta.contains("tool_calls")) continue;
    ASSERT_EQ(delta["tool_calls"].size(), 1u);
    calls.push_back(delta["tool_calls"][0]);
  }
  // A name with its id first, then pieces of arguments; one byte is one token here.
  ASSERT_EQ(calls.size(), 1 + 7 + 1 + 1u);
  EXPECT_EQ(calls[0], ParseJson(R"({"index":0,"id":"functions.add:0","type":"function",
                                    "function":{"name":"add","arguments":""}})")
                          .value());
  EXPECT_EQ(calls[1], ParseJson(R"({"index":0,"id":null,"type":"function",
                                    "function":{"name":null,"arguments":"{"}})")
                          .value());
  EXPECT_EQ(calls[8]["index"], 1);
  EXPECT_EQ(calls[8]["id"], "functions.now:1");
  EXPECT_EQ(calls[9]["function"]["arguments"], "{}");
  EXPECT_EQ(events.back()["choices"][0]["finish_reason"], "tool_calls");
}

TEST_F(ChatToolsTest, CallsAreLookedForOnlyWithTools) {
  engine_.SetAnswer(kCalls);
  Json body = ToolBody();
  body["tool_choice"] = "none";
  for (const Json& without : {ChatBody(), body}) {
    const Json choice = PostOk(kPath, without)["choices"][0];
    EXPECT_EQ(choice["message"]["content"], kCalls);
    EXPECT_TRUE(choice["message"]["tool_calls"].is_null());
    EXPECT_EQ(choice["finish_reason"], "stop");
  }
  body["tool_choice"] = "auto";
  EXPECT_EQ(PostOk(kPath, body)["choices"][0]["message"]["tool_calls"].size(), 2u);
}

TEST_F(ChatToolsTest, ACallThatIsCutOffEndsWithLength) {
  engine_.SetAnswer(kCalls);
  Json body = ToolBody();
  body["max_tokens"] = std::string_view(kCalls).find("\"a\"") + 3;
  const Json choice = PostOk(kPath, body)["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"a\"");
}

TEST_F(ChatToolsTest, IdsGoOnFromTheConversation) {
  engine_.SetAnswer(kCalls);
  Json body = ToolBody();
  body["messages"].push_back(ParseJson(R"({"role":"assistant","content":null,"tool_calls":[
      {"id":"call_1","type":"function","function":{"name":"add","arguments":"{}"}}]})")
                                 .value());
  body["messages"].push_back(Json{{"role", "tool"}, {"tool_call_id", "call_1"}, {"content", "2"}});
  const Json calls = PostOk(kPath, body)["choices"][0]["message"]["tool_calls"];
  EXPECT_EQ(calls[0]["id"], "functions.add:1");
  EXPECT_EQ(calls[1]["id"], "functions.now:2");
}

TEST_F(ChatToolsTest, GlmCallsAreTypedByTheSchema) {
  Serve({ToolCallFormat::kGlm47, ReasoningFormat::kGlm45});
  engine_.SetAnswer(
      "<think>hm</think><tool_call>add<arg_key>a</arg_key><arg_value>1</arg_value>"
      "<arg_key>b</arg_key><arg_value>1</arg_value></tool_call>");
  Json body = ToolBody();
  body["tools"][0]["function"]["parameters"]["properties"] = {{"a", {{"type", "string"}}},
                                                              {"b", {{"type", "integer"}}}};
  const Json message = PostOk(kPath, body)["choices"][0]["message"];
  EXPECT_EQ(message["reasoning_content"], "hm");
  EXPECT_EQ(message["tool_calls"][0]["function"]["arguments"], R"({"a": "1", "b": 1})");
  EXPECT_THAT(message["tool_calls"][0]["id"].get<std::string>(), testing::StartsWith("call_"));
}

TEST_F(ChatToolsTest, ReasoningWholeAndStreamed) {
  SetThinkingAnswer(/*opens=*/true);
  Json body = ChatBody();
  body["stream_options"] = {{"include_usage", true}};
  const Json answer = PostOk(kPath, body);
  const Json& message = answer["choices"][0]["message"];
  EXPECT_EQ(message["reasoning_content"], "hm");
  EXPECT_EQ(message["reasoning"], "hm");
  EXPECT_EQ(message["content"], "ok");
  EXPECT_EQ(answer["usage"]["reasoning_tokens"], 4);  // <think> h m </think>
  EXPECT_EQ(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], 4);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 7);

  const std::vector<Json> events = PostStream(kPath, body);
  EXPECT_EQ(Joined(events, "reasoning_content"), "hm");
  EXPECT_EQ(Joined(events, "reasoning"), "hm");
  EXPECT_EQ(Joined(events, "content"), "ok");
  EXPECT_EQ(events[1]["choices"][0]["delta"]["reasoning_content"], "h");
  EXPECT_TRUE(events[1]["choices"][0]["delta"]["content"].is_null());
  EXPECT_EQ(events.back()["usage"]["reasoning_tokens"], 4);

  body["stream_reasoning"] = false;
  const std::vector<Json> at_once = PostStream(kPath, body);
  EXPECT_EQ(at_once[1]["choices"][0]["delta"]["reasoning_content"], "hm");
  EXPECT_EQ(at_once[2]["choices"][0]["delta"]["content"], "o");

  body["separate_reasoning"] = false;
  const Json together = PostOk(kPath, body);
  EXPECT_EQ(together["choices"][0]["message"]["content"], "<think>hm</think>ok");
  EXPECT_TRUE(together["choices"][0]["message"]["reasoning_content"].is_null());
  EXPECT_EQ(together["usage"]["reasoning_tokens"], 4);
}

TEST_F(ChatToolsTest, ReasoningThatThePromptOpens) {
  SetThinkingAnswer(/*opens=*/false);
  Json body = ChatBody();
  body["chat_template_kwargs"] = {{"ending", "<think>"}};
  const Json answer = PostOk(kPath, body);
  EXPECT_EQ(answer["choices"][0]["message"]["reasoning_content"], "hm");
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "ok");
  EXPECT_EQ(answer["usage"]["reasoning_tokens"], 3);
}

TEST_F(ChatToolsTest, WithoutAParserSpecialTokensAreNoText) {
  Serve({});
  SetThinkingAnswer(/*opens=*/true);
  const Json answer = PostOk(kPath, ChatBody());
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "hmok");
  EXPECT_TRUE(answer["choices"][0]["message"]["reasoning_content"].is_null());
  EXPECT_EQ(answer["usage"]["reasoning_tokens"], 0);
}

// The template's variables that an effort sets; a template of the test's own shows them.
class EffortTemplate final : public ChatTemplate {
 public:
  Result<std::string> Render(const Json& inputs) const override {
    std::string text;
    for (const char* key : {"reasoning_effort", "thinking", "enable_thinking"}) {
      if (inputs.contains(key)) text += fmt::format("{}={};", key, DumpJson(inputs[key]));
    }
    return text + ".";
  }
};

TEST_F(ChatToolsTest, EffortReachesTheTemplate) {
  ServedModel model = Model();
  model.chat_template = std::make_shared<EffortTemplate>();
  api_->SetReady(std::move(model));
  engine_.SetAnswer("x");
  const auto prompt = [this](const char* fields) {
    Json body = ChatBody();
    body.update(ParseJson(fields).value());
    PostOk(kPath, body);
    const std::vector<int32_t> tokens = engine_.last_request().tokens;
    return std::string(tokens.begin(), tokens.end());
  };
  EXPECT_EQ(prompt("{}"), ".");
  EXPECT_EQ(prompt(R"({"reasoning_effort":"high"})"),
            "reasoning_effort=\"high\";thinking=true;enable_thinking=true;.");
  EXPECT_EQ(prompt(R"({"reasoning_effort":"none"})"),
            "reasoning_effort=\"none\";thinking=false;enable_thinking=false;.");
  EXPECT_EQ(prompt(R"({"reasoning_effort":0.5})"),
            "reasoning_effort=0.5;thinking=true;enable_thinking=true;.");
  EXPECT_EQ(prompt(R"({"reasoning":{"enabled":false}})"), "thinking=false;enable_thinking=false;.");
  EXPECT_EQ(prompt(R"({"reasoning":{"effort":"low"}})"),
            "reasoning_effort=\"low\";thinking=true;enable_thinking=true;.");
  EXPECT_EQ(
      prompt(R"({"reasoning_effort":"low","chat_template_kwargs":{"enable_thinking":false}})"),
      "reasoning_effort=\"low\";thinking=true;enable_thinking=false;.");
}

TEST_F(ChatToolsTest, WrongFieldsAre400) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {R"({"tool_choice":"required"})", "body.tool_choice"},
      {R"({"tool_choice":{"type":"function","function":{"name":"add"}}})", "body.tool_choice"},
      {R"({"tools":[{"type":"function","function":{"name":5}}]})", "body.tools[0].function"},
      {R"({"tools":[{"type":"function","function":{"name":"f","parameters":[]}}]})",
       "body.tools[0].function.parameters"},
      {R"({"tools":[{"function":{"name":"f","parameters":{"properties":{"a":5}}}}]})",
       "body.tools[0].function.parameters"},
      {R"({"reasoning_effort":"lots"})", "body.reasoning_effort must be none, minimal"},
      {R"({"reasoning":"high"})", "body.reasoning must be an object"},
      {R"({"reasoning":{"effort":"lots"}})", "body.reasoning.effort must be none"},
      {R"({"reasoning":{"enabled":"yes"}})", "body.reasoning.enabled"},
      {R"({"separate_reasoning":"no"})", "body.separate_reasoning"},
      {R"({"stream_reasoning":1})", "body.stream_reasoning"},
  };
  for (const auto& [fields, message] : cases) {
    Json body = ToolBody();
    body.update(ParseJson(fields).value());
    const HttpResponse response = Post(kPath, body);
    EXPECT_EQ(response.status, 400) << fields;
    EXPECT_THAT(response.body, HasSubstr(message));
  }
}

TEST_F(ChatToolsTest, ModelInfoNamesTheParsers) {
  const Json info = ParseJson(Call("GET", "/model_info").body).value();
  EXPECT_EQ(info["tool_call_parser"], "kimi_k2");
  EXPECT_EQ(info["reasoning_parser"], "kimi_k2");
  EXPECT_EQ(info["load_format"], "auto");
}

}  // namespace
}  // namespace tern
