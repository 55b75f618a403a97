#include "eval/url_answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "eval/engine_answers.h"

namespace tern {
namespace {

constexpr int64_t kFirstPauseUs = 250'000;
constexpr size_t kMaxBodyBytes = 64 << 20;
constexpr size_t kMaxQuoted = 300;  // of a server's error text

bool MayPass(int status) {
  return status == 429 || status == 502 || status == 503 || status == 504;
}

// The message of an error body, whatever its shape.
std::string ErrorText(const std::string& body) {
  const Result<Json> json = ParseJson(body);
  if (json.ok() && json->is_object()) {
    const Json* error = JsonMember(*json, "error");
    const Json& holder = error != nullptr && error->is_object() ? *error : *json;
    const Result<std::string> message = JsonString(holder, "message", "", "error");
    if (message.ok() && !message->empty()) return *message;
  }
  return body.size() <= kMaxQuoted ? body : body.substr(0, kMaxQuoted) + "...";
}

// What the connections' threads share.
struct Work {
  const std::vector<TaskItem>& items;
  const std::vector<size_t>& wanted;
  const UrlAnswersOptions& options;

  struct Finished {
    size_t index;
    TaskAnswer answer;
  };
  std::atomic<size_t> next{0};
  std::atomic<bool> stop{false};
  Mutex mutex;
  CondVar changed;
  std::vector<Finished> finished TERN_GUARDED_BY(mutex);
  Status failure TERN_GUARDED_BY(mutex);
  size_t threads TERN_GUARDED_BY(mutex) = 0;

  // The first failure is kept, and ends the others.
  void Fail(Status status) {
    MutexLock lock(mutex);
    if (failure.ok()) failure = std::move(status);
    stop.store(true);
    changed.NotifyAll();
  }
  // False when the run ends.
  bool Pause(int64_t us) {
    MutexLock lock(mutex);
    for (int64_t waited = 0; waited < us && !stop.load(); waited += 50'000) {
      changed.WaitFor(mutex, 50'000);
    }
    return !stop.load();
  }
};

// One try. `status`: the HTTP status, 0 when there was none.
Result<std::string> Ask(HttpClient& client, const std::string& body, Work& work, int* status) {
  HttpHeaders headers = {{"Content-Type", "application/json"}};
  if (!work.options.api_key.empty()) {
    headers.push_back({"Authorization", "Bearer " + work.options.api_key});
  }
  std::string answer;
  bool too_large = false;
  *status = 0;
  const Result<HttpResponse> response = client.Stream(
      "POST", "/v1/chat/completions", headers, body,
      [&](std::string_view data) {
        too_large = answer.size() + data.size() > kMaxBodyBytes;
        if (!too_large) answer += data;
        return !too_large && !work.stop.load();
      },
      [&] { return !work.stop.load(); }, work.options.timeout_us);
  if (too_large) return DataLoss("the server's answer is larger than 64 MiB");
  if (!response.ok()) return response.status();
  *status = response->status;
  if (response->status == 200) return answer;
  return FailedPrecondition(fmt::format("{} answered {}: {}", work.options.url, response->status,
                                        ErrorText(answer.empty() ? response->body : answer)));
}

// The answer to the turn that comes after what the model has `said`.
Result<TaskAnswer> AnswerTurn(HttpClient& client, const TaskItem& item,
                              const std::vector<std::string>& said, Work& work) {
  const std::string body = DumpJson(ChatBody(item, said, work.options));
  int64_t pause_us = kFirstPauseUs;
  for (int64_t tried = 1;; ++tried, pause_us *= 2) {
    int status = 0;
    const Result<std::string> answer = Ask(client, body, work, &status);
    if (answer.ok()) {
      return ParseChatCompletion(*answer, item, work.options.calls_in_content);
    }
    const bool passing = MayPass(status) || answer.status().code() == StatusCode::kUnavailable;
    if (!passing || tried >= work.options.tries) {
      if (tried == 1 || !passing) return answer.status();
      return Status(answer.status().code(),
                    fmt::format("{} (tried {} times)", answer.status().message(), tried));
    }
    if (!work.Pause(pause_us)) return Cancelled("the run ended");
  }
}

Result<TaskAnswer> AnswerOne(HttpClient& client, const TaskItem& item, Work& work) {
  std::vector<std::string> said;
  while (true) {
    Result<TaskAnswer> answer = AnswerTurn(client, item, said, work);
    if (!answer.ok() || said.size() == item.open_turns.size()) return answer;
    said.emplace_back(FinalAnswer(answer->text));
  }
}

void Connection(Work& work) {
  Result<std::unique_ptr<HttpClient>> client = HttpClient::Create(work.options.url);
  if (!client.ok()) {
    work.Fail(client.status());
  } else {
    while (!work.stop.load()) {
      const size_t at = work.next.fetch_add(1);
      if (at >= work.wanted.size()) break;
      const size_t index = work.wanted[at];
      Result<TaskAnswer> answer = AnswerOne(**client, work.items[index], work);
      if (!answer.ok()) {
        if (answer.status().code() != StatusCode::kCancelled) {
          work.Fail(answer.status().WithContext(work.items[index].where));
        }
        break;
      }
      MutexLock lock(work.mutex);
      work.finished.push_back({index, std::move(answer).value()});
      work.changed.NotifyAll();
    }
  }
  MutexLock lock(work.mutex);
  --work.threads;
  work.changed.NotifyAll();
}

// The format whose marker stands in the text.
ToolCallFormat FormatIn(std::string_view text) {
  if (text.find("<|tool_call_begin|>") != std::string_view::npos) return ToolCallFormat::kKimiK2;
  if (text.find("<tool_call>") != std::string_view::npos) return ToolCallFormat::kGlm47;
  return ToolCallFormat::kNone;
}

// OpenAI's `tool_calls`; nullopt when there are none.
Result<std::optional<AnsweredCall>> CallOf(const Json& message) {
  const Json* calls = JsonMember(message, "tool_calls");
  if (calls == nullptr || (calls->is_array() && calls->empty()))
    return std::optional<AnsweredCall>();
  const Json* function = calls->is_array() ? JsonMember((*calls)[0], "function") : nullptr;
  if (function == nullptr || !function->is_object()) {
    return DataLoss("message.tool_calls[0].function is missing");
  }
  AnsweredCall call;
  const Json* arguments = JsonMember(*function, "arguments");
  const Result<std::string> name = JsonString(*function, "name", "", "function");
  if (!name.ok()) return DataLoss(name.status().message());
  call.name = *name;
  // A string of JSON; some servers send the object itself.
  if (arguments != nullptr) {
    call.arguments = arguments->is_string() ? arguments->get<std::string>() : DumpJson(*arguments);
  }
  return std::optional<AnsweredCall>(std::move(call));
}

}  // namespace

Json ChatBody(const TaskItem& item, const std::vector<std::string>& said,
              const UrlAnswersOptions& options) {
  Json body = {{"model", options.model},
               {"messages", MessagesOfTurn(item, said)},
               {"temperature", 0},
               {"max_tokens", options.max_new_tokens}};
  if (!item.tools.is_null()) body["tools"] = item.tools;
  // A server without a parser of its own then leaves the markers in the content.
  if (item.expect_tool) body["skip_special_tokens"] = false;
  return body;
}

Result<TaskAnswer> ParseChatCompletion(std::string_view body, const TaskItem& item,
                                       ToolCallFormat calls_in_content) {
  const Result<Json> json = ParseJson(body);
  if (!json.ok()) return DataLoss("the server's answer is no JSON: " + json.status().message());
  const Json* choices = JsonMember(*json, "choices");
  if (choices == nullptr || !choices->is_array() || choices->empty()) {
    return DataLoss("the server's answer is no chat completion: it has no choices");
  }
  const Json* message = JsonMember((*choices)[0], "message");
  if (message == nullptr || !message->is_object()) {
    return DataLoss("the server's answer is no chat completion: choices[0].message is missing");
  }
  TaskAnswer answer;
  const Json* content = JsonMember(*message, "content");
  if (content != nullptr && !content->is_string()) {
    return DataLoss("the server's answer: choices[0].message.content must be a string");
  }
  if (content != nullptr) answer.text = content->get<std::string>();
  const Result<std::string> reason = JsonString((*choices)[0], "finish_reason", "", "choices[0]");
  answer.cut = reason.ok() && *reason == "length";
  if (const Json* usage = JsonMember(*json, "usage")) {
    const Result<int64_t> tokens = JsonInt(*usage, "completion_tokens", 0, "usage");
    if (tokens.ok()) answer.completion_tokens = *tokens;
  }
  Result<std::optional<AnsweredCall>> call = CallOf(*message);
  if (!call.ok()) return call.status().WithContext("the server's answer");
  answer.call = std::move(call).value();
  if (!answer.call && item.expect_tool) {
    const ToolCallFormat format =
        calls_in_content == ToolCallFormat::kNone ? FormatIn(answer.text) : calls_in_content;
    answer.call = FirstCall(answer.text, format, item.tools);
  }
  return answer;
}

Status UrlAnswers::Answer(const std::vector<TaskItem>& items, const std::vector<size_t>& wanted,
                          const OnAnswer& on_answer) {
  Work work{items, wanted, options_};
  std::vector<std::thread> threads;
  {
    MutexLock lock(work.mutex);
    work.threads = std::min(static_cast<size_t>(options_.concurrency), wanted.size());
    for (size_t i = 0; i < work.threads; ++i) threads.emplace_back([&work] { Connection(work); });
  }
  Status refused;
  for (bool done = false; !done;) {
    std::vector<Work::Finished> finished;
    {
      MutexLock lock(work.mutex);
      while (work.finished.empty() && work.threads > 0) work.changed.Wait(work.mutex);
      finished.swap(work.finished);
      done = work.threads == 0 && finished.empty();
    }
    for (Work::Finished& one : finished) {
      if (!refused.ok()) break;
      refused = on_answer(one.index, std::move(one.answer));
      if (!refused.ok()) work.Fail(refused);
    }
  }
  for (std::thread& thread : threads) thread.join();
  MutexLock lock(work.mutex);
  return work.failure;
}

}  // namespace tern
