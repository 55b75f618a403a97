// Weights stored with scales: dequantization, packing and products of FP8 blocks and INT4 groups.
#include <cmath>
#include <limits>

#include "kernels/cpu/pack.h"
#include "kernels/ops.h"
#include "kernels/testing.h"

namespace tern {
namespace {

using testing::BitsOf;
using testing::kUnitF32;
using testing::RandomFloats;
using testing::ReadTestData;

// A quantized weight that owns its bytes.
struct Quantized {
  WeightView view() const {
    WeightView v = shape;
    v.data.bytes = std::as_bytes(std::span(data));
    v.scales.bytes = std::as_bytes(std::span(scales));
    v.zero_points.bytes = std::as_bytes(std::span(zeros));
    return v;
  }
  WeightView shape;
  std::string data, scales, zeros;
  std::vector<float> values;  // [rows, columns]
  // [rows, columns]: |d * (q - 8)| + |d * z|, the terms that a kernel may add separately.
  std::vector<float> magnitudes;
};

WeightView Fp8View(int64_t rows, int64_t columns) {
  return {.scheme = WeightView::Scheme::kFp8Block,
          .rows = rows,
          .columns = columns,
          .data = {DType::kF8E4M3, Shape{rows, columns}, {}},
          .scales = {DType::kF32, Shape{(rows + 127) / 128, (columns + 127) / 128}, {}}};
}
WeightView Int4View(int64_t rows, int64_t columns, int64_t group, DType scale) {
  return {.scheme = WeightView::Scheme::kInt4Group,
          .rows = rows,
          .columns = columns,
          .data = {DType::kI32, Shape{rows, columns / 8}, {}},
          .scales = {scale, Shape{rows, columns / group}, {}},
          .zero_points = {DType::kI32, Shape{(rows + 7) / 8, columns / group}, {}},
          .group = group};
}

struct Golden {
  const char* name;
  WeightView shape;
};
const Golden kGolden[] = {
    {"fp8_block", Fp8View(131, 133)},
    {"int4_g32_bf16", Int4View(19, 96, 32, DType::kBF16)},
    {"int4_g128_f16", Int4View(5, 256, 128, DType::kF16)},
    {"int4_g64_f32", Int4View(3, 64, 64, DType::kF32)},
    {"int4_g64_bf16_zeros", Int4View(19, 128, 64, DType::kBF16)},
    {"int4_g32_f16_zeros", Int4View(17, 64, 32, DType::kF16)},
    {"int4_g128_f32_zeros", Int4View(10, 128, 128, DType::kF32)},
};

Quantized ReadGolden(const Golden& golden) {
  const std::string path = std::string("quantized/") + golden.name;
  Quantized weight{
      golden.shape, ReadTestData(path + ".data"), ReadTestData(path + ".scales"), {}, {}, {}};
  if (path.ends_with("_zeros")) weight.zeros = ReadTestData(path + ".zeros");
  const std::string values = ReadTestData(path + ".f32");
  weight.values.resize(values.size() / sizeof(float));
  std::memcpy(weight.values.data(), values.data(), values.size());
  return weight;
}

// Random codes; scales of both signs. `values` come from DequantizeWeightRow, which the golden
// files hold.
Quantized Random(WeightView shape, bool zeros, uint32_t seed) {
  Quantized weight{shape, {}, {}, {}, {}, {}};
  std::mt19937 generator(seed);
  const bool fp8 = shape.scheme == WeightView::Scheme::kFp8Block;
  weight.data.resize(
      static_cast<size_t>(fp8 ? shape.rows * shape.columns : shape.rows * shape.columns / 2));
  for (char& byte : weight.data) {
    do byte = static_cast<char>(generator());
    while (fp8 && (byte & 0x7F) == 0x7F);
  }
  const int64_t count = shape.scales.shape[0] * shape.scales.shape[1];
  for (const float scale : RandomFloats(count, seed, 0.01f)) {
    const uint16_t half =
        shape.scales.dtype == DType::kF16 ? F16FromFloat(scale) : Bf16FromFloat(scale);
    if (shape.scales.dtype == DType::kF32) {
      weight.scales.append(reinterpret_cast<const char*>(&scale), 4);
    } else {
      weight.scales.append(reinterpret_cast<const char*>(&half), 2);
    }
  }
  if (zeros) {
    const Shape& words = shape.zero_points.shape;
    weight.zeros.resize(static_cast<size_t>(words[0] * words[1] * 4));
    for (char& byte : weight.zeros) byte = static_cast<char>(generator());
  }
  const WeightView view = weight.view();
  weight.values.resize(static_cast<size_t>(shape.rows * shape.columns));
  for (int64_t row = 0; row < shape.rows; ++row) {
    DequantizeWeightRow(view, row, weight.values.data() + row * shape.columns);
    for (int64_t i = 0; i < shape.columns; ++i) {
      float magnitude = std::fabs(weight.values[static_cast<size_t>(row * shape.columns + i)]);
      if (!fp8) {
        const int64_t group = i / shape.group, groups = shape.columns / shape.group;
        magnitude += 16 * std::fabs(ScaleAt(view.scales, row * groups + group));
      }
      weight.magnitudes.push_back(magnitude);
    }
  }
  return weight;
}

std::vector<Quantized> RandomWeights(int64_t rows, int64_t columns, uint32_t seed) {
  std::vector<Quantized> weights = {Random(Fp8View(rows, columns), false, seed)};
  for (const int64_t group : {32, 64, 128}) {
    if (columns % group != 0) continue;
    for (const DType scale : {DType::kBF16, DType::kF16, DType::kF32}) {
      for (const bool zeros : {false, true}) {
        weights.push_back(Random(Int4View(rows, columns, group, scale), zeros, ++seed));
      }
    }
  }
  return weights;
}

std::string NameOf(const WeightView& view) {
  if (view.scheme == WeightView::Scheme::kFp8Block) return "FP8";
  return "INT4 group " + std::to_string(view.group) + " " +
         std::string(InfoOf(view.scales.dtype).name) +
         (view.zero_points.bytes.empty() ? "" : " zeros");
}

// tests/data/quantized/make_quantized.py: numbers of compressed-tensors' packing and ml_dtypes.
TEST(WeightsTest, DequantizeToTheLibrariesNumbers) {
  for (const Golden& golden : kGolden) {
    const Quantized weight = ReadGolden(golden);
    const WeightView view = weight.view();
    ASSERT_EQ(static_cast<int64_t>(weight.values.size()), view.rows * view.columns);
    std::vector<float> row(static_cast<size_t>(view.columns));
    for (int64_t i = 0; i < view.rows; ++i) {
      DequantizeWeightRow(view, i, row.data());
      for (int64_t j = 0; j < view.columns; ++j) {
        ASSERT_EQ(row[static_cast<size_t>(j)],
                  weight.values[static_cast<size_t>(i * view.columns + j)])
            << golden.name << " " << i << "," << j;
      }
    }
  }
}

// Packing moves bits and rounds nothing: each packed weight, rounded once, is the golden number.
TEST(WeightsTest, PackedWeightsAreExact) {
  for (const Golden& golden : kGolden) {
    const Quantized weight = ReadGolden(golden);
    const WeightView view = weight.view();
    for (const Precision precision : {Precision::kReference, Precision::kProduction}) {
      const PackFormat format = PackFormatOf(view, precision);
      const int64_t panels = PanelsOf(view.rows);
      std::vector<std::byte> packed(static_cast<size_t>(panels * PanelBytes(format, view.columns)));
      ASSERT_TRUE(PackPanels(view, format, 0, panels, packed.data()));
      for (int64_t i = 0; i < view.rows * view.columns; ++i) {
        const double w =
            PackedWeight(format, packed.data(), view.columns, i / view.columns, i % view.columns);
        ASSERT_EQ(static_cast<float>(w), weight.values[static_cast<size_t>(i)])
            << golden.name << " " << i;
      }
    }
  }
}

// Checkpoint bytes as docs/formats/quantized.md counts them.
TEST(WeightsTest, ResidentBytesStayWithinTwelvePercent) {
  for (const auto& [rows, columns] :
       {std::pair<int64_t, int64_t>{256, 768}, {1536, 256}, {2048, 7168}}) {
    const auto check = [&, n = rows, k = columns](int format, int64_t checkpoint) {
      EXPECT_LE(static_cast<double>(PanelsOf(n) * PanelBytes(format, k)),
                1.12 * static_cast<double>(checkpoint))
          << format << " " << n << "x" << k;
    };
    check(kPackFp8, rows * columns + rows / 128 * (columns / 128) * 4);
    for (const int64_t group : {32, 64, 128}) {
      const int64_t scales = rows * columns / group, zeros = rows / 8 * (columns / group) * 4;
      for (const Int4Scale scale : {kInt4Bf16, kInt4F16, kInt4F32}) {
        const int64_t bytes = rows * columns / 2 + scales * (scale == kInt4F32 ? 4 : 2);
        check(PackInt4Of({group, scale, false}), bytes);
        check(PackInt4Of({group, scale, true}), bytes + zeros);
      }
    }
  }
}

class WeightProductTest : public ::testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Ops> MakeOps(ThreadPool& pool) {
    return std::move(Ops::Create(GetParam(), pool)).value();
  }
};

// As MatMulTest.Check: (k + 8) u of the sum of |terms|; a group's scale adds a rounding for each
// weight. Reference precision multiplies the float32 numbers.
TEST_P(WeightProductTest, WithinTheSummationBound) {
  ThreadPool pool(2);
  const auto ops = MakeOps(pool);
  uint32_t seed = 1;
  for (const auto& [n, k] :
       {std::pair<int64_t, int64_t>{1, 1},
        {150, 131},
        {17, 256},
        {33, 384},
        {50, 130},
        {16, 7},
        // Over the borders of the largest blocks: FP8's, and INT4's with zero points.
        {19, 2049},
        {17, 1280}}) {
    for (const Quantized& weight : RandomWeights(n, k, seed += 50)) {
      for (const int64_t rows : {1, 3, 13}) {
        const std::vector<float> x = RandomFloats(rows * k, ++seed);
        for (const Precision precision : {Precision::kReference, Precision::kProduction}) {
          const auto packed = ops->Pack(weight.view(), precision);
          ASSERT_TRUE(packed.ok()) << packed.status().message();
          EXPECT_EQ(packed->rows(), n);
          EXPECT_EQ(packed->columns(), k);
          std::vector<float> out(static_cast<size_t>(rows * n), NAN);
          const MatMulTarget target{&*packed, out.data()};
          ops->MatMul(x.data(), rows, {&target, 1});
          const bool bf16 = precision == Precision::kProduction && GetParam() == "avx512";
          for (int64_t at = 0; at < rows * n; ++at) {
            double sum = 0, terms = 0;
            for (int64_t j = 0; j < k; ++j) {
              const auto w = static_cast<size_t>(at % n * k + j);
              float a = x[static_cast<size_t>(at / n * k + j)];
              if (bf16) a = RoundToBf16(a);
              sum += double{a} * weight.values[w];
              terms += std::fabs(double{a}) * weight.magnitudes[w];
            }
            ASSERT_NEAR(out[static_cast<size_t>(at)], sum,
                        static_cast<double>(k + 9) * kUnitF32 * terms)
                << NameOf(weight.view()) << " [" << rows << "," << k << "]x" << n << " at " << at;
          }
        }
      }
    }
  }
}

// DESIGN section 5; and a product of a group has the bits of the shared-input product.
TEST_P(WeightProductTest, BitsDependOnTheRowAlone) {
  constexpr int64_t kRows = 29, kN = 83, kK = 384;
  std::vector<Quantized> weights = RandomWeights(kN, kK, 900);
  weights.push_back({WeightView::Plain({DType::kF32, Shape{kN, kK}, {}}), {}, {}, {}, {}, {}});
  const std::vector<float> floats = RandomFloats(kN * kK, 3), x = RandomFloats(kRows * kK, 4);
  weights.back().data.assign(reinterpret_cast<const char*>(floats.data()), floats.size() * 4);
  for (const Precision precision : {Precision::kReference, Precision::kProduction}) {
    std::vector<std::vector<uint32_t>> expected(weights.size());
    for (const int threads : {1, 3}) {
      ThreadPool pool(threads);
      const auto ops = MakeOps(pool);
      std::vector<PackedMatrix> packed;
      for (const Quantized& weight : weights) {
        packed.push_back(std::move(ops->Pack(weight.view(), precision)).value());
      }
      for (size_t i = 0; i < weights.size(); ++i) {
        for (const int64_t step : {int64_t{1}, int64_t{4}, kRows}) {
          std::vector<float> out(kRows * kN);
          for (int64_t row = 0; row < kRows; row += step) {
            const MatMulTarget target{&packed[i], out.data() + row * kN};
            ops->MatMul(x.data() + row * kK, std::min(step, kRows - row), {&target, 1});
          }
          if (expected[i].empty()) expected[i] = BitsOf(out);
          ASSERT_EQ(BitsOf(out), expected[i]) << i << " step " << step;
        }
      }
      // Groups: every weight with rows of its own number, some sharing an input, some with none;
      // rows of x and out apart from each other.
      const int64_t x_stride = kK + 5, out_stride = kN + 3;
      std::vector<float> spread(kRows * x_stride, NAN);
      for (int64_t row = 0; row < kRows; ++row) {
        std::copy_n(x.data() + row * kK, kK, spread.data() + row * x_stride);
      }
      std::vector<std::vector<float>> outs;
      std::vector<MatMulGroup> groups;
      std::vector<int64_t> first_rows;
      for (size_t i = 0; i < packed.size(); ++i) {
        const auto rows = static_cast<int64_t>(i * 7 % 11), first = static_cast<int64_t>(i % 3) * 5;
        outs.emplace_back(static_cast<size_t>(kRows * out_stride), -1.0f);
        groups.push_back({&packed[i], spread.data() + first * x_stride, x_stride, rows,
                          outs.back().data(), out_stride});
        first_rows.push_back(first);
      }
      ops->MatMul(groups);
      for (size_t i = 0; i < groups.size(); ++i) {
        for (int64_t row = 0; row < kRows; ++row) {
          for (int64_t n = 0; n < out_stride; ++n) {
            const float got = outs[i][static_cast<size_t>(row * out_stride + n)];
            if (row < groups[i].rows && n < kN) {
              const auto at = static_cast<size_t>((first_rows[i] + row) * kN + n);
              ASSERT_EQ(std::bit_cast<uint32_t>(got), expected[i][at]) << i << " " << row;
            } else {
              ASSERT_EQ(got, -1.0f) << "wrote outside its rows and columns";
            }
          }
        }
      }
    }
  }
}

// Per-head products of latent attention: interleaved heads of one activation row.
TEST_P(WeightProductTest, GroupsMayBeHeadsOfTheSameRows) {
  constexpr int64_t kHeads = 3, kRows = 4, kN = 20, kK = 12;
  ThreadPool pool(2);
  const auto ops = MakeOps(pool);
  const std::vector<float> w = RandomFloats(kHeads * kN * kK, 1),
                           x = RandomFloats(kRows * kHeads * kK, 2);
  std::vector<float> out(kRows * kHeads * kN);
  std::vector<PackedMatrix> packed;
  std::vector<MatMulGroup> groups;
  for (int64_t head = 0; head < kHeads; ++head) {
    const std::span<const float> part(w.data() + head * kN * kK, kN * kK);
    packed.push_back(
        std::move(ops->Pack(TensorView{DType::kF32, Shape{kN, kK}, std::as_bytes(part)},
                            Precision::kReference))
            .value());
  }
  for (int64_t head = 0; head < kHeads; ++head) {
    groups.push_back({&packed[static_cast<size_t>(head)], x.data() + head * kK, kHeads * kK, kRows,
                      out.data() + head * kN, kHeads * kN});
  }
  ops->MatMul(groups);
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t head = 0; head < kHeads; ++head) {
      for (int64_t n = 0; n < kN; ++n) {
        double sum = 0, terms = 0;
        for (int64_t i = 0; i < kK; ++i) {
          const double term = double{w[static_cast<size_t>((head * kN + n) * kK + i)]} *
                              x[static_cast<size_t>((row * kHeads + head) * kK + i)];
          sum += term;
          terms += std::fabs(term);
        }
        ASSERT_NEAR(out[static_cast<size_t>((row * kHeads + head) * kN + n)], sum,
                    static_cast<double>(kK + 2) * kUnitF32 * terms);
      }
    }
  }
}

TEST_P(WeightProductTest, PackRefusesWhatDoesNotFit) {
  ThreadPool pool(1);
  const auto ops = MakeOps(pool);
  const auto refuse = [&](const Quantized& weight, const std::string& reason) {
    for (const Precision precision : {Precision::kReference, Precision::kProduction}) {
      const auto packed = ops->Pack(weight.view(), precision);
      ASSERT_FALSE(packed.ok()) << reason;
      EXPECT_EQ(packed.status().code(), StatusCode::kInvalidArgument);
      EXPECT_NE(packed.status().message().find(reason), std::string::npos)
          << packed.status().message();
    }
  };
  const auto put_scale = [](Quantized weight, size_t index, float scale) {
    const uint16_t bf16 = Bf16FromFloat(scale);
    if (weight.shape.scales.dtype == DType::kF32) {
      std::memcpy(weight.scales.data() + index * 4, &scale, 4);
    } else {
      std::memcpy(weight.scales.data() + index * 2, &bf16, 2);
    }
    return weight;
  };
  const Quantized fp8 = Random(Fp8View(130, 140), false, 1);
  const Quantized int4 = Random(Int4View(10, 128, 32, DType::kBF16), true, 2);
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    refuse(put_scale(fp8, 3, bad), "scale 3 of 4");
    refuse(put_scale(int4, 39, bad), "scale 39 of 40");
  }
  Quantized bad = fp8;
  bad.data[130 * 140 - 1] = static_cast<char>(0xFF);
  refuse(bad, "NaN");
  bad = fp8;
  bad.data.pop_back();
  refuse(bad, "18199 bytes");
  bad = fp8;
  bad.scales.resize(12);
  refuse(bad, "12 bytes");
  bad = fp8;
  bad.shape.scales.shape = Shape{1, 2};
  refuse(bad, "[1, 2]");
  bad = fp8;
  bad.shape.data.dtype = DType::kU8;
  refuse(bad, "U8");
  bad = fp8;
  bad.shape.block_columns = 64;
  refuse(bad, "128x64");
  bad = int4;
  bad.shape.group = 48;
  refuse(bad, "groups of 48");
  bad = int4;
  bad.shape.columns = 120;
  refuse(bad, "120 columns");
  bad = int4;
  bad.shape.zero_points.shape = Shape{1, 4};
  refuse(bad, "zero points");
  bad = int4;
  bad.zeros.pop_back();
  refuse(bad, "31 bytes");
  bad = int4;
  bad.shape.scales.dtype = DType::kI16;
  refuse(bad, "I16");
  bad = int4;
  bad.shape.rows = int64_t{1} << 40;
  refuse(bad, "INT4 weights");
}

INSTANTIATE_TEST_SUITE_P(Isa, WeightProductTest, ::testing::ValuesIn(Ops::SupportedIsas()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tern
