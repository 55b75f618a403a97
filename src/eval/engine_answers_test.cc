// Task items through an engine that answers by a script.
#include "eval/engine_answers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <thread>

namespace tern {
namespace {

using ::testing::HasSubstr;

// Token i is byte i.
class Bytes final : public Tokenizer {
 public:
  std::vector<TokenId> Encode(std::string_view text, bool) const override {
    std::vector<TokenId> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::string_view TokenBytes(TokenId id) const override {
    static const std::string all = [] {
      std::string bytes;
      for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
      return bytes;
    }();
    return std::string_view(all).substr(static_cast<size_t>(id), 1);
  }
  bool IsSpecial(TokenId) const override { return false; }
  std::optional<TokenId> IdOf(std::string_view) const override { return std::nullopt; }
  int64_t vocab_size() const override { return 256; }
  std::optional<TokenId> bos() const override { return std::nullopt; }
  std::optional<TokenId> eos() const override { return std::nullopt; }
};

// Answers the prompt P with "<P>", each on a thread of its own; ends the n-th as told.
class ScriptedEngine final : public Engine {
 public:
  ~ScriptedEngine() override {
    for (std::thread& thread : threads_) thread.join();
  }
  Result<RequestId> Submit(GenerateRequest request, std::shared_ptr<TokenSink> sink) override {
    const RequestId id = threads_.size() + 1;
    if (refuse_at == id) return InvalidArgument("the prompt is too long");
    EXPECT_EQ(request.sampling.temperature, 0);
    threads_.emplace_back([this, id, sink, tokens = std::move(request.tokens)] {
      FinishEvent end;
      end.prompt_tokens = static_cast<int64_t>(tokens.size());
      if (fail_at == id) {
        end.reason = FinishEvent::Reason::kError;
        end.status = Internal("a logit is not finite");
        return sink->OnFinish(end);
      }
      int64_t index = 0;
      for (const int32_t token : tokens) sink->OnToken({.token = token, .index = index++});
      end.completion_tokens = index;
      if (cut_at == id) end.reason = FinishEvent::Reason::kLength;
      sink->OnFinish(end);
    });
    return id;
  }
  void Cancel(RequestId, int64_t) override {}
  void AbortRid(const std::string&, bool all) override { aborted |= all; }
  void FlushCache(std::function<void(bool)>) override {}
  void Drain(int64_t) override {}
  EngineStats Stats() const override { return {}; }

  RequestId refuse_at = 0, fail_at = 0, cut_at = 0;
  bool aborted = false;

 private:
  std::vector<std::thread> threads_;
};

std::vector<TaskItem> Items(int n) {
  std::vector<TaskItem> items;
  for (int i = 0; i < n; ++i) {
    TaskItem item;
    item.where = "t.jsonl: line " + std::to_string(i + 1);
    item.messages = Json::array({{{"role", "user"}, {"content", "q" + std::to_string(i)}}});
    item.expect = "q" + std::to_string(i);
    items.push_back(std::move(item));
  }
  return items;
}

struct Outcome {
  Status status;
  std::map<size_t, TaskAnswer> answers;
};

Outcome Answer(ScriptedEngine& engine, const std::vector<TaskItem>& items, int64_t in_flight = 4,
               const char* source = "{{ messages[0].content }}") {
  EngineAnswersOptions options;
  options.in_flight = in_flight;
  options.format.tool_calls = ToolCallFormat::kKimiK2;
  EngineAnswers answers(engine, std::make_shared<Bytes>(), *ChatTemplate::Compile(source), options);
  std::vector<size_t> wanted;
  for (size_t i = 0; i < items.size(); ++i) wanted.push_back(i);
  Outcome outcome;
  outcome.status = answers.Answer(items, wanted, [&](size_t i, TaskAnswer answer) {
    EXPECT_TRUE(outcome.answers.emplace(i, std::move(answer)).second);
    return OkStatus();
  });
  return outcome;
}

TEST(EngineAnswers, EveryItemIsAnsweredOnce) {
  ScriptedEngine engine;
  engine.cut_at = 3;
  const auto items = Items(30);
  const Outcome outcome = Answer(engine, items);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
  ASSERT_EQ(outcome.answers.size(), 30u);
  for (const auto& [i, answer] : outcome.answers) {
    EXPECT_TRUE(IsCorrect(items[i], answer)) << answer.text;
    EXPECT_EQ(answer.cut, i == 2);
  }
}

// The engine repeats its prompt, and the template shows what was said so far.
TEST(EngineAnswers, AConversationGoesOnWithWhatTheModelSaid) {
  ScriptedEngine engine;
  std::vector<TaskItem> items = Items(9);
  for (TaskItem& item : items) {
    item.messages.push_back({{"role", "assistant"}});
    item.messages.push_back({{"role", "user"}, {"content", "b"}});
    item.messages.push_back({{"role", "assistant"}});
    item.messages.push_back({{"role", "user"}, {"content", "c"}});
    item.open_turns = {1, 3};
    const std::string first = *item.expect;
    item.expect = first + first + "b" + first + first + "bc";
  }
  const Outcome outcome =
      Answer(engine, items, 4, "{% for m in messages %}{{ m.content }}{% endfor %}");
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
  ASSERT_EQ(outcome.answers.size(), 9u);
  for (const auto& [i, answer] : outcome.answers) {
    EXPECT_TRUE(IsCorrect(items[i], answer)) << answer.text;
  }
}

TEST(EngineAnswers, CallsAreParsed) {
  ScriptedEngine engine;
  auto items = Items(1);
  items[0].messages[0]["content"] =
      "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_time:0"
      "<|tool_call_argument_begin|>{\"city\": \"Rome\"}<|tool_call_end|><|tool_calls_section_end|>";
  items[0].expect.reset();
  items[0].expect_tool = ExpectedCall{"get_time", {{"city", "Rome"}}};
  const Outcome outcome = Answer(engine, items);
  ASSERT_EQ(outcome.answers.size(), 1u);
  EXPECT_TRUE(IsCorrect(items[0], outcome.answers.at(0)));
}

TEST(EngineAnswers, AFailureNamesTheLineAndKeepsTheOthers) {
  ScriptedEngine refusing;
  refusing.refuse_at = 10;
  const Outcome refused = Answer(refusing, Items(30), 100);
  EXPECT_EQ(refused.status.message(), "t.jsonl: line 10: the prompt is too long");
  EXPECT_TRUE(refusing.aborted);

  ScriptedEngine failing;
  failing.fail_at = 5;
  const Outcome failed = Answer(failing, Items(30), 1);
  EXPECT_EQ(failed.status.message(), "t.jsonl: line 5: a logit is not finite");
  EXPECT_EQ(failed.answers.size(), 4u);

  ScriptedEngine engine;
  const Outcome bad_template = Answer(engine, Items(2), 1, "{{ raise_exception('no') }}");
  EXPECT_THAT(bad_template.status.message(), HasSubstr("t.jsonl: line 1: chat template"));
}

}  // namespace
}  // namespace tern
