// How kernels see the KV cache: pages of one sequence and one layer's slab inside each page.
// Byte layouts: docs/formats/kv_page.md. Thread: plain values.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tern {

// Row formats of --kv-cache-dtype (DESIGN section 4). kF32 exists for reference precision only.
enum class KvFormat : uint32_t { kF32 = 0, kBf16 = 1, kFp8E4m3 = 2, kFp8Tiled = 3, kFp8DsMla = 4 };
// The name in --kv-cache-dtype: "bf16".
const char* KvFormatName(KvFormat format);

// One layer's slab: where it lies in every page and how its rows are stored.
struct KvSlab {
  KvFormat format = KvFormat::kBf16;
  int64_t page_tokens = 64;              // P
  int64_t offset_bytes = 0;              // from the page's first byte
  float k_scale = 1.0f, v_scale = 1.0f;  // kFp8E4m3 only
};

// Rows [first_row, first_row + rows) of a batch: consecutive positions of one sequence, the first
// at first_position. pages[i] is the base of the page with positions [i*P, (i+1)*P).
struct KvRun {
  std::byte* const* pages = nullptr;
  int64_t first_position = 0;
  int64_t first_row = 0;
  int64_t rows = 0;
};

}  // namespace tern
