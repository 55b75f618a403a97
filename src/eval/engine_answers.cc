#include "eval/engine_answers.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "base/mutex.h"
#include "text/output_parser.h"

namespace tern {

// What the engine's thread leaves for the one that asks.
struct EngineAnswers::Inbox {
  struct Finished {
    size_t index;
    std::vector<int32_t> tokens;
    FinishEvent event;
  };
  Mutex mutex;
  CondVar arrived;
  std::vector<Finished> finished TERN_GUARDED_BY(mutex);
};

class EngineAnswers::Sink final : public TokenSink {
 public:
  Sink(std::shared_ptr<Inbox> inbox, size_t index) : inbox_(std::move(inbox)), index_(index) {}
  void OnToken(TokenEvent event) override { tokens_.push_back(event.token); }
  void OnFinish(FinishEvent event) override {
    MutexLock lock(inbox_->mutex);
    inbox_->finished.push_back({index_, std::move(tokens_), std::move(event)});
    inbox_->arrived.NotifyOne();
  }

 private:
  const std::shared_ptr<Inbox> inbox_;
  const size_t index_;
  std::vector<int32_t> tokens_;  // the engine thread's
};

EngineAnswers::EngineAnswers(Engine& engine, std::shared_ptr<const Tokenizer> tokenizer,
                             std::shared_ptr<const ChatTemplate> chat_template,
                             EngineAnswersOptions options)
    : engine_(engine),
      tokenizer_(std::move(tokenizer)),
      chat_template_(std::move(chat_template)),
      options_(std::move(options)) {}

Status EngineAnswers::SubmitItem(const TaskItem& item, const std::vector<std::string>& said,
                                 size_t index, const std::shared_ptr<Inbox>& inbox) {
  Json inputs = Json::object();
  inputs["messages"] = MessagesOfTurn(item, said);
  if (!item.tools.is_null()) inputs["tools"] = item.tools;
  inputs["add_generation_prompt"] = true;
  if (!options_.bos_token.empty()) inputs["bos_token"] = options_.bos_token;
  if (!options_.eos_token.empty()) inputs["eos_token"] = options_.eos_token;
  const Result<std::string> prompt = chat_template_->Render(inputs);
  if (!prompt.ok()) return prompt.status().WithContext(item.where + ": chat template");
  GenerateRequest request;
  request.tokens = tokenizer_->Encode(*prompt);
  request.sampling.temperature = 0;
  request.sampling.max_new_tokens = options_.max_new_tokens;
  const Result<RequestId> id =
      engine_.Submit(std::move(request), std::make_shared<Sink>(inbox, index));
  return id.ok() ? OkStatus() : id.status().WithContext(item.where);
}

TaskAnswer EngineAnswers::AnswerOf(const TaskItem& item, const std::vector<int32_t>& tokens) const {
  TaskAnswer answer;
  answer.text = tokenizer_->Decode(tokens, /*skip_special=*/false);
  if (item.expect_tool) {
    answer.call = FirstCall(answer.text, options_.format.tool_calls, item.tools);
  }
  return answer;
}

Status EngineAnswers::Answer(const std::vector<TaskItem>& items, const std::vector<size_t>& wanted,
                             const OnAnswer& on_answer) {
  const auto inbox = std::make_shared<Inbox>();
  Status failure;
  std::map<size_t, std::vector<std::string>> said;  // by index, of conversations that are under way
  size_t next = 0, running = 0;
  while (failure.ok() && (next < wanted.size() || running > 0)) {
    while (failure.ok() && next < wanted.size() &&
           static_cast<int64_t>(running) < options_.in_flight) {
      failure = SubmitItem(items[wanted[next]], {}, wanted[next], inbox);
      if (!failure.ok()) break;
      ++next;
      ++running;
    }
    std::vector<Inbox::Finished> finished;
    {
      MutexLock lock(inbox->mutex);
      while (failure.ok() && running > 0 && inbox->finished.empty()) {
        inbox->arrived.Wait(inbox->mutex);
      }
      finished.swap(inbox->finished);
    }
    for (Inbox::Finished& one : finished) {
      --running;
      const TaskItem& item = items[one.index];
      if (one.event.reason == FinishEvent::Reason::kError) {
        if (failure.ok()) failure = one.event.status.WithContext(item.where);
        continue;
      }
      if (one.event.reason == FinishEvent::Reason::kAborted) continue;
      prompt_tokens_ += one.event.prompt_tokens;
      completion_tokens_ += one.event.completion_tokens;
      if (std::vector<std::string>& turns = said[one.index];
          turns.size() < item.open_turns.size()) {
        if (!failure.ok()) continue;
        turns.emplace_back(FinalAnswer(tokenizer_->Decode(one.tokens, /*skip_special=*/true)));
        failure = SubmitItem(item, turns, one.index, inbox);
        if (failure.ok()) ++running;
        continue;
      }
      said.erase(one.index);
      TaskAnswer answer = AnswerOf(item, one.tokens);
      answer.cut = one.event.reason == FinishEvent::Reason::kLength;
      answer.completion_tokens = one.event.completion_tokens;
      const Status taken = on_answer(one.index, std::move(answer));
      if (failure.ok()) failure = taken;
    }
  }
  if (!failure.ok()) engine_.AbortRid("", /*all=*/true);
  return failure;
}

std::optional<AnsweredCall> FirstCall(std::string_view text, ToolCallFormat format,
                                      const Json& tools) {
  OutputParserOptions options;
  options.format.tool_calls = format;
  if (tools.is_array()) options.tools = std::make_shared<const Json>(tools);
  ParsedOutput parsed = ParseOutput(text, std::move(options));
  if (parsed.tool_calls.empty()) return std::nullopt;
  ParsedToolCall& first = parsed.tool_calls.front();
  return AnsweredCall{std::move(first.name), std::move(first.arguments)};
}

}  // namespace tern
