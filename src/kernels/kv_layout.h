// KvRowLayout: where the rows of a layer's slab lie, for each row format and kind of attention.
// docs/formats/kv_page.md is the specification; this is the one place that computes it: pages are
// sized (kv/page_format.h), written and read by it. Thread: pure functions.
#pragma once

#include <cstdint>

#include "kernels/kv_slab.h"

namespace tern {

// Offsets are in bytes from the slab's first byte; rows are in bytes from one position to the next.
struct KvRowLayout {
  int64_t k_offset = 0, k_row = 0;            // keys; latent rows; indexer keys
  int64_t v_offset = 0, v_row = 0;            // values; the latent rows again
  int64_t scales_offset = 0, scales_row = 0;  // kFp8Tiled: e8m0 bytes; indexer keys: one float32
  int64_t token_bytes = 0;                    // of all parts of one position
};

// Latents that share a scale in kFp8Tiled and kFp8DsMla.
inline constexpr int64_t kKvTile = 128;

inline bool IsFp8(KvFormat format) {
  return format == KvFormat::kFp8E4m3 || format == KvFormat::kFp8Tiled ||
         format == KvFormat::kFp8DsMla;
}
// Of one number outside kFp8DsMla's rope.
inline int64_t KvNumberBytes(KvFormat format) {
  return format == KvFormat::kF32 ? 4 : format == KvFormat::kBf16 ? 2 : 1;
}
inline int64_t KvTiles(int64_t latent) { return (latent + kKvTile - 1) / kKvTile; }

// [P][K heads x dim], [P][V heads x dim]; kFp8Tiled: [P][S] scale bytes, K heads then V heads.
inline KvRowLayout GqaRowLayout(KvFormat format, int64_t page_tokens, int64_t kv_heads,
                                int64_t head_dim) {
  const int64_t row = kv_heads * head_dim * KvNumberBytes(format);
  KvRowLayout layout{.k_row = row, .v_offset = page_tokens * row, .v_row = row};
  layout.token_bytes = 2 * row;
  if (format == KvFormat::kFp8Tiled) {
    layout.scales_offset = 2 * page_tokens * row;
    layout.scales_row = (2 * kv_heads + 7) / 8 * 8;
    layout.token_bytes += layout.scales_row;
  }
  return layout;
}

// [P][L + R]; kFp8Tiled: [P][S] scale bytes, one per 128 latents, then one for rope; kFp8DsMla:
// [P] rows of L e4m3, ceil(L / 128) float32 scales, R bf16.
inline KvRowLayout MlaRowLayout(KvFormat format, int64_t page_tokens, int64_t latent,
                                int64_t rope) {
  KvRowLayout layout;
  layout.k_row = layout.v_row = format == KvFormat::kFp8DsMla
                                    ? latent + 4 * KvTiles(latent) + 2 * rope
                                    : (latent + rope) * KvNumberBytes(format);
  layout.token_bytes = layout.k_row;
  if (format == KvFormat::kFp8Tiled) {
    layout.scales_offset = page_tokens * layout.k_row;
    layout.scales_row = (KvTiles(latent) + 1 + 7) / 8 * 8;
    layout.token_bytes += layout.scales_row;
  }
  return layout;
}

// [P][D]; in the FP8 formats then [P] float32 scales.
inline KvRowLayout IndexRowLayout(KvFormat format, int64_t page_tokens, int64_t dim) {
  KvRowLayout layout{.k_row = dim * KvNumberBytes(format)};
  layout.token_bytes = layout.k_row;
  if (IsFp8(format)) {
    layout.scales_offset = page_tokens * layout.k_row;
    layout.scales_row = 4;
    layout.token_bytes += 4;
  }
  return layout;
}

}  // namespace tern
