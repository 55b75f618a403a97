// RowConverter: rows from one page format to another, and from one page size to another. BF16 rows
// become rows of any format, bit-equal to quantize-on-write of the same BF16 rows, because they go
// through the same kernels (Ops::GqaWrite, MlaWrite, Hadamard, IndexerWrite). Rows of equal format
// are copied. Thread: the caller's, who owns `ops` and the memory; one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops.h"
#include "pd/wire_rows.h"

namespace tern {

class RowConverter {
 public:
  // REQUIRES: rows that NegotiateRows accepted as sender's and receiver's. `ops` outlives it.
  RowConverter(const Ops& ops, PdRows from, PdRows to);

  // Rows [first, first + rows) of a sequence, whose pages are `from` (page i has positions
  // [i * P, (i + 1) * P) for the P of the format converted from), to the page at `to`, whose first
  // row is position `first`. Header and gaps of `to` stay as they are.
  // REQUIRES: 1 <= rows <= the page tokens of the format converted to.
  void Convert(std::span<std::byte* const> from, int64_t first, int64_t rows, std::byte* to);

  const PdRows& from() const { return from_; }
  const PdRows& to() const { return to_; }

 private:
  void ConvertLayer(int64_t layer, std::span<std::byte* const> from, int64_t first, int64_t rows,
                    std::byte* to);
  void ConvertIndexKeys(int64_t layer, std::span<std::byte* const> from, int64_t first,
                        int64_t rows, std::byte* to);

  const Ops& ops_;
  const PdRows from_, to_;
  std::vector<float> a_, b_;  // rows as float32: keys or latents; values or ropes
};

}  // namespace tern
