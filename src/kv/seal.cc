#include "kv/seal.h"

#include <cstring>
#include <vector>

#include "base/hash.h"
#include "base/rng.h"

namespace tern {
namespace {

// Rows up to this size are gathered on the stack: 61 layers of DeepSeek store 1408 bytes at most.
constexpr int64_t kStackRowBytes = 4096;

}  // namespace

uint64_t RowSeed(int64_t layer, int64_t position, KvFormat format) {
  return Mix64(static_cast<uint64_t>(position) << 24 | static_cast<uint64_t>(layer) << 8 |
               static_cast<uint64_t>(format));
}

uint64_t RowHash(std::span<const std::byte> row, int64_t layer, int64_t position, KvFormat format) {
  return Hash64(row, RowSeed(layer, position, format));
}

uint64_t RowHash(const PageFormat& format, int64_t layer, const std::byte* page, int64_t position) {
  const std::span<const KvRowPart> parts = format.row_parts(layer);
  const int64_t row = position % format.page_tokens();
  const KvFormat row_format = format.slab(layer).format;
  const auto at = [&](const KvRowPart& part) {
    return page + part.offset_bytes + row * part.row_bytes;
  };
  if (parts.size() == 1) {
    return RowHash({at(parts[0]), static_cast<size_t>(parts[0].row_bytes)}, layer, position,
                   row_format);
  }
  int64_t bytes = 0;
  for (const KvRowPart& part : parts) bytes += part.row_bytes;
  std::byte stack[kStackRowBytes];
  std::vector<std::byte> heap(bytes > kStackRowBytes ? static_cast<size_t>(bytes) : 0);
  std::byte* const gathered = heap.empty() ? stack : heap.data();
  std::byte* next = gathered;
  for (const KvRowPart& part : parts) {
    std::memcpy(next, at(part), static_cast<size_t>(part.row_bytes));
    next += part.row_bytes;
  }
  return RowHash({gathered, static_cast<size_t>(bytes)}, layer, position, row_format);
}

Seal SealRows(const PageFormat& format, int64_t layer, const std::byte* page,
              int64_t first_position, int64_t rows) {
  Seal seal;
  for (int64_t position = first_position; position < first_position + rows; ++position) {
    seal.Add(RowHash(format, layer, page, position));
  }
  return seal;
}

}  // namespace tern
