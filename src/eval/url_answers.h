// UrlAnswers: task items against a server that speaks OpenAI's chat completions.
// Owner: the command. Thread: as AnswerSource; each connection has a thread of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "eval/answer_source.h"
#include "net/http_client.h"
#include "text/output_format.h"

namespace tern {

struct UrlAnswersOptions {
  std::string url;      // "http://host:port"; /v1/chat/completions is added
  std::string api_key;  // empty: none
  std::string model = "default";
  int64_t max_new_tokens = 64;
  int64_t concurrency = 16;
  // Tries of one request when the server can't be reached, breaks off, or answers 429, 502, 503 or
  // 504. Between them it waits 0.25 s, twice as long each time.
  int64_t tries = 5;
  int64_t timeout_us = 600'000'000;  // for one answer
  // Format of calls that the server leaves in the content. kNone: the one whose marker is there.
  ToolCallFormat calls_in_content = ToolCallFormat::kNone;
};

class UrlAnswers final : public AnswerSource {
 public:
  explicit UrlAnswers(UrlAnswersOptions options) : options_(std::move(options)) {}

  // Errors: kUnavailable (not reachable, after all tries), kFailedPrecondition (another status,
  // with the server's message), kDataLoss (an answer that is no chat completion).
  Status Answer(const std::vector<TaskItem>& items, const std::vector<size_t>& wanted,
                const OnAnswer& on_answer) override;

 private:
  const UrlAnswersOptions options_;
};

// The body of a request for an item, once the model has `said` so much of it.
Json ChatBody(const TaskItem& item, const std::vector<std::string>& said,
              const UrlAnswersOptions& options);
// What a server answered. Errors: kDataLoss naming what is missing.
Result<TaskAnswer> ParseChatCompletion(std::string_view body, const TaskItem& item,
                                       ToolCallFormat calls_in_content);

}  // namespace tern
