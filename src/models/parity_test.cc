// The architectures with experts, in every weight format, against transformers' logits
// (tests/data/golden, float32 math on the stored or dequantized weights). llama_test.cc has the
// dense ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "models/test_golden.h"

namespace tern {
namespace {

using test::Golden;

constexpr const char* kNames[] = {
    "deepseek-v3-groups",
    "deepseek-v3-groups-fp8",
    "deepseek-v3-no-qlora",
    "kimi-k2",
    "kimi-k2-int4",
    "kimi-k2-wide",
    "kimi-k2-wide-int4",
    "kimi-k25-int4",
    "glm4-moe",
    "glm4-moe-lite",
    "glm5-dsa",
    "glm5-dsa-fp8",
    "glm5-dsa-fp8-sharded-mtp",
    "glm52-dsa-shared",
    "glm52-dsa-shared-int4",
    "deepseek-v32-dsa",
    "odd-dsa",
    "odd-dsa-fp8",
    "odd-groups",
    "odd-kimi",
    "odd-kimi-int4",
    "odd-g64-int4-asym",
    "odd-g128-int4",
};

std::string FolderOf(const std::string& name) { return "tests/data/golden/" + name; }

class ParityTest : public ::testing::TestWithParam<std::tuple<std::string, const char*>> {};

// tests/parity_grid.py has the whole grid of chunks, page sizes and decode splits. Here the best
// level runs two settings that differ in all of them, the others one, which has both forms.
TEST_P(ParityTest, ReferencePrecisionMatchesWhateverChunkPageSizeAndDecodeSplit) {
  const auto& [isa, name] = GetParam();
  ThreadPool pool(2);
  const auto ops = test::MakeOps(isa, pool);
  const auto model = test::MakeModel(FolderOf(name), *ops, Precision::kReference);
  ASSERT_NE(model, nullptr);
  const Golden golden = test::LoadGolden(FolderOf(name));
  const auto length = static_cast<int64_t>(golden.prompt.size());
  struct Setting {
    int64_t page_tokens, chunk, prefill;
  };
  std::vector<Setting> settings = {{16, 7, length / 2}};
  if (isa == Ops::SupportedIsas().front()) settings.push_back({64, length, length});
  for (const Setting& s : settings) {
    test::ExpectMatchesGolden(*ops, *model, golden, s.page_tokens, s.chunk, s.prefill);
  }
}

// KL(reference, tern) in nats at each position.
std::vector<double> Divergences(const std::vector<float>& reference, const std::vector<float>& have,
                                size_t vocab) {
  std::vector<double> result;
  for (size_t at = 0; at + vocab <= have.size(); at += vocab) {
    const auto log_sum = [&](const float* x) {
      const double top = *std::max_element(x, x + vocab);
      double sum = 0;
      for (size_t i = 0; i < vocab; ++i) sum += std::exp(x[i] - top);
      return top + std::log(sum);
    };
    const float* p = reference.data() + at;
    const float* q = have.data() + at;
    const double p_sum = log_sum(p), q_sum = log_sum(q);
    double kl = 0;
    for (size_t i = 0; i < vocab; ++i) {
      kl += std::exp(p[i] - p_sum) * ((p[i] - p_sum) - (q[i] - q_sum));
    }
    result.push_back(kl);
  }
  return result;
}

// Medians: in random models a choice of experts or positions may flip under BF16-size differences.
TEST_P(ParityTest, ProductionPrecisionStaysClose) {
  const auto& [isa, name] = GetParam();
  ThreadPool pool(2);
  const auto ops = test::MakeOps(isa, pool);
  const auto model = test::MakeModel(FolderOf(name), *ops, Precision::kProduction);
  ASSERT_NE(model, nullptr);
  const Golden golden = test::LoadGolden(FolderOf(name));
  const auto length = static_cast<int64_t>(golden.prompt.size());
  std::vector<int64_t> prefills = {length / 2};
  if (isa == Ops::SupportedIsas().front()) prefills.push_back(length);
  for (const int64_t prefill : prefills) {
    auto sequence = test::MakeSequence(*model, KvFormat::kBf16, 64, length);
    const auto logits = test::RunAll(*model, sequence, golden.prompt, length, prefill);
    auto kl = Divergences(golden.logits, logits, static_cast<size_t>(model->info().vocab_size));
    std::sort(kl.begin(), kl.end());
    EXPECT_LE(kl[(kl.size() + 1) / 2 - 1], 2e-3) << "prefill " << prefill;
  }
}

// tests/data/gguf/make_deepseek2.py: Q4_0 and Q8_0, kv_b_proj split and joined.
TEST(GgufParityTest, Deepseek2MatchesItsDequantizedWeights) {
  ThreadPool pool(2);
  const auto ops = test::MakeOps("", pool);
  for (const std::string path : {"tests/data/gguf/deepseek2", "tests/data/gguf/deepseek2_joined"}) {
    const Golden golden = test::LoadGoldenFile(path + ".golden.safetensors");
    const auto length = static_cast<int64_t>(golden.prompt.size());
    const auto model = test::MakeModel(path + ".gguf", *ops, Precision::kReference);
    ASSERT_NE(model, nullptr);
    EXPECT_EQ(model->info().architecture, "DeepseekV3ForCausalLM");
    for (const int64_t prefill : {length, length / 2}) {
      auto sequence = test::MakeSequence(*model, KvFormat::kF32, 64, length + 8);
      const auto logits = test::RunAll(*model, sequence, golden.prompt, 64, prefill);
      EXPECT_LE(test::MaxAbsDiff(logits, golden.logits), 2e-3f) << path;
      const std::vector<float> last(logits.end() - model->info().vocab_size, logits.end());
      const size_t equal = test::GreedyAgreement(*ops, *model, sequence, last, golden.greedy);
      if (equal < golden.greedy.size()) {
        EXPECT_LT(golden.margin[equal], 0.005f) << path;
      }
    }
    const auto production = test::MakeModel(path + ".gguf", *ops, Precision::kProduction);
    auto sequence = test::MakeSequence(*production, KvFormat::kBf16, 64, length);
    const auto logits = test::RunAll(*production, sequence, golden.prompt, 64, length / 2);
    auto kl = Divergences(golden.logits, logits, static_cast<size_t>(model->info().vocab_size));
    std::sort(kl.begin(), kl.end());
    EXPECT_LE(kl[(kl.size() + 1) / 2 - 1], 2e-3) << path;
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, ParityTest,
                         ::testing::Combine(::testing::ValuesIn(Ops::SupportedIsas()),
                                            ::testing::ValuesIn(kNames)),
                         [](const auto& info) {
                           std::string name =
                               std::get<0>(info.param) + "_" + std::get<1>(info.param);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace tern
