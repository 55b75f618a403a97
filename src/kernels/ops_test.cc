#include "kernels/ops.h"

#include <cmath>
#include <limits>

#include "kernels/dispatch.h"
#include "kernels/isa_table.h"
#include "kernels/testing.h"

namespace tern {
namespace {

using testing::BitsOf;
using testing::kUnitF32;
using testing::MakeWeight;
using testing::RandomFloats;
using testing::TestWeight;

constexpr float kInf = std::numeric_limits<float>::infinity();

class OpsTest : public ::testing::TestWithParam<std::string> {
 protected:
  OpsTest() : pool_(2), ops_(std::move(Ops::Create(GetParam(), pool_)).value()) {}
  const IsaTable& table() { return **FindIsa(GetParam()); }
  ThreadPool pool_;
  std::unique_ptr<Ops> ops_;
};

TEST_P(OpsTest, IsTheLevelThatWasNamed) { EXPECT_EQ(ops_->isa(), GetParam()); }

// Sum of n squares: (n + 1) u relative, all terms positive; mean, eps, root and reciprocal 4 u
// (halved by the root, not counted on), two products 2 u.
TEST_P(OpsTest, RmsNorm) {
  for (const int64_t columns : {1, 15, 16, 17, 576}) {
    const int64_t rows = 3;
    std::vector<float> x = RandomFloats(rows * columns, 1);
    const std::vector<float> weight = RandomFloats(columns, 2);
    std::vector<float> y(x.size());
    ops_->RmsNorm(x.data(), rows, columns, weight.data(), 1e-5f, y.data());
    for (int64_t row = 0; row < rows; ++row) {
      long double squares = 0;
      for (int64_t i = 0; i < columns; ++i) {
        const long double value = x[static_cast<size_t>(row * columns + i)];
        squares += value * value;
      }
      const long double norm = std::sqrt(squares / columns + 1e-5f);
      for (int64_t i = 0; i < columns; ++i) {
        const auto at = static_cast<size_t>(row * columns + i);
        const auto expected = static_cast<double>(weight[static_cast<size_t>(i)] * x[at] / norm);
        ASSERT_LE(std::fabs(y[at] - expected),
                  static_cast<double>(columns + 8) * kUnitF32 * std::fabs(expected));
      }
    }
    ops_->RmsNorm(x.data(), rows, columns, weight.data(), 1e-5f, x.data());  // in place
    EXPECT_EQ(BitsOf(x), BitsOf(y));
  }
}

TEST_P(OpsTest, RmsNormOfZerosIsZero) {
  std::vector<float> x(20, 0.0f), y(20, 1.0f);
  const std::vector<float> weight(20, 3.0f);
  ops_->RmsNorm(x.data(), 1, 20, weight.data(), 1e-6f, y.data());
  EXPECT_EQ(y, x);
}

// a*c - b*s: two products and a sum, 2 u (|a c| + |b s|).
TEST_P(OpsTest, RopeRotatesPairsOfEachStyle) {
  const int64_t rows = 3, heads = 2, head_dim = 10, rotary = 6;
  const std::vector<float> angle = RandomFloats(rows * 3, 4);
  std::vector<float> cos, sin;
  for (const float a : angle) {
    cos.push_back(std::cos(a));
    sin.push_back(std::sin(a));
  }
  for (const RopeStyle style : {RopeStyle::kHalfSplit, RopeStyle::kInterleaved}) {
    const std::vector<float> before = RandomFloats(rows * heads * head_dim, 5);
    std::vector<float> x = before;
    ops_->Rope(x.data(), rows, heads, head_dim, rotary, style, cos.data(), sin.data());
    for (int64_t vector = 0; vector < rows * heads; ++vector) {
      const size_t base = static_cast<size_t>(vector * head_dim);
      for (size_t i = 0; i < 3; ++i) {
        const size_t first = base + (style == RopeStyle::kHalfSplit ? i : 2 * i);
        const size_t second = base + (style == RopeStyle::kHalfSplit ? i + 3 : 2 * i + 1);
        const double c = cos[static_cast<size_t>(vector / heads) * 3 + i];
        const double s = sin[static_cast<size_t>(vector / heads) * 3 + i];
        const double a = before[first], b = before[second];
        const double bound = 2 * kUnitF32 * (std::fabs(a) + std::fabs(b));
        EXPECT_NEAR(x[first], a * c - b * s, bound);
        EXPECT_NEAR(x[second], b * c + a * s, bound);
      }
      for (size_t i = 6; i < 10; ++i) EXPECT_EQ(x[base + i], before[base + i]);
    }
  }
}

// exp 4 u, its sum with 1, the quotient and the product 3 u; below 2^-126 the result may be off by
// the smallest subnormal per operation.
TEST_P(OpsTest, SiluMul) {
  std::vector<float> gate;
  for (float g = -120.0f; g <= 120.0f; g += 0.37f) gate.push_back(g);
  gate.insert(gate.end(), {0.0f, -0.0f, 1e-30f, -1e-30f, 3e38f, -3e38f, 87.5f, -87.5f});
  const std::vector<float> up = RandomFloats(static_cast<int64_t>(gate.size()), 6);
  std::vector<float> out(gate.size());
  ops_->SiluMul(gate.data(), up.data(), static_cast<int64_t>(gate.size()), out.data());
  for (size_t i = 0; i < gate.size(); ++i) {
    const double expected = gate[i] / (1.0 + std::exp(-double{gate[i]})) * up[i];
    ASSERT_LE(std::fabs(out[i] - expected), 8 * kUnitF32 * std::fabs(expected) + 0x1p-120)
        << gate[i] << " " << up[i];
  }
}

// exp is reached through sum_exp of one number: exp(x - 0). 2 ulp: 4 u.
TEST_P(OpsTest, ExpWithinTwoUlps) {
  double worst = 0;
  for (float x = -103.0f; x <= 88.7f; x += 0.0137f) {
    const double got = table().sum_exp(&x, 1, 0.0f), expected = std::exp(double{x});
    if (expected < 0x1p-126) {
      ASSERT_LE(std::fabs(got - expected), 0x1p-148) << x;  // two subnormal steps
    } else {
      worst = std::max(worst, std::fabs(got - expected) / expected);
    }
  }
  EXPECT_LE(worst, 4 * kUnitF32);
  for (const float x : {-kInf, -200.0f})
    EXPECT_EQ(static_cast<float>(table().sum_exp(&x, 1, 0.0f)), 0.0f) << x;
  const float nan = NAN;
  EXPECT_TRUE(std::isnan(table().sum_exp(&nan, 1, 0.0f)));
}

TEST_P(OpsTest, Add) {
  std::vector<float> x = RandomFloats(40001, 7);
  const std::vector<float> y = RandomFloats(40001, 8), before = x;
  ops_->Add(x.data(), y.data(), 40001);
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(x[i], before[i] + y[i]);
}

// An element's bits do not depend on where in the batch it lies.
TEST_P(OpsTest, ElementwiseBitsDependOnTheRowAlone) {
  const int64_t columns = 37, rows = 2000;
  std::vector<float> x = RandomFloats(rows * columns, 9), up = RandomFloats(rows * columns, 10);
  const std::vector<float> weight = RandomFloats(columns, 11);
  std::vector<float> batch(x.size()), alone(x.size());
  ops_->SiluMul(x.data(), up.data(), rows * columns, batch.data());
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t at = row * columns;
    ops_->SiluMul(x.data() + at, up.data() + at, columns, alone.data() + at);
  }
  EXPECT_EQ(BitsOf(alone), BitsOf(batch));
  ops_->RmsNorm(x.data(), rows, columns, weight.data(), 1e-5f, batch.data());
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t at = row * columns;
    ops_->RmsNorm(x.data() + at, 1, columns, weight.data(), 1e-5f, alone.data() + at);
  }
  EXPECT_EQ(BitsOf(alone), BitsOf(batch));
}

TEST_P(OpsTest, ArgMaxLowestIndexWinsAndNanLoses) {
  const auto arg_max = [&](const std::vector<float>& x) {
    return ops_->ArgMax(x.data(), static_cast<int64_t>(x.size()));
  };
  EXPECT_EQ(arg_max({3}), 0);
  EXPECT_EQ(arg_max({1, 5, 5, 2}), 1);
  EXPECT_EQ(arg_max({-0.0f, 0.0f}), 0);
  EXPECT_EQ(arg_max({0.0f, -0.0f}), 0);
  EXPECT_EQ(arg_max({NAN, -kInf, -1, NAN}), 2);
  EXPECT_EQ(arg_max({NAN, NAN}), 0);
  EXPECT_EQ(arg_max({1, kInf, NAN, kInf}), 1);
  for (int64_t at = 0; at < 100; ++at) {
    std::vector<float> x = RandomFloats(100, 12);
    x[0] = NAN;
    x[static_cast<size_t>(at)] = 50.0f;
    x[99] = at == 99 ? 50.0f : 49.0f;
    EXPECT_EQ(arg_max(x), at);
  }
}

// Largest + log(sum): exp 4 u and blocks of 1024 summed in float32 lanes (64 + 4) u of a sum of
// positive terms become an absolute error of the logarithm; the result rounds once, twice at most.
TEST_P(OpsTest, LogSumExp) {
  for (const int64_t n : {1, 15, 16, 1023, 1025, 49152}) {
    const std::vector<float> x = RandomFloats(n, 13, 5.0f);
    long double sum = 0;
    for (const float value : x) sum += std::exp(static_cast<long double>(value));
    const auto expected = static_cast<double>(std::log(sum));
    EXPECT_NEAR(ops_->LogSumExp(x.data(), n), expected,
                80 * kUnitF32 + 2 * kUnitF32 * std::fabs(expected));
  }
  const std::vector<float> huge = {3e38f, 3e38f};
  EXPECT_EQ(ops_->LogSumExp(huge.data(), 2), 3e38f);
  const std::vector<float> none = {-kInf, -kInf}, masked = {-kInf, 2.0f};
  EXPECT_EQ(ops_->LogSumExp(none.data(), 2), -kInf);
  EXPECT_EQ(ops_->LogSumExp(masked.data(), 2), 2.0f);
}

// Each level's fast conversion gives the spec's bits: every BF16 with every kind of lower half.
TEST_P(OpsTest, ToBf16IsBitExact) {
  std::vector<float> x;
  for (uint32_t high = 0; high < 65536; ++high) {
    for (const uint32_t low : {0x0000u, 0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      x.push_back(std::bit_cast<float>(high << 16 | low));
    }
  }
  x.resize(x.size() - 3);  // an incomplete last register
  std::vector<uint16_t> out(x.size());
  table().to_bf16(x.data(), static_cast<int64_t>(x.size()), out.data());
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(out[i], Bf16FromFloat(x[i])) << std::bit_cast<uint32_t>(x[i]);
  }
}

TEST_P(OpsTest, PackRefusesWhatItCannotMultiply) {
  const std::vector<std::byte> bytes(64);
  const auto refuse = [&](TensorView view, const std::string& reason) {
    for (const Precision precision : {Precision::kReference, Precision::kProduction}) {
      const auto packed = ops_->Pack(view, precision);
      ASSERT_FALSE(packed.ok());
      EXPECT_EQ(packed.status().code(), StatusCode::kInvalidArgument);
      EXPECT_NE(packed.status().message().find(reason), std::string::npos)
          << packed.status().message();
    }
  };
  refuse({DType::kI32, Shape{4, 4}, bytes}, "I32");
  refuse({DType::kF32, Shape{16}, bytes}, "two dimensions");
  refuse({DType::kQ4_0, Shape{2, 16}, bytes}, "block of 32");
  refuse({DType::kQ4_K, Shape{2, 128}, bytes}, "block of 256");
  refuse({DType::kF32, Shape{4, 5}, bytes}, "64 bytes");
  refuse({DType::kF32, Shape{int64_t{1} << 40, int64_t{1} << 40}, bytes}, "64 bytes");
}

TEST_P(OpsTest, DequantizeRowReadsOneRow) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ6_K}) {
    const TestWeight weight = MakeWeight(dtype, 5, 256, 14);
    std::vector<float> row(256);
    ops_->DequantizeRow(weight.view(), 3, row.data());
    for (size_t i = 0; i < 256; ++i) ASSERT_EQ(row[i], weight.values[3 * 256 + i]);
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, OpsTest, ::testing::ValuesIn(Ops::SupportedIsas()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tern
