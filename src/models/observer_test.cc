// What calibration sees of the reference models: every linear layer, its input and the KV rows.
#include "models/observer.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "models/test_golden.h"
#include "models/weights.h"

namespace tern {
namespace {

// Keeps all inputs of all weights.
class Recorder final : public ActivationObserver {
 public:
  void OnInput(const std::string& weight, const float* x, int64_t x_stride, int64_t rows,
               int64_t columns) override {
    auto& input = inputs[weight];
    for (int64_t row = 0; row < rows; ++row) {
      input.insert(input.end(), x + row * x_stride, x + row * x_stride + columns);
    }
    this->columns[weight] = columns;
  }
  void OnKvRow(int64_t layer, KvRowKind part, std::span<const float> row) override {
    auto& values = kv[{layer, part}];
    values.insert(values.end(), row.begin(), row.end());
  }
  void OnLogits(const float* values, int64_t vocab, std::span<const int32_t> next) override {
    logits.insert(logits.end(), values, values + vocab * static_cast<int64_t>(next.size()));
    next_tokens.insert(next_tokens.end(), next.begin(), next.end());
  }
  int64_t rows(const std::string& weight) const {
    const auto found = inputs.find(weight);
    if (found == inputs.end()) return 0;
    return static_cast<int64_t>(found->second.size()) / columns.at(weight);
  }

  std::map<std::string, std::vector<float>> inputs;
  std::map<std::string, int64_t> columns;
  std::map<std::pair<int64_t, KvRowKind>, std::vector<float>> kv;
  std::vector<float> logits;
  std::vector<int32_t> next_tokens;
};

std::string GoldenPath(const std::string& name) { return "tests/data/golden/" + name; }

// `count` tokens that go through the vocabulary, so that every expert gets some.
std::vector<int32_t> ManyTokens(int64_t count, int64_t vocab) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(i * 7919 % vocab));
  return tokens;
}

Recorder Observe(const std::string& path, const std::string& isa, int threads, Precision precision,
                 const std::vector<std::vector<int32_t>>& windows) {
  ThreadPool pool(threads);
  const auto ops = test::MakeOps(isa, pool);
  Recorder recorder;
  auto model = ObservedModel::Load(path, *ops, precision);
  EXPECT_TRUE(model.ok()) << model.status().message();
  if (!model.ok()) return recorder;
  const Status status = (*model)->Run(windows, true, recorder, {});
  EXPECT_TRUE(status.ok()) << status.message();
  return recorder;
}

// The linear layers that a config asks for are all seen under their names, and nothing else is;
// attention, dense and shared layers see every token, experts share top-k of each out.
class EveryLinearLayer : public ::testing::TestWithParam<const char*> {};

TEST_P(EveryLinearLayer, IsSeenUnderItsName) {
  const std::string path = GoldenPath(GetParam());
  const auto checkpoint = Checkpoint::Open(path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  const ModelConfig& config = (*checkpoint)->config();
  const auto specs = TensorList(config);
  ASSERT_TRUE(specs.ok());
  // Longer than a batch and than every index_topk, so that sparse rows take the absorbed form.
  const int64_t length = std::min<int64_t>(300, config.max_position_embeddings);
  const std::vector<std::vector<int32_t>> windows = {ManyTokens(length, config.vocab_size),
                                                     ManyTokens(40, config.vocab_size)};
  const int64_t tokens = length + 40;
  const Recorder seen = Observe(path, "", 2, Precision::kProduction, windows);

  std::set<std::string> expected;
  std::map<int64_t, int64_t> expert_rows;  // by layer
  for (const TensorSpec& spec : *specs) {
    if (!IsLinear(spec) || spec.next_token || spec.name.ends_with("weights_proj.weight")) continue;
    expected.insert(spec.name);
    const int64_t rows = seen.rows(spec.name);
    if (spec.kind == TensorKind::kExpert) {
      if (spec.name.ends_with("down_proj.weight")) {
        expert_rows[std::stoll(spec.name.substr(sizeof("model.layers.") - 1))] += rows;
      }
    } else {
      EXPECT_EQ(rows, tokens) << spec.name;
    }
    if (rows > 0) {
      EXPECT_EQ(seen.columns.at(spec.name), spec.shape[1]) << spec.name;
    }
  }
  if (config.tie_word_embeddings) expected.insert("lm_head.weight");
  for (const auto& [layer, rows] : expert_rows) {
    EXPECT_EQ(rows, tokens * config.moe->num_experts_per_tok) << layer;
  }
  for (const auto& [name, input] : seen.inputs) EXPECT_TRUE(expected.contains(name)) << name;
}

INSTANTIATE_TEST_SUITE_P(Golden, EveryLinearLayer,
                         ::testing::Values("llama", "llama-rope3-tied", "qwen3", "kimi-k2",
                                           "kimi-k2-int4", "kimi-k25-int4", "deepseek-v3-no-qlora",
                                           "deepseek-v3-groups-fp8", "deepseek-v32-dsa", "glm5-dsa",
                                           "glm52-dsa-shared", "glm4-moe"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// The first layer's inputs follow from the embedding alone.
TEST(ObserverTest, ShowsTheNormedEmbeddingToTheFirstLayer) {
  const std::string path = GoldenPath("llama");
  ThreadPool pool(1);
  const auto ops = test::MakeOps("ref", pool);
  auto opened = Checkpoint::Open(path);
  ASSERT_TRUE(opened.ok());
  const std::shared_ptr<const Checkpoint> checkpoint = std::move(*opened);
  const ModelConfig& config = checkpoint->config();
  const int64_t hidden = config.hidden_size;
  const LoadOptions options;
  WeightLoader loader(checkpoint, *ops, options);
  const auto embedding = loader.Values("model.embed_tokens.weight", config.vocab_size, hidden);
  const auto norm = loader.Vector("model.layers.0.input_layernorm.weight", hidden);
  const int64_t kv_size =
      config.num_key_value_heads * config.head_dim.value_or(hidden / config.num_attention_heads);
  const auto v = loader.Values("model.layers.0.self_attn.v_proj.weight", kv_size, hidden);
  ASSERT_TRUE(embedding.ok() && norm.ok() && v.ok());

  const std::vector<int32_t> tokens = ManyTokens(20, config.vocab_size);
  const Recorder seen = Observe(path, "ref", 1, Precision::kReference, {tokens});
  const auto& input = seen.inputs.at("model.layers.0.self_attn.q_proj.weight");
  EXPECT_EQ(input, seen.inputs.at("model.layers.0.self_attn.v_proj.weight"));
  const auto& values = seen.kv.at({0, KvRowKind::kValue});
  ASSERT_EQ(values.size(), tokens.size() * static_cast<size_t>(kv_size));
  for (size_t t = 0; t < tokens.size(); ++t) {
    const float* const x = embedding->data() + tokens[t] * hidden;
    double squares = 0;
    for (int64_t i = 0; i < hidden; ++i) squares += static_cast<double>(x[i]) * x[i];
    const double factor =
        1 / std::sqrt(squares / static_cast<double>(hidden) + config.rms_norm_eps);
    std::vector<double> normed;
    for (int64_t i = 0; i < hidden; ++i) {
      normed.push_back(x[i] * factor * (*norm)[static_cast<size_t>(i)]);
      EXPECT_NEAR(input[t * static_cast<size_t>(hidden) + static_cast<size_t>(i)], normed.back(),
                  1e-5 * std::fabs(normed.back()) + 1e-7);
    }
    for (int64_t n = 0; n < kv_size; ++n) {
      double value = 0, magnitude = 0;
      for (int64_t i = 0; i < hidden; ++i) {
        const double term =
            normed[static_cast<size_t>(i)] * (*v)[static_cast<size_t>(n * hidden + i)];
        value += term;
        magnitude += std::fabs(term);
      }
      // A cached row is BF16: half a unit of its eighth bit.
      EXPECT_NEAR(values[t * static_cast<size_t>(kv_size) + static_cast<size_t>(n)], value,
                  std::fabs(value) / 256 + 1e-5 * magnitude);
    }
  }
}

// Observing changes nothing, and what is seen depends on no thread count.
TEST(ObserverTest, LogitsAndInputsAreTheSameBits) {
  for (const char* name : {"kimi-k2", "glm5-dsa", "llama"}) {
    const std::string path = GoldenPath(name);
    ThreadPool pool(2);
    const auto ops = test::MakeOps("", pool);
    const auto model = test::MakeModel(path, *ops, Precision::kProduction);
    ASSERT_NE(model, nullptr);
    const std::vector<int32_t> tokens = ManyTokens(300, model->info().vocab_size);
    auto sequence = test::MakeSequence(*model, KvFormat::kBf16, 64, 300);
    const auto logits = test::RunAll(*model, sequence, tokens, 300, 300);
    const Recorder one = Observe(path, "", 1, Precision::kProduction, {tokens});
    const Recorder three = Observe(path, "", 3, Precision::kProduction, {tokens});
    EXPECT_EQ(one.logits, logits) << name;
    EXPECT_EQ(three.logits, logits) << name;
    EXPECT_EQ(one.inputs, three.inputs) << name;
    EXPECT_EQ(one.kv, three.kv) << name;
    for (size_t i = 0; i + 1 < tokens.size(); ++i) EXPECT_EQ(one.next_tokens[i], tokens[i + 1]);
    EXPECT_EQ(one.next_tokens.back(), -1);
  }
}

// Windows share batches without seeing each other, in whatever order they come.
TEST(ObserverTest, WindowsAreSequencesOfTheirOwn) {
  const std::string path = GoldenPath("kimi-k2");
  const std::vector<int32_t> tokens = ManyTokens(700, 256);
  const std::vector<std::vector<int32_t>> windows = {
      {tokens.begin(), tokens.begin() + 200}, {}, {tokens.begin() + 200, tokens.end()}};
  const Recorder both = Observe(path, "", 2, Precision::kProduction, windows);
  const Recorder first = Observe(path, "", 2, Precision::kProduction, {windows[0]});
  const Recorder last = Observe(path, "", 2, Precision::kProduction, {windows[2]});
  std::vector<float> joined = first.logits;
  joined.insert(joined.end(), last.logits.begin(), last.logits.end());
  EXPECT_EQ(both.logits, joined);
  for (const auto& [part, rows] : both.kv) {
    std::vector<float> one_by_one = first.kv.at(part);
    one_by_one.insert(one_by_one.end(), last.kv.at(part).begin(), last.kv.at(part).end());
    EXPECT_EQ(rows, one_by_one);
  }
}

TEST(ObserverTest, ErrorsEndTheRun) {
  ThreadPool pool(1);
  const auto ops = test::MakeOps("", pool);
  EXPECT_EQ(ObservedModel::Load("tests/data/nowhere", *ops).status().code(), StatusCode::kNotFound);
  auto model = ObservedModel::Load(GoldenPath("llama"), *ops);
  ASSERT_TRUE(model.ok());
  Recorder recorder;
  const std::vector<std::vector<int32_t>> foreign = {
      {1, static_cast<int32_t>((*model)->vocab_size())}};
  EXPECT_EQ((*model)->Run(foreign, false, recorder, {}).code(), StatusCode::kInvalidArgument);
  const std::vector<std::vector<int32_t>> long_one = {
      std::vector<int32_t>(static_cast<size_t>((*model)->context_length()) + 1, 1)};
  EXPECT_EQ((*model)->Run(long_one, false, recorder, {}).code(), StatusCode::kInvalidArgument);

  class Refusing final : public ActivationObserver {
   public:
    void OnInput(const std::string&, const float*, int64_t, int64_t, int64_t) override {}
    void OnKvRow(int64_t, KvRowKind, std::span<const float>) override {}
    void OnLogits(const float*, int64_t, std::span<const int32_t>) override {}
    Status status() const override { return DataLoss("enough"); }
  } refusing;
  const std::vector<std::vector<int32_t>> tokens = {{1, 2, 3}};
  EXPECT_EQ((*model)->Run(tokens, false, refusing, {}).message(), "enough");
}

}  // namespace
}  // namespace tern
