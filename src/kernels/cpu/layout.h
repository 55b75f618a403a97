// Layouts of PackedMatrix: the one place that says where a weight lies.
//
// A matrix [n, k] is cut into panels of 16 rows; the last panel is filled up with zero rows. Inside
// a panel the 16 rows lie side by side, so that one register holds one column (or a pair of
// columns) of all of them. Pairs are what BF16 dot products consume.
//
// A panel is a row of blocks, each of so many columns that the parts of a block (super scales,
// scales, quants, in this order) are multiples of 64 bytes. So a panel is read from its first byte
// to its last: one stream, which memory delivers faster than one stream for each part
// (docs/decisions/010-a-panel-is-one-stream.md).
// The last block may have fewer columns: it ends after their quants. Numbers are little-endian.
//
//   kPackF32   1 column:     [16] f32
//   kPackBf16  2 columns:    [16][2] bf16, the odd column zero
//   kPackQ4_0  64 columns:   scales [2][16] f16 d               w = d * (q - 8)
//   kPackQ4_1  32 columns:   scales [16] f16 d, [16] f16 m      w = d * q + m
//   kPackQ4_K  256 columns:  super [16] f16 d, [16] f16 dmin
//              scales [8]{[16] u8 s, [16] u8 m}                 w = (d * s) * q - (dmin * m)
//     all three: quants [columns/8][16][2] u16; nibble j (bits 4j..4j+3) of word (row, parity) of
//     word group b is q of column 8b + 2j + parity.
//   kPackQ8_0  64 columns:   scales [2][16] f16 d; quants [32][16][2] i8   w = d * q
//   kPackQ6_K  512 columns:  super [2][16] f16 d; scales [32][16] i8 s     w = (d * s) * (q - 32)
//     quants [32][3][16][2] u16. Word t < 3 of (row, parity) of word group b holds q of column
//     16b + 4t + parity in bits 0..5 and of 16b + 4t + 2 + parity in bits 6..11. Bits 12..15 of
//     words 0 and 1 are the low four bits of columns 16b + 12 + parity and 16b + 14 + parity,
//     whose two high bits are bits 12..13 and 14..15 of word 2.
//   kPackFp8   2048 columns: scales [16] f32 d, each for all 16 rows   w = d * e4m3
//     quants [1024][16][2] e4m3, columns from k on zero up to a multiple of 4
//   kPackInt4 and up to 31 more (Int4Format), for groups of 32, 64 or 128 columns: a block has one
//     group, two if scales are of 16 bits, four if there are zero points
//              super [groups][16] i8 z, absent when symmetric
//              scales [groups][16] bf16, f16 or f32 d                  w = d * (q - 8 + z)
//              quants as kPackQ4_0
//
// Bytes per weight equal the checkpoint's, except Q4_K: 148/144 (the 6-bit scales become bytes, so
// that nothing is rounded) and zero points (a byte, not a nibble: at most 1.04). Padding: up to 15
// rows, and the scales that a last block's missing columns would have.
//
// Included by ISA files: plain constants and internal linkage only (DESIGN rule 9).
#pragma once

#include <cstdint>

namespace tern {

enum PackFormat : int {
  kPackF32,
  kPackBf16,
  kPackQ4_0,
  kPackQ4_1,
  kPackQ8_0,
  kPackQ4_K,
  kPackQ6_K,
  kPackFp8,
  kPackInt4 = 64,  // plus the bits of Int4Format
};

namespace {

constexpr int64_t kPanelRows = 16;
constexpr int64_t kFp8Group = 128;  // columns that share a scale

// The variants of kPackInt4.
enum Int4Scale : int { kInt4Bf16, kInt4F16, kInt4F32 };
struct Int4Format {
  int64_t group;
  Int4Scale scale;
  bool zeros;
  constexpr int group_bits() const { return group == 32 ? 5 : group == 64 ? 6 : 7; }
};
[[maybe_unused]] constexpr bool IsInt4(int format) { return format >= kPackInt4; }
// Formats whose quants lie as kPackQ4_0's.
[[maybe_unused]] constexpr bool Is4Bit(int format) {
  return IsInt4(format) || format == kPackQ4_0 || format == kPackQ4_1 || format == kPackQ4_K;
}
[[maybe_unused]] constexpr int PackInt4Of(const Int4Format& f) {
  return kPackInt4 + (f.group == 32 ? 0 : f.group == 64 ? 1 : 2) + (f.scale << 2) + (f.zeros << 4);
}
[[maybe_unused]] constexpr Int4Format Int4FormatOf(int format) {
  return {int64_t{32} << (format & 3), static_cast<Int4Scale>(format >> 2 & 3),
          (format >> 4 & 1) != 0};
}

// One block of columns of a panel.
struct PanelBlock {
  int column_bits;       // it has 1 << column_bits columns
  int64_t scales;        // where they begin in the block, in bytes; super scales are at 0
  int64_t quants;        // the same
  int64_t column_bytes;  // of quants
  int64_t bytes;         // of the block
};

[[maybe_unused]] constexpr PanelBlock MakePanelBlock(int column_bits, int64_t super_bytes,
                                                     int64_t scales_bytes, int64_t column_bytes) {
  const int64_t quants = super_bytes + scales_bytes;
  return {column_bits, super_bytes, quants, column_bytes, quants + (column_bytes << column_bits)};
}

[[maybe_unused]] constexpr PanelBlock PanelBlockOf(int format) {
  if (IsInt4(format)) {
    const Int4Format f = Int4FormatOf(format);
    const int more_bits = f.zeros ? 2 : f.scale == kInt4F32 ? 0 : 1;
    return MakePanelBlock(f.group_bits() + more_bits, f.zeros ? 64 : 0,
                          int64_t{f.scale == kInt4F32 ? 64 : 32} << more_bits, 8);
  }
  switch (format) {
    case kPackF32:
      return MakePanelBlock(0, 0, 0, 64);
    case kPackBf16:
      return MakePanelBlock(1, 0, 0, 32);
    case kPackQ4_0:
      return MakePanelBlock(6, 0, 64, 8);
    case kPackQ4_1:
      return MakePanelBlock(5, 0, 64, 8);
    case kPackQ8_0:
      return MakePanelBlock(6, 0, 64, 16);
    case kPackQ4_K:
      return MakePanelBlock(8, 64, 256, 8);
    case kPackQ6_K:
      return MakePanelBlock(9, 64, 512, 12);
    case kPackFp8:
      return MakePanelBlock(11, 0, 64, 16);
  }
  return {};
}

// `column` counted from the first of its block.
[[maybe_unused]] constexpr int64_t InBlock(const PanelBlock& block, int64_t column) {
  return column & ((int64_t{1} << block.column_bits) - 1);
}
// Byte offsets in a panel: of the block that holds `column`,
[[maybe_unused]] constexpr int64_t BlockAt(const PanelBlock& block, int64_t column) {
  return (column >> block.column_bits) * block.bytes;
}
// of the column's quants (for a column with which a pair, or a group of words, begins),
[[maybe_unused]] constexpr int64_t QuantsAt(const PanelBlock& block, int64_t column) {
  return BlockAt(block, column) + block.quants + InBlock(block, column) * block.column_bytes;
}
// and of its scales and super scales, of `bytes` bytes (of all 16 rows) for every `columns`
// columns.
[[maybe_unused]] constexpr int64_t ScalesAt(const PanelBlock& block, int64_t column,
                                            int64_t columns, int64_t bytes) {
  return BlockAt(block, column) + block.scales + InBlock(block, column) / columns * bytes;
}
[[maybe_unused]] constexpr int64_t SuperAt(const PanelBlock& block, int64_t column, int64_t columns,
                                           int64_t bytes) {
  return BlockAt(block, column) + InBlock(block, column) / columns * bytes;
}

// REQUIRES: k is a multiple of the format's group.
[[maybe_unused]] constexpr int64_t PanelBytes(int format, int64_t k) {
  const PanelBlock block = PanelBlockOf(format);
  const int64_t rest = InBlock(block, k);
  const int64_t rest_bytes = (rest * block.column_bytes + 63) / 64 * 64;
  return BlockAt(block, k) + (rest == 0 ? 0 : block.quants + rest_bytes);
}

[[maybe_unused]] constexpr int64_t PanelsOf(int64_t n) { return (n + kPanelRows - 1) / kPanelRows; }

}  // namespace
}  // namespace tern
