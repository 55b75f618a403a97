// How rows of each KvFormat are read, sixteen numbers at a time. One struct per format; WithRows is
// the one switch. A row is a RowRef: its first number and, in formats that have them, its scales.
// See kernels/cpu/isa_common.h for the rules of this file; vec.h of a level comes first.
#pragma once

#include "kernels/cpu/matmul_f32.h"

namespace tern {
namespace {

struct RowRef {
  const std::byte* numbers;
  const std::byte* scales;
};

// What a format needs to know of the rows: the latent part of a latent row has scales of its own
// (0: grouped-query rows, one scale per head, and indexer keys).
struct RowShape {
  int64_t latent = 0;
  int64_t tiles() const { return (latent + 127) / 128; }
};

struct F32Rows {
  explicit F32Rows(RowShape) {}
  static int64_t Offset(int64_t d) { return d * 4; }
  static Vec Read(RowRef row, int64_t d) { return Load(At<float>(row.numbers, d * 4)); }
  static Vec ReadPartial(RowRef row, int64_t d, int64_t n) {
    return LoadPartial(At<float>(row.numbers, d * 4), n);
  }
};

[[maybe_unused]] inline Vec FloatsOfBf16(const std::byte* p) { return FloatOfBf16(LoadU16(p)); }
[[maybe_unused]] inline Vec FloatsOfBf16Partial(const std::byte* p, int64_t n) {
  uint16_t lanes[kLanes] = {};
  __builtin_memcpy(lanes, p, static_cast<size_t>(MinOf(n, kLanes) * 2));
  return FloatOfBf16(LoadU16(lanes));
}
[[maybe_unused]] inline Vec FloatsOfE4m3(const std::byte* p) { return FloatOfE4m3(LoadU8(p)); }
[[maybe_unused]] inline Vec FloatsOfE4m3Partial(const std::byte* p, int64_t n) {
  uint8_t lanes[kLanes] = {};
  __builtin_memcpy(lanes, p, static_cast<size_t>(MinOf(n, kLanes)));
  return FloatOfE4m3(LoadU8(lanes));
}

struct Bf16Rows {
  explicit Bf16Rows(RowShape) {}
  static int64_t Offset(int64_t d) { return d * 2; }
  static Vec Read(RowRef row, int64_t d) { return FloatsOfBf16(row.numbers + d * 2); }
  static Vec ReadPartial(RowRef row, int64_t d, int64_t n) {
    return FloatsOfBf16Partial(row.numbers + d * 2, n);
  }
};

// The layer's scale is the driver's affair: it multiplies scores and sums.
struct E4m3Rows {
  explicit E4m3Rows(RowShape) {}
  static int64_t Offset(int64_t d) { return d; }
  static Vec Read(RowRef row, int64_t d) { return FloatsOfE4m3(row.numbers + d); }
  static Vec ReadPartial(RowRef row, int64_t d, int64_t n) {
    return FloatsOfE4m3Partial(row.numbers + d, n);
  }
};

// The number of an e8m0 byte: 2^(byte - 127), also where that is subnormal.
[[maybe_unused]] inline float FloatOfE8m0(std::byte scale) {
  const auto exponent = static_cast<uint32_t>(scale);
  return __builtin_bit_cast(float, exponent == 0 ? 0x00400000u : exponent << 23);
}

// REQUIRES: latent is a multiple of 32, so that sixteen (and 32) numbers share a scale.
struct TiledRows {
  explicit TiledRows(RowShape shape) : shape(shape) {}
  static int64_t Offset(int64_t d) { return d; }
  int64_t ScaleIndex(int64_t d) const {
    return shape.latent == 0 ? 0 : d < shape.latent ? d / 128 : shape.tiles();
  }
  float Scale(RowRef row, int64_t d) const { return FloatOfE8m0(row.scales[ScaleIndex(d)]); }
  Vec Read(RowRef row, int64_t d) const {
    return Mul(FloatsOfE4m3(row.numbers + d), Set(Scale(row, d)));
  }
  Vec ReadPartial(RowRef row, int64_t d, int64_t n) const {
    return Mul(FloatsOfE4m3Partial(row.numbers + d, n), Set(Scale(row, d)));
  }
  RowShape shape;
};

// REQUIRES: as TiledRows.
struct DsMlaRows {
  explicit DsMlaRows(RowShape shape) : shape(shape) {}
  int64_t Offset(int64_t d) const {
    return d <= shape.latent ? d : shape.latent + 4 * shape.tiles() + 2 * (d - shape.latent);
  }
  const std::byte* Rope(RowRef row, int64_t d) const {
    return row.numbers + shape.latent + 4 * shape.tiles() + 2 * (d - shape.latent);
  }
  float Scale(RowRef row, int64_t d) const {
    float scale;
    __builtin_memcpy(&scale, row.numbers + shape.latent + d / 128 * 4, sizeof(scale));
    return scale;
  }
  Vec Read(RowRef row, int64_t d) const {
    if (d >= shape.latent) return FloatsOfBf16(Rope(row, d));
    return Mul(FloatsOfE4m3(row.numbers + d), Set(Scale(row, d)));
  }
  Vec ReadPartial(RowRef row, int64_t d, int64_t n) const {
    if (d >= shape.latent) return FloatsOfBf16Partial(Rope(row, d), n);
    return Mul(FloatsOfE4m3Partial(row.numbers + d, n), Set(Scale(row, d)));
  }
  RowShape shape;
};

// Indexer keys of the FP8 formats: one float32 scale per key.
struct ScaledRows {
  explicit ScaledRows(RowShape) {}
  static int64_t Offset(int64_t d) { return d; }
  static float Scale(RowRef row) {
    float scale;
    __builtin_memcpy(&scale, row.scales, sizeof(scale));
    return scale;
  }
  static Vec Read(RowRef row, int64_t d) {
    return Mul(FloatsOfE4m3(row.numbers + d), Set(Scale(row)));
  }
  static Vec ReadPartial(RowRef row, int64_t d, int64_t n) {
    return Mul(FloatsOfE4m3Partial(row.numbers + d, n), Set(Scale(row)));
  }
};

// Calls fn(rows) with the struct of a format.
template <typename Fn>
void WithRows(KvFormat format, RowShape shape, Fn fn) {
  switch (format) {
    case KvFormat::kF32:
      return fn(F32Rows(shape));
    case KvFormat::kBf16:
      return fn(Bf16Rows(shape));
    case KvFormat::kFp8E4m3:
      return fn(E4m3Rows(shape));
    case KvFormat::kFp8Tiled:
      return fn(TiledRows(shape));
    case KvFormat::kFp8DsMla:
      return fn(DsMlaRows(shape));
  }
}

// One part of a slab's rows: keys, values or latent rows of one KV head.
struct RowSource {
  std::byte* const* pages;
  int64_t page_tokens;
  int64_t offset, row_bytes;          // of the head's first number
  int64_t scales_offset, scales_row;  // of its first scale
  const int32_t* positions;           // null: all
};

[[maybe_unused]] inline RowSource KeySource(const AttentionArgs& args, const AttentionBlock& block,
                                            int64_t head_bytes) {
  return {args.pages,
          args.page_tokens,
          args.k_offset_bytes + block.kv_head * head_bytes,
          args.k_row_bytes,
          args.scales_offset_bytes + block.kv_head,
          args.scales_row_bytes,
          args.positions};
}
[[maybe_unused]] inline RowSource ValueSource(const AttentionArgs& args,
                                              const AttentionBlock& block, int64_t head_bytes) {
  return {args.pages,
          args.page_tokens,
          args.v_offset_bytes + block.kv_head * head_bytes,
          args.v_row_bytes,
          args.scales_offset_bytes + args.kv_heads + block.kv_head,
          args.scales_row_bytes,
          args.positions};
}

// References to `count` rows: of positions from `begin` on, or of the selected positions from entry
// `begin` on.
[[maybe_unused]] void RowRefs(const RowSource& source, int64_t begin, int64_t count, RowRef* rows) {
  const auto at = [&](int64_t page, int64_t slot) {
    const std::byte* base = source.pages[page];
    return RowRef{base + source.offset + slot * source.row_bytes,
                  base + source.scales_offset + slot * source.scales_row};
  };
  if (source.positions != nullptr) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t position = source.positions[begin + i];
      rows[i] = at(position / source.page_tokens, position % source.page_tokens);
    }
    return;
  }
  int64_t page = begin / source.page_tokens, slot = begin % source.page_tokens;
  for (int64_t i = 0; i < count; slot = 0, ++page) {
    RowRef row = at(page, slot);
    for (const int64_t end = MinOf(count, i + source.page_tokens - slot); i < end; ++i) {
      rows[i] = row;
      row.numbers += source.row_bytes;
      row.scales += source.scales_row;
    }
  }
}

}  // namespace
}  // namespace tern
