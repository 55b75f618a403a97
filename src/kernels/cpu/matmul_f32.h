// Matrix product in float32 for every format: 256 columns of a panel are expanded to float32 in L1
// (once for all rows of the call; one row by BF16 weights multiplies them as they are read), then
// rows accumulate over them in column order. Running sums
// wait in memory between column blocks, which rounds nothing, so a row's bits depend on neither the
// number of rows nor the blocking.
// See kernels/cpu/isa_common.h for the rules of this file; vec.h of a level comes first.
#pragma once

#include "kernels/cpu/vec_math.h"

namespace tern {
namespace {

constexpr int64_t kColumnBlock = 256;  // a multiple of every format's group
constexpr int64_t kRowBlock = 64;

// The two columns of a BF16 pair.
[[maybe_unused]] inline void StorePair(VecI pair, float* out) {
  Store(out, FloatOfBf16(pair));
  Store(out + kLanes, AsFloat(And(pair, SetI(static_cast<int32_t>(0xFFFF0000)))));
}

template <int kShift>
[[maybe_unused]] inline void StoreNibble(VecI words, Vec d, Vec m, float* out) {
  const VecI q = And(ShiftRight<kShift>(words), SetI(15));
  Store(out, MulAdd(ToFloat(q), d, m));
}

// 32 columns of a 4-bit format: w = d * q + m.
[[maybe_unused]] inline void ExpandNibbles(const std::byte* quants, Vec d, Vec m, float* out) {
  for (int block = 0; block < 4; ++block, quants += 64, out += 8 * kLanes) {
    const VecI words = LoadI(quants);  // low half: even columns, high half: odd columns
    StoreNibble<0>(words, d, m, out);
    StoreNibble<16>(words, d, m, out + kLanes);
    StoreNibble<4>(words, d, m, out + 2 * kLanes);
    StoreNibble<20>(words, d, m, out + 3 * kLanes);
    StoreNibble<8>(words, d, m, out + 4 * kLanes);
    StoreNibble<24>(words, d, m, out + 5 * kLanes);
    StoreNibble<12>(words, d, m, out + 6 * kLanes);
    StoreNibble<28>(words, d, m, out + 7 * kLanes);
  }
}

[[maybe_unused]] inline void StoreSixBits(VecI q, Vec d, float* out) {
  Store(out, Mul(ToFloat(AddI(q, SetI(-32))), d));
}

// 16 columns of kPackQ6_K.
[[maybe_unused]] inline void ExpandSixBits(const std::byte* quants, Vec d, float* out) {
  const VecI word[3] = {LoadI(quants), LoadI(quants + 64), LoadI(quants + 128)};
  const VecI six = SetI(63), four = SetI(15), high = SetI(0x30);
  for (int t = 0; t < 3; ++t, out += 4 * kLanes) {
    StoreSixBits(And(word[t], six), d, out);
    StoreSixBits(And(ShiftRight<16>(word[t]), six), d, out + kLanes);
    StoreSixBits(And(ShiftRight<6>(word[t]), six), d, out + 2 * kLanes);
    StoreSixBits(And(ShiftRight<22>(word[t]), six), d, out + 3 * kLanes);
  }
  StoreSixBits(Or(And(ShiftRight<12>(word[0]), four), And(ShiftRight<8>(word[2]), high)), d, out);
  StoreSixBits(Or(And(ShiftRight<28>(word[0]), four), And(ShiftRight<24>(word[2]), high)), d,
               out + kLanes);
  StoreSixBits(Or(And(ShiftRight<12>(word[1]), four), And(ShiftRight<10>(word[2]), high)), d,
               out + 2 * kLanes);
  StoreSixBits(Or(And(ShiftRight<28>(word[1]), four), And(ShiftRight<26>(word[2]), high)), d,
               out + 3 * kLanes);
}

// One pair of columns of kPackFp8. The exponent and mantissa bits of e4m3 at the place of
// float32's, with its bias: exact, subnormals too.
[[maybe_unused]] inline Vec FloatOfE4m3(VecI byte) {  // in the lowest 8 bits; others are ignored
  const VecI sign = ShiftLeft<24>(And(byte, SetI(0x80)));
  const Vec magnitude = AsFloat(ShiftLeft<20>(And(byte, SetI(0x7F))));
  return AsFloat(Or(sign, AsInt(Mul(magnitude, Set(0x1p120f)))));
}

// Of the group that begins at `column`, counted from the first of its block. A shift: a division
// would take longer than the group's products.
[[maybe_unused]] inline int64_t Int4GroupInBlock(const Int4Format& format, const PanelBlock& block,
                                                 int64_t column) {
  return InBlock(block, column) >> format.group_bits();
}
[[maybe_unused]] inline Vec LoadInt4Scale(const Int4Format& format, const PanelBlock& block,
                                          const std::byte* panel, int64_t column) {
  const std::byte* scales = panel + BlockAt(block, column) + block.scales;
  const int64_t group = Int4GroupInBlock(format, block, column);
  switch (format.scale) {
    case kInt4Bf16:
      return FloatOfBf16(LoadU16(scales + group * 32));
    case kInt4F16:
      return LoadF16(scales + group * 32);
    case kInt4F32:
      return Load(At<float>(scales, group * 64));
  }
  return Zero();
}
[[maybe_unused]] inline VecI LoadInt4Zero(const Int4Format& format, const PanelBlock& block,
                                          const std::byte* panel, int64_t column) {
  return LoadI8(panel + BlockAt(block, column) + Int4GroupInBlock(format, block, column) * 16);
}

template <int kShift>
[[maybe_unused]] inline void StoreNibbleOffset(VecI words, Vec d, VecI z, float* out) {
  const VecI q = And(ShiftRight<kShift>(words), SetI(15));
  Store(out, Mul(ToFloat(AddI(q, z)), d));
}

// Eight columns of kPackInt4: w = d * (q + z).
[[maybe_unused]] inline void ExpandInt4(const std::byte* quants, Vec d, VecI z, float* out) {
  const VecI words = LoadI(quants);
  StoreNibbleOffset<0>(words, d, z, out);
  StoreNibbleOffset<16>(words, d, z, out + kLanes);
  StoreNibbleOffset<4>(words, d, z, out + 2 * kLanes);
  StoreNibbleOffset<20>(words, d, z, out + 3 * kLanes);
  StoreNibbleOffset<8>(words, d, z, out + 4 * kLanes);
  StoreNibbleOffset<24>(words, d, z, out + 5 * kLanes);
  StoreNibbleOffset<12>(words, d, z, out + 6 * kLanes);
  StoreNibbleOffset<28>(words, d, z, out + 7 * kLanes);
}

// Columns [begin, end) of a panel as [end - begin][16] float32 (an odd column count of BF16 or FP8
// writes one more, zero). REQUIRES: begin is a multiple of kColumnBlock.
[[maybe_unused]] void ExpandPanel(int format, const std::byte* panel, int64_t begin, int64_t end,
                                  float* out) {
  const PanelBlock block = PanelBlockOf(format);
  const auto quants = [&](int64_t k) { return panel + QuantsAt(block, k); };
  const auto super = [&](int64_t k) { return panel + BlockAt(block, k); };
  if (IsInt4(format)) {
    const Int4Format f = Int4FormatOf(format);
    for (int64_t group = begin; group < end; group += f.group) {
      const Vec d = LoadInt4Scale(f, block, panel, group);
      const VecI z = f.zeros ? AddI(LoadInt4Zero(f, block, panel, group), SetI(-8)) : SetI(-8);
      const std::byte* words = quants(group);
      for (int64_t k = 0; k < f.group; k += 8, out += 8 * kLanes)
        ExpandInt4(words + k * 8, d, z, out);
    }
    return;
  }
  switch (format) {
    case kPackBf16:
      for (int64_t k = begin; k < end; k += 2, out += 32) StorePair(LoadI(quants(k)), out);
      return;
    case kPackQ4_0:
      for (int64_t k = begin; k < end; k += 32, out += 512) {
        const Vec d = LoadF16(panel + ScalesAt(block, k, 32, 32));
        ExpandNibbles(quants(k), d, Mul(d, Set(-8.0f)), out);
      }
      return;
    case kPackQ4_1:
      for (int64_t k = begin; k < end; k += 32, out += 512) {
        const std::byte* scale = panel + ScalesAt(block, k, 32, 64);
        ExpandNibbles(quants(k), LoadF16(scale), LoadF16(scale + 32), out);
      }
      return;
    case kPackQ4_K:
      for (int64_t k = begin; k < end; k += 32, out += 512) {
        const std::byte* scale = panel + ScalesAt(block, k, 32, 32);
        const Vec d = Mul(LoadF16(super(k)), ToFloat(LoadU8(scale)));
        const Vec m = Mul(LoadF16(super(k) + 32), ToFloat(LoadU8(scale + 16)));
        ExpandNibbles(quants(k), d, Sub(Zero(), m), out);
      }
      return;
    case kPackQ8_0:
      for (int64_t group = begin; group < end; group += 32) {
        const Vec d = LoadF16(panel + ScalesAt(block, group, 32, 32));
        const std::byte* pairs = quants(group);
        for (int64_t k = 0; k < 32; k += 2, out += 32) {
          const VecI pair = LoadU16(pairs + k * 16);
          Store(out, Mul(ToFloat(ShiftRightSigned<24>(ShiftLeft<24>(pair))), d));
          Store(out + kLanes, Mul(ToFloat(ShiftRightSigned<24>(ShiftLeft<16>(pair))), d));
        }
      }
      return;
    case kPackQ6_K:
      for (int64_t k = begin; k < end; k += 16, out += 256) {
        const Vec d = LoadF16(panel + SuperAt(block, k, 256, 32));
        const Vec s = ToFloat(LoadI8(panel + ScalesAt(block, k, 16, 16)));
        ExpandSixBits(quants(k), Mul(d, s), out);
      }
      return;
    case kPackFp8:
      for (int64_t group = begin; group < end; group += kFp8Group) {
        const Vec d = Set(*At<float>(panel, ScalesAt(block, group, kFp8Group, 4)));
        const std::byte* pairs = quants(group);
        for (int64_t k = 0; k < MinOf(kFp8Group, end - group); k += 2, out += 32) {
          const VecI pair = LoadU16(pairs + k * 16);
          Store(out, Mul(FloatOfE4m3(pair), d));
          Store(out + kLanes, Mul(FloatOfE4m3(ShiftRight<8>(pair)), d));
        }
      }
      return;
  }
}

// Rows of a tile of at most `most`, such that all tiles of a call are about as large: 16 rows are
// two tiles of 8, not one of 12 and one of 4 that waits for memory and latency.
[[maybe_unused]] inline int64_t EvenTile(int64_t rows, int64_t most) {
  const int64_t tiles = MaxOf((rows + most - 1) / most, 1);
  return (rows + tiles - 1) / tiles;
}

// sums[r] += w[k] * x[r, k] over `count` columns, for kRows rows.
template <int kRows>
struct MulAddRows {
  static void Run(const float* w, int64_t count, const float* x, int64_t x_stride, float* sums) {
    Vec sum[kRows];
    for (int r = 0; r < kRows; ++r) sum[r] = Load(sums + r * kLanes);
    for (int64_t k = 0; k < count; ++k) {
      const Vec column = Load(w + k * kLanes);
      for (int r = 0; r < kRows; ++r) sum[r] = MulAdd(column, Set(x[r * x_stride + k]), sum[r]);
    }
    for (int r = 0; r < kRows; ++r) Store(sums + r * kLanes, sum[r]);
  }
};

// Writes a panel's sums [rows][16] to the output, plus the bias.
[[maybe_unused]] void StoreSums(const MatMulArgs& args, int64_t panel, int64_t row_begin,
                                int64_t rows, const float* sums) {
  const int64_t first = panel * kPanelRows;
  const int64_t columns = MinOf(kPanelRows, args.n - first);
  const Vec bias = args.bias != nullptr ? LoadPartial(args.bias + first, columns) : Zero();
  for (int64_t r = 0; r < rows; ++r) {
    Vec sum = Load(sums + r * kLanes);
    if (args.bias != nullptr) sum = Add(sum, bias);
    StorePartial(args.out + (row_begin + r) * args.out_stride + first, sum, columns);
  }
}

// Panel by panel, in even tiles of at most kMaxRows rows: calls tile(panel, row, rows, sums) for
// the sums [rows][16] of each, and stores them.
template <int kMaxRows, typename Tile>
void ForEachTile(const MatMulArgs& args, int64_t panel_begin, int64_t panel_end, int64_t row_begin,
                 int64_t row_end, Tile&& tile) {
  const int64_t panel_bytes = PanelBytes(args.format, args.k);
  alignas(64) float sums[kMaxRows * kLanes];
  const int64_t most = EvenTile(row_end - row_begin, kMaxRows);
  for (int64_t n = panel_begin; n < panel_end; ++n) {
    for (int64_t row = row_begin; row < row_end; row += most) {
      const int64_t rows = MinOf(most, row_end - row);
      tile(args.weight + n * panel_bytes, row, rows, static_cast<float*>(sums));
      StoreSums(args, n, row, rows, sums);
    }
  }
}

// One row by BF16 panels, the products added as MatMulF32 adds them.
[[maybe_unused]] void MatMulBf16Row(const MatMulArgs& args, int64_t panel_begin, int64_t panel_end,
                                    int64_t row) {
  const int64_t panel_bytes = PanelBytes(kPackBf16, args.k);
  const float* x = args.x + row * args.x_stride;
  const VecI odd = SetI(static_cast<int32_t>(0xFFFF0000));
  for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
    const std::byte* pairs = args.weight + panel * panel_bytes;
    Vec sum = Zero();
    int64_t k = 0;
    for (; k + 2 <= args.k; k += 2, pairs += 64) {
      const VecI pair = LoadI(pairs);
      sum = MulAdd(FloatOfBf16(pair), Set(x[k]), sum);
      sum = MulAdd(AsFloat(And(pair, odd)), Set(x[k + 1]), sum);
    }
    if (k < args.k) sum = MulAdd(FloatOfBf16(LoadI(pairs)), Set(x[k]), sum);
    alignas(64) float sums[kLanes];
    Store(sums, sum);
    StoreSums(args, panel, row, 1, sums);
  }
}

[[maybe_unused]] void MatMulF32(const MatMulArgs& args, int64_t panel_begin, int64_t panel_end,
                                int64_t row_begin, int64_t row_end) {
  if (args.format == kPackBf16 && row_end - row_begin == 1) {
    return MatMulBf16Row(args, panel_begin, panel_end, row_begin);
  }
  alignas(64) float expanded[kColumnBlock * kLanes];
  alignas(64) float sums[kRowBlock * kLanes];
  const int64_t panel_bytes = PanelBytes(args.format, args.k);
  for (; row_begin < row_end; row_begin += kRowBlock) {
    const int64_t rows = MinOf(kRowBlock, row_end - row_begin);
    const int64_t tile = EvenTile(rows, kMatMulRows);
    for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
      const std::byte* weight = args.weight + panel * panel_bytes;
      __builtin_memset(sums, 0, sizeof(float) * static_cast<size_t>(rows * kLanes));
      for (int64_t k = 0; k < args.k; k += kColumnBlock) {
        const int64_t count = MinOf(kColumnBlock, args.k - k);
        const float* w = expanded;
        if (args.format == kPackF32) {
          w = At<float>(weight, k * 64);
        } else {
          ExpandPanel(args.format, weight, k, k + count, expanded);
        }
        for (int64_t r = 0; r < rows; r += tile) {
          RunBlock<MulAddRows, kMatMulRows>(MinOf(tile, rows - r), w, count,
                                            args.x + (row_begin + r) * args.x_stride + k,
                                            args.x_stride, sums + r * kLanes);
        }
      }
      StoreSums(args, panel, row_begin, rows, sums);
    }
  }
}

}  // namespace
}  // namespace tern
