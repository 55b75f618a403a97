#include <cmath>

#include "kernels/ops.h"
#include "kernels/testing.h"

namespace tern {
namespace {

using testing::BitsOf;
using testing::kUnitF32;
using testing::MakeWeight;
using testing::RandomFloats;
using testing::TestWeight;

constexpr DType kTypes[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ4_0,
                            DType::kQ4_1, DType::kQ8_0, DType::kQ4_K, DType::kQ6_K};

bool IsFloatType(DType dtype) { return InfoOf(dtype).block_elements == 1; }

class MatMulTest : public ::testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Ops> MakeOps(ThreadPool& pool) {
    Result<std::unique_ptr<Ops>> ops = Ops::Create(GetParam(), pool);
    EXPECT_TRUE(ops.ok()) << ops.status().message();
    return std::move(ops).value();
  }
  // Whether the level multiplies BF16 activations in production precision.
  bool RoundsActivations() const { return GetParam() == "avx512"; }

  // Compares with float64 sums of the numbers that the level multiplies (weights rounded to BF16
  // where packing does, activations where the level does). What remains is float32 summation:
  // with unit roundoff u, k products, at most 4 roundings for a weight made of two terms and 4
  // for group scales and bias, |error| <= (k + 8) u / (1 - (k + 8) u) * sum |terms|, where |terms|
  // counts d*q and m of a weight separately. Subnormal operands and partial sums may be flushed to
  // zero by BF16 products: 2^-126 for each of 2k operations, times the other factor or scale.
  void Check(Ops& ops, const TestWeight& weight, const std::vector<float>& x, int64_t rows,
             Precision precision, bool with_bias) {
    const int64_t n = weight.n, k = weight.k;
    Result<PackedMatrix> packed = ops.Pack(weight.view(), precision);
    ASSERT_TRUE(packed.ok()) << packed.status().message();
    EXPECT_EQ(packed->rows(), n);
    EXPECT_EQ(packed->columns(), k);
    const std::vector<float> bias = RandomFloats(n, 5);
    std::vector<float> out(static_cast<size_t>(rows * n), NAN);
    const MatMulTarget target{&*packed, out.data(), with_bias ? bias.data() : nullptr};
    ops.MatMul(x.data(), rows, {&target, 1});
    const bool bf16_weight = precision == Precision::kProduction && IsFloatType(weight.dtype);
    const bool bf16_x = precision == Precision::kProduction && RoundsActivations();
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < n; ++i) {
        double sum = with_bias ? bias[static_cast<size_t>(i)] : 0, terms = std::fabs(sum);
        double flush = 0;
        for (int64_t j = 0; j < k; ++j) {
          const auto at = static_cast<size_t>(i * k + j);
          float a = x[static_cast<size_t>(r * k + j)], w = weight.values[at];
          if (bf16_x) a = RoundToBf16(a);
          if (bf16_weight) w = RoundToBf16(w);
          sum += double{a} * w;
          terms += std::fabs(double{a}) * std::max(std::fabs(w), weight.magnitudes[at]);
          flush += 0x1p-125 * (1 + std::fabs(double{a}) + weight.magnitudes[at]);
        }
        const double gamma = static_cast<double>(k + 8) * kUnitF32;
        const double bound = gamma / (1 - gamma) * terms + flush;
        const double got = out[static_cast<size_t>(r * n + i)];
        ASSERT_LE(std::fabs(got - sum), bound)
            << InfoOf(weight.dtype).name << " [" << rows << "," << k << "]x[" << n << "," << k
            << "] at " << r << "," << i << ": " << got << " for " << sum;
      }
    }
  }
};

TEST_P(MatMulTest, EveryTypeAndShapeWithinTheSummationBound) {
  ThreadPool pool(2);
  const auto ops = MakeOps(pool);
  uint32_t seed = 1;
  for (const DType dtype : kTypes) {
    const int64_t block = InfoOf(dtype).block_elements;
    const std::vector<int64_t> columns = IsFloatType(dtype)
                                             ? std::vector<int64_t>{1, 2, 7, 31, 64, 255, 577}
                                             : std::vector<int64_t>{block, 3 * block};
    for (const int64_t k : columns) {
      for (const int64_t n : {1, 15, 16, 17, 50}) {
        for (const int64_t rows : {1, 2, 5, 13}) {
          const TestWeight weight = MakeWeight(dtype, n, k, ++seed);
          const std::vector<float> x = RandomFloats(rows * k, ++seed);
          for (const Precision precision : {Precision::kReference, Precision::kProduction}) {
            Check(*ops, weight, x, rows, precision, rows % 2 == 0);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST_P(MatMulTest, AdversarialActivations) {
  ThreadPool pool(1);
  const auto ops = MakeOps(pool);
  for (const DType dtype : kTypes) {
    const int64_t k = 256, n = 20, rows = 6;
    const TestWeight weight = MakeWeight(dtype, n, k, 77);
    std::vector<float> x = RandomFloats(rows * k, 78);
    for (int64_t i = 0; i < k; ++i) {
      float* column = x.data() + i;
      column[0 * k] = 0.0f;
      column[1 * k] *= 1e30f;
      column[2 * k] *= 1e-38f;                           // subnormal
      column[3 * k] = i % 2 == 0 ? 1e10f : -1e10f;       // cancels
      column[4 * k] = i == 200 ? 1e20f : column[4 * k];  // one outlier
      column[5 * k] = 1.0f + 0x1p-8f;                    // halfway between two BF16 numbers
    }
    for (const Precision precision : {Precision::kReference, Precision::kProduction}) {
      Check(*ops, weight, x, rows, precision, false);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(MatMulTest, EmptyShapes) {
  ThreadPool pool(1);
  const auto ops = MakeOps(pool);
  const TestWeight no_columns = MakeWeight(DType::kF32, 5, 0, 1);
  const std::vector<float> x(8, 1.0f);
  Check(*ops, no_columns, x, 2, Precision::kProduction, true);
  Check(*ops, no_columns, x, 2, Precision::kReference, false);
  const TestWeight no_rows = MakeWeight(DType::kBF16, 0, 8, 1);
  Check(*ops, no_rows, x, 1, Precision::kProduction, false);
  const TestWeight weight = MakeWeight(DType::kBF16, 3, 8, 1);
  Check(*ops, weight, x, 0, Precision::kProduction, false);
}

// DESIGN section 5: a row's bits depend on neither the rows beside it, nor threads, nor on which
// products share the call.
TEST_P(MatMulTest, BitsDependOnTheRowAlone) {
  constexpr int64_t kRows = 70;
  uint32_t seed = 300;
  for (const DType dtype : kTypes) {
    const int64_t k = IsFloatType(dtype) ? 301 : 512, n = 83;
    const TestWeight weight = MakeWeight(dtype, n, k, ++seed);
    const std::vector<float> x = RandomFloats(kRows * k, ++seed);
    for (const Precision precision : {Precision::kReference, Precision::kProduction}) {
      std::vector<uint32_t> expected;
      for (int threads = 1; threads <= 4; ++threads) {
        ThreadPool pool(threads);
        const auto ops = MakeOps(pool);
        const auto packed = ops->Pack(weight.view(), precision);
        ASSERT_TRUE(packed.ok());
        for (const int64_t step : {int64_t{1}, int64_t{3}, int64_t{32}, kRows}) {
          if (GetParam() == "ref" && threads > 2) continue;  // slow, and the point is made
          std::vector<float> out(kRows * n), other(kRows * n);
          for (int64_t row = 0; row < kRows; row += step) {
            const int64_t rows = std::min(step, kRows - row);
            const MatMulTarget targets[] = {{&*packed, out.data() + row * n},
                                            {&*packed, other.data() + row * n}};
            ops->MatMul(x.data() + row * k, rows, targets);
          }
          if (expected.empty()) expected = BitsOf(out);
          ASSERT_EQ(BitsOf(out), expected) << InfoOf(dtype).name << " step " << step;
          ASSERT_EQ(BitsOf(other), expected);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, MatMulTest, ::testing::ValuesIn(Ops::SupportedIsas()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tern
