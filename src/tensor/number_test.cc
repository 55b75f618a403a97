#include "tensor/number.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

namespace tern {
namespace {

// tests/data/number/README.md: PyTorch's conversion of every BF16 number.
TEST(E4m3Test, EveryBf16ConvertsAsInPyTorch) {
  std::ifstream file(TERN_SOURCE_DIR "/tests/data/number/bf16_to_e4m3.bin", std::ios::binary);
  const std::string table{std::istreambuf_iterator<char>(file), {}};
  ASSERT_EQ(table.size(), 65536u);
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float x = FloatFromBf16(static_cast<uint16_t>(bits));
    ASSERT_EQ(E4m3FromFloat(x), static_cast<uint8_t>(table[bits])) << bits << " " << x;
  }
}

// OCP 8-bit floating point: sign, 4 exponent bits with bias 7, 3 mantissa bits.
TEST(E4m3Test, EveryCodeHasItsValueAndConvertsBack) {
  for (int code = 0; code < 256; ++code) {
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const float value = FloatFromE4m3(static_cast<uint8_t>(code));
    if (exponent == 15 && mantissa == 7) {
      EXPECT_TRUE(std::isnan(value));
      continue;
    }
    const double magnitude = exponent == 0 ? std::ldexp(mantissa / 8.0, -6)
                                           : std::ldexp(1 + mantissa / 8.0, exponent - 7);
    EXPECT_EQ(value, code < 128 ? magnitude : -magnitude) << code;
    EXPECT_EQ(std::signbit(value), code >= 128);
    EXPECT_EQ(E4m3FromFloat(value), code);
  }
}

TEST(E4m3Test, SaturatesAndKeepsNan) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(E4m3FromFloat(inf), 0x7E);
  EXPECT_EQ(E4m3FromFloat(-inf), 0xFE);
  EXPECT_EQ(E4m3FromFloat(1e30f), 0x7E);
  EXPECT_EQ(E4m3FromFloat(463.9f), 0x7E);
  EXPECT_EQ(E4m3FromFloat(NAN), 0x7F);
  EXPECT_EQ(E4m3FromFloat(-NAN), 0x7F);
}

// IEEE 754 binary16: sign, 5 exponent bits with bias 15, 10 mantissa bits.
TEST(F16Test, EveryCodeHasItsValueAndConvertsBack) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const int exponent = bits >> 10 & 31;
    const double mantissa = bits & 1023;
    const float value = FloatFromF16(static_cast<uint16_t>(bits));
    if (exponent == 31 && mantissa != 0) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_TRUE(std::isnan(FloatFromF16(F16FromFloat(value))));
      continue;
    }
    double magnitude =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    if (exponent == 31) magnitude = std::numeric_limits<double>::infinity();
    ASSERT_EQ(value, bits < 32768 ? magnitude : -magnitude) << bits;
    ASSERT_EQ(F16FromFloat(value), bits);
  }
}

// Between two neighbours: below, at and above the middle.
TEST(F16Test, RoundsToNearestEven) {
  for (uint32_t bits = 0; bits < 0x7BFF; ++bits) {
    const float low = FloatFromF16(static_cast<uint16_t>(bits));
    const float high = FloatFromF16(static_cast<uint16_t>(bits + 1));
    const float middle = (low + high) / 2;  // exact: two more mantissa bits
    const uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    ASSERT_EQ(F16FromFloat(middle), even) << bits;
    ASSERT_EQ(F16FromFloat(std::nextafter(middle, 0.0f)), bits);
    ASSERT_EQ(F16FromFloat(std::nextafter(middle, 1e9f)), bits + 1);
    ASSERT_EQ(F16FromFloat(-middle), even | 0x8000);
  }
  EXPECT_EQ(F16FromFloat(65519.0f), 0x7BFF);
  EXPECT_EQ(F16FromFloat(65520.0f), 0x7C00);
  EXPECT_EQ(F16FromFloat(1e30f), 0x7C00);
  EXPECT_EQ(F16FromFloat(-1e30f), 0xFC00);
}

TEST(Bf16Test, RoundsToNearestEvenAndKeepsNan) {
  for (uint32_t bits = 0; bits < 0x7F80; ++bits) {
    const uint32_t high = bits << 16;
    const auto round = [](uint32_t float_bits) {
      return Bf16FromFloat(std::bit_cast<float>(float_bits));
    };
    ASSERT_EQ(round(high), bits);
    ASSERT_EQ(round(high | 0x7FFF), bits);
    ASSERT_EQ(round(high | 0x8000), bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(round(high | 0x8001), bits + 1);
    ASSERT_EQ(round(high | 0x80008000), (bits % 2 == 0 ? bits : bits + 1) | 0x8000);
  }
  const float nan_with_low_payload = std::bit_cast<float>(0x7F800001u);
  EXPECT_TRUE(std::isnan(FloatFromBf16(Bf16FromFloat(nan_with_low_payload))));
  EXPECT_TRUE(std::isnan(FloatFromBf16(Bf16FromFloat(NAN))));
}

}  // namespace
}  // namespace tern
