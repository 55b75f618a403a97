#include "kv/page_format.h"

#include <fmt/format.h>

#include <bit>

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

// Numbers of one token's row in one layer: keys and values, or latent and rope.
Result<int64_t> RowNumbers(const KvLayerSpec& spec, int64_t layer) {
  const bool gqa = spec.kind == KvLayerSpec::Kind::kGqa;
  if (spec.index_dim < 0) {
    return InvalidArgument(fmt::format("KV layer {}: index_dim is negative", layer));
  }
  if (gqa ? spec.kv_heads < 1 || spec.head_dim < 1 : spec.latent < 1 || spec.rope < 0) {
    return InvalidArgument(fmt::format("KV layer {}: sizes must be positive", layer));
  }
  const CheckedSize numbers = gqa ? CheckedSize(spec.kv_heads).Times(spec.head_dim).Times(2)
                                  : CheckedSize(spec.latent).Plus(spec.rope);
  if (!numbers.ok()) return InvalidArgument(fmt::format("KV layer {}: row size overflows", layer));
  return numbers.value();
}

}  // namespace

const char* KvFormatName(KvFormat format) {
  switch (format) {
    case KvFormat::kF32:
      return "f32";
    case KvFormat::kBf16:
      return "bf16";
    case KvFormat::kFp8E4m3:
      return "fp8_e4m3";
    case KvFormat::kFp8Tiled:
      return "fp8_tiled";
    case KvFormat::kFp8DsMla:
      return "fp8_ds_mla";
  }
  return "unknown";
}

Result<PageFormat> PageFormat::Make(std::span<const KvLayerSpec> layers, KvFormat format,
                                    int64_t page_tokens) {
  if (page_tokens < 1 || page_tokens > kMaxPageTokens ||
      !std::has_single_bit(static_cast<uint64_t>(page_tokens))) {
    return InvalidArgument(
        fmt::format("page size {} is not a power of two in [1, {}]", page_tokens, kMaxPageTokens));
  }
  if (layers.empty()) return InvalidArgument("a KV page needs at least one layer");
  for (const KvLayerSpec& spec : layers) {
    if (format == KvFormat::kFp8DsMla && spec.kind != KvLayerSpec::Kind::kMla) {
      return InvalidArgument("KV format fp8_ds_mla holds latent attention only, not grouped-query");
    }
  }
  if (format != KvFormat::kF32 && format != KvFormat::kBf16) {
    return Unimplemented(fmt::format("KV format {} is not built yet", KvFormatName(format)));
  }
  const int64_t number_bytes = format == KvFormat::kF32 ? 4 : 2;

  PageFormat result;
  result.format_ = format;
  result.page_tokens_ = page_tokens;
  CheckedSize page(sizeof(PageHeader));
  CheckedSize token(0);
  bool fits = true;
  for (const KvLayerSpec& spec : layers) {
    TERN_ASSIGN_OR_RETURN(const int64_t numbers, RowNumbers(spec, result.layers()));
    // A slab of [page_tokens] rows of `row_numbers` at the page's end so far.
    const auto append = [&](int64_t row_numbers) {
      const KvSlab slab{.format = format, .page_tokens = page_tokens, .offset_bytes = page.value()};
      const CheckedSize row = CheckedSize(row_numbers).Times(number_bytes);
      const CheckedSize bytes = CheckedSize(row).Times(page_tokens).AlignUp();
      if (row.ok()) token.Plus(row.value());
      if (bytes.ok()) page.Plus(bytes.value());
      fits = fits && row.ok() && bytes.ok() && token.ok() && page.ok();
      return slab;
    };
    result.slabs_.push_back(append(numbers));
    result.index_slabs_.push_back(spec.index_dim > 0 ? append(spec.index_dim) : KvSlab{});
    if (!fits) {
      return InvalidArgument(fmt::format("KV layer {}: page size overflows", result.layers() - 1));
    }
  }
  result.page_bytes_ = page.value();
  result.bytes_per_token_ = token.value();
  return result;
}

}  // namespace tern
