#include "models/rope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace tern {
namespace {

using ::testing::HasSubstr;

TEST(RopeTest, Llama3BandsOfLlama31) {
  // Computed with Python from the published reference code's apply_scaling: theta 500000, 128
  // dimensions, factor 8, low 1, high 4, original context 8192.
  const std::pair<size_t, double> kExpected[] = {
      {0, 1.0},
      {1, 0.814617234},
      {28, 0.00321144599},
      {29, 0.00216657076},
      {32, 0.000524846161},
      {34, 0.000178507813},
      {40, 3.4281022e-05},
      {63, 3.06892599e-07},
  };
  const RopeConfig config{.type = "llama3",
                          .theta = 500000,
                          .factor = 8,
                          .low_freq_factor = 1,
                          .high_freq_factor = 4,
                          .original_max_position_embeddings = 8192};
  const auto rope = RotaryEmbedding::Make(config, 128, {}, "c.json");
  ASSERT_TRUE(rope.ok()) << rope.status().message();
  ASSERT_EQ(rope->rotary_dims(), 128);
  for (const auto& [pair, frequency] : kExpected) {
    EXPECT_NEAR(rope->frequencies()[pair] / frequency, 1.0, 1e-8) << pair;
  }
}

TEST(RopeTest, DefaultLinearAndDivisors) {
  const auto plain = RotaryEmbedding::Make({.theta = 10000}, 4, {}, "c.json");
  ASSERT_TRUE(plain.ok());
  EXPECT_DOUBLE_EQ(plain->frequencies()[0], 1.0);
  EXPECT_DOUBLE_EQ(plain->frequencies()[1], 0.01);  // 10000^(-2/4)
  const auto linear =
      RotaryEmbedding::Make({.type = "linear", .theta = 10000, .factor = 4}, 4, {}, "c.json");
  ASSERT_TRUE(linear.ok());
  EXPECT_DOUBLE_EQ(linear->frequencies()[1], 0.0025);
  const float divisors[] = {1.0f, 8.0f};
  const auto divided = RotaryEmbedding::Make({.theta = 10000}, 4, divisors, "c.json");
  ASSERT_TRUE(divided.ok());
  EXPECT_DOUBLE_EQ(divided->frequencies()[1], 0.00125);
}

TEST(RopeTest, FillsConsecutivePositions) {
  const auto rope = RotaryEmbedding::Make({.theta = 10000}, 4, {}, "c.json");
  ASSERT_TRUE(rope.ok());
  float cos[4], sin[4];
  rope->Fill(7, 2, cos, sin);
  EXPECT_FLOAT_EQ(cos[0], std::cos(7.0f));
  EXPECT_FLOAT_EQ(sin[1], std::sin(0.07f));
  EXPECT_FLOAT_EQ(cos[2], std::cos(8.0f));
  EXPECT_FLOAT_EQ(sin[3], std::sin(0.08f));
}

TEST(RopeTest, BadParametersAreNamed) {
  const auto expect = [](const RopeConfig& config, int64_t dims, const char* what) {
    const auto rope = RotaryEmbedding::Make(config, dims, {}, "c.json");
    ASSERT_FALSE(rope.ok()) << what;
    EXPECT_THAT(rope.status().message(), HasSubstr("c.json"));
    EXPECT_THAT(rope.status().message(), HasSubstr(what));
  };
  expect({}, 3, "not even");
  expect({.type = "dynamic"}, 4, "rope type 'dynamic' is not supported");
  expect({.type = "llama3"}, 4, "original_max_position_embeddings");
  expect({.type = "llama3",
          .low_freq_factor = 4,
          .high_freq_factor = 1,
          .original_max_position_embeddings = 64},
         4, "high_freq_factor");
}

}  // namespace
}  // namespace tern
