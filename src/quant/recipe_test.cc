#include "quant/recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/quantization_config.h"
#include "models/registry.h"

namespace tern {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<TensorSpec> SpecsOf(const std::string& config_path, std::string* prefix) {
  const auto config = LoadModelConfig(config_path);
  EXPECT_TRUE(config.ok()) << config.status().message();
  *prefix = config->tensor_prefix;
  auto specs = TensorList(*config);
  EXPECT_TRUE(specs.ok());
  return std::move(*specs);
}

std::vector<ModulePattern> Patterns(std::initializer_list<const char*> texts) {
  std::vector<ModulePattern> patterns;
  for (const char* text : texts) patterns.push_back(*ModulePattern::Make(text));
  return patterns;
}

// The config says of each linear layer what the selection does with it: the reader of configs is
// the judge.
void ExpectConfigTells(const QuantSelection& selection, const std::vector<TensorSpec>& specs,
                       const std::string& prefix) {
  const Json json = QuantizationConfigJson(selection, specs, prefix, false);
  const auto parsed = ParseQuantizationConfig(json, "made");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  for (const TensorSpec& spec : specs) {
    if (!IsLinear(spec)) continue;
    const std::string module(ModuleOfWeight(spec.name));
    if (module.empty()) continue;
    const bool ignored = parsed->Ignores(module) || parsed->Ignores(prefix + module);
    EXPECT_EQ(ignored, !Selects(selection, spec, prefix)) << module;
  }
}

TEST(RecipeTest, ConfigsSayWhatIsQuantizedForPublishedModels) {
  for (const char* name : {"kimi-k2.6", "glm-5.2", "glm-4.7-flash"}) {
    std::string prefix;
    const auto specs = SpecsOf("tests/data/configs/" + std::string(name) + ".json", &prefix);
    for (const QuantRecipe recipe : {QuantRecipe::kKimi, QuantRecipe::kAllLinear}) {
      for (const QuantFormat format : {QuantFormat::kInt4}) {
        QuantSelection selection{.format = format, .recipe = recipe};
        ExpectConfigTells(selection, specs, prefix);
        selection.include = Patterns({"re:.*shared_experts.*"});
        selection.exclude = Patterns({"re:.*layers\\.5\\..*", "lm_head"});
        ExpectConfigTells(selection, specs, prefix);
        EXPECT_TRUE(CheckSelection(selection, specs, prefix).ok());
      }
    }
  }
}

// quantization_config of Kimi K2.5 and K2.6, but for the towers that are no language model.
TEST(RecipeTest, KimiIsPublishedAsKimi) {
  std::string prefix;
  const auto specs = SpecsOf("tests/data/configs/kimi-k2.6.json", &prefix);
  const Json json = QuantizationConfigJson({}, specs, prefix, false);
  EXPECT_THAT(json["ignore"],
              ElementsAre(prefix + "lm_head", "re:.*self_attn.*", "re:.*shared_experts.*",
                          "re:.*mlp\\.(gate|up|gate_up|down)_proj.*", "re:vision_tower.*",
                          "re:mm_projector.*"));
  EXPECT_TRUE(json["kv_cache_scheme"].is_null());
  EXPECT_EQ(json["config_groups"]["group_0"]["weights"]["group_size"], 32);
}

TEST(RecipeTest, NeverRoutersIndexersWeightsNormsOrEmbeddings) {
  std::string prefix;
  const auto specs = SpecsOf("tests/data/configs/glm-5.2.json", &prefix);
  const QuantSelection all{.recipe = QuantRecipe::kAllLinear, .include = Patterns({"re:.*"})};
  int quantized = 0;
  for (const TensorSpec& spec : specs) {
    const bool never = spec.name.ends_with("mlp.gate.weight") ||
                       spec.name.ends_with("weights_proj.weight") ||
                       spec.name.find("norm") != std::string::npos ||
                       spec.name == "model.embed_tokens.weight" || spec.name.ends_with("bias");
    EXPECT_EQ(Selects(all, spec, prefix), !never) << spec.name;
    quantized += Selects(all, spec, prefix);
  }
  EXPECT_GT(quantized, 50'000);
}

TEST(RecipeTest, KvScalesAreAnnounced) {
  std::string prefix;
  const auto specs = SpecsOf("tests/data/golden/kimi-k2/config.json", &prefix);
  const auto parsed =
      ParseQuantizationConfig(QuantizationConfigJson({}, specs, prefix, true), "made");
  ASSERT_TRUE(parsed.ok());
  EXPECT_TRUE(parsed->fp8_kv_cache);
}

TEST(RecipeTest, PatternsThatMatchNothingAreErrors) {
  std::string prefix;
  const auto specs = SpecsOf("tests/data/golden/kimi-k2/config.json", &prefix);
  for (const char* pattern : {"lm_heads", "re:layers.*", "model.layers.1.mlp.gate", "model.norm"}) {
    EXPECT_THAT(CheckSelection({.include = Patterns({pattern})}, specs, prefix).message(),
                HasSubstr(pattern));
    EXPECT_THAT(CheckSelection({.exclude = Patterns({pattern})}, specs, prefix).message(),
                HasSubstr("--exclude"));
  }
}

}  // namespace
}  // namespace tern
