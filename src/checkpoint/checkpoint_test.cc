#include "checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/name_map.h"
#include "checkpoint/test_files.h"

namespace tern {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// A folder of its own for each test, emptied first.
class CheckpointTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = ::testing::TempDir() + "tern_" + info->name();
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    fs::copy("tests/data/golden/llama/config.json", folder_ + "/config.json");
  }
  void TearDown() override { fs::remove_all(folder_); }

  void Write(const std::string& name, const std::string& bytes) {
    test::WriteFile(folder_ + "/" + name, bytes);
  }
  // A safetensors file with one float32 tensor of two numbers.
  static std::string OneTensor(const std::string& name) {
    return test::SafetensorsBytes(
        R"({")" + name + R"(":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
        std::string(8, 'x'));
  }
  void ExpectOpenError(const std::string& what) {
    const auto checkpoint = Checkpoint::Open(folder_);
    ASSERT_FALSE(checkpoint.ok()) << what;
    EXPECT_THAT(checkpoint.status().message(), HasSubstr(folder_));
    EXPECT_THAT(checkpoint.status().message(), HasSubstr(what));
  }

  std::string folder_;
};

TEST_F(CheckpointTest, OpensAFolder) {
  const auto checkpoint = Checkpoint::Open("tests/data/golden/llama");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ((*checkpoint)->format(), CheckpointFormat::kSafetensors);
  EXPECT_EQ((*checkpoint)->tensors().size(), 30u);  // 9 in each of 3 layers, embed, norm, head
  EXPECT_TRUE((*checkpoint)->Require("model.norm.weight", Shape{128}).ok());
  EXPECT_THAT((*checkpoint)->Require("model.norm.weight", Shape{64}).status().message(),
              HasSubstr("'model.norm.weight' has shape [128]"));
  EXPECT_THAT((*checkpoint)->Require("model.nope", Shape{64}).status().message(),
              HasSubstr("'model.nope' is missing"));
}

TEST_F(CheckpointTest, OpensShardsAndFindsTheirTensors) {
  Write("m1.safetensors", OneTensor("a"));
  Write("m2.safetensors", OneTensor("b"));
  Write("model.safetensors.index.json",
        R"({"weight_map":{"a":"m1.safetensors","b":"m2.safetensors"}})");
  Write("generation_config.json", R"({"eos_token_id":[5,6]})");
  const auto checkpoint = Checkpoint::Open(folder_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_NE((*checkpoint)->Find("a"), nullptr);
  EXPECT_NE((*checkpoint)->Find("b"), nullptr);
  EXPECT_EQ((*checkpoint)->Find("c"), nullptr);
  EXPECT_EQ((*checkpoint)->eos_token_ids(), (std::vector<int32_t>{5, 6}));
}

TEST_F(CheckpointTest, BadFoldersAreNamed) {
  ExpectOpenError("neither model.safetensors");
  Write("model.safetensors.index.json", R"({"weight_map":{"a":"m1.safetensors"}})");
  ExpectOpenError("m1.safetensors");
  Write("m1.safetensors", OneTensor("b"));
  ExpectOpenError("tensor 'a' is not in m1.safetensors");
  Write("m1.safetensors", OneTensor("a"));
  Write("m2.safetensors", OneTensor("a"));
  Write("model.safetensors.index.json",
        R"({"weight_map":{"a":"m1.safetensors","b":"m2.safetensors"}})");
  ExpectOpenError("tensor 'a' occurs twice");
  Write("model.safetensors", "");
  ExpectOpenError("too few for a safetensors file");
  Write("generation_config.json", "{");
  ExpectOpenError("generation_config.json");
  Write("config.json", std::string(100000, '['));
  ExpectOpenError("config.json");
  fs::remove(folder_ + "/config.json");
  ExpectOpenError("config.json");
  EXPECT_FALSE(Checkpoint::Open(folder_ + "/absent").ok());
}

TEST(NameMapTest, GgufNamesInHuggingFaceSpelling) {
  // Left: gguf-py's MODEL_TENSOR names for llama; right: transformers' LlamaForCausalLM.
  const std::pair<const char*, const char*> kPairs[] = {
      {"token_embd.weight", "model.embed_tokens.weight"},
      {"output_norm.weight", "model.norm.weight"},
      {"output.weight", "lm_head.weight"},
      {"blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"},
      {"blk.11.attn_q.weight", "model.layers.11.self_attn.q_proj.weight"},
      {"blk.11.attn_k.bias", "model.layers.11.self_attn.k_proj.bias"},
      {"blk.11.attn_v.weight", "model.layers.11.self_attn.v_proj.weight"},
      {"blk.11.attn_output.weight", "model.layers.11.self_attn.o_proj.weight"},
      {"blk.2.attn_q_norm.weight", "model.layers.2.self_attn.q_norm.weight"},
      {"blk.2.attn_k_norm.weight", "model.layers.2.self_attn.k_norm.weight"},
      {"blk.2.ffn_norm.weight", "model.layers.2.post_attention_layernorm.weight"},
      {"blk.2.ffn_gate.weight", "model.layers.2.mlp.gate_proj.weight"},
      {"blk.2.ffn_up.weight", "model.layers.2.mlp.up_proj.weight"},
      {"blk.2.ffn_down.weight", "model.layers.2.mlp.down_proj.weight"},
      {"rope_freqs.weight", "rope_freqs.weight"},
      {"blk.2.unknown.weight", "blk.2.unknown.weight"},
      {"blk.", "blk."},
      {"", ""},
  };
  for (const auto& [gguf, hf] : kPairs) EXPECT_EQ(HfNameFromGguf(gguf), hf);
}

}  // namespace
}  // namespace tern
