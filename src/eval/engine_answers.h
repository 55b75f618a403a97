// EngineAnswers: task items through an engine in this process, many at once, greedily.
// Owner: the command. Thread: as AnswerSource; events arrive on the engine's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/engine.h"
#include "eval/answer_source.h"
#include "text/chat_template.h"
#include "text/output_format.h"
#include "text/tokenizer.h"

namespace tern {

struct EngineAnswersOptions {
  int64_t max_new_tokens = 64;
  int64_t in_flight = 128;           // requests handed to the engine at a time
  std::string bos_token, eos_token;  // for the template; empty: none
  OutputFormat format;
};

class EngineAnswers final : public AnswerSource {
 public:
  // `engine` outlives this.
  EngineAnswers(Engine& engine, std::shared_ptr<const Tokenizer> tokenizer,
                std::shared_ptr<const ChatTemplate> chat_template, EngineAnswersOptions options);

  // Errors: a prompt that the template or the engine refuses (context length); kDataLoss for
  // logits that are not finite.
  Status Answer(const std::vector<TaskItem>& items, const std::vector<size_t>& wanted,
                const OnAnswer& on_answer) override;

  // Tokens of all prompts and answers so far.
  int64_t prompt_tokens() const { return prompt_tokens_; }
  int64_t completion_tokens() const { return completion_tokens_; }

 private:
  struct Inbox;
  class Sink;
  // `said`: the answers to the item's open turns so far.
  Status SubmitItem(const TaskItem& item, const std::vector<std::string>& said, size_t index,
                    const std::shared_ptr<Inbox>& inbox);
  TaskAnswer AnswerOf(const TaskItem& item, const std::vector<int32_t>& tokens) const;

  Engine& engine_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const std::shared_ptr<const ChatTemplate> chat_template_;
  const EngineAnswersOptions options_;
  int64_t prompt_tokens_ = 0, completion_tokens_ = 0;
};

// The first call in an answer's text, by the format's rules.
std::optional<AnsweredCall> FirstCall(std::string_view text, ToolCallFormat format,
                                      const Json& tools);

}  // namespace tern
