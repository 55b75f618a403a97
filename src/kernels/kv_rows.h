// Writing rows of numbers into a layer's slab, as all drivers of this folder do. Thread: the caller
// owns the pages of the runs.
#pragma once

#include <cstring>
#include <span>

#include "base/check.h"
#include "base/thread_pool.h"
#include "kernels/isa_table.h"
#include "kernels/kv_slab.h"

namespace tern {

// Bytes of a number. REQUIRES: a format that attention reads.
inline int64_t KvNumberBytes(KvFormat format) {
  TERN_CHECK(format == KvFormat::kF32 || format == KvFormat::kBf16);
  return format == KvFormat::kF32 ? 4 : 2;
}

// A part of each slab row: `numbers` numbers from `from` [batch rows, numbers] go to byte
// `offset_bytes` of the page's first such row.
struct KvPart {
  const float* from;
  int64_t numbers;
  int64_t offset_bytes;
};

// Writes all parts of all rows. row_numbers: from one position's row to the next.
inline void WriteKvRows(const IsaTable& table, ThreadPool& pool, const KvSlab& slab,
                        std::span<const KvRun> runs, int64_t row_numbers,
                        std::span<const KvPart> parts) {
  const int64_t row_bytes = row_numbers * KvNumberBytes(slab.format);
  pool.ParallelFor(static_cast<int64_t>(runs.size()), [&](int64_t i, int) {
    const KvRun& run = runs[static_cast<size_t>(i)];
    for (int64_t row = 0; row < run.rows; ++row) {
      const int64_t position = run.first_position + row;
      std::byte* base =
          run.pages[position / slab.page_tokens] + position % slab.page_tokens * row_bytes;
      for (const KvPart& part : parts) {
        if (part.numbers == 0) continue;  // latent attention without rope: no memory either
        const float* from = part.from + (run.first_row + row) * part.numbers;
        std::byte* to = base + part.offset_bytes;
        if (slab.format == KvFormat::kF32) {
          std::memcpy(to, from, static_cast<size_t>(part.numbers) * sizeof(float));
        } else {
          table.to_bf16(from, part.numbers, reinterpret_cast<uint16_t*>(to));
        }
      }
    }
  });
}

}  // namespace tern
