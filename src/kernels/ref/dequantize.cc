#include "kernels/ref/dequantize.h"

#include <bit>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/layout.h"
#include "tensor/number.h"

namespace tern {
namespace {

uint16_t ReadU16(const uint8_t* p) { return static_cast<uint16_t>(p[0] | p[1] << 8); }
float ReadF16(const uint8_t* p) { return FloatFromF16(ReadU16(p)); }

void DequantizeQ4_0(const uint8_t* block, float* out) {
  const float d = ReadF16(block);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((block[2 + i] & 15) - 8);
    out[i + 16] = d * static_cast<float>((block[2 + i] >> 4) - 8);
  }
}

void DequantizeQ4_1(const uint8_t* block, float* out) {
  const float d = ReadF16(block), m = ReadF16(block + 2);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(block[4 + i] & 15) + m;
    out[i + 16] = d * static_cast<float>(block[4 + i] >> 4) + m;
  }
}

void DequantizeQ8_0(const uint8_t* block, float* out) {
  const float d = ReadF16(block);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(static_cast<int8_t>(block[2 + i]));
}

void DequantizeQ4_K(const uint8_t* block, float* out) {
  const float d = ReadF16(block), dmin = ReadF16(block + 2);
  for (int sub = 0; sub < 8; ++sub) {
    uint8_t scale = 0, minimum = 0;
    UnpackQ4KScale(block + 4, sub, &scale, &minimum);
    const float sub_d = d * static_cast<float>(scale), sub_m = dmin * static_cast<float>(minimum);
    for (int i = 0; i < 32; ++i) {
      const uint8_t byte = block[16 + sub / 2 * 32 + i];
      const int q = sub % 2 == 0 ? byte & 15 : byte >> 4;
      out[sub * 32 + i] = sub_d * static_cast<float>(q) - sub_m;
    }
  }
}

void DequantizeQ6_K(const uint8_t* block, float* out) {
  const float d = ReadF16(block + 208);
  for (int i = 0; i < 256; ++i) {
    const auto scale = static_cast<int8_t>(block[192 + i / 16]);
    out[i] = d * static_cast<float>(scale) * static_cast<float>(UnpackQ6K(block, i) - 32);
  }
}

uint32_t ReadU32(const std::byte* p) {
  uint32_t word = 0;
  std::memcpy(&word, p, sizeof(word));
  return word;
}

void DequantizeFp8Row(const WeightView& weight, int64_t row, float* out) {
  const int64_t blocks = (weight.columns + weight.block_columns - 1) / weight.block_columns;
  const auto* bytes = weight.data.data<uint8_t>() + row * weight.columns;
  for (int64_t i = 0; i < weight.columns; ++i) {
    const int64_t block = row / weight.block_rows * blocks + i / weight.block_columns;
    out[i] = FloatFromE4m3(bytes[i]) * ScaleAt(weight.scales, block);
  }
}

void DequantizeInt4Row(const WeightView& weight, int64_t row, float* out) {
  const int64_t groups = weight.columns / weight.group;
  const std::byte* words = weight.data.bytes.data() + row * (weight.columns / 8) * 4;
  for (int64_t i = 0; i < weight.columns; ++i) {
    const auto q = static_cast<int>(ReadU32(words + i / 8 * 4) >> (i % 8 * 4) & 15);
    const int64_t group = i / weight.group;
    out[i] = static_cast<float>(q - ZeroPointAt(weight, row, group)) *
             ScaleAt(weight.scales, row * groups + group);
  }
}

}  // namespace

float ScaleAt(const TensorView& scales, int64_t index) {
  float scale = 0;
  DequantizeBlocks(scales.dtype, scales.bytes.data() + index * InfoOf(scales.dtype).block_bytes, 1,
                   &scale);
  return scale;
}

int ZeroPointAt(const WeightView& weight, int64_t row, int64_t group) {
  if (weight.zero_points.bytes.empty()) return 8;
  const int64_t word = row / 8 * (weight.columns / weight.group) + group;
  return static_cast<int>(ReadU32(weight.zero_points.bytes.data() + word * 4) >> (row % 8 * 4) &
                          15);
}

void DequantizeWeightRow(const WeightView& weight, int64_t row, float* out) {
  switch (weight.scheme) {
    case WeightView::Scheme::kPlain: {
      const DTypeInfo& info = InfoOf(weight.data.dtype);
      const int64_t row_bytes = weight.columns / info.block_elements * info.block_bytes;
      return DequantizeBlocks(weight.data.dtype, weight.data.bytes.data() + row * row_bytes,
                              weight.columns, out);
    }
    case WeightView::Scheme::kFp8Block:
      return DequantizeFp8Row(weight, row, out);
    case WeightView::Scheme::kInt4Group:
      return DequantizeInt4Row(weight, row, out);
  }
}

bool IsWeightType(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ8_0:
    case DType::kQ4_K:
    case DType::kQ6_K:
      return true;
    default:
      return false;
  }
}

void UnpackQ4KScale(const uint8_t* scales, int index, uint8_t* scale, uint8_t* minimum) {
  if (index < 4) {
    *scale = scales[index] & 63;
    *minimum = scales[index + 4] & 63;
  } else {
    *scale = static_cast<uint8_t>((scales[index + 4] & 15) | scales[index - 4] >> 6 << 4);
    *minimum = static_cast<uint8_t>(scales[index + 4] >> 4 | scales[index] >> 6 << 4);
  }
}

uint8_t UnpackQ6K(const uint8_t* block, int index) {
  // Halves of 128: four runs of 32 share 64 bytes of low nibbles and 32 bytes of bit pairs.
  const int half = index / 128, run = index % 128 / 32, i = index % 32;
  const uint8_t low = block[half * 64 + run % 2 * 32 + i];
  const uint8_t high = block[128 + half * 32 + i];
  return static_cast<uint8_t>((run < 2 ? low & 15 : low >> 4) | (high >> (2 * run) & 3) << 4);
}

void DequantizeBlocks(DType dtype, const std::byte* bytes, int64_t elements, float* out) {
  TERN_CHECK(IsWeightType(dtype));
  const DTypeInfo& info = InfoOf(dtype);
  const auto* p = reinterpret_cast<const uint8_t*>(bytes);
  for (int64_t i = 0; i < elements; i += info.block_elements, p += info.block_bytes) {
    switch (dtype) {
      case DType::kF32:
        std::memcpy(out + i, p, sizeof(float));
        break;
      case DType::kF16:
        out[i] = ReadF16(p);
        break;
      case DType::kBF16:
        out[i] = FloatFromBf16(ReadU16(p));
        break;
      case DType::kQ4_0:
        DequantizeQ4_0(p, out + i);
        break;
      case DType::kQ4_1:
        DequantizeQ4_1(p, out + i);
        break;
      case DType::kQ8_0:
        DequantizeQ8_0(p, out + i);
        break;
      case DType::kQ4_K:
        DequantizeQ4_K(p, out + i);
        break;
      case DType::kQ6_K:
        DequantizeQ6_K(p, out + i);
        break;
      default:
        break;
    }
  }
}

double PackedWeight(int format, const std::byte* packed, int64_t k, int64_t row, int64_t column) {
  const PanelBlock block = PanelBlockOf(format);
  const auto* panel =
      reinterpret_cast<const uint8_t*>(packed) + row / kPanelRows * PanelBytes(format, k);
  // Of `bytes` bytes, of all 16 rows, for every `columns` columns.
  const auto super = [&](int64_t columns, int64_t bytes) {
    return panel + SuperAt(block, column, columns, bytes);
  };
  const auto scales = [&](int64_t columns, int64_t bytes) {
    return panel + ScalesAt(block, column, columns, bytes);
  };
  const auto quants = [&](int64_t columns) {
    return panel + QuantsAt(block, column / columns * columns);
  };
  const int64_t r = row % kPanelRows, parity = column % 2;
  const auto nibble = [&] {
    const uint16_t word = ReadU16(quants(8) + r * 4 + parity * 2);
    return static_cast<double>(word >> (column % 8 / 2 * 4) & 15);
  };
  if (IsInt4(format)) {
    const Int4Format f = Int4FormatOf(format);
    const uint8_t* scale = scales(f.group, f.scale == kInt4F32 ? 64 : 32);
    const int z = f.zeros ? static_cast<int8_t>(super(f.group, kPanelRows)[r]) : 0;
    float d = 0;
    switch (f.scale) {
      case kInt4Bf16:
        d = FloatFromBf16(ReadU16(scale + r * 2));
        break;
      case kInt4F16:
        d = ReadF16(scale + r * 2);
        break;
      case kInt4F32:
        std::memcpy(&d, scale + r * 4, sizeof(d));
        break;
    }
    return double{d} * (nibble() - 8 + z);
  }
  switch (format) {
    case kPackF32: {
      float weight = 0;
      std::memcpy(&weight, quants(1) + r * 4, sizeof(weight));
      return weight;
    }
    case kPackBf16:
      return FloatFromBf16(ReadU16(quants(2) + r * 4 + parity * 2));
    case kPackQ4_0:
      return double{ReadF16(scales(32, 32) + r * 2)} * (nibble() - 8);
    case kPackQ4_1: {
      const uint8_t* scale = scales(32, 64) + r * 2;
      return double{ReadF16(scale)} * nibble() + double{ReadF16(scale + 32)};
    }
    case kPackQ4_K: {
      const uint8_t* scale = scales(32, 32) + r;
      return double{ReadF16(super(256, 64) + r * 2)} * scale[0] * nibble() -
             double{ReadF16(super(256, 64) + 32 + r * 2)} * scale[16];
    }
    case kPackQ8_0:
      return double{ReadF16(scales(32, 32) + r * 2)} *
             static_cast<int8_t>(quants(2)[r * 2 + parity]);
    case kPackQ6_K: {
      const uint8_t* words = quants(16) + r * 4 + parity * 2;
      const auto word = [&](int64_t t) { return int{ReadU16(words + t * 64)}; };
      const int64_t pair = column % 16 / 2;
      int q = 0;
      if (pair < 6) {
        q = word(pair / 2) >> (pair % 2 * 6) & 63;
      } else {
        q = word(pair - 6) >> 12 | (word(2) >> (pair == 6 ? 12 : 14) & 3) << 4;
      }
      const auto scale = static_cast<int8_t>(scales(16, 16)[r]);
      return double{ReadF16(super(256, 32) + r * 2)} * scale * (q - 32);
    }
    case kPackFp8: {
      float d = 0;
      std::memcpy(&d, scales(kFp8Group, 4), sizeof(d));
      return double{d} * FloatFromE4m3(quants(2)[r * 2 + parity]);
    }
  }
  return 0.0;
}

}  // namespace tern
