// FP8 blocks against checkpoints that torch made.
#include "quant/fp8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "checkpoint/checkpoint.h"
#include "tensor/number.h"

namespace tern {
namespace {

// amax / 448 and torch's cast to float8_e4m3fn, by tests/data/golden's generator.
TEST(Fp8Test, BlocksAreTheReferenceBytes) {
  for (const std::string name : {"glm5-dsa", "deepseek-v3-groups"}) {
    const auto plain = Checkpoint::Open("tests/data/golden/" + name);
    const auto fp8 = Checkpoint::Open("tests/data/golden/" + name + "-fp8");
    ASSERT_TRUE(plain.ok() && fp8.ok());
    int compared = 0;
    for (const CheckpointTensor& tensor : (*plain)->tensors()) {
      const CheckpointTensor* codes = (*fp8)->Find(tensor.name);
      const CheckpointTensor* scales = (*fp8)->Find(tensor.name + "_scale_inv");
      if (scales == nullptr) continue;
      const int64_t rows = tensor.view.shape[0], columns = tensor.view.shape[1];
      std::vector<float> weights(static_cast<size_t>(rows * columns));
      for (size_t i = 0; i < weights.size(); ++i) {
        uint16_t bits = 0;
        std::memcpy(&bits, tensor.view.bytes.data() + i * 2, 2);
        weights[i] = FloatFromBf16(bits);
      }
      const Fp8Matrix m = QuantizeFp8(weights.data(), rows, columns);
      ASSERT_EQ(codes->view.bytes.size(), m.codes.size());
      EXPECT_EQ(std::memcmp(codes->view.bytes.data(), m.codes.data(), m.codes.size()), 0)
          << name << " " << tensor.name;
      ASSERT_EQ(scales->view.bytes.size(), m.scales.size() * 4);
      EXPECT_EQ(std::memcmp(scales->view.bytes.data(), m.scales.data(), m.scales.size() * 4), 0)
          << name << " " << tensor.name;
      ++compared;
    }
    EXPECT_GE(compared, 24) << name;
  }
}

// A block whose scale is exactly 1 shows the cast itself: every BF16 number within range.
TEST(Fp8Test, TheCastIsThatOfTheSpecification) {
  for (uint32_t high = 0; high < 0x8000; high += 64) {
    std::vector<float> weights;
    for (uint32_t low = 0; low < 64; ++low) {
      const float value = FloatFromBf16(static_cast<uint16_t>(high + low));
      if (!(value <= 448.0f)) continue;
      weights.push_back(value);
      weights.push_back(-value);
    }
    if (weights.empty()) continue;
    weights.resize(127, 0.0f);
    weights.push_back(448.0f);
    const Fp8Matrix m = QuantizeFp8(weights.data(), 1, 128);
    ASSERT_EQ(m.scales[0], 1.0f);
    for (size_t i = 0; i < 128; ++i) {
      EXPECT_EQ(int{m.codes[i]}, int{E4m3FromFloat(weights[i])}) << weights[i];
    }
  }
}

TEST(Fp8Test, BlocksOfZeroAndHugeNumbersAreFinite) {
  std::vector<float> weights(300 * 200, 0.0f);
  weights[150 * 200 + 150] = -3e38f;
  const Fp8Matrix m = QuantizeFp8(weights.data(), 300, 200);
  ASSERT_EQ(m.scales.size(), 6u);
  for (const float scale : m.scales) EXPECT_TRUE(std::isfinite(scale) && scale > 0);
  EXPECT_EQ(m.codes[150 * 200 + 150], 0xFE);
  EXPECT_EQ(m.codes[0], 0);
}

}  // namespace
}  // namespace tern
