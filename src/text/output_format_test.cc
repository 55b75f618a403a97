// Which formats chat templates speak, and where their prompts leave the answer.
#include "text/output_format.h"

#include "text/testing.h"

namespace tern {
namespace {

TEST(OutputFormat, NamesAreSgLangs) {
  for (const char* name : {"none", "kimi_k2", "glm45", "glm47"}) {
    const auto format = ToolCallFormatNamed(name);
    ASSERT_TRUE(format.ok()) << name;
    EXPECT_EQ(ToolCallFormatName(*format), name);
  }
  for (const char* name : {"none", "kimi_k2", "glm45"}) {
    const auto format = ReasoningFormatNamed(name);
    ASSERT_TRUE(format.ok()) << name;
    EXPECT_EQ(ReasoningFormatName(*format), name);
  }
  EXPECT_EQ(ToolCallFormatNamed("hermes").status().message(),
            "tool-call parser 'hermes' is unknown; there are: none, kimi_k2, glm45, glm47");
  EXPECT_FALSE(ReasoningFormatNamed("glm47").ok());
}

OutputFormat Detected(std::string_view source) { return DetectOutputFormat(source); }

TEST(OutputFormat, IsFoundInTheTemplate) {
  const OutputFormat tiny = Detected(TestData("tiny/model/chat_template.jinja"));
  EXPECT_EQ(tiny.tool_calls, ToolCallFormat::kKimiK2);
  EXPECT_EQ(tiny.reasoning, ReasoningFormat::kKimiK2);
  const OutputFormat smollm2 = Detected(TestData("templates/smollm2.jinja"));
  EXPECT_EQ(smollm2.tool_calls, ToolCallFormat::kNone);
  EXPECT_EQ(smollm2.reasoning, ReasoningFormat::kNone);

  // The line that GLM's templates tell the model its format with.
  const OutputFormat glm46 = Detected(
      "<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n<arg_value>{arg-value-1}"
      "</arg_value>\n...\n</tool_call>{{ '\\n<think></think>' }}");
  EXPECT_EQ(glm46.tool_calls, ToolCallFormat::kGlm45);
  EXPECT_EQ(glm46.reasoning, ReasoningFormat::kGlm45);
  const OutputFormat glm47 = Detected(
      "<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}"
      "</arg_value>...</tool_call>{{ '<think>' }}");
  EXPECT_EQ(glm47.tool_calls, ToolCallFormat::kGlm47);
  EXPECT_EQ(glm47.reasoning, ReasoningFormat::kGlm45);

  // Kimi K2 without thinking; Qwen3 Coder, whose calls begin as GLM's do; DeepSeek's own marks.
  const OutputFormat k2 = Detected(
      "<|tool_calls_section_begin|><|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>");
  EXPECT_EQ(k2.tool_calls, ToolCallFormat::kKimiK2);
  EXPECT_EQ(k2.reasoning, ReasoningFormat::kNone);
  EXPECT_EQ(Detected("<tool_call>\n<function=f>\n<parameter=p>").tool_calls, ToolCallFormat::kNone);
  EXPECT_EQ(Detected("<think>\n<｜tool▁call▁begin｜>").tool_calls, ToolCallFormat::kNone);
}

TEST(OutputFormat, PromptsSayWhereTheAnswerBegins) {
  // Ends of the prompts of Kimi K2.5, GLM-4.7, DeepSeek R1; their thinking switched off; GLM-4.6.
  EXPECT_EQ(ReasoningStartOf("<|im_assistant|>assistant<|im_middle|><think>"),
            ReasoningStart::kOpen);
  EXPECT_EQ(ReasoningStartOf("<|assistant|><think>"), ReasoningStart::kOpen);
  EXPECT_EQ(ReasoningStartOf("<think>\n"), ReasoningStart::kOpen);
  EXPECT_EQ(ReasoningStartOf("<|assistant|></think>"), ReasoningStart::kClosed);
  EXPECT_EQ(ReasoningStartOf("<|assistant|>\n<think></think>"), ReasoningStart::kClosed);
  EXPECT_EQ(ReasoningStartOf("<|assistant|>"), ReasoningStart::kUnopened);
  // A user who writes the tag does not open anything.
  EXPECT_EQ(ReasoningStartOf("<|user|>What does <think> do?<|assistant|>"),
            ReasoningStart::kUnopened);
  EXPECT_EQ(ReasoningStartOf(""), ReasoningStart::kUnopened);
}

}  // namespace
}  // namespace tern
