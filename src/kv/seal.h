// Seals: hashes by which stored KV rows are recognised. A row's hash covers all bytes that one
// layer stores of one token, and where they belong: its seed is made of layer, position and format,
// so a row that is swapped, shifted or of another format fails as a flipped bit does. A page's seal
// of a layer is the sum of its rows' hashes and their number: rows are added as they are written,
// partial pages have seals, and a receiver may add rows in any order and from any page size.
// docs/formats/kv_page.md ("Seals") is the specification. Thread: pure functions and values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kv/page_format.h"

namespace tern {

// The seal of some rows of one layer.
struct Seal {
  uint64_t sum = 0;  // of RowHash, modulo 2^64
  int64_t rows = 0;

  void Add(uint64_t row_hash) {
    sum += row_hash;
    ++rows;
  }
  friend bool operator==(const Seal&, const Seal&) = default;
};

// The seed of the row at `position` of a sequence. `format` is that of the layer's slab.
// REQUIRES: position < 2^40, layer < 2^16.
uint64_t RowSeed(int64_t layer, int64_t position, KvFormat format);

// The hash of a row whose parts have been gathered, in the order of PageFormat::row_parts.
uint64_t RowHash(std::span<const std::byte> row, int64_t layer, int64_t position, KvFormat format);

// The hash of the row at `position` where it lies: `page` is the base of the page that holds it.
uint64_t RowHash(const PageFormat& format, int64_t layer, const std::byte* page, int64_t position);

// The seal of rows [first_position, first_position + rows) of one layer, all in one page.
Seal SealRows(const PageFormat& format, int64_t layer, const std::byte* page,
              int64_t first_position, int64_t rows);

}  // namespace tern
