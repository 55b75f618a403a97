// Products of 4-bit weights with INT8 activations (Activations::kInt8), at every level.
#include <cmath>
#include <limits>

#include "kernels/ops.h"
#include "kernels/testing.h"

namespace tern {
namespace {

using testing::BitsOf;
using testing::kUnitF32;
using testing::MakeWeight;
using testing::RandomFloats;
using testing::TestWeight;

// A weight with what packing takes. INT4 groups come from Q4_0's integers: d * (q - 8), with d
// rounded to BF16, or d * (q - 8 + 8 - zero).
struct Case {
  std::string name;
  int64_t n = 0, k = 0;
  std::vector<float> values, magnitudes;  // [n, k]
  PackedMatrix packed;
};

Case GgufCase(Ops& ops, DType dtype, int64_t n, int64_t k, uint32_t seed) {
  TestWeight weight = MakeWeight(dtype, n, k, seed);
  return {std::string(InfoOf(dtype).name),
          n,
          k,
          weight.values,
          weight.magnitudes,
          std::move(ops.Pack(weight.view(), Precision::kProduction)).value()};
}

Case Int4Case(Ops& ops, int64_t group, bool zeros, int64_t n, int64_t k, uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<uint32_t> words(static_cast<size_t>(n * k / 8));
  std::vector<uint32_t> zero_words(static_cast<size_t>((n + 7) / 8 * (k / group)));
  for (uint32_t& word : words) word = generator();
  for (uint32_t& word : zero_words) word = generator();
  std::vector<uint16_t> scales;
  for (const float scale : RandomFloats(n * k / group, seed, 0.01f)) {
    scales.push_back(Bf16FromFloat(scale));
  }
  WeightView view{.scheme = WeightView::Scheme::kInt4Group,
                  .rows = n,
                  .columns = k,
                  .data = {DType::kI32, Shape{n, k / 8}, std::as_bytes(std::span(words))},
                  .scales = {DType::kBF16, Shape{n, k / group}, std::as_bytes(std::span(scales))},
                  .group = group};
  if (zeros) {
    view.zero_points = {DType::kI32, Shape{(n + 7) / 8, k / group},
                        std::as_bytes(std::span(zero_words))};
  }
  Case c{"INT4 group " + std::to_string(group) + (zeros ? " zeros" : ""), n, k, {}, {},
         std::move(ops.Pack(view, Precision::kProduction)).value()};
  for (int64_t i = 0; i < n * k; ++i) {
    const int64_t row = i / k, at = i % k / group;
    const auto q = static_cast<int>(words[static_cast<size_t>(i / 8)] >> (4 * (i % 8)) & 15);
    const int zero =
        zeros ? static_cast<int>(zero_words[static_cast<size_t>(row / 8 * (k / group) + at)] >>
                                     (4 * (row % 8)) &
                                 15)
              : 8;
    const float d = FloatFromBf16(scales[static_cast<size_t>(row * (k / group) + at)]);
    c.values.push_back(d * static_cast<float>(q - zero));
    c.magnitudes.push_back(16 * std::fabs(d));
  }
  return c;
}

std::vector<Case> Cases(Ops& ops, int64_t n, int64_t k, uint32_t seed) {
  std::vector<Case> cases;
  for (const DType dtype : {DType::kQ4_0, DType::kQ4_1, DType::kQ4_K}) {
    if (k % InfoOf(dtype).block_elements == 0) cases.push_back(GgufCase(ops, dtype, n, k, ++seed));
  }
  for (const int64_t group : {32, 64, 128}) {
    if (k % group != 0) continue;
    for (const bool zeros : {false, true}) {
      cases.push_back(Int4Case(ops, group, zeros, n, k, ++seed));
    }
  }
  return cases;
}

class MatMulInt8Test : public ::testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Ops> MakeOps(ThreadPool& pool) {
    std::unique_ptr<Ops> ops = std::move(Ops::Create(GetParam(), pool)).value();
    ops->set_activations(Activations::kInt8);
    return ops;
  }
};

std::vector<float> Product(Ops& ops, const Case& c, const std::vector<float>& x, int64_t rows) {
  std::vector<float> out(static_cast<size_t>(rows * c.n), NAN);
  const MatMulTarget target{&c.packed, out.data()};
  ops.MatMul(x.data(), rows, {&target, 1});
  return out;
}

// An activation is off by at most half a step, max |x| / 127 / 2 of its 32 columns (1.01: the
// quotient is rounded too); the rest is float32 summation, as in matmul_test.cc.
TEST_P(MatMulInt8Test, WithinHalfAStepOfEveryActivation) {
  ThreadPool pool(2);
  const auto ops = MakeOps(pool);
  uint32_t seed = 1;
  for (const int64_t k : {32, 64, 256, 384}) {
    for (const int64_t n : {1, 16, 17, 83}) {
      for (const Case& c : Cases(*ops, n, k, seed += 20)) {
        for (const int64_t rows : {1, 2, 3, 5, 13, 29}) {
          const std::vector<float> x = RandomFloats(rows * k, ++seed);
          const std::vector<float> out = Product(*ops, c, x, rows);
          for (int64_t at = 0; at < rows * n; ++at) {
            const float* row = x.data() + at / n * k;
            double sum = 0, error = 0, terms = 0;
            for (int64_t i = 0; i < k; ++i) {
              const auto w = static_cast<size_t>(at % n * k + i);
              float largest = 0;
              for (int64_t j = i / 32 * 32; j < i / 32 * 32 + 32; ++j) {
                largest = std::max(largest, std::fabs(row[j]));
              }
              sum += double{row[i]} * c.values[w];
              error += std::fabs(c.values[w]) * largest / 127 / 2 * 1.01;
              terms += std::fabs(double{row[i]}) * c.magnitudes[w];
            }
            const double gamma = static_cast<double>(k + 8) * kUnitF32;
            ASSERT_LE(std::fabs(out[static_cast<size_t>(at)] - sum), error + 2 * gamma * terms)
                << c.name << " [" << rows << "," << k << "] at " << at << " of " << n;
          }
        }
      }
    }
  }
}

// Activations that are integers of a group whose largest is 127: nothing is rounded but the sums.
TEST_P(MatMulInt8Test, IntegersAreExact) {
  ThreadPool pool(1);
  const auto ops = MakeOps(pool);
  const int64_t n = 40, k = 256, rows = 7;
  std::mt19937 generator(3);
  std::vector<float> x(static_cast<size_t>(rows * k));
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = i % 32 == 5 ? -127.0f : static_cast<float>(static_cast<int>(generator() % 255) - 127);
  }
  for (const Case& c : Cases(*ops, n, k, 400)) {
    const std::vector<float> out = Product(*ops, c, x, rows);
    for (int64_t at = 0; at < rows * n; ++at) {
      double sum = 0, terms = 0;
      for (int64_t i = 0; i < k; ++i) {
        const double a = x[static_cast<size_t>(at / n * k + i)];
        sum += a * c.values[static_cast<size_t>(at % n * k + i)];
        terms += std::fabs(a) * c.magnitudes[static_cast<size_t>(at % n * k + i)];
      }
      // Rounded: groups (8), each times scale and activation scale and added, and a minimum's.
      ASSERT_LE(std::fabs(out[static_cast<size_t>(at)] - sum), 24 * kUnitF32 * terms) << c.name;
    }
  }
}

TEST_P(MatMulInt8Test, BitsDependOnTheRowAlone) {
  constexpr int64_t kRows = 70, kK = 512, kN = 83;
  const std::vector<float> x = RandomFloats(kRows * kK, 9);
  ThreadPool one(1);
  const auto alone = MakeOps(one);
  const std::vector<Case> cases = Cases(*alone, kN, kK, 500);
  for (const Case& c : cases) {
    const std::vector<uint32_t> expected = BitsOf(Product(*alone, c, x, kRows));
    for (int threads = 1; threads <= 3; ++threads) {
      ThreadPool pool(threads);
      const auto ops = MakeOps(pool);
      for (const int64_t step : {1, 2, 3, 5, 12, 32}) {
        std::vector<float> out(kRows * kN);
        for (int64_t row = 0; row < kRows; row += step) {
          const int64_t rows = std::min<int64_t>(step, kRows - row);
          const MatMulTarget target{&c.packed, out.data() + row * kN};
          ops->MatMul(x.data() + row * kK, rows, {&target, 1});
        }
        ASSERT_EQ(BitsOf(out), expected) << c.name << " step " << step;
      }
    }
  }
}

TEST_P(MatMulInt8Test, OddActivations) {
  ThreadPool pool(1);
  const auto ops = MakeOps(pool);
  const float kInf = std::numeric_limits<float>::infinity();
  for (const Case& c : Cases(*ops, 20, 256, 600)) {
    std::vector<float> x = RandomFloats(6 * 256, 601);
    for (int64_t i = 0; i < 256; ++i) x[static_cast<size_t>(i)] = 0.0f;       // row 0: zero
    for (int64_t i = 256; i < 512; ++i) x[static_cast<size_t>(i)] *= 1e-40f;  // subnormal
    for (int64_t i = 512; i < 768; ++i) x[static_cast<size_t>(i)] *= 1e30f;   // large
    x[3 * 256 + 77] = kInf;
    x[4 * 256 + 77] = std::numeric_limits<float>::quiet_NaN();
    x[5 * 256 + 77] = -kInf;
    const std::vector<float> out = Product(*ops, c, x, 6);
    for (size_t i = 0; i < out.size(); ++i) {
      if (i < 40) {
        EXPECT_EQ(out[i], 0.0f) << c.name;  // nothing, or too little to count
      } else if (i < 60) {
        EXPECT_TRUE(std::isfinite(out[i])) << c.name;
      } else {
        EXPECT_FALSE(std::isfinite(out[i])) << c.name << " " << i;  // never hidden
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, MatMulInt8Test, ::testing::ValuesIn(Ops::SupportedIsas()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tern
