#include "bench/pd_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/rng.h"

namespace tern {
namespace {

constexpr auto kPoll = std::chrono::milliseconds(1);
constexpr int64_t kPromptOutputTokens = 2;  // one from prefill, one from decode

// What random prompts are for: no two uses have any in common, nor have two seeds.
enum class Use : uint64_t { kWarmUp, kTurn, kTransfer };
Rng RngFor(const PdBenchOptions& o, Use use, uint64_t number) {
  return Rng(Mix64(Mix64(o.seed + 1) + (static_cast<uint64_t>(use) << 32) + number));
}

double Seconds(int64_t us) { return static_cast<double>(us) * 1e-6; }

// When a request's tokens came.
class TokenTimes final : public TokenSink {
 public:
  void OnToken(TokenEvent) override {
    const int64_t now_us = SystemClock().NowUs();
    MutexLock lock(mutex_);
    times_us_.push_back(now_us);
  }
  void OnFinish(FinishEvent event) override {
    MutexLock lock(mutex_);
    ended_ = true;
    if (event.reason == FinishEvent::Reason::kError) error_ = event.status;
  }

  std::vector<int64_t> times_us() const {
    MutexLock lock(mutex_);
    return times_us_;
  }
  int64_t first_us() const {  // 0: not yet
    MutexLock lock(mutex_);
    return times_us_.empty() ? 0 : times_us_.front();
  }
  int64_t last_us() const {  // 0: none yet
    MutexLock lock(mutex_);
    return times_us_.empty() ? 0 : times_us_.back();
  }
  bool ended() const {
    MutexLock lock(mutex_);
    return ended_;
  }
  Status error() const {
    MutexLock lock(mutex_);
    return error_;
  }

 private:
  mutable Mutex mutex_;
  std::vector<int64_t> times_us_ TERN_GUARDED_BY(mutex_);
  bool ended_ TERN_GUARDED_BY(mutex_) = false;
  Status error_ TERN_GUARDED_BY(mutex_);
};

struct Sent {
  RequestId id = 0;
  int64_t start_us = 0;
  std::shared_ptr<TokenTimes> tokens;
};

class Load {
 public:
  Load(Engine& engine, const PdBenchOptions& options, Rng& rng)
      : engine_(engine), options_(options), rng_(rng) {}

  // Requests that are left end with it.
  ~Load() { End(); }

  Result<Sent> Send(int64_t prompt_tokens, int64_t output_tokens) {
    GenerateRequest request;
    const auto vocab = static_cast<uint64_t>(options_.vocab_size);
    for (int64_t i = 0; i < prompt_tokens; ++i) {
      request.tokens.push_back(static_cast<int32_t>(rng_.Below(vocab)));
    }
    request.sampling.temperature = 0;
    request.sampling.max_new_tokens = output_tokens;
    request.sampling.ignore_eos = true;
    Sent sent = {.start_us = SystemClock().NowUs(), .tokens = std::make_shared<TokenTimes>()};
    TERN_ASSIGN_OR_RETURN(sent.id, engine_.Submit(std::move(request), sent.tokens));
    last_sent_us_ = sent.start_us;
    return sent;
  }

  // As many streams as there should be.
  Status KeepStreams() {
    int64_t running = 0;
    for (const Sent& stream : streams_) {
      TERN_RETURN_IF_ERROR(stream.tokens->error());
      running += !stream.tokens->ended();
    }
    for (; running < options_.streams; ++running) {
      TERN_ASSIGN_OR_RETURN(streams_.emplace_back(),
                            Send(options_.stream_prompt_tokens, options_.stream_output_tokens));
    }
    return OkStatus();
  }

  Status SendBurst() {
    for (int64_t i = 0; i < options_.burst; ++i) {
      TERN_ASSIGN_OR_RETURN(prompts_.emplace_back(),
                            Send(options_.burst_prompt_tokens, kPromptOutputTokens));
    }
    return OkStatus();
  }

  // Waits until `done`, a millisecond at a time, with all streams running.
  template <typename Fn>
  Status Until(const Fn& done) {
    while (!done()) {
      TERN_RETURN_IF_ERROR(KeepStreams());
      for (const Sent& prompt : prompts_) TERN_RETURN_IF_ERROR(prompt.tokens->error());
      if (Seconds(SystemClock().NowUs() - last_sent_us_) > options_.timeout_s) {
        return {StatusCode::kDeadlineExceeded,
                fmt::format("no end after {} s", options_.timeout_s)};
      }
      std::this_thread::sleep_for(kPoll);
    }
    return OkStatus();
  }
  Status For(double seconds) {
    const int64_t end_us = SystemClock().NowUs() + static_cast<int64_t>(seconds * 1e6);
    return Until([&] { return SystemClock().NowUs() >= end_us; });
  }
  bool AllStarted(const std::vector<Sent>& sent) const {
    return std::all_of(sent.begin(), sent.end(),
                       [](const Sent& one) { return one.tokens->first_us() > 0; });
  }

  // Whether every stream that had a token by then has had one later, or has ended.
  bool AllSpokeSince(int64_t us) const {
    return std::all_of(streams_.begin(), streams_.end(), [&](const Sent& one) {
      const int64_t first_us = one.tokens->first_us();
      return first_us == 0 || first_us > us || one.tokens->ended() || one.tokens->last_us() > us;
    });
  }

  void End() {
    for (const std::vector<Sent>* all : {&streams_, &prompts_}) {
      for (const Sent& one : *all) engine_.Cancel(one.id);
    }
    for (const std::vector<Sent>* all : {&streams_, &prompts_}) {
      for (const Sent& one : *all) {
        while (!one.tokens->ended()) std::this_thread::sleep_for(kPoll);
      }
    }
  }

  const std::vector<Sent>& streams() const { return streams_; }
  const std::vector<Sent>& prompts() const { return prompts_; }

 private:
  Engine& engine_;
  const PdBenchOptions& options_;
  Rng& rng_;
  int64_t last_sent_us_ = 0;
  std::vector<Sent> streams_, prompts_;
};

Result<PdTurn> RunTurn(Engine& engine, const PdBenchOptions& o, Rng& rng) {
  Load load(engine, o, rng);
  TERN_RETURN_IF_ERROR(load.KeepStreams());
  TERN_RETURN_IF_ERROR(load.Until([&] { return load.AllStarted(load.streams()); }));
  const int64_t start_us = SystemClock().NowUs();
  TERN_RETURN_IF_ERROR(load.For(o.quiet_s));
  const int64_t burst_us = SystemClock().NowUs();
  for (int64_t i = 0; i < o.bursts; ++i) {
    const double due = static_cast<double>(i) * o.interval_s;
    TERN_RETURN_IF_ERROR(load.For(due - Seconds(SystemClock().NowUs() - burst_us)));
    TERN_RETURN_IF_ERROR(load.SendBurst());
  }
  TERN_RETURN_IF_ERROR(load.Until([&] { return load.AllStarted(load.prompts()); }));
  int64_t end_us = burst_us;
  PdTurn turn;
  for (const Sent& prompt : load.prompts()) {
    turn.ttft.push_back(Seconds(prompt.tokens->first_us() - prompt.start_us));
    end_us = std::max(end_us, prompt.tokens->first_us());
  }
  // A gap that is open then is as long as it will be.
  TERN_RETURN_IF_ERROR(load.Until([&] { return load.AllSpokeSince(end_us); }));
  load.End();
  for (const Sent& stream : load.streams()) {
    const std::vector<int64_t> times = stream.tokens->times_us();
    for (size_t i = 1; i < times.size(); ++i) {
      if (times[i - 1] < start_us || times[i - 1] > end_us) continue;
      const double gap = Seconds(times[i] - times[i - 1]);
      (times[i] < burst_us ? turn.quiet_gaps : turn.gaps).push_back(gap);
    }
    turn.tokens += std::count_if(times.begin(), times.end(),
                                 [&](int64_t at) { return at >= burst_us && at <= end_us; });
  }
  turn.seconds = Seconds(end_us - burst_us);
  return turn;
}

Result<double> TtftOf(Engine& engine, const PdBenchOptions& o, Rng& rng) {
  PdBenchOptions quiet = o;
  quiet.streams = 0;
  quiet.burst = 1;
  Load load(engine, quiet, rng);
  TERN_RETURN_IF_ERROR(load.SendBurst());
  TERN_RETURN_IF_ERROR(load.Until([&] { return load.prompts()[0].tokens->ended(); }));
  const Sent& prompt = load.prompts()[0];
  return Seconds(prompt.tokens->first_us() - prompt.start_us);
}

}  // namespace

Result<std::vector<PdBenchResult>> RunPdBench(
    const std::vector<PdBenchSystem>& systems, const PdBenchOptions& options,
    const std::function<void(int64_t done, int64_t total)>& progress) {
  std::vector<PdBenchResult> results;
  Rng rng = RngFor(options, Use::kWarmUp, 0);
  for (const PdBenchSystem& system : systems) {
    results.push_back({.name = system.name, .turns = {}});
    // Memory that is touched for the first time, threads that have slept: not counted.
    TERN_RETURN_IF_ERROR(TtftOf(*system.engine, options, rng).status());
  }
  const auto total = options.turns * static_cast<int64_t>(systems.size());
  for (int64_t i = 0; i < total; ++i) {
    const auto which = static_cast<size_t>(i) % systems.size();
    // Every system gets the prompts of the turn.
    Rng turn_rng = RngFor(options, Use::kTurn, static_cast<uint64_t>(i) / systems.size());
    Result<PdTurn> turn = RunTurn(*systems[which].engine, options, turn_rng);
    if (!turn.ok()) return turn.status().WithContext(systems[which].name);
    results[which].turns.push_back(*std::move(turn));
    progress(i + 1, total);
  }
  return results;
}

std::vector<double> PdTransferResult::Ratios() const {
  std::vector<double> ratios;
  for (size_t i = 0; i < ttft[0].size(); ++i) ratios.push_back(ttft[1][i] / ttft[0][i]);
  return ratios;
}

Result<PdTransferResult> RunPdTransferBench(
    const PdBenchSystem& one, const PdBenchSystem& pair, const PdBenchOptions& options,
    const std::function<void(int64_t done, int64_t total)>& progress) {
  PdTransferResult result;
  const PdBenchSystem* const systems[] = {&one, &pair};
  for (int64_t i = -1; i < options.transfer_pairs; ++i) {  // the first pair is not counted
    for (int64_t k = 0; k < 2; ++k) {
      const int64_t which = (i + k) & 1;  // each goes first as often
      const PdBenchSystem& system = *systems[which];
      // Equal prompts have equal work.
      Rng rng = RngFor(options, Use::kTransfer, static_cast<uint64_t>(i + 1));
      const Result<double> seconds = TtftOf(*system.engine, options, rng);
      if (!seconds.ok()) return seconds.status().WithContext(system.name);
      result.names[which] = system.name;
      if (i >= 0) result.ttft[which].push_back(*seconds);
    }
    progress(i + 1, options.transfer_pairs);
  }
  return result;
}

}  // namespace tern
