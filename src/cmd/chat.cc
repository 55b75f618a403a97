// tern chat: a conversation in the terminal, with a model of its own or a running server's.
// Either way it speaks the OpenAI API: a local model is served on a loopback port, under a random
// key.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <iostream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/args.h"
#include "base/log.h"
#include "base/rng.h"
#include "cmd/commands.h"
#include "cmd/serving.h"
#include "net/http_client.h"

namespace tern {
namespace {

struct ChatOptions {
  ModelOptions model;
  std::string url, api_key, system, prompt;
  std::vector<std::string> stop;
  // Calmer than the API's defaults: at temperature 1 a small model loses the thread.
  int64_t max_tokens = 1024;
  double temperature = 0.6, top_p = 0.95;
  std::optional<int64_t> top_k, seed;
  std::optional<double> min_p;
};

OptionTable MakeTable(ChatOptions& o) {
  OptionTable table(
      "tern chat",
      "Talk to a model: one that is loaded here (--model-path), or one that a server\n"
      "serves (--url). /reset forgets the conversation, /exit ends it, Ctrl-C stops an\n"
      "answer.");
  table.Add("--url", &o.url, "URL", "server to talk to, http://host:port").Group("Server");
  table.Add("--api-key", &o.api_key, "KEY", "key that the server asks for")
      .Secret()
      .Group("Server");
  table.Add("--prompt", &o.prompt, "TEXT", "answer this and end; prints nothing but the answer")
      .Group("Conversation");
  table.Add("--system", &o.system, "TEXT", "system message").Group("Conversation");
  table.Add("--max-tokens", &o.max_tokens, "N", "most tokens of an answer")
      .Range(1, 1e9)
      .Group("Sampling");
  table.Add("--temperature", &o.temperature, "T", "0 always takes the likeliest token")
      .Range(0, 1e6)
      .Group("Sampling");
  table.Add("--top-p", &o.top_p, "P", "choose among the likeliest tokens of this total probability")
      .Range(0, 1)
      .Group("Sampling");
  table.Add("--top-k", &o.top_k, "K", "choose among this many likeliest tokens; -1: all")
      .Range(-1, 1e9)
      .Group("Sampling");
  table
      .Add("--min-p", &o.min_p, "P",
           "leave out tokens less likely than this share of the likeliest")
      .Range(0, 1)
      .Group("Sampling");
  table.Add("--seed", &o.seed, "N", "makes sampling repeatable").Group("Sampling");
  table.Add("--stop", &o.stop, "TEXT", "end the answer before this text; may be repeated")
      .Group("Sampling");
  DeclareModelOptions(table, o.model);
  return table;
}

std::atomic<bool> g_interrupted{false};

void OnInterrupt(int) { g_interrupted.store(true); }

void CatchInterrupts() {
  struct sigaction action {};
  action.sa_handler = OnInterrupt;  // without SA_RESTART: a read of the next line ends too
  sigaction(SIGINT, &action, nullptr);
}

// Splits a stream of server-sent events into their data.
class EventReader {
 public:
  // Calls fn(data) for each event that is complete.
  template <typename Fn>
  void Push(std::string_view bytes, Fn fn) {
    buffer_ += bytes;
    for (size_t end; (end = buffer_.find("\n\n")) != std::string::npos;) {
      const std::string event = buffer_.substr(0, end);
      buffer_.erase(0, end + 2);
      constexpr std::string_view kData = "data: ";
      if (event.compare(0, kData.size(), kData) == 0) fn(event.substr(kData.size()));
    }
  }

 private:
  std::string buffer_;
};

// The message of an error body or event, whatever its shape.
std::string ErrorMessage(const std::string& text) {
  Result<Json> json = ParseJson(text);
  if (!json.ok() || !json->is_object()) return text;
  const Json& object =
      json->contains("error") && (*json)["error"].is_object() ? (*json)["error"] : *json;
  Result<std::string> message = JsonString(object, "message", text, "error");
  return message.ok() ? *message : text;
}

class Conversation {
 public:
  Conversation(const ChatOptions& options, HttpClient& client, std::string api_key)
      : options_(options), client_(client), api_key_(std::move(api_key)) {
    Reset();
  }

  void Reset() {
    messages_ = Json::array();
    if (!options_.system.empty()) {
      messages_.push_back({{"role", "system"}, {"content", options_.system}});
    }
  }

  // Prints the answer to `text` as it comes. A Ctrl-C ends it; what came stays in the conversation.
  Status Ask(const std::string& text) {
    messages_.push_back({{"role", "user"}, {"content", text}});
    Answer answer;
    EventReader events;
    g_interrupted.store(false);
    Result<HttpResponse> response = client_.Stream(
        "POST", "/v1/chat/completions",
        {{"Content-Type", "application/json"}, {"Authorization", "Bearer " + api_key_}},
        DumpJson(Body()),
        [&](std::string_view bytes) {
          events.Push(bytes, [&](const std::string& data) { OnEvent(data, &answer); });
          return !g_interrupted.load();
        },
        [] { return !g_interrupted.load(); });
    const bool stopped = response.status().code() == StatusCode::kCancelled;
    if (!response.ok() && !stopped) {
      answer.failure = response.status();
    } else if (response.ok() && response->status != 200) {
      answer.failure = Internal(fmt::format("the server answered {}: {}", response->status,
                                            ErrorMessage(response->body)));
    } else if (answer.failure.ok() && !answer.done && !stopped) {
      answer.failure = DataLoss("the server's answer was cut off, or is not a chat completion");
    }
    if (!answer.failure.ok()) {
      messages_.erase(messages_.size() - 1);
      return answer.failure;
    }
    messages_.push_back({{"role", "assistant"}, {"content", answer.text}});
    return OkStatus();
  }

 private:
  struct Answer {
    std::string text;
    bool done = false;      // its end was seen
    bool thinking = false;  // the last that was shown is reasoning
    Status failure;
  };

  Json Body() const {
    Json body = {{"model", "default"},
                 {"messages", messages_},
                 {"stream", true},
                 {"max_tokens", options_.max_tokens},
                 {"temperature", options_.temperature},
                 {"top_p", options_.top_p}};
    if (options_.top_k) body["top_k"] = *options_.top_k;
    if (options_.min_p) body["min_p"] = *options_.min_p;
    if (options_.seed) body["seed"] = *options_.seed;
    if (!options_.stop.empty()) body["stop"] = options_.stop;
    return body;
  }

  // In a terminal, reasoning is shown on standard error, dimmed: it is not the answer.
  static void ShowReasoning(const Json& delta, Answer* answer) {
    const Result<std::string> text = JsonString(delta, "reasoning_content", "", "delta");
    if (!text.ok() || text->empty() || isatty(STDERR_FILENO) == 0) return;
    fmt::print(stderr, "\x1b[2m{}\x1b[0m", *text);
    answer->thinking = true;
  }

  static void OnEvent(const std::string& data, Answer* answer) {
    if (data == "[DONE]") {
      answer->done = true;
      return;
    }
    Result<Json> event = ParseJson(data);
    if (!event.ok() || !event->is_object()) {
      answer->failure = DataLoss("the server sent an event that is no JSON object");
      return;
    }
    if (event->contains("error")) {
      answer->failure = Internal(ErrorMessage(data));
      return;
    }
    const Json* choices = event->contains("choices") ? &(*event)["choices"] : nullptr;
    if (choices == nullptr || !choices->is_array() || choices->empty()) return;
    const Json& choice = (*choices)[0];
    if (!choice.is_object() || !choice.contains("delta")) return;
    ShowReasoning(choice["delta"], answer);
    const Result<std::string> text = JsonString(choice["delta"], "content", "", "delta");
    if (!text.ok()) {
      answer->failure = text.status();
      return;
    }
    if (!text->empty() && std::exchange(answer->thinking, false)) fmt::print(stderr, "\n");
    answer->text += *text;
    std::fwrite(text->data(), 1, text->size(), stdout);
    std::fflush(stdout);
  }

  const ChatOptions& options_;
  HttpClient& client_;
  const std::string api_key_;
  Json messages_;
};

int Fail(const Status& status, int code) {
  fmt::print(stderr, "tern chat: {}\n", status.message());
  return code;
}

int Talk(Conversation& conversation) {
  const bool terminal = isatty(STDIN_FILENO) != 0;
  std::string line;
  while (true) {
    if (terminal) fmt::print(stderr, "> ");
    g_interrupted.store(false);
    if (!std::getline(std::cin, line) || g_interrupted.load()) break;
    if (line.empty()) continue;
    if (line == "/exit" || line == "/quit") break;
    if (line == "/reset") {
      conversation.Reset();
      continue;
    }
    if (line[0] == '/') {
      fmt::print(stderr, "there are /reset and /exit\n");
      continue;
    }
    const Status status = conversation.Ask(line);
    std::fputs("\n", stdout);
    std::fflush(stdout);
    if (!status.ok()) {
      if (!terminal) return Fail(status, 1);
      Fail(status, 1);
    }
  }
  if (terminal) fmt::print(stderr, "\n");
  return 0;
}

}  // namespace

int ChatCommand(const std::vector<std::string>& args) {
  ChatOptions options;
  OptionTable table = MakeTable(options);
  Result<ParseOutcome> outcome = table.Parse(args);
  if (!outcome.ok()) return Fail(outcome.status(), 2);
  if (*outcome == ParseOutcome::kHelpShown) return 0;
  if (options.url.empty() == options.model.model_path.empty()) {
    return Fail(InvalidArgument("give one of --model-path and --url"), 2);
  }
  SetLogLevel(LogLevel::kWarning);

  std::optional<Serving> serving;
  std::string url = options.url, api_key = options.api_key;
  if (url.empty()) {
    ApiServerOptions api;
    api_key = api.api_key = fmt::format("{:016x}{:016x}", RandomSeed(), RandomSeed());
    api.version = TERN_VERSION;
    serving.emplace(options.model, std::move(api));
    if (isatty(STDERR_FILENO) != 0) fmt::print(stderr, "loading {}\n", options.model.model_path);
    Status status = serving->Listen("127.0.0.1", 0);
    if (status.ok()) status = serving->Load();
    if (!status.ok()) return Fail(status, 1);
    url = fmt::format("http://127.0.0.1:{}", serving->port());
  }
  Result<std::unique_ptr<HttpClient>> client = HttpClient::Create(url);
  if (!client.ok()) return Fail(client.status(), 2);
  CatchInterrupts();
  Conversation conversation(options, **client, api_key);
  if (options.prompt.empty()) return Talk(conversation);
  const Status status = conversation.Ask(options.prompt);
  if (!status.ok()) return Fail(status, 1);
  std::fputs("\n", stdout);
  return 0;
}

}  // namespace tern
