#include "kv/seal_table.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace tern {
namespace {

constexpr unsigned char kMark[8] = {0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF};
// Layers of rows that one call of a worker hashes: some ten microseconds.
constexpr int64_t kHashesPerChunk = 128;

size_t MarkBytes(const KvRowPart& part) {
  return static_cast<size_t>(std::min<int64_t>(part.row_bytes, sizeof(kMark)));
}

// Where the mark of a row is: its first bytes.
int64_t MarkOffset(const PageFormat& format, const KvRowPart& part, int64_t position) {
  return part.offset_bytes + position % format.page_tokens() * part.row_bytes;
}

// Rows of decode lie one by one all over memory, and the pass that wrote them has pushed them out
// of the caches: asked for so many hashes ahead, they are there when it is their turn.
constexpr int64_t kHashesAhead = 4;
constexpr int64_t kLineBytes = 64;

void PrefetchRow(const PageFormat& format, int64_t layer, const std::byte* page, int64_t position) {
  for (const KvRowPart& part : format.row_parts(layer)) {
    const std::byte* const row = page + MarkOffset(format, part, position);
    for (int64_t at = 0; at < part.row_bytes; at += kLineBytes) __builtin_prefetch(row + at);
  }
}

}  // namespace

SealTable::SealTable(PagePool& pages, ThreadPool& threads)
    : pages_(pages),
      threads_(threads),
      layers_(static_cast<size_t>(pages.format().layers())),
      entries_(static_cast<size_t>(pages.pages())),
      sums_(entries_.size() * layers_) {}

void SealTable::Mark(const PagePool& pages, std::byte* base, const Rows& rows) {
  const PageFormat& format = pages.format();
  for (int64_t layer = 0; layer < format.layers(); ++layer) {
    const KvRowPart& part = format.row_parts(layer)[0];
    for (int64_t i = 0; i < rows.rows; ++i) {
      std::memcpy(base + MarkOffset(format, part, rows.first_position + i), kMark, MarkBytes(part));
    }
  }
}

void SealTable::Adopt(const Rows& rows, std::span<const uint64_t> sums, int64_t now_us) {
  entries_[Index(rows.page)] = {rows.first_position, rows.rows};
  NoteGood(rows.page, now_us);
  std::copy_n(sums.begin(), layers_,
              sums_.begin() + static_cast<std::ptrdiff_t>(Index(rows.page) * layers_));
}

template <typename Fn>
bool SealTable::AllLayers(int64_t rows, const Fn& agrees) {
  const auto layers = static_cast<int64_t>(layers_);
  const int64_t per_chunk = std::max<int64_t>(1, kHashesPerChunk / std::max<int64_t>(1, rows));
  std::atomic<bool> good{true};
  threads_.ParallelFor((layers + per_chunk - 1) / per_chunk, [&](int64_t chunk, int) {
    const int64_t end = std::min(layers, (chunk + 1) * per_chunk);
    for (int64_t layer = chunk * per_chunk; layer < end; ++layer) {
      if (!agrees(layer)) good.store(false, std::memory_order_relaxed);
    }
  });
  return good;
}

bool SealTable::AdoptCopy(const Rows& rows, PageId source, int64_t now_us) {
  const PageFormat& format = pages_.format();
  const Entry& from = entries_[Index(source)];
  if (from.first_position != rows.first_position || from.rows < rows.rows) return false;
  const bool good = AllLayers(from.rows, [&](int64_t layer) {
    const uint64_t copied =
        SealRows(format, layer, pages_.base(rows.page), rows.first_position, rows.rows).sum;
    const uint64_t others = SealRows(format, layer, pages_.base(source),
                                     rows.first_position + rows.rows, from.rows - rows.rows)
                                .sum;
    sums_[Index(rows.page) * layers_ + static_cast<size_t>(layer)] = copied;
    return copied + others == seal(source, layer).sum;
  });
  if (!good) return false;
  entries_[Index(rows.page)] = {rows.first_position, rows.rows};
  NoteGood(source, now_us);
  NoteGood(rows.page, now_us);
  return true;
}

void SealTable::Extend(std::span<const Rows> written, int64_t now_us,
                       std::vector<PageId>* unwritten) {
  const PageFormat& format = pages_.format();
  int64_t most_rows = 1;
  unwritten_.assign(written.size(), 0);
  for (size_t i = 0; i < written.size(); ++i) {
    const Rows& rows = written[i];
    Entry& entry = entries_[Index(rows.page)];
    if (entry.rows == 0) {
      entry.first_position = rows.first_position;
      NoteGood(rows.page, now_us);
      std::fill_n(sums_.begin() + static_cast<std::ptrdiff_t>(Index(rows.page) * layers_), layers_,
                  uint64_t{0});
    }
    // Rows that do not follow the last ones: the page is not its writer's.
    if (rows.first_position != entry.first_position + entry.rows) unwritten_[i] = 1;
    entry.rows += rows.rows;
    most_rows = std::max(most_rows, rows.rows);
  }
  // One chunk: some layers of one page, or all layers of some pages; each sum has one writer.
  const int64_t layers = format.layers();
  const int64_t per_chunk = std::max<int64_t>(1, kHashesPerChunk / most_rows);
  const int64_t sums = static_cast<int64_t>(written.size()) * layers;
  threads_.ParallelFor((sums + per_chunk - 1) / per_chunk, [&](int64_t chunk, int) {
    const int64_t first = chunk * per_chunk, end = std::min(sums, first + per_chunk);
    const auto prefetch = [&](int64_t i) {
      if (i >= end) return;
      const Rows& rows = written[static_cast<size_t>(i / layers)];
      PrefetchRow(format, i % layers, pages_.base(rows.page), rows.first_position);
    };
    for (int64_t i = first; i < first + kHashesAhead; ++i) prefetch(i);
    for (int64_t i = first; i < end; ++i) {
      prefetch(i + kHashesAhead);
      const Rows& rows = written[static_cast<size_t>(i / layers)];
      const int64_t layer = i % layers;
      const std::byte* const base = pages_.base(rows.page);
      const KvRowPart& part = format.row_parts(layer)[0];
      for (int64_t r = 0; r < rows.rows; ++r) {
        const std::byte* const row = base + MarkOffset(format, part, rows.first_position + r);
        if (std::memcmp(row, kMark, MarkBytes(part)) != 0) continue;
        std::atomic_ref(unwritten_[static_cast<size_t>(i / layers)])
            .store(1, std::memory_order_relaxed);
      }
      sums_[Index(rows.page) * layers_ + static_cast<size_t>(layer)] +=
          SealRows(format, layer, base, rows.first_position, rows.rows).sum;
    }
  });
  for (size_t i = 0; i < written.size(); ++i) {
    if (unwritten_[i] != 0) unwritten->push_back(written[i].page);
  }
}

bool SealTable::Matches(PageId page, int64_t now_us) {
  const Entry& entry = entries_[Index(page)];
  const bool good = AllLayers(entry.rows, [&](int64_t layer) {
    return SealRows(pages_.format(), layer, pages_.base(page), entry.first_position, entry.rows) ==
           seal(page, layer);
  });
  if (good) NoteGood(page, now_us);
  return good;
}

}  // namespace tern
