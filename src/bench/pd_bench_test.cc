#include "bench/pd_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "base/mutex.h"

namespace tern {
namespace {

using ::testing::HasSubstr;

// By hand: gaps of 10 to 100 ms and one of 900 in two turns.
TEST(PdBenchTest, FiguresAreThoseOfTheTurns) {
  PdBenchResult result = {.name = "x", .turns = {}};
  result.turns.push_back({.quiet_gaps = {0.010, 0.020},
                          .gaps = {0.010, 0.020, 0.030, 0.040, 0.050},
                          .ttft = {1.0, 3.0},
                          .tokens = 30,
                          .seconds = 4});
  result.turns.push_back({.quiet_gaps = {0.030},
                          .gaps = {0.060, 0.070, 0.080, 0.100, 0.900},
                          .ttft = {2.0},
                          .tokens = 10,
                          .seconds = 1});
  const PdFigures figures = FiguresOf(result);
  EXPECT_NEAR(figures.quiet_p50, 20, 1e-9);
  EXPECT_NEAR(figures.quiet_p99, 30, 1e-9);
  EXPECT_NEAR(figures.p50, 50, 1e-9);  // the fifth of ten
  EXPECT_NEAR(figures.p99, 900, 1e-9);
  EXPECT_NEAR(figures.worst, 900, 1e-9);
  EXPECT_NEAR(figures.ttft_p50, 2000, 1e-9);
  EXPECT_NEAR(figures.ttft_p99, 3000, 1e-9);
  EXPECT_NEAR(figures.tokens_per_s, 8, 1e-9);
}

TEST(PdBenchTest, RatiosAreThoseOfPairs) {
  PdTransferResult transfer;
  transfer.names[0] = "one";
  transfer.names[1] = "two";
  transfer.ttft[0] = {1.0, 2.0, 4.0};
  transfer.ttft[1] = {1.1, 2.1, 5.0};
  const std::vector<double> ratios = transfer.Ratios();
  ASSERT_EQ(ratios.size(), 3u);
  EXPECT_NEAR(ratios[0], 1.1, 1e-12);
  EXPECT_NEAR(ratios[1], 1.05, 1e-12);
  EXPECT_NEAR(ratios[2], 1.25, 1e-12);
  const PdBenchSubject subject = {"m", "tcp", "fp8_tiled", "bf16"};
  const Json json = PdBenchJson({}, {}, subject, {}, transfer);
  EXPECT_EQ(json["model"], "m");
  EXPECT_EQ(json["transport"], "tcp");
  EXPECT_EQ(json["kv_format"], "fp8_tiled");
  EXPECT_EQ(json["prefill_kv_format"], "bf16");
  EXPECT_NEAR(json["transfer"]["ratio"].get<double>(), 1.1, 1e-12);
  const std::string table = PdBenchTable({}, {}, transfer);
  EXPECT_THAT(table, HasSubstr("one 2000.0 ms, two 2100.0 ms (medians of 3); ratio 1.1000"));
}

// A token for every request each millisecond; a prompt's first one comes after `first_ms`, and
// then nothing for `stall_ms`.
class TickingEngine final : public Engine {
 public:
  explicit TickingEngine(int first_ms, int stall_ms = 0)
      : first_ms_(first_ms), stall_ms_(stall_ms), thread_([this] { Run(); }) {}
  ~TickingEngine() override {
    stop_ = true;
    thread_.join();
  }

  Result<RequestId> Submit(GenerateRequest request, std::shared_ptr<TokenSink> sink) override {
    MutexLock lock(mutex_);
    prompts_.push_back(request.tokens);
    const bool prompt = request.tokens.size() > 10;
    live_[++ids_] = {.sink = std::move(sink),
                     .wait = prompt ? first_ms_ : 1,
                     .stall = prompt ? stall_ms_ : 0,
                     .left = request.sampling.max_new_tokens};
    return ids_;
  }
  void Cancel(RequestId id, int64_t) override {
    MutexLock lock(mutex_);
    if (const auto it = live_.find(id); it != live_.end()) it->second.left = 0;
  }
  void AbortRid(const std::string&, bool) override {}
  void FlushCache(std::function<void(bool)> done) override { done(true); }
  void Drain(int64_t) override {}
  EngineStats Stats() const override { return {}; }
  std::vector<std::vector<int32_t>> prompts() const {
    MutexLock lock(mutex_);
    return prompts_;
  }

 private:
  struct Live {
    std::shared_ptr<TokenSink> sink;
    int wait = 0, stall = 0;
    int64_t left = 0;
  };
  void Run() {
    while (!stop_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      MutexLock lock(mutex_);
      stalled_ = std::max(stalled_ - 1, 0);
      for (auto it = live_.begin(); it != live_.end();) {
        Live& one = it->second;
        if (one.left == 0) {
          one.sink->OnFinish({.reason = FinishEvent::Reason::kLength});
          it = live_.erase(it);
          continue;
        }
        if (one.wait > 0) {
          --one.wait;
        } else if (stalled_ == 0) {
          one.sink->OnToken({});
          --one.left;
          stalled_ = std::exchange(one.stall, 0);
        }
        ++it;
      }
    }
  }

  const int first_ms_, stall_ms_;
  int stalled_ = 0;
  std::atomic<bool> stop_{false};
  mutable Mutex mutex_;
  RequestId ids_ TERN_GUARDED_BY(mutex_) = 0;
  std::map<RequestId, Live> live_ TERN_GUARDED_BY(mutex_);
  std::vector<std::vector<int32_t>> prompts_ TERN_GUARDED_BY(mutex_);
  std::thread thread_;
};

PdBenchOptions Small() {
  return {.streams = 2,
          .stream_prompt_tokens = 4,
          .stream_output_tokens = 8,
          .burst = 3,
          .burst_prompt_tokens = 20,
          .bursts = 2,
          .quiet_s = 0.03,
          .interval_s = 0.02,
          .turns = 2,
          .transfer_pairs = 3,
          .vocab_size = 50};
}

TEST(PdBenchTest, SystemsTakeTurnsUnderTheSameLoad) {
  TickingEngine one(10), other(30);
  std::vector<int64_t> done;
  const auto results = RunPdBench({{"one", &one}, {"other", &other}}, Small(),
                                  [&](int64_t n, int64_t) { done.push_back(n); });
  ASSERT_TRUE(results.ok()) << results.status().message();
  EXPECT_EQ(done, (std::vector<int64_t>{1, 2, 3, 4}));
  ASSERT_EQ(results->size(), 2u);
  for (const PdBenchResult& result : *results) {
    ASSERT_EQ(result.turns.size(), 2u);
    for (const PdTurn& turn : result.turns) {
      EXPECT_EQ(turn.ttft.size(), 6u);
      EXPECT_FALSE(turn.quiet_gaps.empty());
      EXPECT_FALSE(turn.gaps.empty());
      EXPECT_GE(turn.seconds, 0.02);
      for (const double gap : turn.gaps) EXPECT_GE(gap, 0.001);
      for (const double ttft : turn.ttft) EXPECT_GE(ttft, result.name == "one" ? 0.010 : 0.030);
    }
    EXPECT_GT(FiguresOf(result).tokens_per_s, 0);
  }
  for (const TickingEngine* engine : {&one, &other}) {
    int64_t prompts = 0;
    for (const std::vector<int32_t>& tokens : engine->prompts()) {
      for (const int32_t token : tokens) EXPECT_TRUE(token >= 0 && token < 50);
      EXPECT_TRUE(tokens.size() == 4 || tokens.size() == 20);
      prompts += tokens.size() == 20;
    }
    EXPECT_EQ(prompts, 1 + 2 * 2 * 3);
  }
}

// Streams stand still from the moment at which a turn's last prompt has its first token.
TEST(PdBenchTest, AGapThatIsOpenAtTheEndCounts) {
  TickingEngine engine(5, /*stall_ms=*/80);
  PdBenchOptions options = Small();
  options.burst = options.bursts = options.turns = 1;
  options.stream_output_tokens = 1000;
  const auto results = RunPdBench({{"one", &engine}}, options, [](int64_t, int64_t) {});
  ASSERT_TRUE(results.ok()) << results.status().message();
  const std::vector<double>& gaps = (*results)[0].turns[0].gaps;
  EXPECT_EQ(std::count_if(gaps.begin(), gaps.end(), [](double gap) { return gap >= 0.08; }),
            options.streams);
}

// A prompt that came before would be found in a prefix cache.
TEST(PdBenchTest, NoPromptComesTwice) {
  TickingEngine engine(1), other(1);
  for (const uint64_t seed : {1, 2}) {
    PdBenchOptions options = Small();
    options.vocab_size = 1 << 20;
    options.seed = seed;
    ASSERT_TRUE(
        RunPdTransferBench({"one", &engine}, {"other", &other}, options, [](int64_t, int64_t) {
        }).ok());
    ASSERT_TRUE(RunPdBench({{"one", &engine}}, options, [](int64_t, int64_t) {}).ok());
  }
  const std::vector<std::vector<int32_t>> prompts = engine.prompts();
  EXPECT_EQ(std::set(prompts.begin(), prompts.end()).size(), prompts.size());
}

TEST(PdBenchTest, TransferComparesPairsOfEqualPrompts) {
  TickingEngine one(10), pair(20);
  const auto result =
      RunPdTransferBench({"one", &one}, {"pair", &pair}, Small(), [](int64_t, int64_t) {});
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(one.prompts(), pair.prompts());
  EXPECT_EQ(one.prompts().size(), 4u);  // one is not counted
  EXPECT_EQ(result->ttft[0].size(), 3u);
  EXPECT_EQ(result->ttft[1].size(), 3u);
  EXPECT_GE(MedianOf(result->ttft[1]), 0.020);
}

}  // namespace
}  // namespace tern
