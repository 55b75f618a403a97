// Layouts of PackedMatrix: the one place that says where a weight lies.
//
// A matrix [n, k] is cut into panels of 16 rows; the last panel is filled up with zero rows. Inside
// a panel the 16 rows lie side by side, so that one register holds one column (or a pair of
// columns) of all of them. Pairs are what BF16 dot products consume. Regions start at multiples of
// 64 bytes; numbers are little-endian.
//
//   kPackF32   [k][16] f32
//   kPackBf16  [ceil(k/2)][16][2] bf16, the odd column zero
//   kPackQ4_0  scales [k/32][16] f16 d                        w = d * (q - 8)
//   kPackQ4_1  scales [k/32]{[16] f16 d, [16] f16 m}          w = d * q + m
//   kPackQ4_K  super  [k/256]{[16] f16 d, [16] f16 dmin}
//              scales [k/32]{[16] u8 s, [16] u8 m}            w = (d * s) * q - (dmin * m)
//     all three: quants [k/8][16][2] u16; nibble j (bits 4j..4j+3) of word (row, parity) of block b
//     is q of column 8b + 2j + parity.
//   kPackQ8_0  scales [k/32][16] f16 d; quants [k/2][16][2] i8   w = d * q
//   kPackQ6_K  super [k/256][16] f16 d; scales [k/16][16] i8 s   w = (d * s) * (q - 32)
//     quants [k/16][3][16][2] u16. Word t < 3 of (row, parity) of block b holds q of column
//     16b + 4t + parity in bits 0..5 and of 16b + 4t + 2 + parity in bits 6..11. Bits 12..15 of
//     words 0 and 1 are the low four bits of columns 16b + 12 + parity and 16b + 14 + parity,
//     whose two high bits are bits 12..13 and 14..15 of word 2.
//
//   kPackFp8   scales [ceil(k/128)] f32 d, one for all 16 rows   w = d * e4m3
//     quants [2 * ceil(k/4)][16][2] e4m3, columns from k on zero
//   kPackInt4 and up to 31 more (Int4Format): groups of 32, 64 or 128 columns
//              super  [k/group][16] i8 z, absent when symmetric
//              scales [k/group][16] bf16, f16 or f32 d           w = d * (q - 8 + z)
//              quants as kPackQ4_0
//
// Bytes per weight equal the checkpoint's, except Q4_K: 148/144 (the 6-bit scales become bytes, so
// that nothing is rounded) and zero points (a byte, not a nibble: at most 1.04). Padding: up to 15
// rows, and up to 63 bytes per region and panel.
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

// Byte offsets of a panel's regions, and the panel's size.
struct PanelLayout {
  int64_t super, scales, quants, stride;
};

[[maybe_unused]] constexpr int64_t AlignTo64(int64_t bytes) { return (bytes + 63) / 64 * 64; }

[[maybe_unused]] constexpr PanelLayout MakePanelLayout(int64_t super_bytes, int64_t scales_bytes,
                                                       int64_t quants_bytes) {
  const int64_t scales = AlignTo64(super_bytes);
  const int64_t quants = scales + AlignTo64(scales_bytes);
  return {0, scales, quants, quants + AlignTo64(quants_bytes)};
}

// REQUIRES: k is a multiple of the format's block.
[[maybe_unused]] constexpr PanelLayout PanelLayoutOf(int format, int64_t k) {
  if (IsInt4(format)) {
    const Int4Format f = Int4FormatOf(format);
    const int64_t groups = k / f.group;
    return MakePanelLayout(f.zeros ? groups * 16 : 0, groups * (f.scale == kInt4F32 ? 64 : 32),
                           k / 8 * 64);
  }
  switch (format) {
    case kPackF32:
      return MakePanelLayout(0, 0, k * 64);
    case kPackBf16:
      return MakePanelLayout(0, 0, (k + 1) / 2 * 64);
    case kPackQ4_0:
      return MakePanelLayout(0, k / 32 * 32, k / 8 * 64);
    case kPackQ4_1:
      return MakePanelLayout(0, k / 32 * 64, k / 8 * 64);
    case kPackQ8_0:
      return MakePanelLayout(0, k / 32 * 32, k / 2 * 32);
    case kPackQ4_K:
      return MakePanelLayout(k / 256 * 64, k / 32 * 32, k / 8 * 64);
    case kPackQ6_K:
      return MakePanelLayout(k / 256 * 32, k / 16 * 16, k / 16 * 192);
    case kPackFp8:
      return MakePanelLayout(0, (k + kFp8Group - 1) / kFp8Group * 4, (k + 3) / 4 * 64);
  }
  return {};
}

[[maybe_unused]] constexpr int64_t PanelsOf(int64_t n) { return (n + kPanelRows - 1) / kPanelRows; }

}  // namespace
}  // namespace tern
