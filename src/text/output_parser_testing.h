// Helpers of the output parsers' tests: tools, options, and answers to compare.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <string>

#include "text/output_parser.h"
#include "text/testing.h"

namespace tern {

inline constexpr OutputFormat kKimi = {ToolCallFormat::kKimiK2, ReasoningFormat::kKimiK2};
inline constexpr OutputFormat kGlm = {ToolCallFormat::kGlm47, ReasoningFormat::kGlm45};

inline std::shared_ptr<const Json> WeatherTools() {
  return std::make_shared<const Json>(ParseJson(R"([
    {"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":
      {"city":{"type":"string"},"days":{"type":"integer"},"parts":{"type":"array"}}}}},
    {"type":"function","function":{"name":"add","parameters":{"type":"object","properties":
      {"a":{"type":"number"},"b":{"type":"number"}}}}}])")
                                          .value());
}

inline OutputParserOptions Options(OutputFormat format,
                                   ReasoningStart start = ReasoningStart::kUnopened) {
  OutputParserOptions options;
  options.format = format;
  options.start = start;
  options.tools = WeatherTools();
  options.make_call_id = [] { return "call_x"; };
  return options;
}

// "reasoning|content|name(arguments)|..." : everything but the ids.
inline std::string Shown(const ParsedOutput& output) {
  std::string shown = output.reasoning + "|" + output.content;
  for (const ParsedToolCall& call : output.tool_calls) {
    shown += "|" + call.name + "(" + call.arguments + ")";
  }
  return shown;
}

inline std::string KimiCall(const std::string& id, const std::string& arguments) {
  return "<|tool_call_begin|>" + id + "<|tool_call_argument_begin|>" + arguments +
         "<|tool_call_end|>";
}
inline std::string KimiSection(const std::string& calls) {
  return "<|tool_calls_section_begin|>" + calls + "<|tool_calls_section_end|>";
}

}  // namespace tern
