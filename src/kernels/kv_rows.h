// Writing rows of numbers into a layer's slab, as all drivers of this folder do: rounded to BF16
// first, then to the slab's format. Thread: the caller owns the pages of the runs.
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "kernels/isa_table.h"
#include "kernels/kv_layout.h"

namespace tern {

// How the numbers of a part become FP8.
enum class KvScale {
  kLayer,  // divided by KvPart::divisor
  kTile,   // divided by an e8m0 scale for each `tile` numbers, written to scales
  kFloat,  // divided by a float32 scale for each `tile` numbers, max(amax / 448, 1e-4)
  kKey,    // divided by one float32 scale, max(amax, 1e-4) / 448
  kNone,   // stays BF16 (or float32)
};

// A part of each slab row: `numbers` numbers from `from` [batch rows, numbers], written to byte
// offset_bytes of the page's first row, row_bytes from one position to the next; its scales to
// scales_offset_bytes, scales_row_bytes apart.
struct KvPart {
  const float* from = nullptr;
  int64_t numbers = 0;
  int64_t offset_bytes = 0, row_bytes = 0;
  KvScale scale = KvScale::kNone;
  float divisor = 1.0f;
  int64_t tile = 0;
  int64_t scales_offset_bytes = 0, scales_row_bytes = 0;
};

// Scale bytes of each row that are zeroed before its parts are written: `bytes` from offset_bytes
// of the page's first row on, row_bytes from one position to the next.
struct KvPadding {
  int64_t offset_bytes = 0, bytes = 0, row_bytes = 0;
};
// Writes all parts of all rows.
void WriteKvRows(const IsaTable& table, ThreadPool& pool, const KvSlab& slab,
                 std::span<const KvRun> runs, std::span<const KvPart> parts, KvPadding padding);

// The e8m0 byte of a tile whose largest magnitude is `largest` (BF16 bits without the sign):
// 127 for zero, else 127 + clamp(ceil(log2(largest / 448)), -127, 127).
uint8_t TileScale(uint16_t largest);

}  // namespace tern
