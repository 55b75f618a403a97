// SmolLM2-135M-Instruct (Q4_1) against the greedy continuations that transformers gave for its
// dequantized weights in float32 (tests/data/smollm2/golden.json).
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <fstream>

#include "base/json.h"
#include "models/test_golden.h"

namespace tern {
namespace {

constexpr const char* kModelPath = ".cache/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";

struct Case {
  std::vector<int32_t> prompt, greedy;
  std::vector<double> margins;
};

std::vector<Case> LoadCases() {
  const auto json = ParseJsonFile("tests/data/smollm2/golden.json");
  EXPECT_TRUE(json.ok()) << json.status().message();
  std::vector<Case> cases;
  for (const Json& item : (*json)["cases"]) {
    cases.push_back({item["prompt_ids"].get<std::vector<int32_t>>(),
                     item["greedy"].get<std::vector<int32_t>>(),
                     item["margins"].get<std::vector<double>>()});
  }
  return cases;
}

// Peak resident bytes of this process so far.
uint64_t PeakResidentBytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  uint64_t kib = 0;
  while (status >> word) {
    if (word == "VmHWM:" && status >> kib) return kib * 1024;
  }
  return 0;
}

class SmolLm2Test : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!FileExists(kModelPath)) {
      ASSERT_EQ(std::getenv("TERN_TEST_REQUIRE_SMOLLM2"), nullptr) << kModelPath << " is absent";
      GTEST_SKIP() << kModelPath << " is absent: scripts/fetch_smollm2.sh puts it there";
    }
  }
};

// First, so that the process's peak is this load's.
TEST_F(SmolLm2Test, LoadsQuicklyAndNeverHoldsTwoCopies) {
  ThreadPool pool(2);
  const auto ops = test::MakeOps("", pool);
  const uint64_t before = PeakResidentBytes();
  const auto start = std::chrono::steady_clock::now();
  const auto model = test::MakeModel(kModelPath, *ops, Precision::kProduction);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const uint64_t grown = PeakResidentBytes() - before;
  ASSERT_NE(model, nullptr);
  std::ifstream file(kModelPath, std::ios::ate | std::ios::binary);
  const auto file_bytes = static_cast<uint64_t>(file.tellg());
  RecordProperty("load_ms", static_cast<int>(seconds.count() * 1000));
  RecordProperty("peak_growth_percent_of_file", static_cast<int>(grown * 100 / file_bytes));
  std::printf(
      "load %.3f s, peak growth %.1f %% of the file, resident weights %.1f %%\n", seconds.count(),
      100.0 * static_cast<double>(grown) / static_cast<double>(file_bytes),
      100.0 * static_cast<double>(model->info().weight_bytes) / static_cast<double>(file_bytes));
  EXPECT_LT(seconds.count(), 2.0);
  EXPECT_LT(grown, file_bytes * 5 / 4);
  EXPECT_LE(model->info().weight_bytes, file_bytes * 112 / 100);
  EXPECT_EQ(model->info().context_length, 8192);
  EXPECT_EQ(model->info().eos_token_ids, (std::vector<int32_t>{2}));
}

// Greedy tokens must agree up to the first margin below `tie`: from there on, rounding may choose.
void ExpectGreedyTokens(Precision precision, KvFormat kv, double tie) {
  ThreadPool pool(2);
  const auto ops = test::MakeOps("", pool);
  const auto model = test::MakeModel(kModelPath, *ops, precision);
  ASSERT_NE(model, nullptr);
  int index = 0;
  size_t checked = 0;
  for (const Case& c : LoadCases()) {
    size_t sure = 0;
    while (sure < c.margins.size() && c.margins[sure] >= tie) ++sure;
    const std::vector<int32_t> expected(c.greedy.begin(),
                                        c.greedy.begin() + static_cast<int64_t>(sure));
    auto sequence =
        test::MakeSequence(*model, kv, 64, static_cast<int64_t>(c.prompt.size() + c.greedy.size()));
    std::vector<float> last(static_cast<size_t>(model->info().vocab_size));
    ASSERT_TRUE(sequence.AppendForLast(c.prompt, RowForm::kPrefill, last.data()).ok());
    EXPECT_EQ(test::GreedyAgreement(*ops, *model, sequence, last, expected), sure)
        << "case " << index;
    ++index;
    checked += sure;
  }
  EXPECT_GT(checked, 0u);
  std::printf("%zu greedy tokens checked\n", checked);
}

TEST_F(SmolLm2Test, ReferencePrecisionReproducesGreedyTokens) {
  ExpectGreedyTokens(Precision::kReference, KvFormat::kF32, 0.05);
}
TEST_F(SmolLm2Test, ProductionReproducesGreedyTokens) {
  ExpectGreedyTokens(Precision::kProduction, KvFormat::kBf16, 0.3);
}

// KL(reference precision, production) in nats over all positions of prompts and continuations.
TEST_F(SmolLm2Test, ProductionStaysNearReferencePrecision) {
  ThreadPool pool(2);
  const auto ops = test::MakeOps("", pool);
  const auto reference = test::MakeModel(kModelPath, *ops, Precision::kReference);
  const auto production = test::MakeModel(kModelPath, *ops, Precision::kProduction);
  ASSERT_TRUE(reference != nullptr && production != nullptr);
  const int64_t vocab = reference->info().vocab_size;
  const auto log_sum_exp = [&](const float* x) {
    const double top = *std::max_element(x, x + vocab);
    double sum = 0;
    for (int64_t i = 0; i < vocab; ++i) sum += std::exp(x[i] - top);
    return top + std::log(sum);
  };
  double total = 0;
  int64_t positions = 0;
  for (const Case& c : LoadCases()) {
    std::vector<int32_t> tokens = c.prompt;
    tokens.insert(tokens.end(), c.greedy.begin(), c.greedy.end());
    const auto length = static_cast<int64_t>(tokens.size());
    const auto prompt = static_cast<int64_t>(c.prompt.size());
    auto a = test::MakeSequence(*reference, KvFormat::kF32, 64, length);
    auto b = test::MakeSequence(*production, KvFormat::kBf16, 64, length);
    const auto want = test::RunAll(*reference, a, tokens, length, length);
    const auto have = test::RunAll(*production, b, tokens, length, prompt);
    for (int64_t position = 0; position < length; ++position, ++positions) {
      const float* p = want.data() + position * vocab;
      const float* q = have.data() + position * vocab;
      const double p_sum = log_sum_exp(p), q_sum = log_sum_exp(q);
      for (int64_t i = 0; i < vocab; ++i) {
        total += std::exp(p[i] - p_sum) * ((p[i] - p_sum) - (q[i] - q_sum));
      }
    }
  }
  const double mean = total / static_cast<double>(positions);
  std::printf("mean KL %.3g nats over %ld positions\n", mean, static_cast<long>(positions));
  EXPECT_LE(mean, 2e-3);
  EXPECT_GE(mean, 0.0);
}

}  // namespace
}  // namespace tern
