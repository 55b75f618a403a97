// Log probabilities of prompt tokens against the reference files of tests/data/golden, whose
// logits PyTorch computed (make_golden.py there). Their way through batches, chunks, the prefix
// cache and retraction is tested with the toy model, in src/sim/prompt_logprobs_test.cc.
#include "engine/prompt_logprobs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/file.h"
#include "base/json.h"
#include "engine/engine_core.h"
#include "models/registry.h"

namespace tern {
namespace {

struct Recorder final : TokenSink {
  void OnPromptLogprobs(std::vector<PromptLogprob> logprobs) override {
    prompt = std::move(logprobs);
  }
  void OnToken(TokenEvent) override {}
  void OnFinish(FinishEvent event) override { finish = std::move(event); }
  std::vector<PromptLogprob> prompt;
  FinishEvent finish;
};

// A tensor of a safetensors file: the length of a JSON header, the header, the bytes.
template <typename T>
std::vector<T> Tensor(const std::string& path, const char* name) {
  const std::string file = ReadFile(path).value();
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  const Json header = ParseJson(std::string_view(file).substr(8, header_bytes)).value();
  const Json& offsets = header.at(name).at("data_offsets");
  const auto begin = offsets[0].get<size_t>(), end = offsets[1].get<size_t>();
  std::vector<T> values((end - begin) / sizeof(T));
  std::memcpy(values.data(), file.data() + 8 + header_bytes + begin, end - begin);
  return values;
}

class GoldenPromptTest : public testing::TestWithParam<const char*> {};

TEST_P(GoldenPromptTest, EqualsTheReferencesLogSoftmax) {
  const std::string dir = std::string(TERN_SOURCE_DIR "/tests/data/golden/") + GetParam();
  const auto prompt = Tensor<int32_t>(dir + "/golden.safetensors", "prompt");
  const auto logits = Tensor<float>(dir + "/golden.safetensors", "logits");
  ThreadPool pool(2);
  const auto ops = Ops::Create("ref", pool).value();
  LoadOptions load;
  load.precision = Precision::kReference;
  const auto model = LoadModel(dir, *ops, load).value();
  const auto vocab = static_cast<size_t>(model->info().vocab_size);
  ASSERT_EQ(logits.size(), prompt.size() * vocab);

  EngineOptions options;
  options.kv_format = KvFormat::kF32;
  const auto plan = PlanMemory(model->info(), {.kv_format = KvFormat::kF32,
                                               .max_total_tokens = 4096,
                                               .available_bytes = uint64_t{1} << 33})
                        .value();
  ManualClock clock;
  const auto core = EngineCore::Create(*model, pool, options, plan, 1, clock, nullptr).value();
  GenerateRequest request;
  request.tokens = prompt;
  request.sampling.max_new_tokens = 0;
  request.prompt_logprobs_from = 0;
  request.top_logprobs = 1;
  const auto sink = std::make_shared<Recorder>();
  core->Submit(1, request, sink, 0);
  while (core->Step()) {
  }
  ASSERT_EQ(sink->prompt.size(), prompt.size() - 1) << sink->finish.status.ToString();
  for (size_t i = 0; i + 1 < prompt.size(); ++i) {
    const float* row = logits.data() + i * vocab;
    double sum = 0, largest = row[0];
    for (size_t v = 0; v < vocab; ++v) {
      sum += std::exp(double{row[v]});
      largest = std::max(largest, double{row[v]});
    }
    // Reference precision differs from PyTorch by at most 4e-5 in a logit (parity_contract.py has
    // the figure for llama), so by twice that in a difference of two.
    EXPECT_NEAR(sink->prompt[i].token.logprob, row[prompt[i + 1]] - std::log(sum), 2e-4) << i;
    EXPECT_NEAR(sink->prompt[i].top[0].logprob, largest - std::log(sum), 2e-4) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, GoldenPromptTest,
                         testing::Values("llama", "kimi-k2", "glm5-dsa", "qwen3"));

}  // namespace
}  // namespace tern
