// Checkpoints whose quantized weights don't fit each other or their config: one sentence that names
// file and tensor.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>

#include "checkpoint/test_files.h"
#include "models/test_golden.h"
#include "models/weight_recipe.h"

namespace tern {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class QuantizedTest : public ::testing::Test {
 protected:
  void Use(const std::string& name) {
    folder_ = ::testing::TempDir() + "tern_quantized";
    fs::remove_all(folder_);
    fs::copy("tests/data/golden/" + name, folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string Read(const std::string& file) {
    std::ifstream in(folder_ + "/" + file, std::ios::binary);
    return std::string((std::istreambuf_iterator<char>(in)), {});
  }
  void Write(const std::string& file, const std::string& text) {
    fs::remove(folder_ + "/" + file);
    test::WriteFile(folder_ + "/" + file, text);
  }
  // The first occurrence; text of another length only in JSON files.
  void Replace(const std::string& file, const std::string& from, const std::string& to) {
    std::string text = Read(file);
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    Write(file, text.replace(at, from.size(), to));
  }
  // Overwrites the first bytes of a tensor.
  void Poke(const std::string& tensor, const std::string& bytes) {
    std::string text = Read("model.safetensors");
    const auto parsed = ParseSafetensors(std::as_bytes(std::span(text)), "x");
    ASSERT_TRUE(parsed.ok());
    for (const SafetensorsTensor& t : *parsed) {
      if (t.name != tensor) continue;
      const auto at = reinterpret_cast<const char*>(t.view.bytes.data()) - text.data();
      return Write("model.safetensors",
                   std::string(text).replace(static_cast<size_t>(at), bytes.size(), bytes));
    }
    FAIL() << tensor;
  }
  void EditConfig(const std::function<void(Json&)>& edit) {
    Json json = *ParseJson(Read("config.json"));
    edit(json);
    Write("config.json", DumpJson(json));
  }
  void ExpectLoadError(const std::string& what, const std::string& file = "model.safetensors") {
    ThreadPool pool(1);
    const auto ops = test::MakeOps("", pool);
    const auto model = LoadModel(folder_, *ops, {});
    ASSERT_FALSE(model.ok()) << what;
    EXPECT_THAT(model.status().message(), HasSubstr(folder_ + (file.empty() ? "" : "/" + file)));
    EXPECT_THAT(model.status().message(), HasSubstr(what));
  }

  std::string folder_;
};

constexpr const char* kExpert = "model.layers.1.mlp.experts.0.gate_proj.weight";

TEST_F(QuantizedTest, Fp8WithoutScales) {
  Use("glm5-dsa-fp8");
  Replace("model.safetensors", "layers.1.self_attn.o_proj.weight_scale_inv",
          "layers.1.self_attn.o_proj.weight_scale_xxx");
  ExpectLoadError("tensor 'model.layers.1.self_attn.o_proj.weight_scale_inv' is missing");
}
TEST_F(QuantizedTest, NanAndInfiniteScales) {
  const std::string nan = test::Raw(std::nanf("")), inf = test::Raw<uint16_t>(0x7F80);
  Use("deepseek-v3-groups-fp8");
  Poke("model.layers.1.self_attn.q_a_proj.weight_scale_inv", nan);
  ExpectLoadError("tensor 'model.layers.1.self_attn.q_a_proj.weight_scale_inv' holds nan at 0");
  Use("kimi-k2-int4");
  Poke(std::string(kExpert) + "_scale", inf);
  ExpectLoadError(std::string("tensor '") + kExpert + "_scale' holds inf at 0");
}
TEST_F(QuantizedTest, ConfigSaysFp8AndNothingIs) {
  Use("kimi-k2");
  EditConfig([](Json& json) {
    json["quantization_config"] =
        *ParseJson(R"({"quant_method":"fp8","fmt":"e4m3","weight_block_size":[128,128]})");
  });
  ExpectLoadError(
      "quantization_config says fp8, but no weight is: tensor "
      "'model.layers.0.self_attn.q_a_proj.weight'",
      "config.json");
}
TEST_F(QuantizedTest, ConfigSaysAnotherFormat) {
  Use("kimi-k2-int4");
  EditConfig([](Json& json) {
    json["quantization_config"] =
        *ParseJson(R"({"quant_method":"fp8","fmt":"e4m3","weight_block_size":[128,128]})");
  });
  ExpectLoadError("is packed int4, but quantization_config");
  Use("kimi-k2-int4");
  EditConfig([](Json& json) { json["quantization_config"]["ignore"].push_back("re:.*experts.*"); });
  ExpectLoadError("ignores its module");
  Use("kimi-k2-int4");
  EditConfig([](Json& json) { json["quantization_config"]["ignore"] = Json::array({"lm_head"}); });
  ExpectLoadError("has type BF16, but quantization_config");
  Use("kimi-k2-int4");
  EditConfig([](Json& json) {
    json["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"] = 64;
  });
  ExpectLoadError("has groups of 32, but quantization_config");
  Use("kimi-k2-int4");
  EditConfig([](Json& json) {
    json["quantization_config"]["config_groups"]["group_0"]["weights"]["symmetric"] = false;
  });
  ExpectLoadError("_zero_point', but quantization_config");
}
TEST_F(QuantizedTest, PackedShapeThatDisagrees) {
  Use("kimi-k2-int4");
  Poke(std::string(kExpert) + "_shape", test::Raw<int64_t>(31));
  ExpectLoadError(std::string("tensor '") + kExpert + "_shape' says [31, 128]");
  Use("kimi-k25-int4");
  Poke("language_model." + std::string(kExpert) + "_shape", test::Raw<int32_t>(33));
  ExpectLoadError(std::string("tensor 'language_model.") + kExpert + "_shape' says [33, 128]");
}
TEST_F(QuantizedTest, ExpertMissingInOneLayer) {
  Use("kimi-k2");
  Replace("model.safetensors", "layers.2.mlp.experts.5.down_proj",
          "layers.2.mlp.experts.9.down_proj");
  ExpectLoadError("tensor 'model.layers.2.mlp.experts.5.down_proj.weight' is missing", "");
}
TEST_F(QuantizedTest, ScalesOfTheWrongType) {
  Use("glm5-dsa-fp8");
  Replace("model.safetensors", R"("model.layers.0.mlp.down_proj.weight_scale_inv":{"dtype":"F32")",
          R"("model.layers.0.mlp.down_proj.weight_scale_inv":{"dtype":"I32")");
  ExpectLoadError("_scale_inv' has type I32, it must be F32");
}
TEST_F(QuantizedTest, IndexThatPointsElsewhere) {
  Use("glm5-dsa-fp8-sharded-mtp");
  Replace("model.safetensors.index.json", "model-00001-of-00003.safetensors",
          "model-00002-of-00003.safetensors");
  ExpectLoadError("is not in model-00002-of-00003.safetensors", "model.safetensors.index.json");
}
TEST_F(QuantizedTest, CloseArchitecture) {
  Use("glm5-dsa");
  EditConfig([](Json& json) { json["model_type"] = "glm5_next"; });
  ExpectLoadError("'glm5_next'", "config.json");
}

// A config that leaves out what the files hold would give wrong answers without a word.
TEST_F(QuantizedTest, TensorsThatTheConfigDenies) {
  const auto expect = [&](const char* name, const char* key, Json value, const std::string& tensor,
                          const std::string& file = "model.safetensors") {
    Use(name);
    EditConfig([&](Json& json) { json[key] = std::move(value); });
    ExpectLoadError("tensor '" + tensor, file);
  };
  expect("kimi-k2", "n_shared_experts", 0, "model.layers.1.mlp.shared_experts.down_proj.weight'");
  expect("glm4-moe", "use_qk_norm", false, "model.layers.0.self_attn.k_norm.weight' has no place");
  expect("glm4-moe", "attention_bias", false, "model.layers.0.self_attn.k_proj.bias' has no place");
  expect("qwen3", "architectures", Json::array({"LlamaForCausalLM"}),
         "model.layers.0.self_attn.k_norm.weight' has no place");
  expect("kimi-k2", "num_hidden_layers", 2, "model.layers.2.input_layernorm.weight' is of layer 2");
  // The layer that predicts the next token is layer 3; layer 2 is an ordinary one.
  expect("glm5-dsa-fp8-sharded-mtp", "num_hidden_layers", 2, "model.layers.2.", "model-0000");
  Use("glm5-dsa");
  EditConfig([](Json& json) { json["architectures"][0] = "DeepseekV3ForCausalLM"; });
  ExpectLoadError("index_topk belongs to another architecture", "config.json");
}
TEST_F(QuantizedTest, PackedWeightMissing) {
  Use("kimi-k2-int4");
  Replace("model.safetensors", std::string(kExpert) + "_packed", std::string(kExpert) + "_pecked");
  ExpectLoadError(std::string("tensor '") + kExpert + "_packed' is missing", "");
}
TEST_F(QuantizedTest, DenseModelWhoseConfigSaysFp8) {
  Use("llama");
  EditConfig([](Json& json) {
    json["quantization_config"] =
        *ParseJson(R"({"quant_method":"fp8","fmt":"e4m3","weight_block_size":[128,128]})");
  });
  ExpectLoadError("quantization_config says fp8, but no weight is", "config.json");
}
TEST_F(QuantizedTest, NanWhereItWouldHideAnExpert) {
  Use("kimi-k2");
  Poke("model.layers.1.mlp.gate.weight", test::Raw<uint16_t>(0x7FC0));
  ExpectLoadError("tensor 'model.layers.1.mlp.gate.weight' holds nan at 0");
  Use("kimi-k2");
  Poke("model.layers.2.mlp.gate.e_score_correction_bias", test::Raw(std::nanf("")));
  ExpectLoadError("tensor 'model.layers.2.mlp.gate.e_score_correction_bias' holds nan at 0");
}
// However many positions an indexer may choose, a pass holds no more than it sees.
TEST_F(QuantizedTest, AbsurdIndexTopk) {
  Use("glm5-dsa");
  EditConfig([](Json& json) { json["index_topk"] = 2147483647; });
  ThreadPool pool(1);
  const auto ops = test::MakeOps("", pool);
  const auto model = test::MakeModel(folder_, *ops, Precision::kReference);
  ASSERT_NE(model, nullptr);
  EXPECT_LT(model->info().workspace_bytes_per_row, 1u << 20);
  const test::Golden golden = test::LoadGolden(folder_);
  const auto length = static_cast<int64_t>(golden.prompt.size());
  auto sequence = test::MakeSequence(*model, KvFormat::kF32, 64, length);
  const auto logits = test::RunAll(*model, sequence, golden.prompt, 64, length / 2);
  for (const float x : logits) ASSERT_TRUE(std::isfinite(x));
}

// Weights stay in their format: what is resident (packed matrices, vectors, and the embedding,
// which is looked up in the file) is at most 1.12 of the checkpoint's bytes.
TEST(ResidentTest, WeightsKeepTheirFormat) {
  ThreadPool pool(2);
  const auto ops = test::MakeOps("", pool);
  // Matrices of GLM-4.7-Flash's sizes; fewer layers, experts and words.
  Json json = *ParseJsonFile("tests/data/configs/glm-4.7-flash.json");
  json["num_hidden_layers"] = 2;
  json["num_nextn_predict_layers"] = 0;
  json["n_routed_experts"] = 16;
  json["vocab_size"] = 4096;
  const std::string path = ::testing::TempDir() + "tern_resident.json";
  test::WriteFile(path, DumpJson(json));
  const auto config = ParseModelConfig(json, path);
  ASSERT_TRUE(config.ok()) << config.status().message();
  const auto specs = TensorList(*config);
  ASSERT_TRUE(specs.ok()) << specs.status().message();
  for (const WeightRecipe recipe : {WeightRecipe::kBf16, WeightRecipe::kFp8, WeightRecipe::kInt4}) {
    uint64_t stored = 0, embedding = 0;
    for (const TensorSpec& spec : *specs) {
      const auto weight = StoredAs(spec, *config, recipe);
      ASSERT_TRUE(weight.ok()) << weight.status().message();
      stored += weight->bytes;
      if (spec.kind == TensorKind::kEmbedding) embedding += weight->bytes;
    }
    LoadOptions options;
    options.format = LoadFormat::kDummy;
    options.dummy_recipe = recipe;
    const auto model = LoadModel(path, *ops, options);
    ASSERT_TRUE(model.ok()) << model.status().message();
    const uint64_t resident = (*model)->info().weight_bytes + embedding;
    EXPECT_GE(resident, stored * 98 / 100) << static_cast<int>(recipe);
    EXPECT_LE(resident, stored * 112 / 100) << static_cast<int>(recipe);
  }
  std::remove(path.c_str());
}

}  // namespace
}  // namespace tern
