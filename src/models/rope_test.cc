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

TEST(RopeTest, YarnOfKimi) {
  // Base 50000, 64 dimensions, factor 64, original context 4096: computed apart from this code.
  struct Expected {
    size_t pair;
    double fast32, fast1;  // beta_fast 32 (K2.5, K2.6) and 1 (K2-Thinking)
  };
  const Expected kExpected[] = {{0, 1.0, 1.0},
                                {1, 7.131111e-1, 7.131111e-1},
                                {8, 6.687403e-2, 6.687403e-2},
                                {12, 1.161916e-2, 1.729363e-2},
                                {16, 1.537297e-3, 4.472136e-3},
                                {19, 1.583750e-4, 1.621760e-3},
                                {20, 1.807023e-5, 1.807023e-5},
                                {31, 4.382206e-7, 4.382206e-7}};
  RopeConfig config{.type = "yarn",
                    .theta = 50000,
                    .factor = 64,
                    .original_max_position_embeddings = 4096,
                    .mscale = 1.0,
                    .mscale_all_dim = 1.0};
  for (const double beta_fast : {32.0, 1.0}) {
    config.beta_fast = beta_fast;
    const auto rope = RotaryEmbedding::Make(config, 64, {}, "c.json");
    ASSERT_TRUE(rope.ok()) << rope.status().message();
    EXPECT_EQ(rope->attention_factor(), 1.0);
    for (const Expected& e : kExpected) {
      const double expected = beta_fast == 32.0 ? e.fast32 : e.fast1;
      EXPECT_NEAR(rope->frequencies()[e.pair] / expected, 1.0, 1e-6) << e.pair;
    }
  }
  EXPECT_NEAR(YarnMscale(64, 1), 1.4158883, 1e-7);
  EXPECT_NEAR(YarnMscale(32, 1), 1.3465736, 1e-7);
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

// 0.01 lies between the BF16 numbers 164 * 2^-14 and 163 * 2^-14, nearer to the first.
TEST(RopeTest, FrequenciesRoundToBf16) {
  auto rope = RotaryEmbedding::Make({.theta = 10000}, 4, {}, "c.json");
  ASSERT_TRUE(rope.ok());
  rope->RoundFrequenciesToBf16();
  EXPECT_EQ(rope->frequencies()[0], 1.0);
  EXPECT_EQ(rope->frequencies()[1], 164.0 / 16384.0);
}

}  // namespace
}  // namespace tern
