// Rows of KV slabs as docs/formats/kv_page.md lays them out, read one number at a time, for tests.
// Written from the document, not from kernels/kv_layout.h. Thread: plain values.
#pragma once

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/kv_slab.h"
#include "tensor/number.h"

namespace tern::testing {

inline constexpr KvFormat kAllKvFormats[] = {KvFormat::kF32, KvFormat::kBf16, KvFormat::kFp8E4m3,
                                             KvFormat::kFp8Tiled, KvFormat::kFp8DsMla};

template <typename T>
T Get(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}
inline double E4m3At(const std::byte* p) { return FloatFromE4m3(Get<uint8_t>(p)); }
inline double E8m0At(const std::byte* p) { return std::ldexp(1.0, Get<uint8_t>(p) - 127); }

// A slab of `tokens` rows from its first byte: number `index` of the row in `slot`.
struct SlabReader {
  const KvSlab& slab;
  const std::byte* page;
  const std::byte* at(int64_t offset) const { return page + slab.offset_bytes + offset; }

  // Head `head` of the keys, or of the values, of a grouped-query slab.
  double Gqa(bool value, int64_t kv_heads, int64_t dim, int64_t slot, int64_t head,
             int64_t index) const {
    const int64_t part = slab.page_tokens * kv_heads * dim;  // numbers of all keys
    const int64_t number = (value ? part : 0) + (slot * kv_heads + head) * dim + index;
    switch (slab.format) {
      case KvFormat::kF32:
        return Get<float>(at(number * 4));
      case KvFormat::kBf16:
        return FloatFromBf16(Get<uint16_t>(at(number * 2)));
      case KvFormat::kFp8E4m3:
        return E4m3At(at(number)) * double{value ? slab.v_scale : slab.k_scale};
      case KvFormat::kFp8Tiled: {
        const int64_t row = (2 * kv_heads + 7) / 8 * 8;
        return E4m3At(at(number)) *
               E8m0At(at(2 * part + slot * row + (value ? kv_heads : 0) + head));
      }
      case KvFormat::kFp8DsMla:
        break;
    }
    return NAN;
  }

  double Mla(int64_t latent, int64_t rope, int64_t slot, int64_t index) const {
    const int64_t width = latent + rope, tiles = (latent + 127) / 128;
    const int64_t number = slot * width + index;
    switch (slab.format) {
      case KvFormat::kF32:
        return Get<float>(at(number * 4));
      case KvFormat::kBf16:
        return FloatFromBf16(Get<uint16_t>(at(number * 2)));
      case KvFormat::kFp8E4m3:
        return E4m3At(at(number)) * double{slab.k_scale};
      case KvFormat::kFp8Tiled: {
        const int64_t row = (tiles + 1 + 7) / 8 * 8;
        return E4m3At(at(number)) * E8m0At(at(slab.page_tokens * width + slot * row +
                                              (index < latent ? index / 128 : tiles)));
      }
      case KvFormat::kFp8DsMla: {
        const int64_t row = slot * (latent + 4 * tiles + 2 * rope);
        if (index >= latent) {
          return FloatFromBf16(Get<uint16_t>(at(row + latent + 4 * tiles + 2 * (index - latent))));
        }
        return E4m3At(at(row + index)) * double{Get<float>(at(row + latent + index / 128 * 4))};
      }
    }
    return NAN;
  }

  double IndexKey(int64_t dim, int64_t slot, int64_t index) const {
    const int64_t number = slot * dim + index;
    if (slab.format == KvFormat::kF32) return Get<float>(at(number * 4));
    if (slab.format == KvFormat::kBf16) return FloatFromBf16(Get<uint16_t>(at(number * 2)));
    return E4m3At(at(number)) * double{Get<float>(at(slab.page_tokens * dim + slot * 4))};
  }
};

}  // namespace tern::testing
