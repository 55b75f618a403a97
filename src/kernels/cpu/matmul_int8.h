// Matrix product of 4-bit weights with INT8 activations: integer products, exact, of the 32 columns
// that share an activation scale, then
//   y = sum over those g of d_g * s_g * (sum_k q_k x_k - zero * sum_k x_k) + m_g * s_g * (sum_k
//   x_k)
// with d, m the weights' scale and minimum (panel.h) and s the activations' scale. Groups are added
// in order, in float32: the order is the row's own, whatever tiles compute it.
// See kernels/cpu/isa_common.h for the rules of this file; vec.h of a level comes first.
#pragma once

#include "kernels/cpu/panel.h"

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

template <typename Scales, int kPanels>
struct Int8Tile {
  template <int kRows>
  struct Block {
    // sums[p][r][16].
    static void Run(const Scales* format, const Panel* panels, int64_t groups,
                    int64_t groups_per_scale, const int8_t* x, int64_t x_stride,
                    const float* x_scales, const float* x_sums, const int32_t* x_offsets,
                    float* sums) {
      Vec sum[kPanels][kRows];
      for (auto& row : sum) {
        for (Vec& lanes : row) lanes = Zero();
      }
      for (int64_t group = 0; group < groups; ++group) {
        QuadSums part[kPanels][kRows];
        for (int r = 0; r < kRows; ++r) {
          const int32_t offset = Scales::kZero == 8 ? x_offsets[r * groups + group] : 0;
          for (int n = 0; n < kPanels; ++n) part[n][r] = BeginQuads(offset);
        }
        if constexpr (kPanels <= 2) {
          for (int n = 0; n < kPanels; ++n) PrefetchQuants<256>(panels[n].quants + group * 256);
        }
        const int8_t* columns = x + group * kActivationGroup;
        for (int block = 0; block < 4; ++block, columns += 8) {
          VecI bytes[kPanels];
          for (int n = 0; n < kPanels; ++n) {
            bytes[n] = LowNibbles(panels[n].quants + (group * 4 + block) * 64);
          }
          for (int r = 0; r < kRows; ++r) {
            for (int n = 0; n < kPanels; ++n) {
              part[n][r] = AddQuads(part[n][r], bytes[n], columns + r * x_stride);
            }
          }
          for (int n = 0; n < kPanels; ++n) {
            bytes[n] = HighNibbles(panels[n].quants + (group * 4 + block) * 64);
          }
          for (int r = 0; r < kRows; ++r) {
            for (int n = 0; n < kPanels; ++n) {
              part[n][r] = AddQuads(part[n][r], bytes[n], columns + r * x_stride + 4);
            }
          }
        }
        for (int n = 0; n < kPanels; ++n) {
          const Vec scale = format->Scale(panels[n], group / groups_per_scale);
          const bool has_minimum = format->HasMinimum();
          const Vec minimum =
              has_minimum ? format->Minimum(panels[n], group / groups_per_scale) : Zero();
          for (int r = 0; r < kRows; ++r) {
            const int64_t at = r * groups + group;
            const Vec dots = ToFloat(EndQuads(part[n][r], Scales::kZero == 8 ? x_offsets[at] : 0));
            sum[n][r] = MulAdd(Mul(scale, Set(x_scales[at])), dots, sum[n][r]);
            if (has_minimum) sum[n][r] = MulAdd(minimum, Set(x_sums[at]), sum[n][r]);
          }
        }
      }
      for (int n = 0; n < kPanels; ++n) {
        for (int r = 0; r < kRows; ++r) Store(sums + (n * kRows + r) * kLanes, sum[n][r]);
      }
    }
  };
};

// Rows [row_begin, row_end), at most kMaxRows at a time, of kPanels panels from `n` on.
template <typename Scales, int kPanels, int kMaxRows>
void MatMulInt8Panels(const Scales& format, const MatMulArgs& args, int64_t n, int64_t row_begin,
                      int64_t row_end) {
  const PanelLayout layout = PanelLayoutOf(args.format, args.k);
  const int64_t groups = args.k / kActivationGroup;
  Panel panels[kPanels];
  for (int p = 0; p < kPanels; ++p) panels[p] = PanelAt(args, layout, n + p);
  alignas(64) float sums[kPanels * kMaxRows * kLanes];
  const int64_t tile = EvenTile(row_end - row_begin, kMaxRows);
  for (int64_t row = row_begin; row < row_end; row += tile) {
    const int64_t rows = MinOf(tile, row_end - row);
    RunBlock<Int8Tile<Scales, kPanels>::template Block, kMaxRows>(
        rows, &format, static_cast<const Panel*>(panels), groups,
        format.GroupColumns() / kActivationGroup, args.x_int8 + row * args.x_int8_stride,
        args.x_int8_stride, args.x_scales + row * groups, args.x_sums + row * groups,
        args.x_offsets + row * groups, static_cast<float*>(sums));
    for (int p = 0; p < kPanels; ++p) StoreSums(args, n + p, row, rows, sums + p * rows * kLanes);
  }
}

template <typename Scales>
void MatMulInt8Of(const Scales& format, const MatMulArgs& args, int64_t panel_begin,
                  int64_t panel_end, int64_t row_begin, int64_t row_end) {
  const int64_t rows = row_end - row_begin;
  int64_t n = panel_begin;
  // Few rows need several panels in flight: a row's sum is one chain of dependent products.
  if constexpr (kInt8RowsOfFour > 0) {
    for (; rows <= kInt8RowsOfFour && n + 4 <= panel_end; n += 4) {
      MatMulInt8Panels<Scales, 4, kInt8RowsOfFour>(format, args, n, row_begin, row_end);
    }
  }
  if constexpr (kInt8RowsOfTwo > 0) {
    for (; rows <= kInt8RowsOfTwo && n + 2 <= panel_end; n += 2) {
      MatMulInt8Panels<Scales, 2, kInt8RowsOfTwo>(format, args, n, row_begin, row_end);
    }
  }
  for (; n < panel_end; ++n) {
    MatMulInt8Panels<Scales, 1, kInt8Rows>(format, args, n, row_begin, row_end);
  }
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
