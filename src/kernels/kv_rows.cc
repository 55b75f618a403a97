#include "kernels/kv_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tensor/number.h"

namespace tern {
namespace {

// Numbers that are rounded at a time, on the stack.
constexpr int64_t kPiece = 1024;

// Calls fn(bf16, begin, count) for pieces of n numbers, rounded to BF16.
template <typename Fn>
void ForRounded(const IsaTable& table, const float* x, int64_t n, const Fn& fn) {
  uint16_t rounded[kPiece];
  for (int64_t begin = 0; begin < n; begin += kPiece) {
    const int64_t count = std::min(kPiece, n - begin);
    table.to_bf16(x + begin, count, rounded);
    fn(static_cast<const uint16_t*>(rounded), begin, count);
  }
}

// The largest magnitude of n numbers rounded to BF16, as bits; NaN counts as none.
uint16_t LargestMagnitude(const IsaTable& table, const float* x, int64_t n) {
  constexpr uint16_t kInfinity = 0x7F80;
  uint16_t largest = 0;
  ForRounded(table, x, n, [&](const uint16_t* rounded, int64_t, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const uint16_t magnitude = rounded[i] & 0x7FFF;
      largest = std::max(largest, magnitude <= kInfinity ? magnitude : uint16_t{0});
    }
  });
  return largest;
}

// The largest finite BF16 for infinite numbers: they saturate, and a scale stays finite.
float FiniteMagnitude(uint16_t bits) {
  return std::min(FloatFromBf16(bits), FloatFromBf16(0x7F7F));
}

// Writes the scale of tile number `tile`, n numbers from x on, and returns what they are divided
// by.
float WriteScale(const IsaTable& table, const KvPart& part, const float* x, int64_t n, int64_t tile,
                 std::byte* scales) {
  if (part.scale == KvScale::kLayer) return part.divisor;
  const uint16_t largest = LargestMagnitude(table, x, n);
  if (part.scale == KvScale::kTile) {
    const uint8_t scale = TileScale(largest);
    scales[tile] = std::byte{scale};
    return std::ldexp(1.0f, scale - 127);
  }
  const float magnitude = FiniteMagnitude(largest);
  const float scale = part.scale == KvScale::kKey ? std::max(magnitude, 1e-4f) / 448.0f
                                                  : std::max(magnitude / 448.0f, 1e-4f);
  std::memcpy(scales + 4 * tile, &scale, sizeof(scale));
  return scale;
}

// One part of one row.
void WritePart(const IsaTable& table, const KvPart& part, const float* from, std::byte* to,
               std::byte* scales) {
  const bool tiled = part.scale == KvScale::kTile || part.scale == KvScale::kFloat;
  const int64_t size = tiled ? part.tile : part.numbers;
  for (int64_t begin = 0; begin < part.numbers; begin += size) {
    const int64_t n = std::min(size, part.numbers - begin);
    const float* x = from + begin;
    auto* codes = reinterpret_cast<uint8_t*>(to) + begin;
    const float divisor = WriteScale(table, part, x, n, begin / size, scales);
    ForRounded(table, x, n, [&](const uint16_t* rounded, int64_t at, int64_t count) {
      table.to_e4m3(rounded, count, divisor, codes + at);
    });
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
