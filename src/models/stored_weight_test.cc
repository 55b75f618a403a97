#include "models/stored_weight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/test_golden.h"
#include "models/weights.h"

namespace tern {
namespace {

using ::testing::HasSubstr;

// A [16, 64] weight in one group of 64: element (r, i) is nibble (r + i) % 16, its zero point r,
// its scale 1.
constexpr int64_t kRows = 16, kColumns = 64;

std::vector<int32_t> Nibbles(int64_t rows, int64_t columns, int (*value)(int64_t, int64_t)) {
  std::vector<int32_t> words;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t w = 0; w < columns / 8; ++w) {
      uint32_t word = 0;
      for (int64_t i = 0; i < 8; ++i) {
        word |= static_cast<uint32_t>(value(r, w * 8 + i)) << (4 * i);
      }
      words.push_back(static_cast<int32_t>(word));
    }
  }
  return words;
}

std::vector<DummyTensor> Asymmetric() {
  // Zero points are packed down the rows: word [r / 8, group] holds eight rows.
  const auto zeros = Nibbles(1, kRows, [](int64_t, int64_t r) { return static_cast<int>(r); });
  return {
      {.name = "m.weight_packed",
       .dtype = DType::kI32,
       .shape = {kRows, kColumns / 8},
       .values = Nibbles(kRows, kColumns,
                         [](int64_t r, int64_t i) { return static_cast<int>((r + i) % 16); })},
      {.name = "m.weight_scale", .dtype = DType::kBF16, .shape = {kRows, 1}, .deviation = 0},
      {.name = "m.weight_shape", .dtype = DType::kI32, .shape = {2}, .values = {kRows, kColumns}},
      {.name = "m.weight_zero_point",
       .dtype = DType::kI32,
       .shape = {kRows / 8, 1},
       .values = zeros}};
}

std::unique_ptr<Checkpoint> Make(const std::vector<DummyTensor>& tensors) {
  ModelConfig config;
  config.source = "c.json";
  auto checkpoint = Checkpoint::Dummy(config, tensors);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  return std::move(*checkpoint);
}

TEST(StoredWeightTest, AsymmetricGroupsOf64) {
  std::vector<DummyTensor> tensors = Asymmetric();
  DummyTensor order = {.name = "m.weight_g_idx", .dtype = DType::kI32, .shape = {kColumns}};
  order.values.assign(kColumns, 0);
  tensors.push_back(order);  // as it comes: accepted
  const std::shared_ptr<const Checkpoint> checkpoint = Make(tensors);
  const auto weight = FindWeight(*checkpoint, "m.weight", kRows, kColumns);
  ASSERT_TRUE(weight.ok()) << weight.status().message();
  EXPECT_EQ(weight->view.group, 64);
  EXPECT_FALSE(weight->view.zero_points.bytes.empty());

  ThreadPool pool(1);
  const auto ops = test::MakeOps("", pool);
  const LoadOptions options;
  WeightLoader loader(checkpoint, *ops, options);
  const auto values = loader.Values("m.weight", kRows, kColumns);
  ASSERT_TRUE(values.ok()) << values.status().message();
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t i = 0; i < kColumns; ++i) {
      ASSERT_EQ((*values)[static_cast<size_t>(r * kColumns + i)],
                static_cast<float>((r + i) % 16 - r));
    }
  }
}

void ExpectError(const std::vector<DummyTensor>& tensors, const std::string& what) {
  const auto checkpoint = Make(tensors);
  const auto weight = FindWeight(*checkpoint, "m.weight", kRows, kColumns);
  ASSERT_FALSE(weight.ok()) << what;
  EXPECT_THAT(weight.status().message(), HasSubstr("m.weight"));
  EXPECT_THAT(weight.status().message(), HasSubstr(what));
}

TEST(StoredWeightTest, PartsThatDoNotFitAreNamed) {
  std::vector<DummyTensor> tensors = Asymmetric();
  DummyTensor order = {.name = "m.weight_g_idx", .dtype = DType::kI32, .shape = {kColumns}};
  order.values.assign(kColumns, 1);
  tensors.push_back(order);
  ExpectError(tensors, "'m.weight_g_idx' reorders input features");
  tensors = Asymmetric();
  tensors[0].shape = {kRows, kColumns / 8 - 1};
  tensors[0].values.clear();
  ExpectError(tensors, "'m.weight_packed' has shape [16, 7], the config asks for [16, 8]");
  tensors = Asymmetric();
  tensors[1].shape = {kRows, 3};
  ExpectError(tensors, "'m.weight_scale' has shape [16, 3]");
  tensors = Asymmetric();
  tensors[1].dtype = DType::kF8E4M3;
  ExpectError(tensors, "'m.weight_scale' has type F8_E4M3");
  tensors = Asymmetric();
  tensors[3].shape = {kRows, 1};
  tensors[3].values.clear();
  ExpectError(tensors, "'m.weight_zero_point' has shape [16, 1]");
  tensors = Asymmetric();
  tensors.erase(tensors.begin() + 1);
  ExpectError(tensors, "tensor 'm.weight_scale' is missing");
  tensors = Asymmetric();
  tensors.erase(tensors.begin() + 2);
  ExpectError(tensors, "tensor 'm.weight_shape' is missing");
  tensors = Asymmetric();
  tensors.push_back({.name = "m.weight", .dtype = DType::kBF16, .shape = {kRows, kColumns}});
  ExpectError(tensors, "hold the same weight");
  ExpectError({{.name = "m.weight", .dtype = DType::kBF16, .shape = {kRows, kColumns}},
               {.name = "m.weight_scale_inv", .dtype = DType::kF32, .shape = {1, 1}}},
              "scales a weight of type BF16");
  ExpectError({{.name = "m.weight", .dtype = DType::kF8E4M3, .shape = {kRows, kColumns}},
               {.name = "m.weight_scale_inv", .dtype = DType::kF32, .shape = {1, 2}}},
              "'m.weight_scale_inv' has shape [1, 2]");
  for (const char* part : {"m.weight_scale", "m.weight_zero_point"}) {
    ExpectError({{.name = "m.weight", .dtype = DType::kBF16, .shape = {kRows, kColumns}},
                 {.name = part, .dtype = DType::kBF16, .shape = {kRows}}},
                std::string("'") + part + "' scales a weight of type BF16");
  }
  ExpectError({}, "tensor 'm.weight' is missing");
}

}  // namespace
}  // namespace tern
