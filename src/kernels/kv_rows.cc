#include "kernels/kv_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "tensor/number.h"

namespace tern {
namespace {

// Numbers that are rounded at a time: on the stack, a multiple of every tile.
constexpr int64_t kPiece = 1024;

// The largest magnitude of n BF16 numbers, as bits; NaN counts as none.
uint16_t LargestMagnitude(const uint16_t* x, int64_t n) {
  constexpr uint16_t kInfinity = 0x7F80;
  uint16_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint16_t magnitude = x[i] & 0x7FFF;
    largest = std::max(largest, magnitude <= kInfinity ? magnitude : uint16_t{0});
  }
  return largest;
}

// 448 for infinite numbers: they saturate, and a scale stays finite.
float FiniteMagnitude(uint16_t bits) {
  return std::min(FloatFromBf16(bits), FloatFromBf16(0x7F7F));
}

// One part of one row.
void WritePart(const IsaTable& table, const KvPart& part, const float* from, std::byte* to,
               std::byte* scales) {
  uint16_t rounded[kPiece];
  auto* codes = reinterpret_cast<uint8_t*>(to);
  if (part.scale == KvScale::kKey) {
    uint16_t largest = 0;
    for (int64_t i = 0; i < part.numbers; i += kPiece) {
      const int64_t n = std::min(kPiece, part.numbers - i);
      table.to_bf16(from + i, n, rounded);
      largest = std::max(largest, LargestMagnitude(rounded, n));
    }
    const float scale = std::max(FiniteMagnitude(largest), 1e-4f) / 448.0f;
    std::memcpy(scales, &scale, sizeof(scale));
    for (int64_t i = 0; i < part.numbers; i += kPiece) {
      const int64_t n = std::min(kPiece, part.numbers - i);
      table.to_bf16(from + i, n, rounded);
      table.to_e4m3(rounded, n, scale, codes + i);
    }
    return;
  }
  const int64_t piece = part.scale == KvScale::kLayer ? kPiece : part.tile;
  for (int64_t i = 0, tile = 0; i < part.numbers; i += piece, ++tile) {
    const int64_t n = std::min(piece, part.numbers - i);
    float divisor = part.divisor;
    if (part.scale != KvScale::kLayer) {
      uint16_t largest = 0;
      for (int64_t j = 0; j < n; j += kPiece) {
        const int64_t m = std::min(kPiece, n - j);
        table.to_bf16(from + i + j, m, rounded);
        largest = std::max(largest, LargestMagnitude(rounded, m));
      }
      if (part.scale == KvScale::kTile) {
        const uint8_t scale = TileScale(largest);
        scales[tile] = std::byte{scale};
        divisor = std::ldexp(1.0f, scale - 127);
      } else {
        divisor = std::max(FiniteMagnitude(largest) / 448.0f, 1e-4f);
        std::memcpy(scales + 4 * tile, &divisor, sizeof(divisor));
      }
    }
    for (int64_t j = 0; j < n; j += kPiece) {
      const int64_t m = std::min(kPiece, n - j);
      table.to_bf16(from + i + j, m, rounded);
      table.to_e4m3(rounded, m, divisor, codes + i + j);
    }
  }
}

}  // namespace

uint8_t TileScale(uint16_t largest) {
  if (largest == 0) return 127;
  // largest = m * 2^e, 0.5 <= m < 1, and 448 = 0.875 * 2^9.
  int e = 0;
  const float m = std::frexp(FiniteMagnitude(largest), &e);
  const int exponent = e - 9 + (m > 0.875f ? 1 : 0);
  return static_cast<uint8_t>(std::clamp(exponent, -127, 127) + 127);
}

void WriteKvRows(const IsaTable& table, ThreadPool& pool, const KvSlab& slab,
                 std::span<const KvRun> runs, std::span<const KvPart> parts, KvPadding padding) {
  pool.ParallelFor(static_cast<int64_t>(runs.size()), [&](int64_t i, int) {
    const KvRun& run = runs[static_cast<size_t>(i)];
    for (int64_t row = 0; row < run.rows; ++row) {
      const int64_t position = run.first_position + row;
      std::byte* page = run.pages[position / slab.page_tokens];
      const int64_t slot = position % slab.page_tokens;
      if (padding.bytes > 0) {
        std::memset(page + padding.offset_bytes + slot * padding.row_bytes, 0,
                    static_cast<size_t>(padding.bytes));
      }
      for (const KvPart& part : parts) {
        if (part.numbers == 0) continue;  // latent attention without rope: no memory either
        const float* from = part.from + (run.first_row + row) * part.numbers;
        std::byte* to = page + part.offset_bytes + slot * part.row_bytes;
        if (part.scale != KvScale::kNone) {
          WritePart(table, part, from, to,
                    page + part.scales_offset_bytes + slot * part.scales_row_bytes);
        } else if (slab.format == KvFormat::kF32) {
          std::memcpy(to, from, static_cast<size_t>(part.numbers) * sizeof(float));
        } else {
          table.to_bf16(from, part.numbers, reinterpret_cast<uint16_t*>(to));
        }
      }
    }
  });
}

}  // namespace tern
