// Sizes that follow from configs alone, against published ones.
#include "models/weight_recipe.h"

#include <gtest/gtest.h>

#include "models/registry.h"
#include "models/test_golden.h"

namespace tern {
namespace {

struct Sums {
  uint64_t bytes = 0;
  int64_t tensors = 0, parameters = 0;
};

Sums SumsOf(const std::string& file, WeightRecipe recipe) {
  Sums sums;
  const auto config = LoadModelConfig("tests/data/configs/" + file);
  EXPECT_TRUE(config.ok()) << config.status().message();
  const auto specs = TensorList(*config);
  EXPECT_TRUE(specs.ok()) << specs.status().message();
  for (const TensorSpec& spec : *specs) {
    const auto weight = StoredAs(spec, *config, recipe);
    EXPECT_TRUE(weight.ok()) << weight.status().message();
    sums.bytes += weight->bytes;
    sums.tensors += static_cast<int64_t>(weight->tensors.size());
    sums.parameters += *spec.shape.elements();
  }
  return sums;
}

constexpr double kGib = 1 << 30;

// The published checkpoint: 755,617,140,416 bytes in 118,629 tensors.
TEST(WeightRecipeTest, Glm52Fp8IsThePublishedCheckpointToTheByte) {
  const Sums sums = SumsOf("glm-5.2-fp8.json", WeightRecipe::kConfig);
  EXPECT_EQ(sums.bytes, 755617140416u);
  EXPECT_EQ(sums.tensors, 118629);
  EXPECT_NEAR(static_cast<double>(sums.parameters) / 1e9, 753.33, 0.005);
  EXPECT_EQ(SumsOf("glm-5.2.json", WeightRecipe::kFp8).bytes, sums.bytes);
}

// Published: 1,506,667,387,408 bytes, with the safetensors headers.
TEST(WeightRecipeTest, Glm52Bf16) {
  const Sums sums = SumsOf("glm-5.2.json", WeightRecipe::kBf16);
  EXPECT_NEAR(static_cast<double>(sums.bytes) / 1506667387408.0, 1.0, 1e-4);
}

TEST(WeightRecipeTest, Glm52InKimisRecipe) {
  const Sums sums = SumsOf("glm-5.2.json", WeightRecipe::kInt4);
  EXPECT_NEAR(static_cast<double>(sums.bytes) / kGib, 419.94, 0.005);
}

// Published: 554.27 GiB with the vision tower (0.9 GiB), which a text model does not have.
TEST(WeightRecipeTest, KimiK26) {
  const Sums sums = SumsOf("kimi-k2.6.json", WeightRecipe::kConfig);
  EXPECT_NEAR(static_cast<double>(sums.bytes) / kGib, 554.27, 554.27 * 0.005);
}

// What one token reads of bench-moe-6l when every linear layer is quantized, by hand: attention
// 6 x 11,403,264, the dense MLP 69,206,016, five times 2 shared and 6 routed experts of 8,650,752,
// the head 67,108,864: 550.8 million weights of 1 byte + 4 / 128^2, or of 4.5 bits. The router's
// 5 x 131,072 are BF16 and counted apart.
TEST(WeightRecipeTest, AllLinearLayersOfBenchMoe) {
  const auto config = LoadModelConfig("tests/data/configs/bench-moe-6l.json");
  ASSERT_TRUE(config.ok()) << config.status().message();
  const auto bytes_of_a_token = [&](WeightRecipe recipe) {
    double bytes = 0;
    const auto specs = TensorList(*config);
    for (const TensorSpec& spec : *specs) {
      if (!IsLinear(spec)) continue;
      const double share = spec.kind == TensorKind::kExpert ? 6.0 / 64 : 1.0;
      bytes += share * static_cast<double>(StoredAs(spec, *config, recipe)->bytes);
    }
    return bytes;
  };
  const double weights = 6 * 11403264.0 + 69206016 + 5 * 8 * 8650752.0 + 67108864;
  EXPECT_NEAR(bytes_of_a_token(WeightRecipe::kFp8Linear), weights * (1 + 4.0 / 16384), 1e5);
  EXPECT_NEAR(bytes_of_a_token(WeightRecipe::kInt4Linear), weights * 4.5 / 8, 1e5);
}

TEST(WeightRecipeTest, NamesOfStoredTensors) {
  EXPECT_EQ(WeightOf("a.up_proj.weight_scale_inv"), "a.up_proj.weight");
  EXPECT_EQ(WeightOf("a.up_proj.weight_packed"), "a.up_proj.weight");
  EXPECT_EQ(WeightOf("a.up_proj.weight"), "a.up_proj.weight");
  EXPECT_EQ(WeightOf("a.bias"), "a.bias");
}

// Equal gate and up projections would give all rows a common part, and the same experts. But a
// tensor's bytes are its own whatever else is there: two recipes share what they store alike.
TEST(DummyTest, BytesFollowFromTheName) {
  const DummyTensor gate = {.name = "gate", .shape = {64, 64}},
                    up = {.name = "up", .shape = {64, 64}};
  const DummyTensor both[] = {gate, up};
  const auto two = Checkpoint::Dummy({}, both), one = Checkpoint::Dummy({}, {&up, 1});
  ASSERT_TRUE(two.ok() && one.ok());
  const auto bytes_of = [](const auto& checkpoint, const char* name) {
    const auto bytes = (*checkpoint)->Find(name)->view.bytes;
    return std::vector(bytes.begin(), bytes.end());
  };
  EXPECT_NE(bytes_of(two, "gate"), bytes_of(two, "up"));
  EXPECT_EQ(bytes_of(two, "up"), bytes_of(one, "up"));
}

// Each recipe loads and runs; the same seed gives the same numbers.
TEST(DummyTest, EveryRecipeGivesFiniteLogits) {
  ThreadPool pool(2);
  const auto ops = test::MakeOps("", pool);
  for (const char* folder : {"kimi-k2", "glm52-dsa-shared", "glm4-moe", "llama"}) {
    std::vector<uint64_t> sizes;
    for (const WeightRecipe recipe :
         {WeightRecipe::kBf16, WeightRecipe::kFp8, WeightRecipe::kFp8Linear, WeightRecipe::kInt4,
          WeightRecipe::kInt4Linear}) {
      LoadOptions options;
      options.format = LoadFormat::kDummy;
      options.dummy_recipe = recipe;
      std::vector<float> first;
      for (int run = 0; run < 2; ++run) {
        const auto model =
            LoadModel(std::string("tests/data/golden/") + folder + "/config.json", *ops, options);
        ASSERT_TRUE(model.ok()) << folder << ": " << model.status().message();
        auto sequence = test::MakeSequence(**model, KvFormat::kBf16, 16, 40);
        std::vector<int32_t> tokens(40);
        for (int i = 0; i < 40; ++i) tokens[static_cast<size_t>(i)] = 3 + i;
        const auto logits = test::RunAll(**model, sequence, tokens, 16, 30);
        for (const float x : logits) ASSERT_TRUE(std::isfinite(x));
        if (run == 0) {
          first = logits;
          sizes.push_back((*model)->info().weight_bytes);
        }
        EXPECT_EQ(test::MaxAbsDiff(logits, first), 0.0f);
      }
    }
    EXPECT_LT(sizes[1], sizes[0]) << folder;
  }
}

}  // namespace
}  // namespace tern
