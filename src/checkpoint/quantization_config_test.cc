#include "checkpoint/quantization_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "checkpoint/model_config.h"

namespace tern {
namespace {

using ::testing::HasSubstr;
using Method = QuantizationConfig::Method;

Json Int4Json() {
  return *ParseJson(R"({"quant_method":"compressed-tensors","format":"pack-quantized",
    "config_groups":{"group_0":{"targets":["Linear"],"input_activations":null,
      "weights":{"num_bits":4,"type":"int","strategy":"group","group_size":32,"symmetric":true,
                 "dynamic":false,"actorder":null}}},
    "ignore":["lm_head","re:.*self_attn.*","re:.*mlp\\.(gate|up|gate_up|down)_proj.*"],
    "kv_cache_scheme":null})");
}

TEST(QuantizationConfigTest, ReadsKimisPublishedConfig) {
  const auto config = LoadModelConfig("tests/data/configs/kimi-k2.6.json");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->architecture, "KimiK25ForConditionalGeneration");
  EXPECT_EQ(config->model_type, "kimi_k2");
  EXPECT_EQ(config->tensor_prefix, "language_model.");
  const QuantizationConfig& q = config->quantization;
  EXPECT_EQ(q.method, Method::kInt4Group);
  EXPECT_EQ(q.group, 32);
  EXPECT_TRUE(q.symmetric);
  EXPECT_FALSE(q.fp8_kv_cache);
  // Of the published checkpoint only routed experts are packed.
  EXPECT_FALSE(q.Ignores("model.layers.1.mlp.experts.0.gate_proj"));
  EXPECT_TRUE(q.Ignores("model.layers.1.mlp.shared_experts.gate_proj"));
  EXPECT_TRUE(q.Ignores("model.layers.0.mlp.gate_proj"));
  EXPECT_TRUE(q.Ignores("model.layers.5.self_attn.kv_b_proj"));
  EXPECT_TRUE(q.Ignores("lm_head"));
  EXPECT_FALSE(q.Ignores("lm_head.other"));  // a plain name is the whole name
}

TEST(QuantizationConfigTest, ReadsGlmsPublishedConfig) {
  const auto config = LoadModelConfig("tests/data/configs/glm-5.2-fp8.json");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->quantization.method, Method::kFp8Block);
  ASSERT_TRUE(config->dsa.has_value());
  // Published: full at 0, 1, 2, 6, 10, ..., 74, 21 of 78.
  for (int64_t i = 0; i < 78; ++i) {
    EXPECT_EQ(config->dsa->full_layers[static_cast<size_t>(i)], i < 3 || i % 4 == 2) << i;
  }
  EXPECT_TRUE(config->dsa->rope_interleave);
  EXPECT_EQ(config->rope.theta, 8e6);
  EXPECT_EQ(config->num_nextn_predict_layers, 1);
}

TEST(QuantizationConfigTest, PatternsMatchFromTheStartAsPythonsReMatch) {
  const auto matches = [](const char* entry, const char* module) {
    const auto pattern = ModulePattern::Make(entry);
    return pattern.ok() && pattern->Matches(module);
  };
  EXPECT_TRUE(matches("re:model\\.layers\\.\\d+", "model.layers.12.mlp"));
  EXPECT_FALSE(matches("re:layers", "model.layers.12.mlp"));
  EXPECT_TRUE(matches("re:", "anything"));
  EXPECT_FALSE(matches("model.layers", "model.layers.12"));
  // A hostile expression ends without a match instead of running on.
  EXPECT_FALSE(matches("re:(a+)+$", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"));
}

void ExpectError(const Json& json, const std::string& what) {
  const auto config = ParseQuantizationConfig(json, "c.json: quantization_config");
  ASSERT_FALSE(config.ok()) << what;
  EXPECT_THAT(config.status().message(), HasSubstr("c.json"));
  EXPECT_THAT(config.status().message(), HasSubstr(what));
}

TEST(QuantizationConfigTest, OtherFormatsAreRefusedByName) {
  ExpectError(Json::array(), "must be an object");
  ExpectError(*ParseJson(R"({"quant_method":"gptq"})"), "quant_method 'gptq' is not supported");
  ExpectError(*ParseJson(R"({"quant_method":"fp8"})"), "weight_block_size");
  ExpectError(*ParseJson(R"({"quant_method":"fp8","weight_block_size":[64,64]})"),
              "weight_block_size [64,64] is not supported");
  ExpectError(*ParseJson(R"({"quant_method":"fp8","fmt":"e5m2","weight_block_size":[128,128]})"),
              "fmt 'e5m2'");
  Json json = Int4Json();
  json["format"] = "float-quantized";
  ExpectError(json, "format 'float-quantized'");
  json = Int4Json();
  json["config_groups"]["group_0"]["weights"]["num_bits"] = 8;
  ExpectError(json, "8-bit");
  json = Int4Json();
  json["config_groups"]["group_0"]["weights"]["group_size"] = 48;
  ExpectError(json, "group_size 48");
  json = Int4Json();
  json["config_groups"]["group_0"]["weights"]["actorder"] = "group";
  ExpectError(json, "actorder 'group'");
  json = Int4Json();
  json["config_groups"]["group_1"] = json["config_groups"]["group_0"];
  ExpectError(json, "2 config_groups");
  json = Int4Json();
  json["ignore"] = Json::array({"re:(unclosed"});
  ExpectError(json, "is no regular expression");
  json = Int4Json();
  json["ignore"] = "lm_head";
  ExpectError(json, "ignore must be a list of strings");
}

TEST(QuantizationConfigTest, KvCacheSchemeIsRead) {
  Json json = Int4Json();
  json["kv_cache_scheme"] = *ParseJson(R"({"num_bits":8,"type":"float","strategy":"tensor"})");
  const auto config = ParseQuantizationConfig(json, "c.json");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_TRUE(config->fp8_kv_cache);
}

TEST(QuantizationConfigTest, WhatWouldChangeTheIntegersMeaningIsRefused) {
  const auto expect = [](const std::function<void(Json&)>& edit, const std::string& what) {
    Json json = Int4Json();
    edit(json);
    const auto config = ParseQuantizationConfig(json, "c.json");
    ASSERT_FALSE(config.ok()) << what;
    EXPECT_THAT(config.status().message(), HasSubstr("c.json"));
    EXPECT_THAT(config.status().message(), HasSubstr(what));
  };
  expect(
      [](Json& j) {
        j["sparsity_config"] = {{"format", "sparse-24-bitmask"}};
      },
      "sparsity_config 'sparse-24-bitmask' is not supported");
  expect(
      [](Json& j) {
        j["transform_config"] = {{"config_groups", {{"R1", 1}}}};
      },
      "transform_config is not supported");
  expect(
      [](Json& j) {
        j["config_groups"]["group_0"]["output_activations"] = {{"num_bits", 8}};
      },
      "quantized output_activations are not supported");
  Json harmless = Int4Json();
  harmless["sparsity_config"] = {{"format", "dense"}};
  harmless["transform_config"] = Json::object();
  EXPECT_TRUE(ParseQuantizationConfig(harmless, "c.json").ok());
  harmless["sparsity_config"] = Json::object();
  EXPECT_TRUE(ParseQuantizationConfig(harmless, "c.json").ok());
}

}  // namespace
}  // namespace tern
