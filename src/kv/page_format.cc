#include "kv/page_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/kv_layout.h"

namespace tern {
namespace {

constexpr int64_t kMaxPageTokens = 1024;
constexpr int64_t kSlabAlignBytes = 64;

// Multiplications and sums of sizes from a config file; ok() is false once one has overflowed.
class CheckedSize {
 public:
  explicit CheckedSize(int64_t value) : value_(value), ok_(value >= 0) {}
  CheckedSize& Times(int64_t factor) {
    ok_ = ok_ && factor >= 0 && !__builtin_mul_overflow(value_, factor, &value_);
    return *this;
  }
  CheckedSize& Plus(int64_t term) {
    ok_ = ok_ && term >= 0 && !__builtin_add_overflow(value_, term, &value_);
    return *this;
  }
  CheckedSize& AlignUp() {
    Plus(kSlabAlignBytes - 1);
    value_ -= value_ % kSlabAlignBytes;
    return *this;
  }
  bool ok() const { return ok_; }
  int64_t value() const { return value_; }

 private:
  int64_t value_;
  bool ok_;
};

// A row is far smaller; so no product of a row's bytes and a page's tokens overflows.
constexpr int64_t kMaxRowNumbers = int64_t{1} << 40;

Status CheckSizes(const KvLayerSpec& spec, int64_t layer) {
  const bool gqa = spec.kind == KvLayerSpec::Kind::kGqa;
  if (spec.index_dim < 0) {
    return InvalidArgument(fmt::format("KV layer {}: index_dim is negative", layer));
  }
  if (gqa ? spec.kv_heads < 1 || spec.head_dim < 1 : spec.latent < 1 || spec.rope < 0) {
    return InvalidArgument(fmt::format("KV layer {}: sizes must be positive", layer));
  }
  const CheckedSize numbers = gqa ? CheckedSize(spec.kv_heads).Times(spec.head_dim)
                                  : CheckedSize(spec.latent).Plus(spec.rope);
  if (!numbers.ok() || numbers.value() > kMaxRowNumbers || spec.index_dim > kMaxRowNumbers) {
    return InvalidArgument(fmt::format("KV layer {}: row size overflows", layer));
  }
  for (const float scale : {spec.k_scale, spec.v_scale}) {
    if (std::isfinite(scale) && scale > 0) continue;
    return InvalidArgument(
        fmt::format("KV layer {}: a scale of {} is not positive and finite", layer, scale));
  }
  return OkStatus();
}

Status CheckFormat(const KvLayerSpec& spec, KvFormat format, int64_t layer) {
  const bool gqa = spec.kind == KvLayerSpec::Kind::kGqa;
  if (format == KvFormat::kFp8DsMla && gqa) {
    return InvalidArgument("KV format fp8_ds_mla holds latent attention only, not grouped-query");
  }
  const bool tiles = format == KvFormat::kFp8Tiled || format == KvFormat::kFp8DsMla;
  if (tiles && !gqa && spec.latent % 32 != 0) {
    return InvalidArgument(
        fmt::format("KV layer {}: format {} needs a latent that is a multiple of 32, not {}", layer,
                    KvFormatName(format), spec.latent));
  }
  return OkStatus();
}

}  // namespace

Result<KvFormat> KvFormatNamed(std::string_view name) {
  if (name == "bfloat16") return KvFormat::kBf16;
  std::string names;
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kBf16, KvFormat::kFp8E4m3,
                                KvFormat::kFp8Tiled, KvFormat::kFp8DsMla}) {
    if (name == KvFormatName(format)) return format;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", KvFormatName(format));
  }
  return InvalidArgument(fmt::format("KV format '{}' is unknown (known: {})", name, names));
}

Result<PageFormat> PageFormat::Make(std::span<const KvLayerSpec> layers, KvFormat format,
                                    int64_t page_tokens, std::span<const int64_t> bf16_layers) {
  if (page_tokens < 1 || page_tokens > kMaxPageTokens ||
      !std::has_single_bit(static_cast<uint64_t>(page_tokens))) {
    return InvalidArgument(
        fmt::format("page size {} is not a power of two in [1, {}]", page_tokens, kMaxPageTokens));
  }
  if (layers.empty()) return InvalidArgument("a KV page needs at least one layer");
  for (const int64_t layer : bf16_layers) {
    if (layer >= 0 && layer < static_cast<int64_t>(layers.size())) continue;
    return InvalidArgument(
        fmt::format("KV layer {} does not exist: the model has {}", layer, layers.size()));
  }

  PageFormat result;
  result.format_ = format;
  result.page_tokens_ = page_tokens;
  result.part_begin_.push_back(0);
  CheckedSize page(sizeof(PageHeader));
  CheckedSize token(0);
  for (const KvLayerSpec& spec : layers) {
    const int64_t layer = result.layers();
    TERN_RETURN_IF_ERROR(CheckSizes(spec, layer));
    const bool bf16 = std::find(bf16_layers.begin(), bf16_layers.end(), layer) != bf16_layers.end();
    const KvFormat rows = bf16 && IsFp8(format) ? KvFormat::kBf16 : format;
    TERN_RETURN_IF_ERROR(CheckFormat(spec, rows, layer));
    // A slab at the page's end so far.
    const auto append = [&](const KvRowLayout& layout) {
      const KvSlab slab{.format = rows,
                        .page_tokens = page_tokens,
                        .offset_bytes = page.value(),
                        .k_scale = spec.k_scale,
                        .v_scale = spec.v_scale};
      token.Plus(layout.token_bytes);
      // Latent rows are keys and values at once: one part.
      const int64_t rows_of[][2] = {{layout.k_offset, layout.k_row},
                                    {layout.v_offset, layout.v_offset > 0 ? layout.v_row : 0},
                                    {layout.scales_offset, layout.scales_row}};
      for (const auto& [offset, bytes] : rows_of) {
        if (bytes > 0) result.parts_.push_back({slab.offset_bytes + offset, bytes});
      }
      page.Plus(CheckedSize(layout.token_bytes).Times(page_tokens).AlignUp().value());
      return slab;
    };
    result.slabs_.push_back(
        append(spec.kind == KvLayerSpec::Kind::kGqa
                   ? GqaRowLayout(rows, page_tokens, spec.kv_heads, spec.head_dim)
                   : MlaRowLayout(rows, page_tokens, spec.latent, spec.rope)));
    result.index_slabs_.push_back(
        spec.index_dim > 0 ? append(IndexRowLayout(rows, page_tokens, spec.index_dim)) : KvSlab{});
    result.part_begin_.push_back(result.parts_.size());
    if (!page.ok() || !token.ok()) {
      return InvalidArgument(fmt::format("KV layer {}: page size overflows", layer));
    }
  }
  result.page_bytes_ = page.value();
  result.bytes_per_token_ = token.value();
  return result;
}

}  // namespace tern
