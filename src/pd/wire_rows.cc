#include "pd/wire_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "kernels/kv_layout.h"
#include "kv/seal.h"

namespace tern {
namespace {

Status Differs(size_t layer, std::string_view what) {
  return FailedPrecondition(fmt::format("layer {}: {}", layer, what));
}

Status CheckSizes(size_t layer, const KvLayerSpec& a, const KvLayerSpec& b) {
  if (a.kind != b.kind) {
    return Differs(layer, "one side has grouped-query rows, the other latent ones");
  }
  if (a.kv_heads != b.kv_heads || a.head_dim != b.head_dim || a.latent != b.latent ||
      a.rope != b.rope || a.index_dim != b.index_dim) {
    return Differs(layer, "its rows have different sizes");
  }
  return OkStatus();
}

Status CheckFormats(size_t layer, const KvSlab& sender, const KvSlab& receiver, bool values) {
  if (sender.format == KvFormat::kBf16 && receiver.format != KvFormat::kF32) return OkStatus();
  if (sender.format != receiver.format) {
    return Differs(layer, fmt::format("{} rows can't become {} rows, only bf16 rows are converted",
                                      KvFormatName(sender.format), KvFormatName(receiver.format)));
  }
  if (sender.format == KvFormat::kFp8E4m3 &&
      (sender.k_scale != receiver.k_scale || (values && sender.v_scale != receiver.v_scale))) {
    return Differs(layer, "its fp8_e4m3 rows have different scales");
  }
  return OkStatus();
}

}  // namespace

void DescribeRows(const PdRows& rows, PdHello* hello) {
  TERN_CHECK(static_cast<int64_t>(rows.specs.size()) == rows.format.layers());
  hello->page_tokens = static_cast<uint32_t>(rows.format.page_tokens());
  hello->layers.clear();
  for (int64_t i = 0; i < rows.format.layers(); ++i) {
    PdLayer layer{.spec = rows.specs[static_cast<size_t>(i)], .format = rows.format.slab(i).format};
    if (layer.spec.index_dim > 0) layer.index_format = rows.format.index_slab(i).format;
    hello->layers.push_back(layer);
  }
}

Result<PdRows> RowsOf(const PdHello& hello) {
  std::vector<KvLayerSpec> specs;
  std::vector<int64_t> bf16_layers;
  KvFormat format = KvFormat::kBf16;
  for (const PdLayer& layer : hello.layers) {
    if (layer.format == KvFormat::kBf16)
      bf16_layers.push_back(static_cast<int64_t>(specs.size()));
    else
      format = layer.format;
    specs.push_back(layer.spec);
  }
  Result<PageFormat> page = PageFormat::Make(specs, format, hello.page_tokens, bf16_layers);
  if (!page.ok()) return DataLoss("the peer's rows can't be: " + page.status().message());
  for (size_t i = 0; i < specs.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    const PdLayer& layer = hello.layers[i];
    if (page->slab(at).format != layer.format ||
        (layer.index_format && page->index_slab(at).format != *layer.index_format)) {
      return DataLoss(fmt::format("the peer's rows can't be: layer {} has another format", i));
    }
  }
  return PdRows{std::move(specs), std::move(page).value()};
}

Result<PdRows> NegotiateRows(const PdRows& sender, const PdRows& receiver,
                             bool convert_at_receiver) {
  if (sender.specs.size() != receiver.specs.size()) {
    return FailedPrecondition(fmt::format("the prefill side has {} layers, the decode side {}",
                                          sender.specs.size(), receiver.specs.size()));
  }
  for (size_t i = 0; i < sender.specs.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    const KvLayerSpec& spec = sender.specs[i];
    TERN_RETURN_IF_ERROR(CheckSizes(i, spec, receiver.specs[i]));
    TERN_RETURN_IF_ERROR(CheckFormats(i, sender.format.slab(at), receiver.format.slab(at),
                                      spec.kind == KvLayerSpec::Kind::kGqa));
  }
  if (!convert_at_receiver) return receiver;
  // The sender's rows, in pages as large as the receiver's.
  PdHello cut;
  DescribeRows(sender, &cut);
  cut.page_tokens = static_cast<uint32_t>(receiver.format.page_tokens());
  return RowsOf(cut);
}

int64_t PayloadBytes(const PageFormat& format, int64_t rows) {
  return rows * format.bytes_per_token();
}

void PackRows(const PageFormat& format, const std::byte* page, int64_t rows,
              std::span<std::byte> payload) {
  TERN_CHECK(static_cast<int64_t>(payload.size()) == PayloadBytes(format, rows));
  std::byte* to = payload.data();
  for (int64_t layer = 0; layer < format.layers(); ++layer) {
    for (const KvRowPart& part : format.row_parts(layer)) {
      const auto bytes = static_cast<size_t>(rows * part.row_bytes);
      std::memcpy(to, page + part.offset_bytes, bytes);
      to += bytes;
    }
  }
}

void UnpackRows(const PageFormat& format, std::span<const std::byte> payload, int64_t rows,
                std::byte* page) {
  TERN_CHECK(static_cast<int64_t>(payload.size()) == PayloadBytes(format, rows));
  const std::byte* from = payload.data();
  for (int64_t layer = 0; layer < format.layers(); ++layer) {
    for (const KvRowPart& part : format.row_parts(layer)) {
      const auto bytes = static_cast<size_t>(rows * part.row_bytes);
      std::memcpy(page + part.offset_bytes, from, bytes);
      from += bytes;
    }
  }
}

void SealSums(const PageFormat& format, const std::byte* page, int64_t position, int64_t rows,
              std::vector<uint64_t>* sums) {
  sums->clear();
  for (int64_t layer = 0; layer < format.layers(); ++layer) {
    sums->push_back(SealRows(format, layer, page, position, rows).sum);
  }
}

}  // namespace tern
