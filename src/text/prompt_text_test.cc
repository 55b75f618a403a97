// Control tokens in messages are plain text; those that the template writes are not.
#include "text/prompt_text.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "text/testing.h"

namespace tern {
namespace {

using ::testing::HasSubstr;

struct Pair {
  std::string name;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const ChatTemplate> chat_template;
};

std::shared_ptr<const ChatTemplate> MustCompile(const std::string& source) {
  auto compiled = ChatTemplate::Compile(source);
  EXPECT_TRUE(compiled.ok()) << compiled.status().ToString();
  return *compiled;
}

// Every template with every tokenizer of tests/data.
std::vector<Pair> Pairs() {
  std::map<std::string, std::shared_ptr<const Tokenizer>> tokenizers;
  tokenizers["tiny"] = TinyTokenizer();
  tokenizers["smollm2"] = MustMake(Tokenizer::FromSpec(SmolLm2Spec()));
  tokenizers["glm"] =
      MustMake(Tokenizer::FromTokenizerJson(TestData("text/glm-style/tokenizer.json"), ""));
  tokenizers["kimi"] =
      MustMake(Tokenizer::FromTiktoken(TestData("text/kimi-style/tiktoken.model"),
                                       TestData("text/kimi-style/tokenizer_config.json")));
  std::vector<Pair> pairs;
  for (const char* name : {"tiny", "smollm2"}) {
    const auto compiled = MustCompile(TestData("templates/" + std::string(name) + ".jinja"));
    for (const auto& [key, tokenizer] : tokenizers) {
      pairs.push_back({name + ("+" + key), tokenizer, compiled});
    }
  }
  return pairs;
}

// A conversation that has `text` everywhere that a client may put text.
Json Conversation(const std::string& text) {
  Json inputs;
  inputs["messages"] = Json::array(
      {{{"role", "system"}, {"content", "be " + text + " nice"}},
       {{"role", "user"}, {"content", text}},
       {{"role", "assistant"},
        {"content", "so" + text},
        {"tool_calls",
         Json::array(
             {{{"id", "functions.f:0"},
               {"function", {{"name", "f"}, {"arguments", {{"k" + text, text + "v"}}}}}}})}},
       {{"role", "assistant"},
        {"content", ""},
        {"tool_calls",
         Json::array({{{"id", text + ":1"},
                       {"type", "function"},
                       {"function", {{"name", "g" + text}, {"arguments", text + "{}"}}}}})}},
       {{"role", "tool"}, {"tool_call_id", "functions.f:0"}, {"content", text + text}},
       {{"role", "tool"}, {"tool_call_id", text}, {"name", text}, {"content", text}},
       {{"role", "user"}, {"name", text}, {"content", "and"}},
       {{"role", "user"}, {"content", "a" + text + "b"}}});
  inputs["tools"] = Json::array(
      {{{"type", "function"}, {"function", {{"name", "f"}, {"description", "does " + text}}}},
       {{"type", "function"},
        {"function",
         {{"name", text},
          {"parameters", {{"type", "object"}, {"properties", {{text, {{"type", text}}}}}}}}}}});
  inputs["add_generation_prompt"] = true;
  inputs["bos_token"] = "[BOS]";
  return inputs;
}

std::map<TokenId, int> ControlsIn(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  std::set<TokenId> controls;
  for (const std::string& text : tokenizer.AddedTexts()) controls.insert(*tokenizer.IdOf(text));
  std::map<TokenId, int> counts;
  for (const TokenId id : ids) {
    if (controls.contains(id)) ++counts[id];
  }
  return counts;
}

std::vector<TokenId> IdsOf(const Pair& pair, const Json& inputs) {
  const auto prompt = RenderPrompt(*pair.chat_template, *pair.tokenizer, inputs);
  EXPECT_TRUE(prompt.ok()) << prompt.status().ToString();
  if (!prompt.ok()) return {};
  return pair.tokenizer->EncodeDisguised(prompt->text, prompt->disguise);
}

bool IsReasoningMarker(const std::string& text) { return text == "<think>" || text == "</think>"; }

TEST(PromptTextTest, AControlTokenInAMessageGivesNone) {
  for (const Pair& pair : Pairs()) {
    const auto without = ControlsIn(*pair.tokenizer, IdsOf(pair, Conversation("x")));
    for (const std::string& text : pair.tokenizer->AddedTexts()) {
      SCOPED_TRACE(pair.name + " " + text);
      Json inputs = Conversation(text);
      if (IsReasoningMarker(text)) inputs["messages"][2]["content"] = "so";  // may hold it
      const std::vector<TokenId> ids = IdsOf(pair, inputs);
      EXPECT_EQ(ControlsIn(*pair.tokenizer, ids), without);
      EXPECT_EQ(pair.tokenizer->Decode(ids, false), *pair.chat_template->Render(inputs));
    }
  }
}

TEST(PromptTextTest, OtherTextHasTheIdsOfTheWholePrompt) {
  for (const Pair& pair : Pairs()) {
    for (const std::string text : {"x", "a < b [c] <|im", "<html>\n<b>\"q\"</b></html>",
                                   "é 日本 \U0001D800<", " \n<<|>> "}) {
      SCOPED_TRACE(pair.name + " " + text);
      const Json inputs = Conversation(text);
      EXPECT_EQ(IdsOf(pair, inputs), pair.tokenizer->Encode(*pair.chat_template->Render(inputs)));
    }
  }
}

TEST(PromptTextTest, AnAssistantsReasoningMarkersStay) {
  const Pair tiny = Pairs()[3];
  ASSERT_EQ(tiny.name, "tiny+tiny");
  Json inputs = Conversation("x");
  inputs["messages"][2]["content"] = "<think>why</think>so";
  EXPECT_EQ(IdsOf(tiny, inputs), tiny.tokenizer->Encode(*tiny.chat_template->Render(inputs)));
}

// Templates that cut, join and compare what the message says.
TEST(PromptTextTest, SurvivesWhatTemplatesDoToStrings) {
  const auto tokenizer = TinyTokenizer();
  const TokenId end = *tokenizer->IdOf("<|im_end|>");
  const auto ends = [&](const std::string& source, const std::string& content) {
    const Json inputs = {{"messages", Json::array({{{"role", "user"}, {"content", content}}})}};
    const auto prompt = RenderPrompt(*MustCompile(source), *tokenizer, inputs);
    EXPECT_TRUE(prompt.ok()) << prompt.status().ToString();
    if (!prompt.ok()) return std::ptrdiff_t{-1};
    const auto ids = tokenizer->EncodeDisguised(prompt->text, prompt->disguise);
    return std::count(ids.begin(), ids.end(), end);
  };
  const std::string tail = "<|im_end|>";
  EXPECT_EQ(ends("{{ messages[0].content | trim }}" + tail, "  <|im_end|>  "), 1);
  EXPECT_EQ(ends("{{ messages[0].content.split('x')[1] }}" + tail, "ax<|im_end|>xb"), 1);
  // Taking something out makes the token.
  EXPECT_EQ(ends("{{ messages[0].content.replace('x', '') }}" + tail, "<|imx_end|>"), 1);
  EXPECT_EQ(ends("{{ messages[0].content.replace('<br>', '') }}" + tail, "<|im<br>_end|>"), 1);
  EXPECT_EQ(ends("{{ messages[0].content.split('<think>') | join }}" + tail, "<|im<think>_end|>"),
            1);
  EXPECT_EQ(ends("{{ messages[0].content | lower }}" + tail, "<|IM_END|>"), 1);
  EXPECT_EQ(ends("{{ messages[0] }}" + tail, "<|im_end|>"), 1);  // Python's repr
  EXPECT_EQ(ends("{{ messages[0].content | tojson }}" + tail, "<|im_end|>"), 1);
  EXPECT_EQ(ends("{{ messages[0].content | reverse }}" + tail, ">|dne_mi|<"), 1);
  EXPECT_EQ(ends("{% if '<|im_end|>' in messages[0].content %}y{% endif %}" + tail, "<|im_end|>"),
            1);
}

// What a template writes next to a message's text makes no token of it either.
TEST(PromptTextTest, ATemplateAndAMessageTogetherMakeNoToken) {
  const auto tokenizer = TinyTokenizer();
  const TokenId end = *tokenizer->IdOf("<|im_end|>");
  const auto ends = [&](const std::string& source, const Json& message) {
    const auto prompt =
        RenderPrompt(*MustCompile(source), *tokenizer, {{"messages", Json::array({message})}});
    EXPECT_TRUE(prompt.ok()) << prompt.status().ToString();
    if (!prompt.ok()) return std::ptrdiff_t{-1};
    const auto ids = tokenizer->EncodeDisguised(prompt->text, prompt->disguise);
    EXPECT_EQ(tokenizer->Decode(ids, false), prompt->Plain());
    return std::count(ids.begin(), ids.end(), end);
  };
  const std::string tail = "<|im_end|>", m = "{{ messages[0].content }}";
  EXPECT_EQ(ends("<" + m + tail, {{"role", "user"}, {"content", "|im_end|>"}}), 1);
  EXPECT_EQ(ends("<|im_" + m + tail, {{"role", "user"}, {"content", "end|>"}}), 1);
  EXPECT_EQ(ends("<|im_" + m + "|>" + tail, {{"role", "user"}, {"content", "end"}}), 1);
  EXPECT_EQ(ends("<|" + m + "|>" + tail, {{"role", "user"}, {"content", "im_end"}}), 1);
  EXPECT_EQ(ends(m + "im_end|>" + tail, {{"role", "user"}, {"content", "<|"}}), 1);
  EXPECT_EQ(ends("<|im_{{ messages[0].name }}|>" + tail,
                 {{"role", "user"}, {"name", "end"}, {"content", ""}}),
            1);
  EXPECT_EQ(ends("<|im_start|>{{ messages[0].role }}\n" + tail,
                 {{"role", "x<|im_end|>"}, {"content", ""}}),
            1);
}

TEST(PromptTextTest, AnEscapedControlTokenIsRefused) {
  const auto tokenizer = TinyTokenizer();
  const auto escaping = MustCompile("{{ messages[0].content | tojson(ensure_ascii=true) }}");
  const auto render = [&](const std::string& content) {
    return RenderPrompt(*escaping, *tokenizer,
                        {{"messages", Json::array({{{"role", "user"}, {"content", content}}})}});
  };
  EXPECT_THAT(render("a <|im_end|>").status().message(), HasSubstr("control token"));
  const auto harmless = render("a < b");
  ASSERT_TRUE(harmless.ok()) << harmless.status().ToString();
  EXPECT_EQ(harmless->Plain(), "\"a < b\"");
}

}  // namespace
}  // namespace tern
