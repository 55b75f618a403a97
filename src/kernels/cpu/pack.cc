#include "kernels/cpu/pack.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "kernels/ref/dequantize.h"
#include "tensor/number.h"

namespace tern {
namespace {

// Where row r of a panel's 16 goes.
struct RowTarget {
  PanelBlock block;
  uint8_t* panel;
  int64_t r;

  // Of `bytes` bytes, of all 16 rows, for every `columns` columns.
  uint8_t* Super(int64_t column, int64_t columns, int64_t bytes) const {
    return panel + SuperAt(block, column, columns, bytes);
  }
  uint8_t* Scales(int64_t column, int64_t columns, int64_t bytes) const {
    return panel + ScalesAt(block, column, columns, bytes);
  }
  uint8_t* Quants(int64_t column) const { return panel + QuantsAt(block, column); }
  void PutU16(uint8_t* base, const uint8_t* value) const { std::memcpy(base + r * 2, value, 2); }
  // Nibble q of column k of the 4-bit formats.
  void PutNibble(int64_t k, int q) const {
    uint8_t* word = Quants(k / 8 * 8) + r * 4 + k % 2 * 2;
    const int bit = static_cast<int>(k % 8 / 2 * 4);
    word[bit / 8] = static_cast<uint8_t>(word[bit / 8] | q << bit % 8);
  }
};

void PackFloats(const float* row, int64_t k, PackFormat format, const RowTarget& to) {
  for (int64_t i = 0; i < k; ++i) {
    if (format == kPackF32) {
      std::memcpy(to.Quants(i) + to.r * 4, &row[i], sizeof(float));
    } else {
      const uint16_t bits = Bf16FromFloat(row[i]);
      std::memcpy(to.Quants(i / 2 * 2) + to.r * 4 + i % 2 * 2, &bits, sizeof(bits));
    }
  }
}

// Q4_0 and Q4_1: `head` bytes of scales, then nibbles: elements i and i + 16 share byte i.
void PackQ4(const uint8_t* row, int64_t k, int64_t head, const RowTarget& to) {
  for (int64_t begin = 0; begin < k; begin += 32, row += head + 16) {
    uint8_t* scales = to.Scales(begin, 32, head * 16);
    to.PutU16(scales, row);
    if (head == 4) to.PutU16(scales + 32, row + 2);
    for (int i = 0; i < 16; ++i) {
      to.PutNibble(begin + i, row[head + i] & 15);
      to.PutNibble(begin + i + 16, row[head + i] >> 4);
    }
  }
}

void PackQ4K(const uint8_t* row, int64_t k, const RowTarget& to) {
  for (int64_t begin = 0; begin < k; begin += 256, row += 144) {
    to.PutU16(to.Super(begin, 256, 64), row);
    to.PutU16(to.Super(begin, 256, 64) + 32, row + 2);
    for (int sub = 0; sub < 8; ++sub) {
      uint8_t* scale = to.Scales(begin + sub * 32, 32, 32) + to.r;
      UnpackQ4KScale(row + 4, sub, scale, scale + 16);
      for (int i = 0; i < 32; ++i) {
        const uint8_t byte = row[16 + sub / 2 * 32 + i];
        to.PutNibble(begin + sub * 32 + i, sub % 2 == 0 ? byte & 15 : byte >> 4);
      }
    }
  }
}

void PackQ8(const uint8_t* row, int64_t k, const RowTarget& to) {
  for (int64_t begin = 0; begin < k; begin += 32, row += 34) {
    to.PutU16(to.Scales(begin, 32, 32), row);
    for (int64_t i = 0; i < 32; i += 2) to.PutU16(to.Quants(begin + i), row + 2 + i);
  }
}

void PackQ6K(const uint8_t* row, int64_t k, const RowTarget& to) {
  for (int64_t begin = 0; begin < k; begin += 256, row += 210) {
    to.PutU16(to.Super(begin, 256, 32), row + 208);
    for (int group = 0; group < 16; ++group) {
      const int64_t column = begin + group * 16;
      to.Scales(column, 16, 16)[to.r] = row[192 + group];
      for (int parity = 0; parity < 2; ++parity) {
        const auto q = [&](int pair) {
          return int{UnpackQ6K(row, group * 16 + pair * 2 + parity)};
        };
        const int word[3] = {q(0) | q(1) << 6 | (q(6) & 15) << 12,
                             q(2) | q(3) << 6 | (q(7) & 15) << 12,
                             q(4) | q(5) << 6 | (q(6) >> 4) << 12 | (q(7) >> 4) << 14};
        for (int t = 0; t < 3; ++t) {
          uint8_t* target = to.Quants(column) + t * 64 + to.r * 4 + parity * 2;
          target[0] = static_cast<uint8_t>(word[t]);
          target[1] = static_cast<uint8_t>(word[t] >> 8);
        }
      }
    }
  }
}

// Two columns of 16 rows side by side. False if a number is NaN.
bool PackFp8(const uint8_t* row, int64_t k, const RowTarget& to) {
  bool finite = true;
  for (int64_t i = 0; i < k; ++i) {
    to.Quants(i / 2 * 2)[to.r * 2 + i % 2] = row[i];
    finite &= (row[i] & 0x7F) != 0x7F;
  }
  return finite;
}

// Nibbles 0, 2, 4 and 6 of a word.
uint32_t EvenNibbles(uint32_t word) {
  word &= 0x0F0F0F0F;
  word = (word | word >> 4) & 0x00FF00FF;
  return (word | word >> 8) & 0xFFFF;
}

void PackInt4(const WeightView& weight, int64_t row, const Int4Format& format,
              const RowTarget& to) {
  const std::byte* words = weight.data.bytes.data() + row * (weight.columns / 8) * 4;
  for (int64_t i = 0; i < weight.columns / 8; ++i) {
    uint32_t word = 0;
    std::memcpy(&word, words + i * 4, sizeof(word));
    word = EvenNibbles(word) | EvenNibbles(word >> 4) << 16;
    std::memcpy(to.Quants(i * 8) + to.r * 4, &word, sizeof(word));
  }
  const int64_t groups = weight.columns / format.group;
  const int64_t scale_bytes = format.scale == kInt4F32 ? 4 : 2;
  const std::byte* scales = weight.scales.bytes.data() + row * groups * scale_bytes;
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t column = group * format.group;
    std::memcpy(to.Scales(column, format.group, kPanelRows * scale_bytes) + to.r * scale_bytes,
                scales + group * scale_bytes, static_cast<size_t>(scale_bytes));
    if (!format.zeros) continue;
    to.Super(column, format.group, kPanelRows)[to.r] =
        static_cast<uint8_t>(8 - ZeroPointAt(weight, row, group));
  }
}

}  // namespace

PackFormat PackFormatOf(DType dtype, Precision precision) {
  TERN_CHECK(IsWeightType(dtype));
  if (precision == Precision::kReference) return kPackF32;
  switch (dtype) {
    case DType::kQ4_0:
      return kPackQ4_0;
    case DType::kQ4_1:
      return kPackQ4_1;
    case DType::kQ8_0:
      return kPackQ8_0;
    case DType::kQ4_K:
      return kPackQ4_K;
    case DType::kQ6_K:
      return kPackQ6_K;
    default:
      return kPackBf16;
  }
}

void PackPanels(const TensorView& weight, PackFormat format, int64_t panel_begin, int64_t panel_end,
                std::byte* packed) {
  const int64_t n = weight.shape[0], k = weight.shape[1];
  if (k == 0) return;
  const int64_t panel_bytes = PanelBytes(format, k);
  const DTypeInfo& info = InfoOf(weight.dtype);
  const int64_t row_bytes = k / info.block_elements * info.block_bytes;
  std::vector<float> floats;
  if (format == kPackF32 || format == kPackBf16) floats.resize(static_cast<size_t>(k));
  for (int64_t row = panel_begin * kPanelRows; row < std::min(n, panel_end * kPanelRows); ++row) {
    auto* panel = reinterpret_cast<uint8_t*>(packed) + row / kPanelRows * panel_bytes;
    const RowTarget to{PanelBlockOf(format), panel, row % kPanelRows};
    const std::byte* from = weight.bytes.data() + row * row_bytes;
    const auto* blocks = reinterpret_cast<const uint8_t*>(from);
    switch (format) {
      case kPackF32:
      case kPackBf16:
        DequantizeBlocks(weight.dtype, from, k, floats.data());
        PackFloats(floats.data(), k, format, to);
        break;
      case kPackQ4_0:
        PackQ4(blocks, k, 2, to);
        break;
      case kPackQ4_1:
        PackQ4(blocks, k, 4, to);
        break;
      case kPackQ8_0:
        PackQ8(blocks, k, to);
        break;
      case kPackQ4_K:
        PackQ4K(blocks, k, to);
        break;
      case kPackQ6_K:
        PackQ6K(blocks, k, to);
        break;
      case kPackFp8:
      case kPackInt4:
        TERN_CHECK(false);  // not of a single tensor
        break;
    }
  }
}

PackFormat PackFormatOf(const WeightView& weight, Precision precision) {
  TERN_CHECK(weight.scheme != WeightView::Scheme::kPlain);
  if (precision == Precision::kReference) return kPackF32;
  if (weight.scheme == WeightView::Scheme::kFp8Block) return kPackFp8;
  const DType scale = weight.scales.dtype;
  return static_cast<PackFormat>(PackInt4Of({
      .group = weight.group,
      .scale = scale == DType::kBF16  ? kInt4Bf16
               : scale == DType::kF16 ? kInt4F16
                                      : kInt4F32,
      .zeros = !weight.zero_points.bytes.empty(),
  }));
}

bool PackPanels(const WeightView& weight, PackFormat format, int64_t panel_begin, int64_t panel_end,
                std::byte* packed) {
  const int64_t n = weight.rows, k = weight.columns;
  const int64_t panel_bytes = PanelBytes(format, k);
  std::vector<float> floats(format == kPackF32 ? static_cast<size_t>(k) : 0);
  bool finite = true;
  for (int64_t row = panel_begin * kPanelRows; row < std::min(n, panel_end * kPanelRows); ++row) {
    auto* panel = reinterpret_cast<uint8_t*>(packed) + row / kPanelRows * panel_bytes;
    const RowTarget to{PanelBlockOf(format), panel, row % kPanelRows};
    if (format == kPackF32) {
      DequantizeWeightRow(weight, row, floats.data());
      finite &= std::none_of(floats.begin(), floats.end(), [](float w) { return w != w; });
      PackFloats(floats.data(), k, format, to);
    } else if (format == kPackFp8) {
      finite &= PackFp8(weight.data.data<uint8_t>() + row * k, k, to);
      const int64_t blocks = (k + kFp8Group - 1) / kFp8Group;
      const std::byte* scales =
          weight.scales.bytes.data() + row / weight.block_rows * blocks * sizeof(float);
      for (int64_t i = 0; i < blocks; ++i) {
        std::memcpy(to.Scales(i * kFp8Group, kFp8Group, 4), scales + i * 4, sizeof(float));
      }
    } else {
      PackInt4(weight, row, Int4FormatOf(format), to);
    }
  }
  return finite;
}

}  // namespace tern
