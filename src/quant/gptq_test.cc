// GPTQ against an implementation of its own in float64 (tests/data/gptq), and what must hold for
// any input.
#include "quant/gptq.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "base/file.h"
#include "checkpoint/safetensors.h"
#include "quant/int4.h"
#include "tensor/number.h"

namespace tern {
namespace {

std::unique_ptr<Ops> MakeOps(const std::string& isa, ThreadPool& pool) {
  auto ops = Ops::Create(isa, pool);
  EXPECT_TRUE(ops.ok()) << ops.status().message();
  return std::move(*ops);
}

Hessian HessianOf(const std::vector<float>& x, int64_t rows, int64_t columns, Ops& ops) {
  auto sum = HessianSum::Make(columns);
  EXPECT_TRUE(sum.ok());
  const Status added = sum->Add(x.data(), columns, rows, ops);
  EXPECT_TRUE(added.ok()) << added.message();
  auto hessian = sum->Finish(ops);
  EXPECT_TRUE(hessian.ok());
  return std::move(*hessian);
}

Hessian Diagonal(const std::vector<float>& values) {
  const auto n = static_cast<int64_t>(values.size());
  Hessian hessian{.columns = n, .rows = n, .values = Buffer(static_cast<size_t>(n * n) * 4)};
  for (int64_t i = 0; i < n; ++i) {
    hessian.values.as<float>()[i * n + i] = values[static_cast<size_t>(i)];
  }
  return hessian;
}

Int4Matrix Quantize(const Gptq& gptq, const std::vector<float>& weights, int64_t group, Ops& ops) {
  Int4Matrix matrix{.rows = static_cast<int64_t>(weights.size()) / gptq.columns(),
                    .columns = gptq.columns(),
                    .group = group};
  matrix.codes.resize(weights.size());
  matrix.scales.resize(weights.size() / static_cast<size_t>(group));
  const Status status = gptq.Quantize(weights.data(), matrix.rows, group, matrix.codes.data(),
                                      matrix.scales.data(), ops);
  EXPECT_TRUE(status.ok()) << status.message();
  return matrix;
}

double Value(const Int4Matrix& matrix, int64_t row, int64_t column) {
  const int64_t at = row * matrix.columns + column;
  return matrix.codes[static_cast<size_t>(at)] *
         static_cast<double>(FloatFromBf16(matrix.scales[static_cast<size_t>(at / matrix.group)]));
}

// |(W - Q) X^T|^2.
double OutputError(const std::vector<float>& weights, const Int4Matrix& matrix,
                   const std::vector<float>& x) {
  const int64_t n = matrix.columns, inputs = static_cast<int64_t>(x.size()) / n;
  double sum = 0;
  for (int64_t row = 0; row < matrix.rows; ++row) {
    for (int64_t i = 0; i < inputs; ++i) {
      double out = 0;
      for (int64_t c = 0; c < n; ++c) {
        out += (weights[static_cast<size_t>(row * n + c)] - Value(matrix, row, c)) *
               x[static_cast<size_t>(i * n + c)];
      }
      sum += out * out;
    }
  }
  return sum;
}

std::vector<float> Random(std::mt19937& random, int64_t count, float deviation) {
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

// Inputs [rows, columns] of rank about columns / 4, some features much larger than others.
std::vector<float> Correlated(std::mt19937& random, int64_t rows, int64_t columns) {
  const int64_t rank = columns / 4;
  const std::vector<float> source = Random(random, rows * rank, 1);
  const std::vector<float> mix = Random(random, rank * columns, 1);
  std::vector<float> x = Random(random, rows * columns, 0.5f);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      float& value = x[static_cast<size_t>(r * columns + c)];
      for (int64_t k = 0; k < rank; ++k) {
        value +=
            source[static_cast<size_t>(r * rank + k)] * mix[static_cast<size_t>(k * columns + c)];
      }
      if (c % 37 == 5) value *= 20;
    }
  }
  return x;
}

template <typename T>
std::vector<T> TensorOf(const std::vector<SafetensorsTensor>& tensors, const std::string& name) {
  for (const SafetensorsTensor& tensor : tensors) {
    if (tensor.name != name) continue;
    std::vector<T> values(tensor.view.bytes.size() / sizeof(T));
    std::memcpy(values.data(), tensor.view.bytes.data(), tensor.view.bytes.size());
    return values;
  }
  ADD_FAILURE() << "no tensor " << name;
  return {};
}

TEST(GptqTest, EqualsTheReferenceAtEveryLevel) {
  const std::string path = "tests/data/gptq/gptq.safetensors";
  const auto file = MappedFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  const auto tensors = ParseSafetensors((*file)->bytes(), path);
  ASSERT_TRUE(tensors.ok()) << tensors.status().message();
  const auto x_bytes = TensorOf<int8_t>(*tensors, "x");
  const std::vector<float> x(x_bytes.begin(), x_bytes.end());
  const auto weights = TensorOf<float>(*tensors, "w");
  ThreadPool pool(2);
  for (const std::string& isa : Ops::SupportedIsas()) {
    const auto ops = MakeOps(isa, pool);
    const auto gptq = Gptq::Factor(HessianOf(x, 320, 160, *ops), {.damping = 0.01}, *ops);
    ASSERT_TRUE(gptq.ok()) << gptq.status().message();
    EXPECT_EQ(gptq->damping(), 0.01);
    const auto scales = TensorOf<uint16_t>(*tensors, "scales");
    std::vector<int8_t> codes(weights.size());
    ASSERT_TRUE(gptq->Round(weights.data(), 8, 32, scales.data(), codes.data(), *ops).ok());
    EXPECT_EQ(codes, TensorOf<int8_t>(*tensors, "codes")) << isa;
    const auto importance = TensorOf<float>(*tensors, "importance");
    for (size_t i = 0; i < importance.size(); ++i) {
      EXPECT_NEAR(gptq->importance()[i], importance[i], 1e-5f * importance[i]) << isa << " " << i;
    }
  }
}

// Inputs without correlation give errors nothing to make up for.
TEST(GptqTest, WithoutCorrelationItIsTheSearch) {
  std::mt19937 random(1);
  ThreadPool pool(2);
  const auto ops = MakeOps("", pool);
  const int64_t columns = 320, rows = 19;
  const std::vector<float> weights = Random(random, rows * columns, 0.1f);
  const auto gptq = Gptq::Factor(Diagonal(std::vector<float>(320, 1.0f)), {}, *ops);
  ASSERT_TRUE(gptq.ok());
  for (const int64_t group : {32, 64}) {
    const Int4Matrix matrix = Quantize(*gptq, weights, group, *ops);
    const Int4Matrix search =
        QuantizeInt4(weights.data(), rows, columns, group, ScaleMethod::kSearch);
    EXPECT_EQ(matrix.codes, search.codes) << group;
    EXPECT_EQ(matrix.scales, search.scales) << group;
  }
}

TEST(GptqTest, OutputsAreNearerThanBySearch) {
  std::mt19937 random(2);
  ThreadPool pool(2);
  const auto ops = MakeOps("", pool);
  for (const int64_t columns : {32, 128, 256, 384}) {
    const std::vector<float> x = Correlated(random, 2 * columns, columns);
    const std::vector<float> weights = Random(random, 8 * columns, 0.05f);
    const auto gptq = Gptq::Factor(HessianOf(x, 2 * columns, columns, *ops), {}, *ops);
    ASSERT_TRUE(gptq.ok());
    for (const int64_t group : {32, 64, 128}) {
      if (columns % group != 0) continue;
      const double search = OutputError(
          weights, QuantizeInt4(weights.data(), 8, columns, group, ScaleMethod::kSearch), x);
      const double calibrated = OutputError(weights, Quantize(*gptq, weights, group, *ops), x);
      EXPECT_LT(calibrated, search) << columns << " " << group;
      if (columns >= 128) EXPECT_LT(calibrated, 0.6 * search) << columns << " " << group;
    }
  }
}

TEST(GptqTest, ThreadsAndPiecesDoNotMatter) {
  std::mt19937 random(3);
  const int64_t columns = 288, rows = 37, inputs = 700;
  const std::vector<float> x = Correlated(random, inputs, columns);
  const std::vector<float> weights = Random(random, rows * columns, 0.05f);
  ThreadPool one(1), three(3);
  const auto ops_one = MakeOps("", one), ops_three = MakeOps("", three);
  const Hessian a = HessianOf(x, inputs, columns, *ops_one);
  const Hessian b = HessianOf(x, inputs, columns, *ops_three);
  ASSERT_EQ(std::memcmp(a.values.data(), b.values.data(), a.values.size_bytes()), 0);
  // As they come: in batches of any size.
  auto sum = HessianSum::Make(columns);
  ASSERT_TRUE(sum.ok());
  for (int64_t at = 0, size = 1; at < inputs; at += size, size = size * 3 % 101) {
    size = std::min(size, inputs - at);
    ASSERT_TRUE(sum->Add(x.data() + at * columns, columns, size, *ops_one).ok());
  }
  const auto c = sum->Finish(*ops_one);
  ASSERT_TRUE(c.ok());
  EXPECT_EQ(c->rows, inputs);
  EXPECT_EQ(std::memcmp(a.values.data(), c->values.data(), a.values.size_bytes()), 0);

  const auto gptq = Gptq::Factor(HessianOf(x, inputs, columns, *ops_one), {}, *ops_one);
  const auto gptq_three = Gptq::Factor(HessianOf(x, inputs, columns, *ops_three), {}, *ops_three);
  ASSERT_TRUE(gptq.ok() && gptq_three.ok());
  const Int4Matrix matrix = Quantize(*gptq, weights, 32, *ops_one);
  const Int4Matrix other = Quantize(*gptq_three, weights, 32, *ops_three);
  EXPECT_EQ(matrix.codes, other.codes);
  EXPECT_EQ(matrix.scales, other.scales);
  for (int64_t row = 0; row < rows; ++row) {
    const Int4Matrix single =
        Quantize(*gptq, {weights.begin() + row * columns, weights.begin() + (row + 1) * columns},
                 32, *ops_three);
    EXPECT_TRUE(
        std::equal(single.codes.begin(), single.codes.end(), matrix.codes.begin() + row * columns))
        << row;
  }
}

TEST(GptqTest, SingularSecondMoments) {
  std::mt19937 random(4);
  ThreadPool pool(2);
  const auto ops = MakeOps("", pool);
  const int64_t columns = 256, rows = 8;
  const std::vector<float> weights = Random(random, rows * columns, 0.05f);
  // No input at all.
  const auto nothing = Gptq::Factor(Diagonal(std::vector<float>(256, 0.0f)), {}, *ops);
  EXPECT_EQ(nothing.status().code(), StatusCode::kFailedPrecondition);
  std::vector<float> infinite(256, 1.0f);
  infinite[9] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Gptq::Factor(Diagonal(infinite), {}, *ops).status().code(),
            StatusCode::kInvalidArgument);

  struct Case {
    const char* what;
    std::vector<float> x;
  };
  std::vector<Case> cases;
  cases.push_back({"one input", Random(random, columns, 1)});
  cases.push_back({"fewer inputs than features", Random(random, 20 * columns, 1)});
  cases.push_back({"half of the features never there", Random(random, 512 * columns, 1)});
  for (size_t i = 0; i < cases.back().x.size(); ++i) {
    if (i % 256 >= 128) cases.back().x[i] = 0;
  }
  // Every feature the same up to a huge factor, and no noise: rank one with eigenvalues from 0 to
  // 1e12. float32 loses the small ones, the damping is raised until it does not.
  cases.push_back({"one feature 256 times, up to 1e6 as large", {}});
  for (int i = 0; i < 512; ++i) {
    const float value = Random(random, 1, 1)[0];
    for (int c = 0; c < 256; ++c) {
      cases.back().x.push_back(value * std::pow(10.0f, static_cast<float>(c % 7)));
    }
  }
  for (const Case& c : cases) {
    const int64_t inputs = static_cast<int64_t>(c.x.size()) / columns;
    for (const double damping : {0.01, 1e-9}) {
      const auto gptq = Gptq::Factor(HessianOf(c.x, inputs, columns, *ops), {damping}, *ops);
      ASSERT_TRUE(gptq.ok()) << c.what << ": " << gptq.status().message();
      const Int4Matrix matrix = Quantize(*gptq, weights, 32, *ops);
      const Int4Matrix search =
          QuantizeInt4(weights.data(), rows, columns, 32, ScaleMethod::kSearch);
      EXPECT_LE(OutputError(weights, matrix, c.x), 1.01 * OutputError(weights, search, c.x))
          << c.what << " " << damping;
    }
  }
}

TEST(HessianSumTest, IsTheProductInDouble) {
  std::mt19937 random(5);
  ThreadPool pool(2);
  for (const std::string& isa : Ops::SupportedIsas()) {
    const auto ops = MakeOps(isa, pool);
    // More rows and columns than a block, and rows that are further apart than their columns.
    const int64_t columns = 300, rows = 600, stride = 310;
    const std::vector<float> x = Random(random, rows * stride, 1);
    auto sum = HessianSum::Make(columns);
    ASSERT_TRUE(sum.ok());
    ASSERT_TRUE(sum->Add(x.data(), stride, rows, *ops).ok());
    const auto hessian = sum->Finish(*ops);
    ASSERT_TRUE(hessian.ok());
    const float* const values = hessian->values.as<float>();
    for (int64_t i = 0; i < columns; i += 7) {
      for (int64_t j = 0; j < columns; ++j) {
        double expected = 0, magnitude = 0;
        for (int64_t r = 0; r < rows; ++r) {
          const double term = static_cast<double>(x[static_cast<size_t>(r * stride + i)]) *
                              x[static_cast<size_t>(r * stride + j)];
          expected += term;
          magnitude += std::fabs(term);
        }
        // Sums of at most 256 float32 products, then three of those: under 260 roundings.
        ASSERT_NEAR(values[i * columns + j], expected, 260 * 0x1p-24 * magnitude) << isa;
        ASSERT_EQ(values[i * columns + j], values[j * columns + i]);
      }
    }
  }
}

TEST(HessianSumTest, NumbersThatAreNotFiniteAreErrors) {
  ThreadPool pool(1);
  const auto ops = MakeOps("", pool);
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    auto sum = HessianSum::Make(4);
    ASSERT_TRUE(sum.ok());
    const float x[] = {1, 2, bad, 4};
    const Status status = sum->Add(x, 4, 1, *ops);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("feature 2"), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace tern
