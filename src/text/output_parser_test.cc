// Answers of the formats, whole and cut. Expected values are read off the formats' published shapes
// and the templates that write them, and off the trained model's own answers.
#include "text/output_parser.h"

#include <fstream>

#include "text/output_parser_testing.h"

namespace tern {
namespace {

using Kind = OutputDelta::Kind;

std::string Kimi(std::string_view text, ReasoningStart start = ReasoningStart::kUnopened) {
  return Shown(ParseOutput(text, Options(kKimi, start)));
}
std::string Glm(std::string_view text, ReasoningStart start = ReasoningStart::kUnopened) {
  return Shown(ParseOutput(text, Options(kGlm, start)));
}

TEST(OutputParser, Reasoning) {
  EXPECT_EQ(Kimi("<think>why</think>because"), "why|because");
  EXPECT_EQ(Kimi("because"), "|because");
  EXPECT_EQ(Kimi(""), "|");
  EXPECT_EQ(Kimi(" \n"), "| \n");
  EXPECT_EQ(Kimi("\n<think>\nwhy\n</think>\n\nbecause\n"), "\nwhy\n|\n\nbecause\n");
  EXPECT_EQ(Kimi("<think></think>because"), "|because");
  EXPECT_EQ(Kimi("<think>cut off"), "cut off|");
  EXPECT_EQ(Kimi("<think>cut off</thi"), "cut off</thi|");
  EXPECT_EQ(Kimi("<think>a <b> <think> c</think>d</think>"), "a <b> <think> c|d</think>");
  // Text before it, as in SGLang's streams; later ones are text.
  EXPECT_EQ(Kimi("So: <think>why</think>because <think>x</think>"),
            "why|So: because <think>x</think>");
}

TEST(OutputParser, ReasoningThatThePromptOpenedOrClosed) {
  const auto open = ReasoningStart::kOpen, closed = ReasoningStart::kClosed;
  EXPECT_EQ(Kimi("why</think>because", open), "why|because");
  EXPECT_EQ(Kimi("\n<think>why</think>because", open), "why|because");
  EXPECT_EQ(Kimi("why <think>not</think>because", open), "why <think>not|because");
  EXPECT_EQ(Kimi("cut off", open), "cut off|");
  EXPECT_EQ(Kimi("", open), "|");
  EXPECT_EQ(Kimi("</think>because", open), "|because");
  EXPECT_EQ(Kimi("</think>because", closed), "|because");
  EXPECT_EQ(Kimi("The tag <think> opens, </think> closes.", closed),
            "|The tag <think> opens, </think> closes.");
  EXPECT_EQ(Kimi("<think>anyway</think>because", closed), "anyway|because");
}

TEST(OutputParser, WithoutParsersTextIsText) {
  const std::string text =
      "<think>a</think><tool_call>f</tool_call>" + KimiSection(KimiCall("functions.f:0", "{}"));
  EXPECT_EQ(Shown(ParseOutput(text, Options({}))), "|" + text);
  const OutputFormat reasoning_only = {ToolCallFormat::kNone, ReasoningFormat::kGlm45};
  EXPECT_EQ(
      Shown(ParseOutput("<think>a<tool_call>f</tool_call></think>b", Options(reasoning_only))),
      "a<tool_call>f</tool_call>|b");
  const OutputFormat tools_only = {ToolCallFormat::kGlm47, ReasoningFormat::kNone};
  EXPECT_EQ(Shown(ParseOutput("<think>a</think>b<tool_call>f</tool_call>", Options(tools_only))),
            "|<think>a</think>b|f({})");
}

TEST(OutputParser, ReasoningInOnePieceOrInTheContent) {
  OutputParserOptions options = Options(kKimi);
  options.stream_reasoning = false;
  OutputParser parser(options);
  EXPECT_TRUE(parser.Push("<think>one ").empty());
  EXPECT_TRUE(parser.in_reasoning());
  EXPECT_TRUE(parser.Push("two").empty());
  const auto deltas = parser.Push("</think>three");
  EXPECT_FALSE(parser.in_reasoning());
  ASSERT_EQ(deltas.size(), 2u);
  EXPECT_EQ(deltas[0].kind, Kind::kReasoning);
  EXPECT_EQ(deltas[0].text, "one two");
  EXPECT_EQ(deltas[1].kind, Kind::kContent);
  EXPECT_EQ(deltas[1].text, "three");
  EXPECT_EQ(Shown(ParseOutput("<think>cut", options)), "cut|");

  OutputParserOptions together = Options(kKimi);
  together.separate_reasoning = false;
  const std::string text = "\n<think> why\n</think> because";
  EXPECT_EQ(Shown(ParseOutput(text, together)), "|" + text);
  EXPECT_EQ(
      Shown(ParseOutput("<think>a" + KimiSection(KimiCall("functions.add:0", "{}")), together)),
      "|<think>a|add({})");
  together.start = ReasoningStart::kOpen;
  EXPECT_EQ(Shown(ParseOutput("why</think>because", together)), "|why</think>because");
}

TEST(OutputParser, KimiCalls) {
  const std::string weather = KimiCall("functions.get_weather:0", R"({"city":"Zürich 北京"})");
  EXPECT_EQ(
      Kimi("Let me look. " + KimiSection(weather + KimiCall("functions.add:1", R"({"a":1})"))),
      R"(|Let me look. |get_weather({"city":"Zürich 北京"})|add({"a":1}))");
  EXPECT_EQ(Kimi("<think>r</think> " + KimiSection(weather)),
            R"(r||get_weather({"city":"Zürich 北京"}))");
  // Reasoning that a section breaks into; its end may come behind the section, or never.
  EXPECT_EQ(Kimi("<think>hm" + KimiSection(weather)), R"(hm||get_weather({"city":"Zürich 北京"}))");
  EXPECT_EQ(Kimi("hm" + KimiSection(weather) + "</think>", ReasoningStart::kOpen),
            R"(hm||get_weather({"city":"Zürich 北京"}))");
  // Spaces around ids and arguments; the other spelling of the section; no section.
  EXPECT_EQ(
      Kimi("<|tool_call_section_begin|>\n" + KimiCall(" functions.add:0\n", "\n {\"a\": 1 }\n") +
           "\n<|tool_call_section_end|>\n"),
      R"(||add({"a": 1 }))");
  EXPECT_EQ(Kimi("So" + weather), R"(|So|get_weather({"city":"Zürich 北京"}))");
  // Text behind a section is content, whitespace is not.
  EXPECT_EQ(Kimi(KimiSection(weather) + "\nThat was it.\n"),
            "|\nThat was it.\n|get_weather({\"city\":\"Zürich 北京\"})");
  // No arguments.
  EXPECT_EQ(Kimi(KimiSection(KimiCall("functions.now:0", ""))), "||now({})");
  // A name with dots, dashes; one without the prefix; one that was not declared.
  EXPECT_EQ(Kimi(KimiSection(KimiCall("functions.mcp.a-b_c:12", "{}"))), "||mcp.a-b_c({})");
  EXPECT_EQ(Kimi(KimiSection(KimiCall("add:3", "{}"))), "||add({})");
  // Markers that belong nowhere.
  EXPECT_EQ(Kimi("a<|tool_call_end|>b<|tool_calls_section_end|>"), "|ab");
}

TEST(OutputParser, KimiArgumentsArePassedOnAsTheyAre) {
  for (const char* arguments :
       {R"({"city": "Par)", "not json", R"({'city': 'x'})", R"(["a"])",
        R"({"s": "<think> </arg_key> <|x|> <"})", "{\"a\":\n 1}", "{} {}"}) {
    EXPECT_EQ(Kimi(KimiSection(KimiCall("functions.f:0", arguments))),
              std::string("||f(") + arguments + ")");
  }
}

TEST(OutputParser, KimiCallsThatAreNoneOrHalf) {
  const std::string begin = "<|tool_calls_section_begin|><|tool_call_begin|>";
  // Cut off: in the arguments, before them, in a marker.
  EXPECT_EQ(Kimi("a" + begin + "functions.add:0<|tool_call_argument_begin|>{\"a\": "),
            "|a|add({\"a\":)");
  EXPECT_EQ(Kimi("a" + begin + "functions.add:0<|tool_call_argument_begin|>"), "|a|add()");
  EXPECT_EQ(Kimi("a" + begin + "functions.add:0"), "|a");
  EXPECT_EQ(Kimi("a<|tool_calls_sec"), "|a<|tool_calls_sec");
  // Left open: the section's end or the next call ends it.
  EXPECT_EQ(Kimi(begin +
                 "functions.add:0<|tool_call_argument_begin|>{\"a\":1}<|tool_calls_section_end|>b"),
            R"(|b|add({"a":1}))");
  EXPECT_EQ(Kimi(begin + "functions.add:0<|tool_call_argument_begin|>{}" +
                 KimiCall("functions.add:1", "{}")),
            "||add({})|add({})");
  EXPECT_EQ(Kimi(begin + "functions.lost:0" + KimiCall("functions.add:1", "{}")), "||add({})");
  // No usable name.
  EXPECT_EQ(Kimi(KimiSection(KimiCall("", "{}") + KimiCall("functions.:0", "{}") +
                             KimiCall("two words:0", "{}") + KimiCall("nobody", "{}"))),
            "|");
  EXPECT_EQ(Kimi(KimiSection(KimiCall("functions.add", "{}"))), "||add({})");
  // Only a counter: the tool that the arguments fit.
  EXPECT_EQ(Kimi(KimiSection(KimiCall("3", R"({"a":1,"b":2})"))), R"(||add({"a":1,"b":2}))");
  EXPECT_EQ(Kimi(KimiSection(KimiCall("0", R"( {"city":"x"} )"))),
            R"(||get_weather({"city":"x"}))");
  EXPECT_EQ(Kimi(KimiSection(KimiCall("0", R"({"nothing":1,"known":2})"))), "|");
}

TEST(OutputParser, KimiIdsCountOverTheConversation) {
  OutputParserOptions options = Options(kKimi);
  options.first_call_index = 5;
  const ParsedOutput output = ParseOutput(
      KimiSection(KimiCall("functions.add:0", "{}") + KimiCall("functions.add:0", "{}")), options);
  ASSERT_EQ(output.tool_calls.size(), 2u);
  EXPECT_EQ(output.tool_calls[0].id, "functions.add:5");
  EXPECT_EQ(output.tool_calls[1].id, "functions.add:6");
}

std::string GlmArgument(const std::string& key, const std::string& value) {
  return "<arg_key>" + key + "</arg_key><arg_value>" + value + "</arg_value>";
}

TEST(OutputParser, GlmCalls) {
  EXPECT_EQ(Glm("reason</think>text<tool_call>get_weather" + GlmArgument("city", "Zürich 北京") +
                    "</tool_call>",
                ReasoningStart::kOpen),
            R"(reason|text|get_weather({"city": "Zürich 北京"}))");
  EXPECT_EQ(
      Glm("<tool_call>add" + GlmArgument("a", "1.5") + GlmArgument("b", "-2") + "</tool_call>"),
      R"(||add({"a": 1.5, "b": -2}))");
  // With line breaks, as 4.5 and 4.6 write it; several; text around them.
  EXPECT_EQ(
      Glm("\n<think>hm</think>\nLet me look.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n"
          "<arg_value>a \"b\"\n\\</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>"
          "\n</tool_call>\n<tool_call>now\n</tool_call>\nDone.\n"),
      "hm|\nLet me look.\nDone.\n|get_weather({\"city\": \"a \\\"b\\\"\\n\\\\\", \"days\": "
      "3})|now({})");
  // The call opens in unclosed reasoning.
  EXPECT_EQ(Glm("hm<tool_call>add</tool_call></think>", ReasoningStart::kOpen), "hm||add({})");
  // Values by their types.
  EXPECT_EQ(Glm("<tool_call>get_weather" + GlmArgument("city", "5") + GlmArgument("days", "5") +
                GlmArgument("parts", "[1, {\"x\": null}]") + GlmArgument("more", "true") +
                GlmArgument("text", "a b") + "</tool_call>"),
            R"(||get_weather({"city": "5", "days": 5, "parts": [1, {"x": null}], "more": true, )"
            R"("text": "a b"}))");
  EXPECT_EQ(Glm("<tool_call>unknown" + GlmArgument("x", "5") + "</tool_call>"),
            R"(||unknown({"x": 5}))");
  // Tags of other levels inside a string are text.
  EXPECT_EQ(Glm("<tool_call>get_weather" +
                GlmArgument("city", "<tool_call><arg_key>x</arg_key><b>") + "</tool_call>"),
            R"(||get_weather({"city": "<tool_call><arg_key>x</arg_key><b>"}))");
  EXPECT_EQ(Glm("<tool_call>get_weather\\n" + GlmArgument(" city ", "") + "</tool_call>"),
            R"(||get_weather({"city": ""}))");
  // Outside of calls the inner tags are text.
  EXPECT_EQ(Glm("a <arg_key> b</arg_value>"), "|a <arg_key> b</arg_value>");
}

TEST(OutputParser, GlmCallsThatAreNoneOrHalf) {
  EXPECT_EQ(Glm("a<tool_call>get_weather" + GlmArgument("city", "x") + "<arg_key>da"),
            R"~(|a|get_weather({"city": "x"))~");
  EXPECT_EQ(Glm("a<tool_call>get_weather<arg_key>city</arg_key><arg_value>Par"),
            R"~(|a|get_weather({"city": "Par))~");
  EXPECT_EQ(Glm("a<tool_call>get_weather<arg_key>days</arg_key><arg_value>1"),
            R"~(|a|get_weather({"days": ))~");
  EXPECT_EQ(Glm("a<tool_call>get_wea"), "|a");
  EXPECT_EQ(Glm("a<tool_c"), "|a<tool_c");
  EXPECT_EQ(Glm("<tool_call></tool_call><tool_call>" + GlmArgument("a", "1") + "</tool_call>b"),
            "|b");
  EXPECT_EQ(Glm("<tool_call>lost<tool_call>add</tool_call>"), "||add({})");
  EXPECT_EQ(Glm("<tool_call>add" + GlmArgument("a", "1") + "<tool_call>add</tool_call>"),
            R"(||add({"a": 1})|add({}))");
  EXPECT_EQ(Glm("<tool_call>add<arg_key>a</arg_key><arg_value>1</tool_call>b"),
            R"(|b|add({"a": 1}))");
  EXPECT_EQ(Glm("<tool_call>add<arg_key>a</arg_key><arg_key>b</arg_key><arg_value>2</arg_value>"
                "</tool_call>"),
            R"(||add({"b": 2}))");
  EXPECT_EQ(Glm("a</tool_call>b"), "|ab");
}

TEST(OutputParser, GlmIdsAreRandom) {
  OutputParserOptions options = Options(kGlm);
  options.make_call_id = nullptr;
  const ParsedOutput output =
      ParseOutput("<tool_call>a</tool_call><tool_call>b</tool_call>", options);
  ASSERT_EQ(output.tool_calls.size(), 2u);
  for (const ParsedToolCall& call : output.tool_calls) {
    EXPECT_THAT(call.id, testing::MatchesRegex("call_[0-9a-f]{24}"));
  }
  EXPECT_NE(output.tool_calls[0].id, output.tool_calls[1].id);
}

// SGLang's order in a stream: reasoning, content, then per call its name before its arguments,
// which come as they are written.
TEST(OutputParser, DeltasComeInOrderAndEarly) {
  OutputParser parser(Options(kKimi));
  const auto push = [&parser](std::string_view text) {
    std::string shown;
    for (const OutputDelta& delta : parser.Push(text)) {
      switch (delta.kind) {
        case Kind::kReasoning:
          shown += fmt::format("r:{};", delta.text);
          break;
        case Kind::kContent:
          shown += fmt::format("c:{};", delta.text);
          break;
        case Kind::kToolCall:
          shown += fmt::format("t{}:{},{};", delta.index, delta.id, delta.name);
          break;
        case Kind::kArguments:
          shown += fmt::format("a{}:{};", delta.index, delta.text);
          break;
      }
    }
    return shown;
  };
  EXPECT_EQ(push("<th"), "");
  EXPECT_EQ(push("ink>wh"), "r:wh;");
  EXPECT_EQ(push("y</think>So"), "r:y;c:So;");
  EXPECT_EQ(push("<|tool_calls_section_begin|>"), "");
  EXPECT_FALSE(parser.has_tool_calls());
  EXPECT_EQ(push("<|tool_call_begin|>functions.f:7"), "");
  EXPECT_EQ(push("<|tool_call_argument_begin|>"), "t0:functions.f:0,f;");
  EXPECT_TRUE(parser.has_tool_calls());
  EXPECT_EQ(push("{\"a\""), "a0:{\"a\";");
  EXPECT_EQ(push(": 1}<|tool"), "a0:: 1};");
  EXPECT_EQ(push("_call_end|>" + KimiCall("functions.g:8", "{}") + KimiCall("h:9", "[]")),
            "t1:functions.g:1,g;a1:{};t2:functions.h:2,h;a2:[];");

  OutputParser glm(Options(kGlm));
  glm.Push("<tool_call>get_weather<arg_key>city</arg_key><arg_value>");
  const auto piece = glm.Push("Par");  // strings are streamed
  ASSERT_EQ(piece.size(), 1u);
  EXPECT_EQ(piece[0].kind, Kind::kArguments);
  EXPECT_EQ(piece[0].text, "Par");
}

// Turns as models' own templates render them; tests/data/templates/make_answer_cases.py.
TEST(OutputParser, ReadsWhatTemplatesWrite) {
  const Json cases = TestJson("templates/answer_cases.json");
  ASSERT_EQ(cases.size(), 45u);
  for (const Json& one : cases) {
    OutputParserOptions options;
    options.format.tool_calls = ToolCallFormatNamed(one["format"].get<std::string>()).value();
    options.format.reasoning = options.format.tool_calls == ToolCallFormat::kKimiK2
                                   ? ReasoningFormat::kKimiK2
                                   : ReasoningFormat::kGlm45;
    options.tools = std::make_shared<const Json>(one["tools"]);
    options.first_call_index = one["first_call_index"].get<int64_t>();
    const ParsedOutput output = ParseOutput(one["text"].get<std::string>(), options);
    SCOPED_TRACE(one.dump());
    EXPECT_EQ(output.reasoning, one["reasoning"].get<std::string>());
    const auto is_space = [](char c) { return c == ' ' || c == '\n'; };
    std::string content = output.content;
    while (!content.empty() && is_space(content.back())) content.pop_back();
    while (!content.empty() && is_space(content.front())) content.erase(0, 1);
    EXPECT_EQ(content, one["content"].get<std::string>());
    ASSERT_EQ(output.tool_calls.size(), one["tool_calls"].size());
    for (size_t i = 0; i < output.tool_calls.size(); ++i) {
      const Json& expected = one["tool_calls"][i];
      EXPECT_EQ(output.tool_calls[i].name, expected["name"].get<std::string>());
      if (options.format.tool_calls == ToolCallFormat::kKimiK2) {
        EXPECT_EQ(output.tool_calls[i].id, expected["id"].get<std::string>());
      }
      const auto arguments = ParseJson(output.tool_calls[i].arguments);
      ASSERT_TRUE(arguments.ok()) << output.tool_calls[i].arguments;
      EXPECT_EQ(*arguments, expected["arguments"]);
    }
  }
}

// What the trained model answers (ids from transformers) to its tool and think tasks.
TEST(OutputParser, ReadsWhatATrainedModelWrites) {
  const auto tokenizer = TinyTokenizer();
  ASSERT_NE(tokenizer, nullptr);
  const Json reference = TestJson("tiny/reference.json")["items"];
  std::ifstream lines(std::string(TERN_SOURCE_DIR) + "/tests/data/tiny/tasks_dev.jsonl");
  int tools = 0, thoughts = 0;
  for (std::string line; std::getline(lines, line);) {
    const Json item = ParseJson(line).value();
    const auto task = item["task"].get<std::string>();
    if (task != "tool" && task != "think") continue;
    const std::vector<TokenId> ids =
        IdsOf(reference[std::to_string(item["id"].get<int64_t>())]["ids"]);
    OutputParserOptions options = Options(kKimi);
    options.tools = std::make_shared<const Json>(item.contains("tools") ? item["tools"] : Json());
    const ParsedOutput output = ParseOutput(tokenizer->Decode(ids, false), options);
    SCOPED_TRACE(line);
    if (task == "think") {
      ++thoughts;
      EXPECT_FALSE(output.reasoning.empty());
      EXPECT_EQ(output.content, item["expect"].get<std::string>());
      continue;
    }
    ++tools;
    ASSERT_EQ(output.tool_calls.size(), 1u);
    EXPECT_EQ(output.content, "");
    const Json& expected = item["expect_tool"];
    EXPECT_EQ(output.tool_calls[0].name, expected["name"].get<std::string>());
    EXPECT_EQ(output.tool_calls[0].id, "functions." + output.tool_calls[0].name + ":0");
    EXPECT_EQ(ParseJson(output.tool_calls[0].arguments).value(), expected["arguments"]);
  }
  EXPECT_EQ(tools, 200);
  EXPECT_EQ(thoughts, 200);
}

}  // namespace
}  // namespace tern
