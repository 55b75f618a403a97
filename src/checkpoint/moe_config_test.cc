// The parts of a config that only models with experts or latent attention have.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/model_config.h"

namespace tern {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Json GlmJson() { return *ParseJsonFile("tests/data/golden/glm52-dsa-shared/config.json"); }

TEST(MoeConfigTest, BothSpellingsOfLayerKindsAndRope) {
  const auto glm = ParseModelConfig(GlmJson(), "c.json");
  ASSERT_TRUE(glm.ok()) << glm.status().message();
  EXPECT_THAT(glm->moe->sparse_layers, ElementsAre(false, true, true, true, true));
  EXPECT_THAT(glm->dsa->full_layers, ElementsAre(true, true, false, false, true));
  Json json = GlmJson();
  json.erase("mlp_layer_types");
  json["first_k_dense_replace"] = 2;
  json.erase("indexer_types");
  json["index_topk_pattern"] = "FSSFS";
  const auto other = ParseModelConfig(json, "c.json");
  ASSERT_TRUE(other.ok()) << other.status().message();
  EXPECT_THAT(other->moe->sparse_layers, ElementsAre(false, false, true, true, true));
  EXPECT_THAT(other->dsa->full_layers, ElementsAre(true, false, false, true, false));

  const auto v32 = LoadModelConfig("tests/data/golden/deepseek-v32-dsa/config.json");
  ASSERT_TRUE(v32.ok()) << v32.status().message();
  EXPECT_FALSE(v32->dsa->rope_interleave);
  EXPECT_EQ(v32->rope.type, "yarn");
  EXPECT_EQ(v32->rope.mscale_all_dim, 1.0);
  const auto glm4 = LoadModelConfig("tests/data/golden/glm4-moe/config.json");
  ASSERT_TRUE(glm4.ok()) << glm4.status().message();
  EXPECT_EQ(glm4->partial_rotary_factor, 0.5);
  EXPECT_TRUE(glm4->use_qk_norm);
}

TEST(MoeConfigTest, CloseRelativesAreRefusedByName) {
  Json json = GlmJson();
  json["model_type"] = "glm5_next";
  json["architectures"] = Json::array({"Glm5NextForCausalLM"});
  json.erase("intermediate_size");
  const auto config = ParseModelConfig(json, "c.json");
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.status().code(), StatusCode::kUnimplemented);
  EXPECT_THAT(config.status().message(),
              HasSubstr("c.json: model_type 'glm5_next' (Glm5NextForCausalLM) is not supported"));
}

TEST(MoeConfigTest, BadFieldsAreNamed) {
  const auto expect = [](const char* key, Json value, const std::string& what) {
    Json json = GlmJson();
    json[key] = std::move(value);
    const auto config = ParseModelConfig(json, "c.json");
    ASSERT_FALSE(config.ok()) << what;
    EXPECT_THAT(config.status().message(), HasSubstr("c.json"));
    EXPECT_THAT(config.status().message(), HasSubstr(what));
  };
  expect("num_experts_per_tok", 9, "num_experts_per_tok is 9, there are 8 routed experts");
  expect("n_group", 3, "groups");
  expect("n_group", 8, "groups of 1 experts are too small to choose 3");
  expect("topk_group", 2, "cannot be chosen from 2 of 1 groups");
  expect("topk_method", "greedy", "topk_method 'greedy'");
  expect("scoring_func", "softmax", "scoring_func 'softmax'");
  expect("mlp_layer_types", Json::array({"dense"}), "mlp_layer_types names 1 layers of 5");
  expect("indexer_types", Json::array({"full", "half", "full", "full", "full"}),
         "indexer_types[1] is 'half'");
  expect("indexer_types", Json::array({"shared", "full", "full", "full", "full"}),
         "the first layer shares an indexer with none");
  expect("index_head_dim", 8, "index_head_dim 8 is smaller");
  expect("q_lora_rank", nullptr, "needs both");
  expect("kv_lora_rank", -1, "kv_lora_rank is -1");
  expect("moe_intermediate_size", nullptr, "moe_intermediate_size is missing");
  expect("n_shared_experts", -1, "n_shared_experts is -1");
  expect("num_nextn_predict_layers", 1000, "num_nextn_predict_layers is 1000");
  expect("num_hidden_layers", 2000000000, "absurd");
}

// Fields without which implementations compute different things.
TEST(MoeConfigTest, MissingFieldsAreNotGuessed) {
  const auto expect = [](const char* folder, const char* part, const char* key) {
    Json json = *ParseJsonFile(std::string("tests/data/golden/") + folder + "/config.json");
    (part == nullptr ? json : json[part]).erase(key);
    const auto config = ParseModelConfig(json, "c.json");
    ASSERT_FALSE(config.ok()) << folder << " " << key;
    EXPECT_THAT(config.status().message(), HasSubstr("c.json: "));
    EXPECT_THAT(config.status().message(), HasSubstr(key));
  };
  for (const char* folder : {"glm52-dsa-shared", "glm4-moe", "kimi-k2", "deepseek-v32-dsa"}) {
    expect(folder, nullptr, "routed_scaling_factor");
    expect(folder, nullptr, "rms_norm_eps");
  }
  for (const char* folder : {"kimi-k2", "deepseek-v3-groups", "deepseek-v32-dsa"}) {
    expect(folder, nullptr, "n_group");
    expect(folder, nullptr, "topk_group");
  }
  expect("kimi-k25-int4", "text_config", "topk_group");
  expect("kimi-k2", "rope_scaling", "factor");
  expect("deepseek-v32-dsa", "rope_parameters", "factor");
  expect("glm4-moe", "rope_parameters", "partial_rotary_factor");
  expect("llama-rope3-tied", "rope_parameters", "factor");
  expect("llama-rope3-tied", "rope_parameters", "low_freq_factor");
}

TEST(MoeConfigTest, TheClassAloneTellsTheIndexersRotation) {
  Json json = *ParseJsonFile("tests/data/golden/deepseek-v32-dsa/config.json");
  json.erase("model_type");
  const auto config = ParseModelConfig(json, "c.json");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_FALSE(config->dsa->rope_interleave);
}

// An error repeats what a file says: no novels, no escape sequences for the reader's terminal.
TEST(MoeConfigTest, TextThatIsNoNameIsNotRepeated) {
  for (const char* key : {"hidden_act", "model_type", "topk_method", "torch_dtype"}) {
    for (const std::string& text : {std::string(1000, 'A'), std::string("a\x1b[2Jb\n")}) {
      Json json = GlmJson();
      json[key] = text;
      const auto config = ParseModelConfig(json, "c.json");
      ASSERT_FALSE(config.ok()) << key;
      EXPECT_EQ(config.status().message(),
                std::string("c.json: ") + key + " is no plain text of at most 256 bytes");
    }
  }
  Json json = GlmJson();
  json["architectures"][0] = "\n";
  EXPECT_THAT(ParseModelConfig(json, "c.json").status().message(), HasSubstr("architectures[0]"));
}

}  // namespace
}  // namespace tern
