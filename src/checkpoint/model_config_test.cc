#include "checkpoint/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/test_files.h"

namespace tern {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Json BaseJson() {
  return *ParseJson(R"({"architectures":["LlamaForCausalLM"],"model_type":"llama",
    "vocab_size":256,"hidden_size":128,"intermediate_size":192,"num_hidden_layers":3,
    "num_attention_heads":4,"max_position_embeddings":512,"eos_token_id":2})");
}

TEST(ModelConfigTest, ReadsThePublishedAndTheNewerSpelling) {
  const auto published = LoadModelConfig("tests/data/golden/llama/config.json");
  ASSERT_TRUE(published.ok()) << published.status().message();
  EXPECT_EQ(published->architecture, "LlamaForCausalLM");
  EXPECT_EQ(published->rope.theta, 500000.0);
  EXPECT_EQ(published->rope.type, "default");
  EXPECT_EQ(published->num_key_value_heads, 2);
  EXPECT_EQ(published->head_dim, 32);
  EXPECT_EQ(published->torch_dtype, "bfloat16");
  EXPECT_FALSE(published->tie_word_embeddings);

  const auto newer = LoadModelConfig("tests/data/golden/llama-rope3-tied/config.json");
  ASSERT_TRUE(newer.ok()) << newer.status().message();
  EXPECT_EQ(newer->rope.type, "llama3");
  EXPECT_EQ(newer->rope.theta, 10000.0);
  EXPECT_EQ(newer->rope.factor, 8.0);
  EXPECT_EQ(newer->rope.original_max_position_embeddings, 64);
  EXPECT_EQ(newer->torch_dtype, "bfloat16");
  EXPECT_TRUE(newer->tie_word_embeddings);
}

TEST(ModelConfigTest, RopeScalingNamesItsTypeEitherWay) {
  for (const char* key : {"type", "rope_type"}) {
    Json json = BaseJson();
    json["rope_theta"] = 20000;
    json["rope_scaling"] = Json::object({{key, "linear"}, {"factor", 4}});
    const auto config = ParseModelConfig(json, "c.json");
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_EQ(config->rope.type, "linear");
    EXPECT_EQ(config->rope.factor, 4.0);
    EXPECT_EQ(config->rope.theta, 20000.0);
  }
}

TEST(ModelConfigTest, DefaultsOfAbsentFields) {
  const auto config = ParseModelConfig(BaseJson(), "c.json");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->num_key_value_heads, 4);
  EXPECT_FALSE(config->head_dim.has_value());
  EXPECT_EQ(config->rope.theta, 10000.0);
  EXPECT_THAT(config->eos_token_ids, ElementsAre(2));
}

TEST(ModelConfigTest, WrappersKeepTheTextModelOneLevelDown) {
  Json json = Json::object(
      {{"architectures", {"WrapperForConditionalGeneration"}}, {"text_config", BaseJson()}});
  const auto config = ParseModelConfig(json, "c.json");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->architecture, "WrapperForConditionalGeneration");
  EXPECT_EQ(config->hidden_size, 128);
}

TEST(ModelConfigTest, BadFieldsAreNamed) {
  const auto expect = [](const Json& json, const std::string& what) {
    const auto config = ParseModelConfig(json, "c.json");
    ASSERT_FALSE(config.ok()) << what;
    EXPECT_THAT(config.status().message(), HasSubstr("c.json"));
    EXPECT_THAT(config.status().message(), HasSubstr(what));
  };
  expect(Json::array(), "not a JSON object");
  for (const char* key : {"architectures", "vocab_size", "hidden_size", "intermediate_size",
                          "num_hidden_layers", "num_attention_heads", "max_position_embeddings"}) {
    Json json = BaseJson();
    json.erase(key);
    expect(json, key);
    json[key] = "text";
    expect(json, key);
    if (std::string(key) == "architectures") continue;
    for (const int64_t absurd : {int64_t{0}, int64_t{-1}, int64_t{1} << 60}) {
      json[key] = absurd;
      expect(json, key);
    }
  }
  const auto with = [](const char* key, Json value) {
    Json json = BaseJson();
    json[key] = std::move(value);
    return json;
  };
  expect(with("architectures", Json::array()), "architectures");
  expect(with("architectures", Json::array({3})), "architectures");
  expect(with("num_key_value_heads", 3), "cannot share 3 key-value heads");
  expect(with("hidden_size", 130), "head_dim is missing");
  expect(with("rms_norm_eps", 0), "rms_norm_eps");
  expect(with("rms_norm_eps", -1e-5), "rms_norm_eps");
  expect(with("tie_word_embeddings", "yes"), "tie_word_embeddings");
  expect(with("eos_token_id", -1), "eos_token_id");
  expect(with("eos_token_id", "x"), "eos_token_id");
  expect(with("eos_token_id", Json::array({1, "x"})), "eos_token_id");
  expect(with("eos_token_id", uint64_t{1} << 63), "eos_token_id");
  expect(with("rope_theta", 0), "rope_theta");
  expect(with("rope_scaling", 3), "rope_scaling must be an object");
  expect(with("rope_scaling", Json::object({{"type", 3}})), "rope_scaling.type");
  expect(with("rope_parameters", Json::object({{"factor", -1}})), "factor");
  expect(with("text_config", 1), "text_config");
}

TEST(ModelConfigTest, GenerationConfig) {
  const auto json = *ParseJson(
      R"({"eos_token_id":[2,7],"temperature":0.6,"top_p":0.9,"top_k":40,"do_sample":true})");
  const auto config = ParseGenerationConfig(json, "g.json");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_THAT(config->eos_token_ids, ElementsAre(2, 7));
  EXPECT_EQ(config->temperature, 0.6);
  EXPECT_EQ(config->top_k, 40);
  EXPECT_EQ(config->do_sample, true);
  EXPECT_FALSE(config->min_p.has_value());
  const auto bad = ParseGenerationConfig(*ParseJson(R"({"top_p":"x"})"), "g.json");
  EXPECT_THAT(bad.status().message(), HasSubstr("g.json.top_p"));
}

test::GgufWriter LlamaKeys() {
  test::GgufWriter writer;
  writer.String("general.architecture", "llama")
      .U32("llama.block_count", 2)
      .U32("llama.context_length", 64)
      .U32("llama.embedding_length", 32)
      .U32("llama.feed_forward_length", 48)
      .U32("llama.attention.head_count", 4)
      .U32("llama.attention.head_count_kv", 2)
      .F32("llama.attention.layer_norm_rms_epsilon", 1e-5f)
      .F32("llama.rope.freq_base", 100000.0f);
  return writer;
}

Result<ModelConfig> FromGguf(const test::GgufWriter& writer) {
  const std::string bytes = writer.Bytes();
  const auto gguf = Gguf::Parse(std::as_bytes(std::span(bytes)), "m.gguf");
  if (!gguf.ok()) return gguf.status();
  return ModelConfigFromGguf(*gguf);
}

TEST(GgufConfigTest, ReadsLlamaKeys) {
  auto writer = LlamaKeys();
  writer.U32("tokenizer.ggml.eos_token_id", 2).U32("tokenizer.ggml.eot_token_id", 3);
  writer.Tensor("token_embd.weight", {32, 10}, 0, std::string(1280, 'x'));
  const auto config = FromGguf(writer);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->architecture, "LlamaForCausalLM");
  EXPECT_EQ(config->vocab_size, 10);
  EXPECT_EQ(config->head_dim, 8);
  EXPECT_EQ(config->num_key_value_heads, 2);
  EXPECT_FLOAT_EQ(static_cast<float>(config->rms_norm_eps), 1e-5f);
  EXPECT_EQ(config->rope.theta, 100000.0);
  EXPECT_TRUE(config->tie_word_embeddings);
  EXPECT_THAT(config->eos_token_ids, ElementsAre(2, 3));

  writer.Tensor("output.weight", {32, 10}, 0, std::string(1280, 'x'));
  EXPECT_FALSE(FromGguf(writer)->tie_word_embeddings);
  writer.String("llama.rope.scaling.type", "linear").F32("llama.rope.scaling.factor", 2.0f);
  EXPECT_EQ(FromGguf(writer)->rope.type, "linear");
  EXPECT_EQ(FromGguf(writer)->rope.factor, 2.0);
}

TEST(GgufConfigTest, BadKeysAreNamed) {
  const auto expect = [](const test::GgufWriter& writer, const char* what) {
    const auto config = FromGguf(writer);
    ASSERT_FALSE(config.ok()) << what;
    EXPECT_THAT(config.status().message(), HasSubstr("m.gguf"));
    EXPECT_THAT(config.status().message(), HasSubstr(what));
  };
  expect(test::GgufWriter(), "general.architecture is missing");
  expect(test::GgufWriter().String("general.architecture", "mamba"), "'mamba' is not supported");
  expect(test::GgufWriter().String("general.architecture", "llama"),
         "llama.embedding_length is missing");
  expect(LlamaKeys(), "'token_embd.weight' is missing");
  expect(LlamaKeys().U32("llama.expert_count", 8), "llama.expert_count");
  expect(LlamaKeys().U32("llama.rope.dimension_count", 4), "llama.rope.dimension_count");
  expect(LlamaKeys().F32("llama.rope.scaling.factor", -1.0f), "llama.rope.scaling.factor");
  auto with_vocab = LlamaKeys();
  with_vocab.Tensor("token_embd.weight", {32, 10}, 0, std::string(1280, 'x'));
  expect(test::GgufWriter(with_vocab).U32("tokenizer.ggml.bos_token_id", 10),
         "tokenizer.ggml.bos_token_id 10 is outside");
}

}  // namespace
}  // namespace tern
