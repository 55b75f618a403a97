// The determinism contract through the whole engine, on real checkpoints: the bits of all logits of
// a request are the same alone and among 32 that join, are cancelled and leave, for any chunk size,
// page size and thread count, on a reused prefix, and through retraction and recompute. At every
// level of kernels that the machine has; and with SmolLM2 where its file is.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>

#include "base/clock.h"
#include "base/hash.h"
#include "base/rng.h"
#include "engine/engine_core.h"
#include "models/registry.h"

namespace tern {
namespace {

constexpr int kRequests = 32;

// (hash of the prompt, position) -> hashes of the float bits of its logits.
using Rows = std::map<std::pair<uint64_t, int64_t>, std::set<uint64_t>>;

uint64_t HashOf(std::span<const int32_t> prompt) { return Hash64(std::as_bytes(prompt)); }

// Passes calls on, and notes a hash of every row of logits.
class LogitsRecorder final : public Model {
 public:
  explicit LogitsRecorder(Model& model) : model_(model) {}
  const ModelInfo& info() const override { return model_.info(); }

  Status Forward(const ForwardBatch& batch, float* logits) override {
    TERN_RETURN_IF_ERROR(model_.Forward(batch, logits));
    const auto vocab = static_cast<size_t>(info().vocab_size);
    size_t row = 0;
    for (const ForwardRun& run : batch.runs) {
      for (; row < batch.logit_rows.size() && batch.logit_rows[row] < run.first_row + run.rows;
           ++row) {
        const int64_t position = run.first_position + batch.logit_rows[row] - run.first_row;
        const float* first = logits + row * vocab;
        // The same prompt run twice must give the same bits twice.
        rows[{PromptOf(run), position}].insert(Hash64(std::as_bytes(std::span(first, vocab))));
      }
    }
    most_sampled = std::max(most_sampled, batch.logit_rows.size());
    return OkStatus();
  }

  EngineCore* core = nullptr;  // whose model this is
  Rows rows;
  size_t most_sampled = 0;  // sequences in one batch that got a token

 private:
  uint64_t PromptOf(const ForwardRun& run) const {
    for (const auto& sequence : core->queues().running) {
      if (core->kv().View(sequence->lease).pages.data() != run.kv.pages.data()) continue;
      return HashOf(
          std::span(sequence->tokens).first(static_cast<size_t>(sequence->prompt_tokens)));
    }
    ADD_FAILURE() << "nobody's run";
    return 0;
  }

  Model& model_;
};

struct TestRequest {
  std::vector<int32_t> prompt;
  int64_t new_tokens = 0;
  int64_t cancel_at = 0;  // in settings with cancellation: after so many tokens; 0: never
};

struct Setting {
  int64_t chunk = 512, page = 64, total_tokens = 1 << 16;
  int threads = 1;
  int joins = 2;  // requests that join before each step
  bool cancels = false;
  int waves = 1;  // how often the requests come, each time after the last one has left
  KvFormat kv = KvFormat::kBf16;
};
void PrintTo(const Setting& s, std::ostream* out) {
  *out << "chunk " << s.chunk << ", page " << s.page << ", pool " << s.total_tokens << ", threads "
       << s.threads << ", cancels " << s.cancels << ", waves " << s.waves << ", KV "
       << KvFormatName(s.kv);
}

struct CountingSink final : TokenSink {
  void OnToken(TokenEvent) override { ++tokens; }
  void OnFinish(FinishEvent event) override { finishes.push_back(std::move(event)); }
  int64_t tokens = 0;
  std::vector<FinishEvent> finishes;
};

struct Outcome {
  Rows rows;
  size_t most_sampled = 0;
  int64_t retractions = 0, copied_rows = 0;
  std::vector<int64_t> cached_tokens;  // by request, in order of arrival
};

// A checkpoint, loaded for one level and a number of threads.
struct LoadedModel {
  LoadedModel(const std::string& path, const std::string& isa, int threads) : pool(threads) {
    ops = Ops::Create(isa, pool).value();
    auto loaded = LoadModel(path, *ops, {});
    if (loaded.ok()) model = std::move(loaded).value();
    EXPECT_TRUE(loaded.ok()) << loaded.status().ToString();
  }
  ThreadPool pool;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Model> model;
};

Outcome RunRequests(LoadedModel& loaded, const Setting& setting,
                    const std::vector<TestRequest>& requests) {
  LogitsRecorder recorder(*loaded.model);
  EngineOptions options;
  options.kv_format = setting.kv;
  options.page_tokens = setting.page;
  options.chunked_prefill_size = setting.chunk;
  options.random_seed = 1;
  const MemoryPlan plan = PlanMemory(recorder.info(), {.kv_format = setting.kv,
                                                       .page_tokens = setting.page,
                                                       .max_total_tokens = setting.total_tokens,
                                                       .available_bytes = uint64_t{1} << 33})
                              .value();
  ManualClock clock;
  const auto core =
      EngineCore::Create(recorder, loaded.pool, options, plan, 1, clock, nullptr).value();
  recorder.core = core.get();
  struct Live {
    RequestId id;
    int64_t cancel_at;
    std::shared_ptr<CountingSink> sink;
  };
  std::vector<Live> all;
  const auto join = [&](const TestRequest& test) {
    GenerateRequest request;
    request.tokens = test.prompt;
    request.sampling.temperature = test.prompt[0] % 2 == 0 ? 0.0 : 1.0;
    request.sampling.seed = 7;
    request.sampling.max_new_tokens = test.new_tokens;
    request.sampling.ignore_eos = true;
    const int64_t cancel_at = setting.cancels ? test.cancel_at : 0;
    all.push_back({all.size() + 1, cancel_at, std::make_shared<CountingSink>()});
    core->Submit(all.back().id, std::move(request), all.back().sink, 0);
  };
  for (int wave = 0; wave < setting.waves; ++wave) {
    for (size_t next = 0; next < requests.size() || !core->idle();) {
      for (int i = 0; i < setting.joins && next < requests.size(); ++i) join(requests[next++]);
      core->Step();
      for (const Live& live : all) {
        if (live.cancel_at == 0 || live.sink->tokens != live.cancel_at) continue;
        // The client has gone, or a stop string ended one token ago.
        core->Cancel(live.id, live.id % 2 == 0 ? -1 : live.cancel_at - 1);
      }
    }
  }
  EXPECT_TRUE(core->CheckInvariants().ok()) << core->CheckInvariants().ToString();
  Outcome outcome = {.rows = std::move(recorder.rows),
                     .most_sampled = recorder.most_sampled,
                     .copied_rows = core->kv().copied_rows()};
  for (const Live& live : all) {
    EXPECT_EQ(live.sink->finishes.size(), 1u);
    const FinishEvent& finish = live.sink->finishes.at(0);
    const auto want = live.cancel_at == 0 ? FinishEvent::Reason::kLength
                      : live.id % 2 == 0  ? FinishEvent::Reason::kAborted
                                          : FinishEvent::Reason::kStop;
    EXPECT_EQ(finish.reason, want) << finish.status.ToString();
    outcome.retractions += finish.retractions;
    outcome.cached_tokens.push_back(finish.cached_tokens);
  }
  return outcome;
}

// The logits of every request run alone, at the plainest setting.
Rows RunAlone(LoadedModel& loaded, const std::vector<TestRequest>& requests,
              KvFormat kv = KvFormat::kBf16) {
  Rows rows;
  int64_t expected = 0;
  for (const TestRequest& request : requests) {
    rows.merge(RunRequests(loaded, {.kv = kv}, {request}).rows);
    expected += request.new_tokens;
  }
  EXPECT_EQ(static_cast<int64_t>(rows.size()), expected);
  for (const auto& [row, hashes] : rows) EXPECT_EQ(hashes.size(), 1u);
  return rows;
}

// What is left of the rows when requests are cancelled: the first cancel_at of each.
Rows Cancelled(const Rows& alone, const std::vector<TestRequest>& requests) {
  Rows rows = alone;
  for (const TestRequest& request : requests) {
    if (request.cancel_at == 0) continue;
    const int64_t first = static_cast<int64_t>(request.prompt.size()) - 1;
    for (int64_t i = request.cancel_at; i < request.new_tokens; ++i) {
      EXPECT_EQ(rows.erase({HashOf(request.prompt), first + i}), 1u);
    }
  }
  return rows;
}

void ExpectEqualRows(const Outcome& together, const Rows& alone,
                     const std::vector<TestRequest>& requests, const Setting& setting) {
  EXPECT_TRUE(together.rows == (setting.cancels ? Cancelled(alone, requests) : alone))
      << testing::PrintToString(setting);
}

std::vector<int32_t> RandomPrompt(int request, size_t tokens, uint64_t vocab) {
  Rng rng(static_cast<uint64_t>(request) + 100);
  std::vector<int32_t> prompt(tokens);
  for (int32_t& token : prompt) token = static_cast<int32_t>(3 + rng.Below(vocab - 3));
  prompt[0] = request + 3;
  return prompt;
}

// Prompts of 1 to 450 tokens and answers of 24 to 36. Attention cuts its sums at position 256:
// some prompts lie behind it, some answers cross it.
std::vector<TestRequest> SmallModelRequests() {
  std::vector<TestRequest> requests;
  for (int i = 0; i < kRequests; ++i) {
    size_t tokens = 1 + Rng(static_cast<uint64_t>(i)).Below(150);
    if (i % 8 == 0) tokens = 300 + static_cast<size_t>(i / 8) * 50;
    if (i % 8 == 1) tokens = 240 + static_cast<size_t>(i / 8);
    if (i == 2) tokens = 1;
    requests.push_back({.prompt = RandomPrompt(i, tokens, 256),
                        .new_tokens = 24 + i % 13,
                        .cancel_at = i % 5 == 3 ? 2 + i % 7 * 3 : 0});
  }
  return requests;
}

class Determinism : public testing::TestWithParam<std::string> {
 protected:
  static constexpr const char* kPath = TERN_SOURCE_DIR "/tests/data/golden/llama-rope3-tied";

  Outcome RunAll(const Setting& setting) {
    LoadedModel loaded(kPath, GetParam(), setting.threads);
    return RunRequests(loaded, setting, requests_);
  }
  const Rows& Alone() {
    static std::map<std::string, Rows> by_isa;
    Rows& rows = by_isa[GetParam()];
    if (rows.empty()) {
      LoadedModel loaded(kPath, GetParam(), 1);
      rows = RunAlone(loaded, requests_);
    }
    return rows;
  }
  // The lower levels share the engine's code: they get a smaller grid.
  bool best() const { return GetParam() == Ops::SupportedIsas().front(); }

  const std::vector<TestRequest> requests_ = SmallModelRequests();
};
INSTANTIATE_TEST_SUITE_P(Isa, Determinism, testing::ValuesIn(Ops::SupportedIsas()),
                         [](const auto& info) { return info.param; });

TEST_P(Determinism, LogitsAreBitEqualAmong32InOneBatch) {
  const Setting setting = {.joins = 8};
  const Outcome together = RunAll(setting);
  EXPECT_EQ(together.most_sampled, size_t{kRequests});
  ExpectEqualRows(together, Alone(), requests_, setting);
}

TEST_P(Determinism, LogitsAreBitEqualForAnyChunkPageAndThreads) {
  std::vector<Setting> settings = {{.chunk = 33, .page = 16, .threads = 2, .cancels = true}};
  if (best()) {
    settings.insert(settings.end(), {{.chunk = 1},
                                     {.chunk = 200, .page = 1, .threads = 3, .cancels = true},
                                     {.page = 128, .threads = 2, .joins = 1, .cancels = true},
                                     {.chunk = 300, .page = 8, .threads = 4, .joins = 32}});
  }
  for (const Setting& setting : settings) {
    ExpectEqualRows(RunAll(setting), Alone(), requests_, setting);
  }
}

TEST_P(Determinism, LogitsAreBitEqualThroughRetraction) {
  const Setting setting = {.chunk = 64, .page = 16, .total_tokens = 640, .cancels = true};
  const Outcome together = RunAll(setting);
  EXPECT_GT(together.retractions, 0);
  ExpectEqualRows(together, Alone(), requests_, setting);
}

TEST_P(Determinism, LogitsAreBitEqualOnAReusedPrefix) {
  const Setting setting = {.chunk = 64, .page = 16, .cancels = true, .waves = 2};
  const Outcome together = RunAll(setting);
  ASSERT_EQ(together.cached_tokens.size(), size_t{2 * kRequests});
  for (size_t i = 0; i < kRequests; ++i) {
    // One token at least is computed. Who was aborted has left whole pages alone.
    const int64_t tokens = static_cast<int64_t>(requests_[i].prompt.size());
    const bool aborted = requests_[i].cancel_at > 0 && (i + 1) % 2 == 0;
    EXPECT_EQ(together.cached_tokens[i], 0);
    EXPECT_EQ(together.cached_tokens[kRequests + i],
              aborted ? std::min(tokens - 1, tokens / 16 * 16) : tokens - 1);
  }
  ExpectEqualRows(together, Alone(), requests_, setting);
}

// FP8 rows of every kind of attention, and INT8 activations: chunks, pages, threads, batch mates,
// retraction and reused prefixes change no bit.
TEST_P(Determinism, LogitsAreBitEqualInEveryKvFormat) {
  using enum KvFormat;
  struct Case {
    const char* model;
    std::vector<KvFormat> formats;
  };
  for (const Case& c : {Case{"llama", {kFp8E4m3, kFp8Tiled}},
                        Case{"kimi-k2-wide-int4", {kBf16, kFp8E4m3, kFp8Tiled, kFp8DsMla}},
                        Case{"deepseek-v32-dsa", {kFp8E4m3, kFp8Tiled, kFp8DsMla}}}) {
    std::vector<TestRequest> requests;
    for (int i = 0; i < 12; ++i) {
      requests.push_back({.prompt = RandomPrompt(i, static_cast<size_t>(5 + 13 * i % 80), 256),
                          .new_tokens = 24 + i % 4,
                          .cancel_at = i % 5 == 3 ? 2 : 0});
    }
    const std::string path = TERN_SOURCE_DIR "/tests/data/golden/" + std::string(c.model);
    LoadedModel one(path, GetParam(), 1), two(path, GetParam(), 2);
    for (LoadedModel* loaded : {&one, &two}) loaded->ops->set_activations(Activations::kInt8);
    for (const KvFormat kv : c.formats) {
      const Rows alone = RunAlone(one, requests, kv);
      const Setting reused = {
          .chunk = 7, .page = 16, .joins = 5, .cancels = true, .waves = 2, .kv = kv};
      ExpectEqualRows(RunRequests(two, reused, requests), alone, requests, reused);
      const Setting tight = {.chunk = 33, .page = 8, .total_tokens = 240, .joins = 12, .kv = kv};
      const Outcome squeezed = RunRequests(two, tight, requests);
      EXPECT_GT(squeezed.retractions, 0);
      ExpectEqualRows(squeezed, alone, requests, tight);
      if (!best()) break;  // the lower levels share the engine's code
    }
  }
}

// Prompts that part within a page: all but the rows that differ are copied, and the last one of a
// prompt that comes again is the only one computed.
TEST_P(Determinism, LogitsAreBitEqualOnCopiedRows) {
  using enum KvFormat;
  struct Case {
    const char* model;
    std::vector<KvFormat> formats;
  };
  std::vector<TestRequest> requests;
  for (const size_t part_at : {0, 3, 15, 16, 17, 50, 63, 64, 70, 77}) {
    std::vector<int32_t> prompt = RandomPrompt(1, 78, 256);
    prompt[part_at] = 255;
    requests.push_back({.prompt = std::move(prompt), .new_tokens = 6});
  }
  for (const Case& c : {Case{"llama", {kBf16, kFp8E4m3, kFp8Tiled}},
                        Case{"kimi-k2-wide-int4", {kBf16, kFp8E4m3, kFp8Tiled, kFp8DsMla}},
                        Case{"deepseek-v32-dsa", {kBf16, kFp8E4m3, kFp8Tiled, kFp8DsMla}}}) {
    LoadedModel loaded(TERN_SOURCE_DIR "/tests/data/golden/" + std::string(c.model), GetParam(), 2);
    for (const KvFormat kv : c.formats) {
      const Rows alone = RunAlone(loaded, requests, kv);
      for (const int64_t page : {16, 64}) {
        const Setting setting = {.page = page, .joins = 1, .waves = 2, .kv = kv};
        const Outcome together = RunRequests(loaded, setting, requests);
        ExpectEqualRows(together, alone, requests, setting);
        EXPECT_GT(together.copied_rows, 0);
        for (size_t i = 0; i < requests.size(); ++i) {
          EXPECT_EQ(together.cached_tokens[requests.size() + i], 77) << i;
        }
      }
      if (!best()) break;  // the lower levels share the engine's code
    }
  }
}

// A model that people use. Skipped when its file is absent, unless TERN_TEST_REQUIRE_SMOLLM2=1.
TEST(SmolLm2Determinism, LogitsAreBitEqualAloneAndAmong32) {
  const std::string path = TERN_SOURCE_DIR "/.cache/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
  if (!std::filesystem::exists(path)) {
    const char* required = std::getenv("TERN_TEST_REQUIRE_SMOLLM2");
    ASSERT_FALSE(required != nullptr && std::string(required) == "1") << path << " is missing";
    GTEST_SKIP() << path << " is missing";
  }
  std::vector<TestRequest> requests;
  for (int i = 0; i < kRequests; ++i) {
    const size_t tokens = i == 5 ? 253 : 1 + Rng(static_cast<uint64_t>(i)).Below(16);
    requests.push_back({.prompt = RandomPrompt(i, tokens, 49152),
                        .new_tokens = 8 + i % 5,
                        .cancel_at = i % 6 == 3 ? 1 + i % 4 : 0});
  }
  LoadedModel loaded(path, "", 2);
  ASSERT_NE(loaded.model, nullptr);
  const Rows alone = RunAlone(loaded, requests);

  const Setting crowd = {.joins = kRequests};
  const Outcome together = RunRequests(loaded, crowd, requests);
  EXPECT_EQ(together.most_sampled, size_t{kRequests});
  ExpectEqualRows(together, alone, requests, crowd);

  const Setting tight = {.page = 1, .total_tokens = 264, .joins = kRequests, .cancels = true};
  const Outcome squeezed = RunRequests(loaded, tight, requests);
  EXPECT_GT(squeezed.retractions, 0);
  ExpectEqualRows(squeezed, alone, requests, tight);
}

}  // namespace
}  // namespace tern
