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
// Bytes per weight equal the checkpoint's, except Q4_K: 148/144 (the 6-bit scales become bytes, so
// that nothing is rounded). Padding: up to 15 rows, and up to 63 bytes per region and panel.
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
};

namespace {

constexpr int64_t kPanelRows = 16;

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
  }
  return {};
}

[[maybe_unused]] constexpr int64_t PanelsOf(int64_t n) { return (n + kPanelRows - 1) / kPanelRows; }

}  // namespace
}  // namespace tern
