// KvSaboteur: damage to a live KV cache, as the mistakes of docs/integrity.md leave it. There is
// none in builds without TERN_FAULTS. Thread: tests, between two steps of the engine.
#pragma once

#include "base/check.h"
#include "kv/kv_cache.h"

#if TERN_FAULTS

#include <algorithm>
#include <cstring>
#include <utility>

namespace tern {

class KvSaboteur {
 public:
  explicit KvSaboteur(KvCache& cache) : cache_(cache) {}

  // A page that is in use becomes the next one to be allocated.
  void GiveAway(PageId page) { cache_.pool_.free_.push_back(page); }
  // A page is freed, whoever holds it or lists it.
  void Free(PageId page) { cache_.pool_.Free({page, cache_.pool_.tag(page)}); }
  // An entry of a block table is another page's.
  static void Redirect(KvLease& lease, int64_t index, std::byte* base) {
    lease.block_table_[static_cast<size_t>(index)] = base;
  }
  // A block table is another request's, as long as it goes.
  static void CopyTable(const KvLease& from, KvLease& to) {
    const size_t pages = std::min(from.block_table_.size(), to.block_table_.size());
    std::copy_n(from.block_table_.begin(), pages, to.block_table_.begin());
  }
  // Two pages change places in all that a holder knows of them, tags and table.
  static void Swap(KvLease& lease, int64_t a, int64_t b) {
    std::swap(lease.expected_[size_t(a)], lease.expected_[size_t(b)]);
    std::swap(lease.block_table_[size_t(a)], lease.block_table_[size_t(b)]);
  }
  // A holder believes to have another number of rows.
  static void SetRows(KvLease& lease, int64_t rows) { lease.rows_ = rows; }
  // Bytes of a page change that only a holder may write. `offset` counts behind the header.
  void FlipBit(PageId page, int64_t offset, int bit) {
    cache_.pool_.base(page)[static_cast<int64_t>(sizeof(PageHeader)) + offset] ^=
        std::byte(1 << bit);
  }
  void FlipHeaderBit(PageId page, int64_t offset, int bit) {
    cache_.pool_.base(page)[offset] ^= std::byte(1 << bit);
  }
  // The engine goes on with other weights, or reads and writes rows in another format, and nobody
  // has dropped what is cached.
  void SetModel(uint64_t model_id) { cache_.options_.model_id = model_id; }
  void SetFormat(const PageFormat& format) {
    TERN_CHECK(format.page_bytes() == cache_.format().page_bytes());
    cache_.pool_.format_ = format;
  }
  // Two rows of all layers of a page change places, or all rows of two layers.
  void SwapRows(PageId page, int64_t a, int64_t b) {
    for (int64_t layer = 0; layer < cache_.format().layers(); ++layer) {
      for (const KvRowPart& part : cache_.format().row_parts(layer)) {
        std::byte* const first = cache_.pool_.base(page) + part.offset_bytes;
        std::swap_ranges(first + a * part.row_bytes, first + (a + 1) * part.row_bytes,
                         first + b * part.row_bytes);
      }
    }
  }
  void SwapLayers(PageId page, int64_t a, int64_t b) {
    std::byte* const base = cache_.pool_.base(page);
    const auto parts = cache_.format().row_parts(a), others = cache_.format().row_parts(b);
    for (size_t i = 0; i < parts.size(); ++i) {
      std::byte* const from = base + parts[i].offset_bytes;
      std::swap_ranges(from, from + parts[i].row_bytes * cache_.format().page_tokens(),
                       base + others[i].offset_bytes);
    }
  }
  // A writer that is late: one row of every layer, as if it were still its page.
  void WriteRow(PageId page, int64_t row, std::byte value) {
    const PageFormat& format = cache_.format();
    for (int64_t layer = 0; layer < format.layers(); ++layer) {
      for (const KvRowPart& part : format.row_parts(layer)) {
        std::memset(cache_.pool_.base(page) + part.offset_bytes + row * part.row_bytes,
                    static_cast<int>(value), static_cast<size_t>(part.row_bytes));
      }
    }
  }

 private:
  KvCache& cache_;
};

}  // namespace tern

#endif  // TERN_FAULTS
