// PdRows: what one side's pages hold, and PackRows: the payload of a PAGE frame, which is the rows
// of one page without its header, gaps and rows that are not there (docs/formats/pd_wire.md).
// Thread: immutable values, pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "kv/page_format.h"
#include "pd/wire.h"

namespace tern {

struct PdRows {
  std::vector<KvLayerSpec> specs;  // the model's; scales are those of this side
  PageFormat format;               // of this side's pages
};

// Between rows and what the handshake says of them. Errors: kDataLoss (layers that no pool can
// have: different FP8 formats in one page).
void DescribeRows(const PdRows& rows, PdHello* hello);
Result<PdRows> RowsOf(const PdHello& hello);

// What travels: the receiver's rows, or the sender's where the receiver converts, cut at the
// receiver's pages. Errors: kFailedPrecondition, naming the layer and what differs: kinds, sizes,
// rows that are neither equal nor BF16 at the sender, scales.
Result<PdRows> NegotiateRows(const PdRows& sender, const PdRows& receiver,
                             bool convert_at_receiver);

// Exact bytes of the payload of `rows` rows.
int64_t PayloadBytes(const PageFormat& format, int64_t rows);
// Rows [0, rows) of the page at `page`, to and from a payload of PayloadBytes(format, rows).
void PackRows(const PageFormat& format, const std::byte* page, int64_t rows,
              std::span<std::byte> payload);
void UnpackRows(const PageFormat& format, std::span<const std::byte> payload, int64_t rows,
                std::byte* page);
// The seal sum of each layer, of rows [0, rows) of a page whose first position is `position`.
void SealSums(const PageFormat& format, const std::byte* page, int64_t position, int64_t rows,
              std::vector<uint64_t>* sums);

}  // namespace tern
