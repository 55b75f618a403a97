// Driver of the DSA indexer: scores of a pass's rows over all cached positions, chunk by chunk on
// the pool, then the exact top-k of each row.
#include <algorithm>

#include "base/check.h"
#include "kernels/isa_table.h"
#include "kernels/kv_rows.h"
#include "kernels/ops.h"
#include "kernels/scratch.h"
#include "kernels/top_k.h"

namespace tern {
namespace {

// Rows that share a transposed tile of keys.
constexpr int64_t kRowsPerBlock = 16;
// Scores of one pass: at most 64 MiB, if a row's scores are.
constexpr int64_t kMaxScoreFloats = int64_t{1} << 24;

// Rows of one pass, whose scores of `positions` positions each are held.
int64_t PassRows(int64_t rows, int64_t positions) {
  return std::min(rows, std::max(kMaxScoreFloats / std::max<int64_t>(positions, 1), kRowsPerBlock));
}

}  // namespace

void Ops::IndexerWrite(const IndexerShape& shape, const KvSlab& slab, std::span<const KvRun> runs,
                       const float* k) const {
  Begin(Operation::kKvWrite);
  const KvRowLayout layout = IndexRowLayout(slab.format, slab.page_tokens, shape.dim);
  const KvPart part{.from = k,
                    .numbers = shape.dim,
                    .offset_bytes = slab.offset_bytes,
                    .row_bytes = layout.k_row,
                    .scale = IsFp8(slab.format) ? KvScale::kKey : KvScale::kNone,
                    .scales_offset_bytes = slab.offset_bytes + layout.scales_offset,
                    .scales_row_bytes = layout.scales_row};
  WriteKvRows(table_, pool_, slab, runs, {&part, 1}, {});
}

void Ops::IndexerSelect(const IndexerShape& shape, const KvSlab& slab, std::span<const KvRun> runs,
                        const float* q, const float* w, int32_t* positions,
                        RowSelection* selections) const {
  Begin(Operation::kIndexer);
  const KvRowLayout layout = IndexRowLayout(slab.format, slab.page_tokens, shape.dim);
  const int64_t workspace_floats = AttentionWorkspaceFloats(shape.heads, shape.dim);
  float* workspaces = Grow(scratch_->workspaces, pool_.threads() * workspace_floats);
  for (const KvRun& run : runs) {
    // Rows before `first` see at most top_k positions: all of them.
    const int64_t first =
        std::clamp<int64_t>(shape.top_k - run.first_position, 0, std::max<int64_t>(run.rows, 0));
    std::fill_n(selections + run.first_row, first, RowSelection{});
    const int64_t stride = run.first_position + run.rows;
    const int64_t pass_rows = std::max<int64_t>(PassRows(run.rows, stride), 1);
    const AttentionArgs args{.format = slab.format,
                             .pages = run.pages,
                             .page_tokens = slab.page_tokens,
                             .k_offset_bytes = slab.offset_bytes,
                             .k_row_bytes = layout.k_row,
                             .scales_offset_bytes = slab.offset_bytes + layout.scales_offset,
                             .scales_row_bytes = layout.scales_row,
                             .heads = shape.heads,
                             .key_dim = shape.dim,
                             .scale = shape.scale};
    for (int64_t begin = first; begin < run.rows; begin += pass_rows) {
      const int64_t rows = std::min(pass_rows, run.rows - begin);
      const int64_t end_position = run.first_position + begin + rows;
      const int64_t chunks = (end_position + kAttentionChunk - 1) / kAttentionChunk;
      const int64_t blocks = (rows + kRowsPerBlock - 1) / kRowsPerBlock;
      float* scores = Grow(scratch_->unit_states, rows * stride);
      pool_.ParallelFor(chunks * blocks, [&](int64_t task, int worker) {
        const int64_t chunk = task / blocks, row = task % blocks * kRowsPerBlock;
        const AttentionBlock block{.first_position = run.first_position + begin + row,
                                   .rows = std::min(kRowsPerBlock, rows - row)};
        const int64_t at = run.first_row + begin + row;
        table_.index_scores(args, block, q + at * shape.heads * shape.dim, w + at * shape.heads,
                            chunk, workspaces + worker * workspace_floats,
                            scores + row * stride + chunk * kAttentionChunk, stride);
      });
      pool_.ParallelFor(rows, [&](int64_t row, int) {
        const int64_t at = run.first_row + begin + row;
        int32_t* target = positions + at * shape.top_k;
        SelectTopK(scores + row * stride, run.first_position + begin + row + 1, shape.top_k,
                   target);
        selections[at] = {.positions = target, .count = shape.top_k};
      });
    }
  }
}

uint64_t Ops::IndexerSelectBytes(const IndexerShape& shape, int64_t rows, int64_t positions) const {
  const int64_t floats = pool_.threads() * AttentionWorkspaceFloats(shape.heads, shape.dim) +
                         PassRows(rows, positions) * positions;
  return static_cast<uint64_t>(floats) * sizeof(float);
}

}  // namespace tern
