#include "pd/convert.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/kv_layout.h"
#include "tensor/number.h"

namespace tern {
namespace {

// Part `part` of `rows` BF16 rows from position `first` on: numbers [from, from + count) of each,
// as float32 into out [rows, count].
void ReadBf16(const PageFormat& format, const KvRowPart& part, std::span<std::byte* const> pages,
              int64_t first, int64_t rows, int64_t from, int64_t count, float* out) {
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t position = first + row;
    const std::byte* page = pages[static_cast<size_t>(position / format.page_tokens())];
    const std::byte* at =
        page + part.offset_bytes + position % format.page_tokens() * part.row_bytes + from * 2;
    for (int64_t i = 0; i < count; ++i) {
      uint16_t bits = 0;
      std::memcpy(&bits, at + 2 * i, 2);
      *out++ = FloatFromBf16(bits);
    }
  }
}

// The same bytes in a page of another size.
void CopyPart(const PageFormat& from_format, const KvRowPart& from,
              std::span<std::byte* const> pages, int64_t first, int64_t rows, const KvRowPart& to,
              std::byte* page) {
  for (int64_t row = 0; row < rows;) {
    const int64_t position = first + row, slot = position % from_format.page_tokens();
    const int64_t count = std::min(rows - row, from_format.page_tokens() - slot);
    std::memcpy(page + to.offset_bytes + row * to.row_bytes,
                pages[static_cast<size_t>(position / from_format.page_tokens())] +
                    from.offset_bytes + slot * from.row_bytes,
                static_cast<size_t>(count * to.row_bytes));
    row += count;
  }
}

}  // namespace

RowConverter::RowConverter(const Ops& ops, PdRows from, PdRows to)
    : ops_(ops), from_(std::move(from)), to_(std::move(to)) {}

void RowConverter::Convert(std::span<std::byte* const> from, int64_t first, int64_t rows,
                           std::byte* to) {
  for (int64_t layer = 0; layer < to_.format.layers(); ++layer) {
    if (from_.format.slab(layer).format != to_.format.slab(layer).format) {
      ConvertLayer(layer, from, first, rows, to);
      continue;
    }
    const auto from_parts = from_.format.row_parts(layer), to_parts = to_.format.row_parts(layer);
    for (size_t i = 0; i < to_parts.size(); ++i) {
      CopyPart(from_.format, from_parts[i], from, first, rows, to_parts[i], to);
    }
  }
}

void RowConverter::ConvertLayer(int64_t layer, std::span<std::byte* const> from, int64_t first,
                                int64_t rows, std::byte* to) {
  const KvLayerSpec& spec = to_.specs[static_cast<size_t>(layer)];
  const auto parts = from_.format.row_parts(layer);  // BF16: no scales
  const KvSlab& slab = to_.format.slab(layer);
  const KvRun run{.pages = &to, .rows = rows};
  if (spec.kind == KvLayerSpec::Kind::kGqa) {
    const int64_t numbers = spec.kv_heads * spec.head_dim;
    a_.resize(static_cast<size_t>(rows * numbers));
    b_.resize(static_cast<size_t>(rows * numbers));
    ReadBf16(from_.format, parts[0], from, first, rows, 0, numbers, a_.data());
    ReadBf16(from_.format, parts[1], from, first, rows, 0, numbers, b_.data());
    const GqaShape shape{
        .heads = spec.kv_heads, .kv_heads = spec.kv_heads, .head_dim = spec.head_dim};
    ops_.GqaWrite(shape, slab, {&run, 1}, a_.data(), b_.data());
  } else {
    a_.resize(static_cast<size_t>(rows * spec.latent));
    b_.resize(static_cast<size_t>(rows * spec.rope));
    ReadBf16(from_.format, parts[0], from, first, rows, 0, spec.latent, a_.data());
    ReadBf16(from_.format, parts[0], from, first, rows, spec.latent, spec.rope, b_.data());
    const MlaShape shape{.heads = 1, .latent = spec.latent, .rope = spec.rope};
    ops_.MlaWrite(shape, slab, {&run, 1}, a_.data(), b_.data());
  }
  if (spec.index_dim > 0) ConvertIndexKeys(layer, from, first, rows, to);
}

// Keys are stored as they are in BF16 and rotated in FP8 (docs/formats/kv_page.md, Index slab).
void RowConverter::ConvertIndexKeys(int64_t layer, std::span<std::byte* const> from, int64_t first,
                                    int64_t rows, std::byte* to) {
  const KvLayerSpec& spec = to_.specs[static_cast<size_t>(layer)];
  const KvSlab& slab = to_.format.index_slab(layer);
  const KvRun run{.pages = &to, .rows = rows};
  a_.resize(static_cast<size_t>(rows * spec.index_dim));
  ReadBf16(from_.format, from_.format.row_parts(layer).back(), from, first, rows, 0, spec.index_dim,
           a_.data());
  if (IsFp8(slab.format)) ops_.Hadamard(a_.data(), rows, spec.index_dim);
  const IndexerShape shape{.heads = 1, .dim = spec.index_dim};
  ops_.IndexerWrite(shape, slab, {&run, 1}, a_.data());
}

}  // namespace tern
