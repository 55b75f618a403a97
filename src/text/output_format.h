// OutputFormat: how a model writes its reasoning and its tool calls, by the names that SGLang gives
// the parsers. Found from the chat template, since that shows the model the same spelling.
//   kimi_k2: <|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:IDX
//            <|tool_call_argument_begin|>{json}<|tool_call_end|><|tool_calls_section_end|>
//   glm45:   <tool_call>NAME\n<arg_key>k</arg_key>\n<arg_value>v</arg_value>\n</tool_call>
//   glm47:   the same without the line breaks (GLM-4.7, GLM-5.x)
// Reasoning is <think>...</think> in both families. Thread: pure functions.
#pragma once

#include <string_view>

#include "base/result.h"

namespace tern {

enum class ToolCallFormat { kNone, kKimiK2, kGlm45, kGlm47 };
enum class ReasoningFormat { kNone, kKimiK2, kGlm45 };

struct OutputFormat {
  ToolCallFormat tool_calls = ToolCallFormat::kNone;
  ReasoningFormat reasoning = ReasoningFormat::kNone;
};

// "none", "kimi_k2", "glm45", "glm47".
std::string_view ToolCallFormatName(ToolCallFormat format);
// "none", "kimi_k2", "glm45".
std::string_view ReasoningFormatName(ReasoningFormat format);
// Errors: kInvalidArgument listing the names.
Result<ToolCallFormat> ToolCallFormatNamed(std::string_view name);
Result<ReasoningFormat> ReasoningFormatNamed(std::string_view name);

// What a Jinja chat template's source says about its model; kNone where it says nothing known.
OutputFormat DetectOutputFormat(std::string_view template_source);

// Where an answer to a rendered prompt begins.
enum class ReasoningStart {
  kUnopened,  // the prompt says nothing: the answer may open reasoning itself
  kOpen,      // the prompt ends with <think>: the answer begins inside reasoning
  kClosed,    // the prompt ends with </think>: reasoning was switched off
};
ReasoningStart ReasoningStartOf(std::string_view prompt);

}  // namespace tern
