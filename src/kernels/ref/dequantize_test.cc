#include "kernels/ref/dequantize.h"

#include "kernels/cpu/pack.h"
#include "kernels/testing.h"

namespace tern {
namespace {

using testing::MakeWeight;
using testing::ReadTestData;
using testing::TestWeight;

struct Golden {
  DType dtype;
  const char* name;
};

class GoldenBlocks : public ::testing::TestWithParam<Golden> {
 protected:
  void SetUp() override {
    const std::string path = std::string("gguf/") + GetParam().name;
    blocks_ = ReadTestData(path + ".blocks");
    const std::string values = ReadTestData(path + ".f32");
    expected_.resize(values.size() / sizeof(float));
    std::memcpy(expected_.data(), values.data(), values.size());
    ASSERT_EQ(StorageBytes(GetParam().dtype, expected_.size()), blocks_.size());
  }
  std::string blocks_;
  std::vector<float> expected_;
};

// tests/data/gguf/make_blocks.py: the `gguf` package's reading of the same bytes.
TEST_P(GoldenBlocks, DequantizeToTheGgufPackagesNumbers) {
  std::vector<float> values(expected_.size());
  DequantizeBlocks(GetParam().dtype, reinterpret_cast<const std::byte*>(blocks_.data()),
                   static_cast<int64_t>(values.size()), values.data());
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], expected_[i]) << i;
}

// Packing moves bits and rounds nothing: each packed weight, rounded once, is the golden number.
TEST_P(GoldenBlocks, PackedWeightsAreExact) {
  const auto block = InfoOf(GetParam().dtype).block_elements;
  const int64_t n = static_cast<int64_t>(expected_.size()) / block / 2, k = 2 * block;
  const TensorView view{GetParam().dtype, Shape{n, k},
                        std::as_bytes(std::span(blocks_.data(), blocks_.size()))};
  const PackFormat format = PackFormatOf(GetParam().dtype, Precision::kProduction);
  std::vector<std::byte> packed(static_cast<size_t>(PanelsOf(n) * PanelBytes(format, k)));
  PackPanels(view, format, 0, PanelsOf(n), packed.data());
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t column = 0; column < k; ++column) {
      const auto weight = static_cast<float>(PackedWeight(format, packed.data(), k, row, column));
      ASSERT_EQ(weight, expected_[static_cast<size_t>(row * k + column)]) << row << "," << column;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, GoldenBlocks,
                         ::testing::Values(Golden{DType::kQ4_0, "q4_0"},
                                           Golden{DType::kQ4_1, "q4_1"},
                                           Golden{DType::kQ8_0, "q8_0"},
                                           Golden{DType::kQ4_K, "q4_k"},
                                           Golden{DType::kQ6_K, "q6_k"}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(PackTest, FloatsInProductionAreBf16AndInReferenceExact) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const TestWeight weight = MakeWeight(dtype, 19, 7, 3);
    for (const Precision precision : {Precision::kReference, Precision::kProduction}) {
      const PackFormat format = PackFormatOf(dtype, precision);
      ASSERT_EQ(format, precision == Precision::kReference ? kPackF32 : kPackBf16);
      std::vector<std::byte> packed(static_cast<size_t>(2 * PanelBytes(format, 7)));
      PackPanels(weight.view(), format, 0, 2, packed.data());
      for (int64_t i = 0; i < 19 * 7; ++i) {
        const float exact = weight.values[static_cast<size_t>(i)];
        EXPECT_EQ(PackedWeight(format, packed.data(), 7, i / 7, i % 7),
                  format == kPackF32 ? exact : RoundToBf16(exact));
      }
    }
  }
}

// What the header of kernels/cpu/layout.h promises, at shapes of real models.
TEST(PackTest, ResidentBytesStayWithinTwelvePercent) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ4_0, DType::kQ4_1,
                            DType::kQ8_0, DType::kQ4_K, DType::kQ6_K}) {
    for (const auto& [n, k] : {std::pair{576, 768}, {192, 768}, {1536, 768}, {2048, 7168}}) {
      const auto checkpoint = static_cast<double>(*StorageBytes(dtype, uint64_t(n) * uint64_t(k)));
      const PackFormat format = PackFormatOf(dtype, Precision::kProduction);
      const auto packed = static_cast<double>(PanelsOf(n) * PanelBytes(format, k));
      EXPECT_LE(packed, 1.12 * checkpoint) << InfoOf(dtype).name << " " << n << "x" << k;
    }
  }
}

}  // namespace
}  // namespace tern
