// Task items against servers that behave in all sorts of ways, on loopback.
#include "eval/url_answers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>

#include "net/http_server.h"

namespace tern {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

std::vector<TaskItem> Items(int n) {
  std::vector<TaskItem> items;
  for (int i = 0; i < n; ++i) {
    TaskItem item;
    item.where = "t.jsonl: line " + std::to_string(i + 1);
    item.messages = Json::array({{{"role", "user"}, {"content", "q" + std::to_string(i)}}});
    item.expect = "a" + std::to_string(i);
    items.push_back(std::move(item));
  }
  return items;
}

std::string Completion(const Json& message) {
  return DumpJson({{"choices", Json::array({{{"message", message}, {"finish_reason", "stop"}}})},
                   {"usage", {{"completion_tokens", 3}}}});
}

// "a7" for "q7".
std::string RightAnswer(const HttpRequest& request) {
  const Json body = *ParseJson(request.body);
  const auto question = body["messages"][0]["content"].get<std::string>();
  return Completion({{"content", "<think>x</think> a" + question.substr(1)}});
}

struct Outcome {
  Status status;
  std::map<size_t, TaskAnswer> answers;
};

Outcome Answer(UrlAnswersOptions options, const std::vector<TaskItem>& items) {
  options.concurrency = 4;
  UrlAnswers source(options);
  std::vector<size_t> wanted;
  for (size_t i = 0; i < items.size(); ++i) wanted.push_back(i);
  Outcome outcome;
  outcome.status = source.Answer(items, wanted, [&](size_t i, TaskAnswer answer) {
    EXPECT_TRUE(outcome.answers.emplace(i, std::move(answer)).second);
    return OkStatus();
  });
  return outcome;
}

class UrlAnswersTest : public testing::Test {
 protected:
  // The n-th request, counted from 1, is answered by `handler`.
  using Handler = std::function<void(int n, const HttpRequest&, ResponseWriter&)>;
  void Serve(Handler handler) {
    server_ = std::move(
        *HttpServer::Start("127.0.0.1", 0, {},
                           [this, handler](HttpRequest request, std::shared_ptr<ResponseWriter> w) {
                             handler(++requests_, request, *w);
                           }));
    options_.url = "http://127.0.0.1:" + std::to_string(server_->port());
  }
  static void Right(const HttpRequest& request, ResponseWriter& writer) {
    writer.Send(200, {}, RightAnswer(request));
  }

  std::atomic<int> requests_{0};
  std::unique_ptr<HttpServer> server_;
  UrlAnswersOptions options_;
};

TEST_F(UrlAnswersTest, EveryItemIsAnsweredOnce) {
  options_.api_key = "secret";
  Serve([](int, const HttpRequest& request, ResponseWriter& writer) {
    EXPECT_EQ(request.path, "/v1/chat/completions");
    EXPECT_EQ(*FindHeader(request.headers, "Authorization"), "Bearer secret");
    EXPECT_EQ((*ParseJson(request.body))["temperature"], 0);
    Right(request, writer);
  });
  const auto items = Items(50);
  const Outcome outcome = Answer(options_, items);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
  ASSERT_EQ(outcome.answers.size(), 50u);
  for (const auto& [i, answer] : outcome.answers) EXPECT_TRUE(IsCorrect(items[i], answer));
  EXPECT_EQ(outcome.answers.at(0).completion_tokens, 3);
}

TEST_F(UrlAnswersTest, ABusyServerIsAskedAgain) {
  Serve([](int n, const HttpRequest& request, ResponseWriter& writer) {
    if (n % 5 == 0) return writer.Send(503, {}, R"({"error":{"message":"queue full"}})");
    Right(request, writer);
  });
  const Outcome outcome = Answer(options_, Items(20));
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.message();
  EXPECT_EQ(outcome.answers.size(), 20u);
  EXPECT_GT(requests_, 20);
}

TEST_F(UrlAnswersTest, ARefusalEndsTheRunWithTheServersWords) {
  Serve([](int n, const HttpRequest& request, ResponseWriter& writer) {
    if (n >= 10) return writer.Send(400, {}, R"({"error":{"message":"no such model"}})");
    Right(request, writer);
  });
  const Outcome outcome = Answer(options_, Items(50));
  EXPECT_THAT(outcome.status.message(), HasSubstr("t.jsonl: line "));
  EXPECT_THAT(outcome.status.message(), HasSubstr("answered 400: no such model"));
  EXPECT_GE(outcome.answers.size(), 5u) << "what came before is kept";
  EXPECT_LE(outcome.answers.size(), 9u);
}

TEST_F(UrlAnswersTest, AServerThatGoesAwayIsAnErrorAfterSomeTries) {
  options_.tries = 2;
  Serve([this](int n, const HttpRequest& request, ResponseWriter& writer) {
    if (n == 10) server_->StopAccepting();  // answers in progress end, nothing is accepted
    Right(request, writer);
  });
  const Outcome outcome = Answer(options_, Items(50));
  EXPECT_EQ(outcome.status.code(), StatusCode::kUnavailable) << outcome.status.message();
  EXPECT_THAT(outcome.status.message(), HasSubstr("tried 2 times"));
  EXPECT_GE(outcome.answers.size(), 6u);
  EXPECT_LT(outcome.answers.size(), 50u);
}

TEST_F(UrlAnswersTest, NobodyThere) {
  options_.url = "http://127.0.0.1:1";
  options_.tries = 1;
  const Outcome outcome = Answer(options_, Items(3));
  EXPECT_EQ(outcome.status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(outcome.status.message(), HasSubstr("http://127.0.0.1:1: Connection refused"));
  options_.url = "ftp://x";
  EXPECT_FALSE(Answer(options_, Items(3)).status.ok());
}

TEST_F(UrlAnswersTest, WhatIsNoCompletionIsAnError) {
  const char* bodies[] = {"",
                          "hello",
                          "{}",
                          R"({"choices":[]})",
                          R"({"choices":[1]})",
                          R"({"choices":[{"message":3}]})",
                          R"({"choices":[{"message":{"content":3}}]})",
                          R"({"choices":[{"message":{"tool_calls":[1]}}]})",
                          R"({"choices":[{"message":{"tool_calls":{}}}]})"};
  TaskItem item;
  for (const char* body : bodies) {
    const auto answer = ParseChatCompletion(body, item, ToolCallFormat::kNone);
    EXPECT_EQ(answer.status().code(), StatusCode::kDataLoss) << body;
    EXPECT_THAT(answer.status().message(), HasSubstr("the server's answer")) << body;
  }
}

TEST_F(UrlAnswersTest, CallsComeFromToolCallsOrFromTheContent) {
  TaskItem item;
  item.expect_tool = ExpectedCall{"f", {{"a", 1}}};
  item.tools = Json::array();
  const auto parse = [&](const Json& message) {
    return *ParseChatCompletion(Completion(message), item, ToolCallFormat::kNone);
  };
  const Json call = {{"function", {{"name", "f"}, {"arguments", "{\"a\": 1}"}}}};
  EXPECT_TRUE(IsCorrect(item, parse({{"content", nullptr}, {"tool_calls", Json::array({call})}})));
  const Json object = {{"function", {{"name", "f"}, {"arguments", {{"a", 1}}}}}};
  EXPECT_TRUE(IsCorrect(item, parse({{"tool_calls", Json::array({object})}})));
  EXPECT_TRUE(IsCorrect(item, parse({{"content",
                                      "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
                                      "<|tool_call_argument_begin|>{\"a\":1}<|tool_call_end|>"}})));
  EXPECT_FALSE(IsCorrect(item, parse({{"content", "f"}, {"tool_calls", Json::array()}})));
  EXPECT_EQ(ChatBody(item, {}, {})["skip_special_tokens"], false);
}

}  // namespace
}  // namespace tern
