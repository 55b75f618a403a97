// Llama-family models against transformers' logits (tests/data/golden, float32 math), the
// determinism contract, and checkpoints that don't fit their config.
#include "models/llama.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <tuple>

#include "checkpoint/test_files.h"
#include "models/test_golden.h"
#include "tensor/number.h"

namespace tern {
namespace {

namespace fs = std::filesystem;
using test::Golden;
using ::testing::HasSubstr;

constexpr const char* kNames[] = {"llama", "llama-rope3-tied", "qwen3"};

std::string FolderOf(const std::string& name) { return "tests/data/golden/" + name; }

class GoldenTest : public ::testing::TestWithParam<std::tuple<std::string, const char*>> {};

TEST_P(GoldenTest, ReferencePrecisionMatchesWhateverChunkPageSizeAndDecodeSplit) {
  const auto& [isa, name] = GetParam();
  ThreadPool pool(2);
  const auto ops = test::MakeOps(isa, pool);
  const auto model = test::MakeModel(FolderOf(name), *ops, Precision::kReference);
  ASSERT_NE(model, nullptr);
  const Golden golden = test::LoadGolden(FolderOf(name));
  const auto length = static_cast<int64_t>(golden.prompt.size());
  const std::tuple<int64_t, int64_t> kChunkAndPrefill[] = {
      {1, length}, {7, length}, {length, length}, {length, 0}, {length, length / 2}};
  for (const int64_t page_tokens : {16, 64}) {
    for (const auto& [chunk, prefill] : kChunkAndPrefill) {
      test::ExpectMatchesGolden(*ops, *model, golden, page_tokens, chunk, prefill);
    }
  }
}

// Production rounds to BF16 (relative error at most 2^-9) what enters each product and the KV rows:
// per layer the normed input, K, V, the attention's output, the second normed input and the gated
// product, and once what enters the head. Independent errors of one size add in squares, so the
// root mean square error is bounded by that of the logits times 2^-9 sqrt(6 layers + 1).
TEST_P(GoldenTest, ProductionPrecisionStaysClose) {
  const auto& [isa, name] = GetParam();
  ThreadPool pool(2);
  const auto ops = test::MakeOps(isa, pool);
  const auto model = test::MakeModel(FolderOf(name), *ops, Precision::kProduction);
  ASSERT_NE(model, nullptr);
  const Golden golden = test::LoadGolden(FolderOf(name));
  const auto length = static_cast<int64_t>(golden.prompt.size());
  auto sequence = test::MakeSequence(*model, KvFormat::kBf16, 64, length);
  const auto logits = test::RunAll(*model, sequence, golden.prompt, length, length);
  double error = 0, size = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    error += std::pow(static_cast<double>(logits[i]) - golden.logits[i], 2);
    size += std::pow(static_cast<double>(golden.logits[i]), 2);
  }
  const auto layers = static_cast<double>(model->info().kv_layers.size());
  EXPECT_LE(std::sqrt(error / size), std::sqrt(6 * layers + 1) / 512);
}

INSTANTIATE_TEST_SUITE_P(Isas, GoldenTest,
                         ::testing::Combine(::testing::ValuesIn(Ops::SupportedIsas()),
                                            ::testing::ValuesIn(kNames)),
                         [](const auto& info) {
                           std::string name =
                               std::get<0>(info.param) + "_" + std::get<1>(info.param);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

class DeterminismTest : public ::testing::TestWithParam<std::string> {};

// Bits, not values: memcmp over the float bytes.
bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST_P(DeterminismTest, ChunksPagesAndThreadsLeaveEveryBit) {
  const Golden golden = test::LoadGolden(FolderOf("llama-rope3-tied"));
  const auto length = static_cast<int64_t>(golden.prompt.size());
  for (const Precision precision : {Precision::kReference, Precision::kProduction}) {
    const KvFormat kv = precision == Precision::kReference ? KvFormat::kF32 : KvFormat::kBf16;
    std::vector<float> expected;
    for (const int threads : {1, 3}) {
      ThreadPool pool(threads);
      const auto ops = test::MakeOps(GetParam(), pool);
      const auto model = test::MakeModel(FolderOf("llama-rope3-tied"), *ops, precision);
      for (const int64_t page_tokens : {1, 64}) {
        for (const int64_t chunk : {int64_t{1}, int64_t{33}, length}) {
          auto sequence = test::MakeSequence(*model, kv, page_tokens, length);
          const auto logits = test::RunAll(*model, sequence, golden.prompt, chunk, length);
          if (expected.empty()) expected = logits;
          EXPECT_TRUE(SameBits(logits, expected))
              << "threads " << threads << " page " << page_tokens << " chunk " << chunk;
        }
      }
    }
  }
}

TEST_P(DeterminismTest, BatchMatesLeaveEveryBit) {
  ThreadPool pool(2);
  const auto ops = test::MakeOps(GetParam(), pool);
  const auto model = test::MakeModel(FolderOf("qwen3"), *ops, Precision::kProduction);
  const Golden golden = test::LoadGolden(FolderOf("qwen3"));
  const auto vocab = static_cast<size_t>(model->info().vocab_size);

  // Sequence s: the prompt rotated by s. All are fed in rounds of mixed lengths in one batch.
  constexpr int kSequences = 5;
  std::vector<std::vector<int32_t>> tokens;
  std::vector<std::vector<float>> alone, together(kSequences);
  std::vector<SingleSequence> sequences;
  for (int s = 0; s < kSequences; ++s) {
    tokens.push_back(golden.prompt);
    std::rotate(tokens[s].begin(), tokens[s].begin() + s, tokens[s].end());
    const auto length = static_cast<int64_t>(tokens[s].size());
    auto solo = test::MakeSequence(*model, KvFormat::kBf16, 16, length);
    alone.push_back(test::RunAll(*model, solo, tokens[s], length, length));
    sequences.push_back(test::MakeSequence(*model, KvFormat::kBf16, 16, length));
  }
  for (int round = 0;; ++round) {
    std::vector<int32_t> batch_tokens, logit_rows;
    std::vector<ForwardRun> runs;
    std::vector<int> owner;  // of each row
    for (int s = 0; s < kSequences; ++s) {
      const int64_t at = sequences[s].position();
      const int64_t left = static_cast<int64_t>(tokens[s].size()) - at;
      const int64_t rows = std::min<int64_t>(left, (round + s) % 4 == 0 ? 9 : (round + s) % 4);
      if (rows == 0) continue;
      runs.push_back(sequences[s].NextRun(static_cast<int64_t>(batch_tokens.size()), rows,
                                          rows == 1 ? RowForm::kDecode : RowForm::kPrefill));
      batch_tokens.insert(batch_tokens.end(), tokens[s].begin() + at,
                          tokens[s].begin() + at + rows);
      owner.insert(owner.end(), static_cast<size_t>(rows), s);
      sequences[s].Advance(rows);
    }
    if (batch_tokens.empty()) break;
    for (size_t row = 0; row < batch_tokens.size(); ++row) {
      logit_rows.push_back(static_cast<int32_t>(row));
    }
    std::vector<float> logits(batch_tokens.size() * vocab);
    const Status status = model->Forward(
        {.tokens = batch_tokens, .runs = runs, .logit_rows = logit_rows}, logits.data());
    ASSERT_TRUE(status.ok()) << status.message();
    for (size_t row = 0; row < owner.size(); ++row) {
      auto& out = together[static_cast<size_t>(owner[row])];
      out.insert(out.end(), logits.begin() + row * vocab, logits.begin() + (row + 1) * vocab);
    }
  }
  for (int s = 0; s < kSequences; ++s) EXPECT_TRUE(SameBits(alone[s], together[s])) << s;
}

INSTANTIATE_TEST_SUITE_P(Isas, DeterminismTest, ::testing::ValuesIn(Ops::SupportedIsas()),
                         [](const auto& info) { return info.param; });

// --- GGUF twins of the golden checkpoints, written as llama.cpp's converter writes them ---

std::string BytesOf(const TensorView& view) {
  return {reinterpret_cast<const char*>(view.bytes.data()), view.bytes.size()};
}

// weights.reshape(heads, 2, rows / heads / 2, columns).swapaxes(1, 2): rows (half, pair) of each
// head become (pair, half).
std::string PermuteForGguf(const TensorView& view, int64_t heads) {
  const std::string bytes = BytesOf(view);
  const int64_t rows = view.shape[0], half = rows / heads / 2;
  const auto row_bytes = static_cast<int64_t>(bytes.size()) / rows;
  std::string out;
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t pair = 0; pair < half; ++pair) {
      for (int64_t h = 0; h < 2; ++h) {
        out += bytes.substr(static_cast<size_t>(((head * 2 + h) * half + pair) * row_bytes),
                            static_cast<size_t>(row_bytes));
      }
    }
  }
  return out;
}

void WriteGgufTwin(const std::string& name, const std::string& path) {
  const auto checkpoint = Checkpoint::Open(FolderOf(name));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  const ModelConfig& config = (*checkpoint)->config();
  const auto u32 = [](int64_t v) { return static_cast<uint32_t>(v); };
  test::GgufWriter writer;
  writer.String("general.architecture", "llama")
      .U32("llama.block_count", u32(config.num_hidden_layers))
      .U32("llama.context_length", u32(config.max_position_embeddings))
      .U32("llama.embedding_length", u32(config.hidden_size))
      .U32("llama.feed_forward_length", u32(config.intermediate_size))
      .U32("llama.attention.head_count", u32(config.num_attention_heads))
      .U32("llama.attention.head_count_kv", u32(config.num_key_value_heads))
      .U32("llama.rope.dimension_count", u32(*config.head_dim))
      .F32("llama.rope.freq_base", static_cast<float>(config.rope.theta))
      .F32("llama.attention.layer_norm_rms_epsilon", static_cast<float>(config.rms_norm_eps));
  if (config.rope.type == "llama3") {
    // The converter stores the scaling as divisors of the plain frequencies.
    std::string divisors;
    for (int64_t i = 0; i < *config.head_dim / 2; ++i) {
      const double plain = std::pow(config.rope.theta, -2.0 * i / *config.head_dim);
      const double wave = 2 * M_PI / plain;
      const auto orig = static_cast<double>(config.rope.original_max_position_embeddings);
      double divisor = 1;
      if (wave > orig / config.rope.low_freq_factor) {
        divisor = config.rope.factor;
      } else if (wave >= orig / config.rope.high_freq_factor) {
        const double smooth = (orig / wave - config.rope.low_freq_factor) /
                              (config.rope.high_freq_factor - config.rope.low_freq_factor);
        divisor = 1 / ((1 - smooth) / config.rope.factor + smooth);
      }
      divisors += test::Raw(static_cast<float>(divisor));
    }
    writer.Tensor("rope_freqs.weight", {static_cast<uint64_t>(*config.head_dim / 2)}, 0, divisors);
  }
  const std::map<std::string, std::string> kNamesInGguf = {
      {"input_layernorm", "attn_norm"},
      {"post_attention_layernorm", "ffn_norm"},
      {"self_attn.q_proj", "attn_q"},
      {"self_attn.k_proj", "attn_k"},
      {"self_attn.v_proj", "attn_v"},
      {"self_attn.o_proj", "attn_output"},
      {"mlp.gate_proj", "ffn_gate"},
      {"mlp.up_proj", "ffn_up"},
      {"mlp.down_proj", "ffn_down"},
      {"model.embed_tokens.weight", "token_embd.weight"},
      {"model.norm.weight", "output_norm.weight"},
      {"lm_head.weight", "output.weight"}};
  for (const CheckpointTensor& tensor : (*checkpoint)->tensors()) {
    std::string gguf_name, data = BytesOf(tensor.view);
    if (const auto top = kNamesInGguf.find(tensor.name); top != kNamesInGguf.end()) {
      gguf_name = top->second;
    } else {
      const std::string rest = tensor.name.substr(std::string("model.layers.").size());
      const size_t dot = rest.find('.'), end = rest.rfind('.');
      const std::string module = rest.substr(dot + 1, end - dot - 1);
      gguf_name = "blk." + rest.substr(0, dot) + "." + kNamesInGguf.at(module) + ".weight";
      if (module == "self_attn.q_proj") {
        data = PermuteForGguf(tensor.view, config.num_attention_heads);
      }
      if (module == "self_attn.k_proj") {
        data = PermuteForGguf(tensor.view, config.num_key_value_heads);
      }
    }
    std::vector<uint64_t> dims(tensor.view.shape.dims().rbegin(), tensor.view.shape.dims().rend());
    writer.Tensor(gguf_name, dims, 30, data);
  }
  test::WriteFile(path, writer.Bytes());
}

TEST(GgufTwinTest, GivesTheSameLogits) {
  ThreadPool pool(2);
  const auto ops = test::MakeOps("", pool);
  for (const char* name : {"llama", "llama-rope3-tied"}) {
    const std::string path = ::testing::TempDir() + "tern_twin_" + name + ".gguf";
    WriteGgufTwin(name, path);
    const Golden golden = test::LoadGolden(FolderOf(name));
    const auto length = static_cast<int64_t>(golden.prompt.size());
    const auto twin = test::MakeModel(path, *ops, Precision::kReference);
    ASSERT_NE(twin, nullptr);
    EXPECT_EQ(twin->info().architecture, "LlamaForCausalLM");
    auto sequence = test::MakeSequence(*twin, KvFormat::kF32, 64, length);
    const auto logits = test::RunAll(*twin, sequence, golden.prompt, length, length);
    EXPECT_LE(test::MaxAbsDiff(logits, golden.logits), 2e-3f) << name;
    if (std::string(name) == "llama") {  // no divisors rounded to float32: the same bits
      const auto original = test::MakeModel(FolderOf(name), *ops, Precision::kReference);
      auto same = test::MakeSequence(*original, KvFormat::kF32, 64, length);
      EXPECT_TRUE(SameBits(logits, test::RunAll(*original, same, golden.prompt, length, length)));
    }
    fs::remove(path);
  }
}

// --- checkpoints and batches that are refused ---

class BadCheckpointTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "tern_bad_model";
    fs::remove_all(folder_);
    fs::copy(FolderOf("llama"), folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void Replace(const std::string& file, const std::string& from, const std::string& to) {
    std::ifstream in(folder_ + "/" + file, std::ios::binary);
    std::string text((std::istreambuf_iterator<char>(in)), {});
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    fs::remove(folder_ + "/" + file);
    test::WriteFile(folder_ + "/" + file, text);
  }
  void ExpectLoadError(const std::string& what) {
    ThreadPool pool(1);
    const auto ops = test::MakeOps("", pool);
    const auto model = LoadModel(folder_, *ops, {});
    ASSERT_FALSE(model.ok()) << what;
    EXPECT_THAT(model.status().message(), HasSubstr(folder_));
    EXPECT_THAT(model.status().message(), HasSubstr(what));
  }

  std::string folder_;
};

TEST_F(BadCheckpointTest, UnknownArchitectureListsTheKnown) {
  Replace("config.json", "LlamaForCausalLM", "MambaForCausalLM");
  ExpectLoadError("unknown architecture 'MambaForCausalLM' (known: LlamaForCausalLM");
}
TEST_F(BadCheckpointTest, MissingTensor) {
  Replace("model.safetensors", "model.layers.1.mlp.up_proj", "model.layers.1.mlp.xx_proj");
  ExpectLoadError("tensor 'model.layers.1.mlp.up_proj.weight' is missing");
}
TEST_F(BadCheckpointTest, ShapeThatTheConfigDoesNotAskFor) {
  Replace("config.json", "\"intermediate_size\": 192", "\"intermediate_size\": 160");
  ExpectLoadError("has shape [192, 128], the config asks for [160, 128]");
}
TEST_F(BadCheckpointTest, SizesFarFromTheFile) {
  Replace("config.json", "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 2000000000");
  ExpectLoadError("absurd");
}
TEST_F(BadCheckpointTest, IntegersAreNoWeights) {
  Replace("model.safetensors", R"("model.norm.weight":{"dtype":"BF16")",
          R"("model.norm.weight":{"dtype": "I16")");
  ExpectLoadError("type I16, which is no weight");
}
TEST_F(BadCheckpointTest, IntegersAreNoEmbedding) {
  Replace("model.safetensors", R"("model.embed_tokens.weight":{"dtype":"BF16")",
          R"("model.embed_tokens.weight":{"dtype": "I16")");
  ExpectLoadError("tensor 'model.embed_tokens.weight' has type I16, which is no weight");
}
TEST_F(BadCheckpointTest, ActivationsThatAreNotBuilt) {
  Replace("config.json", "\"silu\"", "\"gelu\"");
  ExpectLoadError("hidden_act 'gelu' is not supported");
}

TEST(ForwardTest, TokensOutsideTheVocabularyAreRefused) {
  ThreadPool pool(1);
  const auto ops = test::MakeOps("", pool);
  const auto model = test::MakeModel(FolderOf("llama"), *ops, Precision::kProduction);
  std::vector<float> logits(256);
  for (const int32_t token : {-1, 256}) {
    auto sequence = test::MakeSequence(*model, KvFormat::kBf16, 16, 4);
    const Status status = sequence.AppendForLast({&token, 1}, RowForm::kPrefill, logits.data());
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("outside the vocabulary of 256"));
  }
}

TEST(ForwardTest, PositionsBeyondTheContextAreRefused) {
  ThreadPool pool(1);
  const auto ops = test::MakeOps("", pool);
  const auto model = test::MakeModel(FolderOf("llama"), *ops, Precision::kProduction);
  const auto sequence = SingleSequence::Make(*model, KvFormat::kBf16, 16, 513);
  ASSERT_FALSE(sequence.ok());
  EXPECT_THAT(sequence.status().message(), HasSubstr("context of 512"));
}

TEST(TensorListTest, CountsThePublishedParameters) {
  // Llama-3.1-8B and Llama-3.2-1B: the published sizes (facts: 8.03 B and 1.236 B parameters).
  ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  config.vocab_size = 128256;
  config.hidden_size = 4096;
  config.intermediate_size = 14336;
  config.num_hidden_layers = 32;
  config.num_attention_heads = 32;
  config.num_key_value_heads = 8;
  config.head_dim = 128;
  const auto count = [&] {
    int64_t parameters = 0;
    const auto list = TensorList(config);
    EXPECT_TRUE(list.ok());
    for (const TensorSpec& spec : *list) parameters += *spec.shape.elements();
    return parameters;
  };
  EXPECT_EQ(count(), 8030261248);
  config.hidden_size = 2048;
  config.intermediate_size = 8192;
  config.num_hidden_layers = 16;
  config.head_dim = 64;
  config.tie_word_embeddings = true;
  EXPECT_EQ(count(), 1235814400);
}

}  // namespace
}  // namespace tern
