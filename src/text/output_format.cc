#include "text/output_format.h"

#include <fmt/format.h>

#include <array>
#include <utility>

namespace tern {
namespace {

constexpr std::array<std::pair<std::string_view, ToolCallFormat>, 4> kToolCallNames = {
    {{"none", ToolCallFormat::kNone},
     {"kimi_k2", ToolCallFormat::kKimiK2},
     {"glm45", ToolCallFormat::kGlm45},
     {"glm47", ToolCallFormat::kGlm47}}};
constexpr std::array<std::pair<std::string_view, ReasoningFormat>, 3> kReasoningNames = {
    {{"none", ReasoningFormat::kNone},
     {"kimi_k2", ReasoningFormat::kKimiK2},
     {"glm45", ReasoningFormat::kGlm45}}};

template <typename Table, typename Format>
std::string_view NameIn(const Table& table, Format format) {
  for (const auto& [name, value] : table) {
    if (value == format) return name;
  }
  return {};
}

template <typename Format, typename Table>
Result<Format> FormatIn(const Table& table, std::string_view wanted, const char* what) {
  std::string names;
  for (const auto& [name, value] : table) {
    if (name == wanted) return value;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
  }
  return InvalidArgument(fmt::format("{} '{}' is unknown; there are: {}", what, wanted, names));
}

bool Contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace

std::string_view ToolCallFormatName(ToolCallFormat format) {
  return NameIn(kToolCallNames, format);
}
std::string_view ReasoningFormatName(ReasoningFormat format) {
  return NameIn(kReasoningNames, format);
}
Result<ToolCallFormat> ToolCallFormatNamed(std::string_view name) {
  return FormatIn<ToolCallFormat>(kToolCallNames, name, "tool-call parser");
}
Result<ReasoningFormat> ReasoningFormatNamed(std::string_view name) {
  return FormatIn<ReasoningFormat>(kReasoningNames, name, "reasoning parser");
}

OutputFormat DetectOutputFormat(std::string_view source) {
  OutputFormat format;
  const bool thinks = Contains(source, "<think>");
  if (Contains(source, "<|tool_call_begin|>") && Contains(source, "<|tool_call_argument_begin|>")) {
    format.tool_calls = ToolCallFormat::kKimiK2;
    if (thinks) format.reasoning = ReasoningFormat::kKimiK2;
  } else if (Contains(source, "<tool_call>") && Contains(source, "<arg_key>") &&
             Contains(source, "<arg_value>")) {
    // The instructions to the model show a call: name and first key on one line, or on two.
    format.tool_calls =
        Contains(source, "}<arg_key>") ? ToolCallFormat::kGlm47 : ToolCallFormat::kGlm45;
    if (thinks) format.reasoning = ReasoningFormat::kGlm45;
  }
  return format;
}

ReasoningStart ReasoningStartOf(std::string_view prompt) {
  const size_t last = prompt.find_last_not_of(" \t\r\n");
  prompt = prompt.substr(0, last == std::string_view::npos ? 0 : last + 1);
  if (prompt.ends_with("<think>")) return ReasoningStart::kOpen;
  if (prompt.ends_with("</think>")) return ReasoningStart::kClosed;
  return ReasoningStart::kUnopened;
}

}  // namespace tern
