// PageFormat: the byte layout of a KV page. A page holds `page_tokens` tokens of every layer and is
// contiguous: a 64-byte header, then per layer a slab and, where it has an indexer, a slab of its
// keys, each 64-byte aligned.
// docs/formats/kv_page.md is the specification. Thread: immutable values.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kernels/kv_slab.h"

namespace tern {

// First 64 bytes of a page, little-endian.
struct PageHeader {
  uint64_t tag = 0;         // the page's current tag (kv/page_tag.h); equals the pool's side table
  uint32_t format = 0;      // KvFormat
  uint32_t rows = 0;        // tokens written so far
  uint64_t boot_nonce = 0;  // of the process that owns the pool
  uint8_t reserved[40] = {};
};
static_assert(sizeof(PageHeader) == 64);

// What one layer stores per token. A model lists one per layer (models/model.h).
struct KvLayerSpec {
  enum class Kind { kGqa, kMla } kind = Kind::kGqa;
  int64_t kv_heads = 0, head_dim = 0;  // kGqa: [P][K heads x dim], then [P][V heads x dim]
  int64_t latent = 0, rope = 0;        // kMla: [P][latent + rope]
  int64_t index_dim = 0;               // DSA indexer key, a slab of its own; 0: none
  // kFp8E4m3: what keys (latent rows) and values are divided by; from the checkpoint, else 1.
  float k_scale = 1.0f, v_scale = 1.0f;
};

// One of the places where a token's bytes of a layer lie: row r of a page is `row_bytes` bytes at
// offset_bytes + r * row_bytes from the page's first byte.
struct KvRowPart {
  int64_t offset_bytes = 0, row_bytes = 0;
  friend bool operator==(const KvRowPart&, const KvRowPart&) = default;
};

// Also "bfloat16". Errors: kInvalidArgument, listing the names.
Result<KvFormat> KvFormatNamed(std::string_view name);

class PageFormat {
 public:
  // `bf16_layers`: layers whose slab and index slab stay BF16 whatever `format` is.
  // Errors: kInvalidArgument (page_tokens not a power of two in [1, 1024], no layers, sizes that
  // overflow, a row format that the layer kind can't have: fp8_ds_mla is for latent rows, it and
  // fp8_tiled need a latent that is a multiple of 32; a scale that is not positive and finite;
  // a layer that does not exist).
  static Result<PageFormat> Make(std::span<const KvLayerSpec> layers, KvFormat format,
                                 int64_t page_tokens, std::span<const int64_t> bf16_layers = {});

  KvFormat format() const { return format_; }
  int64_t page_tokens() const { return page_tokens_; }
  int64_t page_bytes() const { return page_bytes_; }
  // Exact bytes of one token's rows over all layers, without header and padding.
  int64_t bytes_per_token() const { return bytes_per_token_; }
  int64_t layers() const { return static_cast<int64_t>(slabs_.size()); }
  // The slab of one layer, as kernels take it.
  const KvSlab& slab(int64_t layer) const { return slabs_[static_cast<size_t>(layer)]; }
  // The layer's indexer keys, [page_tokens][index_dim]. REQUIRES: the layer's spec has index_dim >
  // 0.
  const KvSlab& index_slab(int64_t layer) const { return index_slabs_[static_cast<size_t>(layer)]; }
  // All that a layer stores of a token, in the order of the document's "Row": keys (latent rows),
  // values, scales, indexer key, its scale. At most five; all layers' add up to bytes_per_token().
  std::span<const KvRowPart> row_parts(int64_t layer) const {
    const auto i = static_cast<size_t>(layer);
    return std::span(parts_).subspan(part_begin_[i], part_begin_[i + 1] - part_begin_[i]);
  }

 private:
  KvFormat format_ = KvFormat::kBf16;
  int64_t page_tokens_ = 0, page_bytes_ = 0, bytes_per_token_ = 0;
  std::vector<KvSlab> slabs_;
  std::vector<KvSlab> index_slabs_;  // offset 0 where a layer has none
  std::vector<KvRowPart> parts_;     // of all layers
  std::vector<size_t> part_begin_;   // [layers + 1], into parts_
};

}  // namespace tern
