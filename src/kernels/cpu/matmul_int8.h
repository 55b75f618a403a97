// Matrix product of 4-bit weights with INT8 activations: integer products, exact, of the 32 columns
// that share an activation scale, then
//   y = sum over those g of d_g * s_g * (sum_k q_k x_k - zero * sum_k x_k) + m_g * s_g * (sum_k
//   x_k)
// with d, m the weights' scale and minimum (nibble_scales.h) and s the activations' scale. Groups
// are added in order, in float32: the order is the row's own, whatever tiles compute it. See
// kernels/cpu/isa_common.h for the rules of this file; vec.h of a level comes first.
#pragma once

#include "kernels/cpu/nibble_scales.h"
#include "kernels/cpu/weights_ahead.h"

namespace tern {
namespace {

// Activations of 8 columns lie in the order in which one 32-bit word of a panel, cut into its low
// and its high nibbles, meets them: kQuadOrder of vec.h's StoreQuads.
constexpr int64_t kActivationGroup = 32;
// IsaTable::quantize_row.
[[maybe_unused]] void QuantizeRow(const float* x, int64_t k, int8_t* out, float* scales,
                                  float* sums, int32_t* offsets) {
  const VecI magnitude = SetI(0x7FFFFFFF);
  for (int64_t begin = 0, group = 0; begin < k; begin += kActivationGroup, ++group) {
    const Vec low = Load(x + begin), high = Load(x + begin + kLanes);
    const float largest =
        ReduceMax(Max(AsFloat(And(AsInt(low), magnitude)), AsFloat(And(AsInt(high), magnitude))));
    // 0 unless a number is infinite or NaN.
    const float poison = ReduceAdd(MulAdd(low, Zero(), Mul(high, Zero())));
    const float scale = largest / 127.0f + poison;
    const Vec inverse = Set(largest > kLeastActivation ? 127.0f / largest : 0.0f);
    const VecI a = RoundToInt(Mul(low, inverse)), b = RoundToInt(Mul(high, inverse));
    StoreQuads(out + begin, a);
    StoreQuads(out + begin + kLanes, b);
    scales[group] = scale;
    const float sum = ReduceAdd(ToFloat(AddI(a, b)));
    sums[group] = scale * sum;
    offsets[group] = -8 * static_cast<int32_t>(sum);
  }
}

// sums[r][16] of kRows rows and one panel.
template <typename Scales>
struct Int8Tile {
  template <int kRows>
  struct Block {
    static void Run(const Scales* format, const std::byte* panel, int64_t groups, const int8_t* x,
                    int64_t x_stride, const float* x_scales, const float* x_sums,
                    const int32_t* x_offsets, float* sums) {
      Vec sum[kRows];
      for (Vec& lanes : sum) lanes = Zero();
      for (int64_t group = 0; group < groups; ++group) {
        QuadSums part[kRows];
        for (int r = 0; r < kRows; ++r) {
          part[r] = BeginQuads(Scales::kZero == 8 ? x_offsets[r * groups + group] : 0);
        }
        const int64_t column = group * kActivationGroup;
        const std::byte* quants = panel + QuantsAt(format->block, column);
        AskAheadOfScales(format->block, panel, column);
        AskAhead(quants, 256);
        const int8_t* quads = x + column;
        for (int words = 0; words < 4; ++words, quants += 64, quads += 8) {
          const VecI low = LowNibbles(quants);
          for (int r = 0; r < kRows; ++r) part[r] = AddQuads(part[r], low, quads + r * x_stride);
          const VecI high = HighNibbles(quants);
          for (int r = 0; r < kRows; ++r) {
            part[r] = AddQuads(part[r], high, quads + r * x_stride + 4);
          }
        }
        const Vec scale = format->Scale(panel, column);
        const bool has_minimum = format->HasMinimum();
        const Vec minimum = has_minimum ? format->Minimum(panel, column) : Zero();
        for (int r = 0; r < kRows; ++r) {
          const int64_t at = r * groups + group;
          const Vec dots = ToFloat(EndQuads(part[r], Scales::kZero == 8 ? x_offsets[at] : 0));
          sum[r] = MulAdd(Mul(scale, Set(x_scales[at])), dots, sum[r]);
          if (has_minimum) sum[r] = MulAdd(minimum, Set(x_sums[at]), sum[r]);
        }
      }
      for (int r = 0; r < kRows; ++r) Store(sums + r * kLanes, sum[r]);
    }
  };
};

template <typename Scales>
void MatMulInt8Of(const Scales& format, const MatMulArgs& args, int64_t panel_begin,
                  int64_t panel_end, int64_t row_begin, int64_t row_end) {
  const int64_t groups = args.k / kActivationGroup;
  ForEachTile<kInt8Rows>(args, panel_begin, panel_end, row_begin, row_end,
                         [&](const std::byte* panel, int64_t row, int64_t rows, float* sums) {
                           RunBlock<Int8Tile<Scales>::template Block, kInt8Rows>(
                               rows, &format, panel, groups, args.x_int8 + row * args.x_int8_stride,
                               args.x_int8_stride, args.x_scales + row * groups,
                               args.x_sums + row * groups, args.x_offsets + row * groups, sums);
                         });
}

// REQUIRES: args.x_int8, and a 4-bit format.
[[maybe_unused]] void MatMulInt8(const MatMulArgs& args, int64_t panel_begin, int64_t panel_end,
                                 int64_t row_begin, int64_t row_end) {
  if (IsInt4(args.format)) {
    return MatMulInt8Of(Int4Scales(args.format), args, panel_begin, panel_end, row_begin, row_end);
  }
  switch (args.format) {
    case kPackQ4_0:
      return MatMulInt8Of(Q4_0Scales(), args, panel_begin, panel_end, row_begin, row_end);
    case kPackQ4_1:
      return MatMulInt8Of(Q4_1Scales(), args, panel_begin, panel_end, row_begin, row_end);
    case kPackQ4_K:
      return MatMulInt8Of(Q4_KScales(), args, panel_begin, panel_end, row_begin, row_end);
    default:
      __builtin_trap();  // matmul.cc gives no other format INT8 activations
  }
}

// Products of a level whose other activations are float32.
[[maybe_unused]] void MatMulF32OrInt8(const MatMulArgs& args, int64_t panel_begin,
                                      int64_t panel_end, int64_t row_begin, int64_t row_end) {
  if (args.x_int8 != nullptr) {
    return MatMulInt8(args, panel_begin, panel_end, row_begin, row_end);
  }
  MatMulF32(args, panel_begin, panel_end, row_begin, row_end);
}

}  // namespace
}  // namespace tern
