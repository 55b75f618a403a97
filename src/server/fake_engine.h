// FakeEngine, ByteTokenizer, PlainTemplate: stand-ins for the tests of server/. The engine emits a
// scripted answer, one token per live request and step, on a thread of its own.
// Thread: as Engine.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tern {

// Token i < 256 is byte i; 256 is the special token "<|end|>", 257 the token "ab".
class ByteTokenizer : public Tokenizer {
 public:
  static constexpr TokenId kEnd = 256, kAb = 257;

  std::vector<TokenId> Encode(std::string_view text, bool) const override {
    ++encodes_;
    std::vector<TokenId> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::string_view TokenBytes(TokenId id) const override {
    static const std::string bytes = [] {
      std::string all;
      for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
      return all;
    }();
    if (id == kEnd) return "<|end|>";
    if (id == kAb) return "ab";
    if (id < 0 || id > kAb) return {};
    return std::string_view(bytes).substr(static_cast<size_t>(id), 1);
  }
  bool IsSpecial(TokenId id) const override { return id == kEnd; }
  std::optional<TokenId> IdOf(std::string_view) const override { return std::nullopt; }
  int64_t vocab_size() const override { return kAb + 1; }
  std::optional<TokenId> bos() const override { return std::nullopt; }
  std::optional<TokenId> eos() const override { return kEnd; }
  // Calls of Encode.
  int encodes() const { return encodes_; }

 private:
  mutable std::atomic<int> encodes_{0};
};

// "user:hi;" for each message, then "assistant:"; the tools' number when there are some; `style`
// and `ending` where they are given. The message "raise" fails.
class PlainTemplate final : public ChatTemplate {
 public:
  Result<std::string> Render(const Json& inputs) const override {
    std::string text;
    if (inputs.contains("tools")) text += fmt::format("[{} tools]", inputs["tools"].size());
    for (const Json& message : inputs["messages"]) {
      if (message["content"] == "raise") return InvalidArgument("line 1: raised");
      text +=
          message["role"].get<std::string>() + ":" + message["content"].get<std::string>() + ";";
    }
    if (inputs.contains("style")) text += inputs["style"].get<std::string>();
    text += "assistant:";
    if (inputs.contains("ending")) text += inputs["ending"].get<std::string>();
    return text;
  }
};

class FakeEngine final : public Engine {
 public:
  // What a request gets.
  struct Script {
    std::vector<int32_t> tokens;
    bool end = true;  // after them: the end token; false: a stream that goes on with 'x' forever
    Status error;     // not ok: instead of the end
  };

  FakeEngine() : thread_([this] { Run(); }) {}
  ~FakeEngine() override {
    stopping_ = true;
    thread_.join();
    std::lock_guard lock(mutex_);
    for (auto& [id, live] : live_)
      Finish(live, FinishEvent::Reason::kError, Unavailable("stopped"));
  }

  void SetAnswer(std::string_view text) {
    SetScript({ByteTokenizer().Encode(text, true), true, OkStatus()});
  }
  void SetScript(Script script) {
    std::lock_guard lock(mutex_);
    script_ = std::move(script);
  }
  void SetSubmitError(Status status) {
    std::lock_guard lock(mutex_);
    submit_error_ = std::move(status);
  }
  void SetUnhealthyUntil(int64_t us) {
    std::lock_guard lock(mutex_);
    unhealthy_until_us_ = us;
  }
  void SetStepUs(int64_t us) { step_us_ = us; }
  GenerateRequest last_request() {
    std::lock_guard lock(mutex_);
    return last_request_;
  }
  // {id, keep_tokens}
  std::vector<std::pair<RequestId, int64_t>> cancels() {
    std::lock_guard lock(mutex_);
    return cancels_;
  }
  size_t live() {
    std::lock_guard lock(mutex_);
    return live_.size();
  }

  Result<RequestId> Submit(GenerateRequest request, std::shared_ptr<TokenSink> sink) override {
    std::lock_guard lock(mutex_);
    if (!submit_error_.ok()) return submit_error_;
    last_request_ = request;
    live_[++next_id_] = {std::move(request), std::move(sink), script_, 0};
    return next_id_;
  }
  void Cancel(RequestId id, int64_t keep_tokens) override {
    std::lock_guard lock(mutex_);
    cancels_.emplace_back(id, keep_tokens);
    const auto found = live_.find(id);
    if (found == live_.end()) return;
    Finish(found->second,
           keep_tokens < 0 ? FinishEvent::Reason::kAborted : FinishEvent::Reason::kStop,
           OkStatus());
    live_.erase(found);
  }
  void AbortRid(const std::string& rid, bool all) override {
    std::lock_guard lock(mutex_);
    EraseIf([&](Live& live) {
      if (!all && live.request.rid != rid) return false;
      Finish(live, FinishEvent::Reason::kAborted, OkStatus());
      return true;
    });
  }
  // Held flushes are answered when they are no longer held.
  void HoldFlushes(bool hold) {
    std::lock_guard lock(mutex_);
    hold_flushes_ = hold;
    if (hold) return;
    for (const auto& done : held_flushes_) done(live_.empty());
    held_flushes_.clear();
  }
  size_t held_flushes() {
    std::lock_guard lock(mutex_);
    return held_flushes_.size();
  }
  void FlushCache(std::function<void(bool)> done) override {
    std::lock_guard lock(mutex_);
    if (!hold_flushes_) return done(live_.empty());
    held_flushes_.push_back(std::move(done));
  }
  void RefuseRendezvous(const Rendezvous& rendezvous, const Status& why) override {
    std::lock_guard lock(mutex_);
    refused_.emplace_back(rendezvous, why);
  }
  // Since the last call.
  std::vector<std::pair<Rendezvous, Status>> TakeRefused() {
    std::lock_guard lock(mutex_);
    return std::exchange(refused_, {});
  }
  void Drain(int64_t) override {}
  EngineStats Stats() const override {
    std::lock_guard lock(mutex_);
    EngineStats stats;
    stats.running_requests = static_cast<int64_t>(live_.size());
    stats.total_tokens = 1024;
    stats.context_length = 200;
    stats.integrity.unhealthy_until_us = unhealthy_until_us_;
    return stats;
  }

 private:
  struct Live {
    GenerateRequest request;
    std::shared_ptr<TokenSink> sink;
    Script script;
    int64_t done = 0;
  };

  template <typename Predicate>
  void EraseIf(Predicate predicate) {
    for (auto it = live_.begin(); it != live_.end();) {
      it = predicate(it->second) ? live_.erase(it) : std::next(it);
    }
  }

  void Finish(Live& live, FinishEvent::Reason reason, Status status) {
    FinishEvent event;
    event.reason = reason;
    event.status = std::move(status);
    event.prompt_tokens = static_cast<int64_t>(live.request.tokens.size());
    event.cached_tokens = 1;
    event.completion_tokens = live.done;
    live.sink->OnFinish(std::move(event));
  }

  // Emits one token, or ends: true when the request is over.
  bool Step(Live& live) {
    const auto n = static_cast<int64_t>(live.script.tokens.size());
    if (live.request.prompt_logprobs_from) {
      TellPromptLogprobs(live);
      live.request.prompt_logprobs_from.reset();
    }
    if (live.done == live.request.sampling.max_new_tokens) {
      Finish(live, FinishEvent::Reason::kLength, OkStatus());
      return true;
    }
    if (live.done >= n && !live.script.error.ok()) {
      Finish(live, FinishEvent::Reason::kError, live.script.error);
      return true;
    }
    if (live.done >= n && live.script.end) {
      FinishEvent event;
      event.matched_token = ByteTokenizer::kEnd;
      if (live.request.return_logprobs) event.matched_logprobs = EventOf(live, ByteTokenizer::kEnd);
      event.prompt_tokens = static_cast<int64_t>(live.request.tokens.size());
      event.cached_tokens = 1;
      event.completion_tokens = n + 1;
      live.sink->OnFinish(std::move(event));
      return true;
    }
    TokenEvent event =
        EventOf(live, live.done < n ? live.script.tokens[static_cast<size_t>(live.done)] : 'x');
    ++live.done;
    live.sink->OnToken(std::move(event));
    return false;
  }

  static std::vector<TokenLogprob> TopsOf(const GenerateRequest& request) {
    std::vector<TokenLogprob> tops;
    for (int64_t i = 0; i < request.top_logprobs; ++i) {
      tops.push_back({static_cast<int32_t>('a' + i), -1.0f - static_cast<float>(i)});
    }
    return tops;
  }
  static std::vector<TokenLogprob> AskedOf(const GenerateRequest& request) {
    std::vector<TokenLogprob> asked;
    for (const int32_t id : request.logprob_token_ids) asked.push_back({id, -7.0f});
    return asked;
  }
  static TokenEvent EventOf(const Live& live, int32_t token) {
    TokenEvent event;
    event.token = token;
    event.index = live.done;
    event.cached_tokens = 1;
    if (!live.request.return_logprobs) return event;
    event.logprob = TokenLogprob{event.token, -0.5f};
    event.top_logprobs = TopsOf(live.request);
    event.asked_logprobs = AskedOf(live.request);
    return event;
  }
  // Position p has the log probability -p / 4.
  static void TellPromptLogprobs(const Live& live) {
    const GenerateRequest& request = live.request;
    std::vector<PromptLogprob> prompt;
    const auto from = static_cast<size_t>(*request.prompt_logprobs_from);
    for (size_t p = from + 1; p < request.tokens.size(); ++p) {
      prompt.push_back(
          {{request.tokens[p], -0.25f * static_cast<float>(p)}, TopsOf(request), AskedOf(request)});
    }
    live.sink->OnPromptLogprobs(std::move(prompt));
  }

  void Run() {
    while (!stopping_) {
      {
        std::lock_guard lock(mutex_);
        EraseIf([&](Live& live) { return Step(live); });
      }
      std::this_thread::sleep_for(std::chrono::microseconds(step_us_.load()));
    }
  }

  mutable std::mutex mutex_;
  Script script_;
  Status submit_error_;
  int64_t unhealthy_until_us_ = 0;
  GenerateRequest last_request_;
  std::vector<std::pair<RequestId, int64_t>> cancels_;
  std::vector<std::pair<Rendezvous, Status>> refused_;
  std::map<RequestId, Live> live_;
  RequestId next_id_ = 0;
  bool hold_flushes_ = false;
  std::vector<std::function<void(bool)>> held_flushes_;
  std::atomic<int64_t> step_us_{200};
  std::atomic<bool> stopping_{false};
  std::thread thread_;  // last: it uses the others
};

}  // namespace tern
