// Arbitrary answers, whole and in pieces: the same reasoning, content and calls come out, and each
// finished call of GLM has an object for arguments. The first bytes choose the format and the cuts.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/rng.h"
#include "text/output_parser.h"

namespace {

constexpr const char* kTools = R"([{"type":"function","function":{"name":"f","parameters":{
    "type":"object","properties":{"s":{"type":"string"},"i":{"type":"integer"},
    "o":{"anyOf":[{"type":"object"},{"$ref":"#/properties/s"}]},"e":{"enum":["1",2]}}}}}])";

tern::OutputParserOptions OptionsOf(uint8_t choice,
                                    const std::shared_ptr<const tern::Json>& tools) {
  tern::OutputParserOptions options;
  options.format.tool_calls = static_cast<tern::ToolCallFormat>(choice % 4);
  options.format.reasoning = static_cast<tern::ReasoningFormat>(choice / 4 % 3);
  options.start = static_cast<tern::ReasoningStart>(choice / 12 % 3);
  options.separate_reasoning = choice / 36 % 2 == 0;
  options.stream_reasoning = choice / 72 % 2 == 0;
  options.tools = tools;
  options.make_call_id = [] { return "id"; };
  return options;
}

bool Equal(const tern::ParsedOutput& a, const tern::ParsedOutput& b) {
  if (a.reasoning != b.reasoning || a.content != b.content) return false;
  if (a.tool_calls.size() != b.tool_calls.size()) return false;
  for (size_t i = 0; i < a.tool_calls.size(); ++i) {
    const auto &x = a.tool_calls[i], &y = b.tool_calls[i];
    if (x.id != y.id || x.name != y.name || x.arguments != y.arguments) return false;
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto* const tools = new std::shared_ptr<const tern::Json>(
      std::make_shared<const tern::Json>(tern::ParseJson(kTools).value()));
  if (size < 2) return 0;
  const tern::OutputParserOptions options = OptionsOf(data[0], *tools);
  tern::Rng cuts(data[1]);
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const tern::ParsedOutput whole = tern::ParseOutput(text, options);

  tern::OutputParser parser(options);
  tern::ParsedOutput pieces;
  for (size_t at = 0; at < text.size();) {
    const size_t length = 1 + cuts.Below(1 + data[1] % 16);
    pieces.Add(parser.Push(text.substr(at, length)));
    at += length;
  }
  pieces.Add(parser.Finish());
  if (!Equal(whole, pieces)) std::abort();
  if (parser.has_tool_calls() != !whole.tool_calls.empty()) std::abort();

  const bool glm = options.format.tool_calls == tern::ToolCallFormat::kGlm45 ||
                   options.format.tool_calls == tern::ToolCallFormat::kGlm47;
  for (size_t i = 0; glm && i + 1 < whole.tool_calls.size(); ++i) {  // the last may be cut off
    const std::string& text_of_it = whole.tool_calls[i].arguments;
    const auto arguments = tern::ParseJson(text_of_it);
    // A value at the JSON reader's depth is one deeper in its object; thousands of keys are
    // refused.
    const bool readable = std::count(text_of_it.begin(), text_of_it.end(), '[') +
                              std::count(text_of_it.begin(), text_of_it.end(), '{') <
                          tern::kMaxJsonDepth;
    if (!arguments.ok() && readable && text_of_it.size() < 10'000) std::abort();
    if (arguments.ok() && !arguments->is_object()) std::abort();
  }
  return 0;
}
