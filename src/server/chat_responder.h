// ChatResponder: answers of /v1/chat/completions: text becomes reasoning, content and tool calls.
// A delta always has `reasoning_content`, null or text, as SGLang's; text is mirrored as
// `reasoning`. Owned by its Generation. Thread: the network thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/openai_responder.h"
#include "text/output_parser.h"

namespace tern {

class ChatResponder final : public OpenAiResponder {
 public:
  // `parsing`: of every choice.
  ChatResponder(const EndpointContext& context, const CompletionParams& params,
                const std::vector<ChoiceSpec>& choices, const OutputParserOptions& parsing,
                std::shared_ptr<ResponseWriter> writer);

 private:
  struct Answer {
    explicit Answer(const OutputParserOptions& parsing) : parser(parsing) {}
    OutputParser parser;
    ParsedOutput whole;  // unless it is streamed
    int64_t reasoning_tokens = 0;
    std::string logprobs;  // comma-separated
  };

  std::string_view ObjectName(bool chunk) const override;
  std::string OpeningFields() const override;
  std::vector<std::string> AddText(size_t choice, std::string_view text, bool last) override;
  std::string EndFields() const override;
  std::string_view TokenIdsName() const override { return "response_token_ids"; }
  std::string WholeFields(size_t choice) const override;
  std::string_view FinishReason(size_t choice, const ChoiceEnd& end) const override;
  int64_t ReasoningTokens(size_t choice) const override {
    return answers_[choice].reasoning_tokens;
  }
  void AddLogprob(size_t choice, const TokenEvent& token) override;
  std::string TakeLogprobs(size_t choice) override;

  std::vector<Answer> answers_;  // per choice
};

}  // namespace tern
