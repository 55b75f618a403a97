// INT4 codes, scales and words against checkpoints that compressed-tensors' own packer made.
#include "quant/int4.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "checkpoint/checkpoint.h"
#include "tensor/number.h"

namespace tern {
namespace {

std::vector<float> Bf16Values(const CheckpointTensor& tensor) {
  std::vector<float> values(tensor.view.bytes.size() / 2);
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, tensor.view.bytes.data() + i * 2, 2);
    values[i] = FloatFromBf16(bits);
  }
  return values;
}

double SquaredError(const float* w, const Int4Matrix& m, const float* importance = nullptr) {
  double sum = 0;
  for (int64_t i = 0; i < m.rows * m.columns; ++i) {
    const float scale = FloatFromBf16(m.scales[static_cast<size_t>(i / m.group)]);
    const double e = double{w[i]} - double{scale} * m.codes[static_cast<size_t>(i)];
    sum += e * e * (importance == nullptr ? 1.0 : importance[i % m.columns]);
  }
  return sum;
}

std::vector<float> Gaussian(size_t count, uint32_t seed, float deviation = 0.02f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(count);
  for (float& v : values) v = RoundToBf16(normal(random));
  return values;
}

// The twins were made by tests/data/golden's generator: amax / 7.5, torch's rounding, the library's
// pack_to_int32.
TEST(Int4Test, RoundToNearestGivesTheReferenceBytes) {
  for (const std::string name : {"kimi-k2", "kimi-k2-wide", "glm52-dsa-shared"}) {
    const auto plain = Checkpoint::Open("tests/data/golden/" + name);
    const auto packed = Checkpoint::Open("tests/data/golden/" + name + "-int4");
    ASSERT_TRUE(plain.ok() && packed.ok());
    int compared = 0;
    for (const CheckpointTensor& tensor : (*plain)->tensors()) {
      const CheckpointTensor* words = (*packed)->Find(tensor.name + "_packed");
      const CheckpointTensor* scales = (*packed)->Find(tensor.name + "_scale");
      if (words == nullptr) continue;
      ASSERT_NE(scales, nullptr);
      const int64_t rows = tensor.view.shape[0], columns = tensor.view.shape[1];
      const Int4Matrix m =
          QuantizeInt4(Bf16Values(tensor).data(), rows, columns, 32, ScaleMethod::kRoundToNearest);
      std::vector<uint32_t> out(static_cast<size_t>(rows * columns / 8));
      for (int64_t row = 0; row < rows; ++row) {
        PackInt4Row(m.codes.data() + row * columns, columns, out.data() + row * columns / 8);
      }
      ASSERT_EQ(words->view.bytes.size(), out.size() * 4);
      EXPECT_EQ(std::memcmp(words->view.bytes.data(), out.data(), out.size() * 4), 0)
          << name << " " << tensor.name;
      ASSERT_EQ(scales->view.bytes.size(), m.scales.size() * 2);
      EXPECT_EQ(std::memcmp(scales->view.bytes.data(), m.scales.data(), m.scales.size() * 2), 0)
          << name << " " << tensor.name;
      ++compared;
    }
    EXPECT_GE(compared, 24) << name;
  }
}

TEST(Int4Test, WordsUnpackToTheirCodes) {
  std::vector<int8_t> codes;
  for (int i = 0; i < 64; ++i) codes.push_back(static_cast<int8_t>(i * 7 % 16 - 8));
  std::vector<uint32_t> words(8);
  PackInt4Row(codes.data(), 64, words.data());
  std::vector<int8_t> back(64);
  UnpackInt4Row(words.data(), 64, back.data());
  EXPECT_EQ(back, codes);
  // -8..7 in order are nibbles 0..15, lowest bits first.
  for (int i = 0; i < 16; ++i) codes[static_cast<size_t>(i)] = static_cast<int8_t>(i - 8);
  PackInt4Row(codes.data(), 16, words.data());
  EXPECT_EQ(words[0], 0x76543210u);
  EXPECT_EQ(words[1], 0xFEDCBA98u);
}

TEST(Int4Test, TiesGoToTheEvenCode) {
  const float w[] = {0.5f, 1.5f, 2.5f, -0.5f, -1.5f, 7.5f, -8.5f, 100.0f};
  int8_t codes[8];
  Int4Codes(w, 8, Bf16FromFloat(1.0f), codes);
  const int8_t expected[] = {0, 2, 2, 0, -2, 7, -8, 7};
  EXPECT_EQ(std::memcmp(codes, expected, 8), 0);
}

TEST(Int4Test, GroupsOfZeroAndTinyNumbersAreZero) {
  std::vector<float> w(64, 0.0f);
  w[40] = 1e-20f;
  for (const ScaleMethod method : {ScaleMethod::kRoundToNearest, ScaleMethod::kSearch}) {
    const Int4Matrix m = QuantizeInt4(w.data(), 1, 64, 32, method);
    EXPECT_EQ(m.scales[0], Bf16FromFloat(1e-10f));
    EXPECT_EQ(m.scales[1], Bf16FromFloat(1e-10f));
    EXPECT_EQ(m.codes, std::vector<int8_t>(64, 0));
  }
}

TEST(Int4Test, TheLargestFloatsStayFinite) {
  std::vector<float> w(32, std::numeric_limits<float>::max());
  w[3] = -w[3];
  for (const ScaleMethod method : {ScaleMethod::kRoundToNearest, ScaleMethod::kSearch}) {
    const Int4Matrix m = QuantizeInt4(w.data(), 1, 32, 32, method);
    EXPECT_TRUE(std::isfinite(FloatFromBf16(m.scales[0])));
    EXPECT_EQ(m.codes[0], 7);
  }
}

TEST(Int4Test, SearchFindsTheBestBf16Scale) {
  const std::vector<float> w = Gaussian(32 * 40, 5);
  for (size_t group = 0; group < 40; ++group) {
    const float* g = w.data() + group * 32;
    const auto error = [&](uint16_t scale) {
      Int4Matrix m{.rows = 1,
                   .columns = 32,
                   .group = 32,
                   .codes = std::vector<int8_t>(32),
                   .scales = {scale}};
      Int4Codes(g, 32, scale, m.codes.data());
      return SquaredError(g, m);
    };
    const double found = error(Int4Scale(g, 32, ScaleMethod::kSearch));
    const double nearest = error(Int4Scale(g, 32, ScaleMethod::kRoundToNearest));
    float amax = 0;
    for (int i = 0; i < 32; ++i) amax = std::max(amax, std::fabs(g[i]));
    double least = nearest;
    for (uint16_t s = Bf16FromFloat(amax / 12); s <= Bf16FromFloat(amax / 5); ++s) {
      least = std::min(least, error(s));
    }
    EXPECT_LE(found, nearest * (1 + 1e-6));
    EXPECT_LE(found, least * 1.05) << "group " << group;  // of the least over every BF16 scale
  }
}

TEST(Int4Test, SearchIsBetterThanRoundingForEveryGroupSize) {
  const std::vector<float> w = Gaussian(16 * 512, 6);
  for (const int64_t group : {32, 64, 128}) {
    const double nearest = SquaredError(
        w.data(), QuantizeInt4(w.data(), 16, 512, group, ScaleMethod::kRoundToNearest));
    const double search =
        SquaredError(w.data(), QuantizeInt4(w.data(), 16, 512, group, ScaleMethod::kSearch));
    EXPECT_LT(search, nearest * 0.98) << group;
  }
}

TEST(Int4Test, ImportanceMovesTheErrorWhereItDoesNotMatter) {
  const std::vector<float> w = Gaussian(16 * 256, 7);
  std::vector<float> importance(256, 1.0f);
  for (size_t i = 0; i < 256; i += 2) importance[i] = 25.0f;
  const Int4Matrix plain = QuantizeInt4(w.data(), 16, 256, 32, ScaleMethod::kSearch);
  const Int4Matrix weighted =
      QuantizeInt4(w.data(), 16, 256, 32, ScaleMethod::kSearch, importance.data());
  EXPECT_LT(SquaredError(w.data(), weighted, importance.data()),
            SquaredError(w.data(), plain, importance.data()));
}

}  // namespace
}  // namespace tern
