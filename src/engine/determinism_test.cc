// The determinism contract through the whole engine, on a real checkpoint: the bits of all logits
// of a request are the same alone and among 32 others that join and leave, for any chunk size, page
// size and thread count, with and without the prefix cache, and through retraction and recompute.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/clock.h"
#include "base/env.h"
#include "base/hash.h"
#include "base/rng.h"
#include "engine/engine_core.h"
#include "models/registry.h"

namespace tern {
namespace {

constexpr int kRequests = 32;
constexpr int64_t kNewTokens = 24;

// Passes calls on, and notes a hash of the float bits of every row of logits. Every prompt of the
// test starts with a token of its own, so the first row of a sequence tells whose page it is.
class LogitsRecorder final : public Model {
 public:
  explicit LogitsRecorder(Model& model) : model_(model) {}
  const ModelInfo& info() const override { return model_.info(); }

  Status Forward(const ForwardBatch& batch, float* logits) override {
    TERN_RETURN_IF_ERROR(model_.Forward(batch, logits));
    const auto vocab = static_cast<size_t>(info().vocab_size);
    size_t row = 0;
    for (const ForwardRun& run : batch.runs) {
      if (run.first_position == 0) {
        owner_[run.kv.pages[0]] = batch.tokens[static_cast<size_t>(run.first_row)];
      }
      for (; row < batch.logit_rows.size() && batch.logit_rows[row] < run.first_row + run.rows;
           ++row) {
        const int64_t position = run.first_position + batch.logit_rows[row] - run.first_row;
        const float* first = logits + row * vocab;
        const uint64_t hash = Hash64(std::as_bytes(std::span(first, vocab)));
        // A position computed again (after retraction) must give the same bits again.
        rows[{owner_[run.kv.pages[0]], position}].insert(hash);
      }
    }
    largest_batch = std::max(largest_batch, batch.runs.size());
    return OkStatus();
  }

  // (first token of the prompt, position) -> hashes of its logits.
  std::map<std::pair<int32_t, int64_t>, std::set<uint64_t>> rows;
  size_t largest_batch = 0;

 private:
  Model& model_;
  std::map<const std::byte*, int32_t> owner_;
};

struct NullSink final : TokenSink {
  explicit NullSink(int* finished) : finished(finished) {}
  void OnToken(TokenEvent) override {}
  void OnFinish(FinishEvent event) override {
    EXPECT_EQ(event.reason, FinishEvent::Reason::kLength) << event.status.ToString();
    retractions = event.retractions;
    ++*finished;
  }
  int* finished;
  int64_t retractions = 0;
};

struct Setting {
  int64_t chunk = 512, page = 64, total_tokens = 1 << 16;
  int threads = 1;
};

class Determinism : public testing::Test {
 protected:
  // Prompts of 1 to 150 tokens; the first token is the request's number + 3.
  static std::vector<int32_t> Prompt(int request) {
    Rng rng(static_cast<uint64_t>(request) + 100);
    std::vector<int32_t> tokens(1 + rng.Below(150));
    for (int32_t& token : tokens) token = static_cast<int32_t>(3 + rng.Below(250));
    tokens[0] = request + 3;
    return tokens;
  }

  // Runs `requests`, the next two joining after each step, and gives the logits of all rows.
  LogitsRecorder Run(const Setting& setting, const std::vector<int>& requests) {
    ThreadPool pool(setting.threads);
    const auto ops = Ops::Create(EnvIsa().value_or(""), pool).value();
    const auto model = LoadModel(TERN_SOURCE_DIR "/tests/data/golden/llama-rope3-tied", *ops, {});
    EXPECT_TRUE(model.ok()) << model.status().ToString();
    LogitsRecorder recorder(**model);
    EngineOptions options;
    options.page_tokens = setting.page;
    options.chunked_prefill_size = setting.chunk;
    options.random_seed = 1;
    const MemoryPlan plan = PlanMemory(recorder.info(), {.page_tokens = setting.page,
                                                         .max_total_tokens = setting.total_tokens,
                                                         .available_bytes = uint64_t{1} << 32})
                                .value();
    const auto core = EngineCore::Create(recorder, pool, options, plan, 1, clock_, nullptr).value();
    int finished = 0;
    std::vector<std::shared_ptr<NullSink>> sinks;
    size_t next = 0;
    const auto join = [&] {
      if (next == requests.size()) return;
      GenerateRequest request;
      request.tokens = Prompt(requests[next]);
      request.sampling.temperature = requests[next] % 2 == 0 ? 0.0 : 1.0;
      request.sampling.seed = 7;
      request.sampling.max_new_tokens = kNewTokens;
      request.sampling.ignore_eos = true;
      sinks.push_back(std::make_shared<NullSink>(&finished));
      core->Submit(++next, std::move(request), sinks.back(), 0);
    };
    do {
      join();
      join();
    } while (core->Step() || next < requests.size());
    EXPECT_EQ(finished, static_cast<int>(requests.size()));
    EXPECT_TRUE(core->CheckInvariants().ok());
    retractions_ = 0;
    for (const auto& sink : sinks) retractions_ += sink->retractions;
    return recorder;
  }

  static std::vector<int> All() {
    std::vector<int> all;
    for (int i = 0; i < kRequests; ++i) all.push_back(i);
    return all;
  }

  // The logits of every request run alone, at the plainest setting.
  std::map<std::pair<int32_t, int64_t>, std::set<uint64_t>> Alone() {
    std::map<std::pair<int32_t, int64_t>, std::set<uint64_t>> rows;
    for (const int request : All()) rows.merge(Run({}, {request}).rows);
    EXPECT_EQ(rows.size(), kRequests * size_t{kNewTokens});
    for (const auto& [row, hashes] : rows) EXPECT_EQ(hashes.size(), 1u);
    return rows;
  }

  ManualClock clock_;
  int64_t retractions_ = 0;
};

TEST_F(Determinism, LogitsAreBitEqualAloneAndAmong32) {
  const auto alone = Alone();
  for (const Setting& setting :
       {Setting{}, Setting{.chunk = 1}, Setting{.chunk = 33, .page = 16},
        Setting{.chunk = 200, .page = 1, .threads = 3}, Setting{.page = 128, .threads = 2}}) {
    const LogitsRecorder together = Run(setting, All());
    if (setting.chunk > 100) {
      EXPECT_GE(together.largest_batch, 8u);
    }
    EXPECT_EQ(together.rows, alone) << "chunk " << setting.chunk << ", page " << setting.page
                                    << ", threads " << setting.threads;
  }
}

TEST_F(Determinism, LogitsAreBitEqualThroughRetraction) {
  const auto alone = Alone();
  const LogitsRecorder together = Run({.chunk = 64, .page = 16, .total_tokens = 512}, All());
  EXPECT_GT(retractions_, 0);
  EXPECT_EQ(together.rows, alone);
}

TEST_F(Determinism, LogitsAreBitEqualOnAReusedPrefix) {
  const auto alone = Alone();
  std::vector<int> twice = All();
  for (const int request : All()) twice.push_back(request);
  EXPECT_EQ(Run({.chunk = 64, .page = 16}, twice).rows, alone);
}

}  // namespace
}  // namespace tern
