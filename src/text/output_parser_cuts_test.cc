// What comes out of OutputParser does not depend on how the answer is cut, and its time is linear.
#include <chrono>

#include "base/rng.h"
#include "text/output_parser_testing.h"

namespace tern {
namespace {

std::vector<std::string> Fragments() {
  return {"<think>",
          "</think>",
          "<tool_call>",
          "</tool_call>",
          "<arg_key>",
          "</arg_key>",
          "<arg_value>",
          "</arg_value>",
          "<|tool_calls_section_begin|>",
          "<|tool_calls_section_end|>",
          "<|tool_call_section_begin|>",
          "<|tool_call_begin|>",
          "<|tool_call_argument_begin|>",
          "<|tool_call_end|>",
          "functions.add:0",
          "add",
          "city",
          "days",
          "get_weather",
          "7",
          "5",
          "{\"a\": 1}",
          " ",
          "\n",
          "text",
          "Zürich",
          "北京",
          "🙂",
          "<",
          "<|",
          "</",
          "\xE5\x8C",
          "\xFF",
          "\"",
          "\\",
          "[1, 2]",
          "true"};
}

std::string RandomAnswer(Rng& rng) {
  const std::vector<std::string> fragments = Fragments();
  std::string text;
  const uint64_t n = 1 + rng.Below(24);
  for (uint64_t i = 0; i < n; ++i) text += fragments[rng.Below(fragments.size())];
  return text;
}

std::vector<OutputParserOptions> AllOptions() {
  std::vector<OutputParserOptions> all;
  for (const ReasoningStart start :
       {ReasoningStart::kUnopened, ReasoningStart::kOpen, ReasoningStart::kClosed}) {
    for (const OutputFormat format :
         {kKimi, kGlm, OutputFormat{ToolCallFormat::kKimiK2, ReasoningFormat::kNone},
          OutputFormat{ToolCallFormat::kNone, ReasoningFormat::kGlm45}}) {
      all.push_back(Options(format, start));
    }
    all.push_back(Options(kKimi, start));
    all.back().separate_reasoning = false;
    all.push_back(Options(kGlm, start));
    all.back().stream_reasoning = false;
  }
  return all;
}

std::string ShownInPieces(const std::vector<std::string_view>& pieces,
                          const OutputParserOptions& options) {
  OutputParser parser(options);
  ParsedOutput output;
  for (const std::string_view piece : pieces) output.Add(parser.Push(piece));
  output.Add(parser.Finish());
  EXPECT_EQ(parser.has_tool_calls(), !output.tool_calls.empty());
  return Shown(output);
}

void ExpectCutsDoNotMatter(const std::string& text, const OutputParserOptions& options, Rng& rng) {
  const std::string whole = ShownInPieces({text}, options);
  const std::string_view view = text;
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    ASSERT_EQ(ShownInPieces({view.substr(0, cut), view.substr(cut)}, options), whole)
        << text << " cut at " << cut;
  }
  for (int round = 0; round < 8; ++round) {
    std::vector<std::string_view> pieces;
    const uint64_t most = round == 0 ? 1 : 1 + rng.Below(12);  // the first: byte by byte
    for (size_t at = 0; at < view.size(); at += pieces.back().size()) {
      pieces.push_back(view.substr(at, 1 + rng.Below(most)));
    }
    ASSERT_EQ(ShownInPieces(pieces, options), whole) << text << " in pieces, round " << round;
  }
}

TEST(OutputParserCuts, CutsDoNotMatterInRealAnswers) {
  Rng rng(1);
  std::vector<std::string> texts = {
      "<think>Zürich? 北京!</think>Let me look. " +
          KimiSection(KimiCall("functions.get_weather:0", "{\"city\":\"Zürich 🙂\"}") + "\n" +
                      KimiCall("3", "{\"a\":1}")) +
          "\nbye ",
      "\n<think>r</think>\nSo.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>北京 "
      "\"<x>"
      "</arg_value>\n<arg_key>parts</arg_key>\n<arg_value>[1]</arg_value>\n</tool_call>\nok \n"};
  for (const Json& one : TestJson("templates/answer_cases.json")) {
    if (!one["tool_calls"].empty()) texts.push_back(one["text"].get<std::string>());
  }
  for (const std::string& text : texts) {
    for (const OutputParserOptions& options : AllOptions()) {
      ExpectCutsDoNotMatter(text, options, rng);
    }
  }
}

TEST(OutputParserCuts, CutsDoNotMatterInRandomAnswers) {
  Rng rng(2);
  const std::vector<OutputParserOptions> all = AllOptions();
  for (int i = 0; i < 600; ++i) {
    ExpectCutsDoNotMatter(RandomAnswer(rng), all[static_cast<size_t>(i) % all.size()], rng);
  }
}

// Nothing that a model writes outside of markers and calls is lost or made up.
TEST(OutputParserCuts, PlainTextComesOutAsItWent) {
  Rng rng(3);
  const std::string alphabet = "<>|/ab \n\"thinkool_crg";
  for (int i = 0; i < 300; ++i) {
    std::string text = "x";
    for (uint64_t n = rng.Below(60); n > 0; --n) text += alphabet[rng.Below(alphabet.size())];
    for (const OutputFormat format : {kKimi, kGlm}) {
      EXPECT_EQ(ShownInPieces({text}, Options(format, ReasoningStart::kClosed)), "|" + text);
    }
  }
}

TEST(OutputParserCuts, TimeIsLinear) {
  const auto repeated = [](std::string_view part, size_t bytes) {
    std::string text;
    while (text.size() < bytes) text += part;
    return text;
  };
  const std::string kimi_open =
      "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>";
  for (const std::string& begin :
       {std::string(), kimi_open, std::string("<|tool_call_begin|>"), std::string("<tool_call>"),
        std::string("<tool_call>get_weather<arg_key>"),
        std::string("<tool_call>get_weather<arg_key>city</arg_key><arg_value>"),
        std::string("<tool_call>get_weather<arg_key>parts</arg_key><arg_value>")}) {
    for (const std::string_view part :
         {"<", " ", "a", "<|tool_call", "<think", "[", "</arg_value", "<tool_call>",
          "<|tool_call_begin|>", "<arg_key>k</arg_key>"}) {
      const std::string text = begin + repeated(part, 200'000);
      for (const OutputFormat format : {kKimi, kGlm}) {
        const auto start = std::chrono::steady_clock::now();
        OutputParser parser(Options(format));
        size_t bytes = 0;
        for (size_t at = 0; at < text.size(); at += 7) {
          for (const auto& delta : parser.Push(std::string_view(text).substr(at, 7))) {
            bytes += delta.text.size();
          }
        }
        parser.Finish();
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
        EXPECT_LT(took.count(), 2.0) << begin << part;  // quadratic: minutes
        EXPECT_LE(bytes, 3 * text.size());
      }
    }
  }
}

}  // namespace
}  // namespace tern
