// Driver of attention over pages, shared by grouped-query and latent attention: cuts the batch into
// blocks of rows and heads, and long contexts into chunks of 256 positions, for the pool. A block's
// chunks are folded in order whether one worker runs them all or many run them side by side, so the
// bits are the same. Thread: the one that calls Ops.
#pragma once

#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/isa_table.h"
#include "kernels/kv_slab.h"
#include "kernels/ops.h"

namespace tern {

struct AttentionCall {
  // Shape, slab and scale; pages and selection are each block's own.
  AttentionArgs args;
  int64_t kv_heads = 1;  // 1: all heads share a row, and may be cut into any groups
  int64_t group = 1;     // heads of a task; heads / kv_heads unless kv_heads is 1
  std::span<const KvRun> runs;
  std::span<const RowSelection> selections;  // empty, or one per row of the batch
  const float* q = nullptr;
  float* out = nullptr;
};

// Consecutive rows of one run, all heads: what a task computes.
struct AttentionRows {
  const KvRun* run;
  const RowSelection* selection;  // null: dense
  int64_t first, rows;            // in the run
  int64_t seen;                   // positions of the last row
  int64_t chunks;                 // of those
  int64_t first_unit;             // units (chunk, head group) of all blocks before this one
};

// Memory that is kept between calls.
struct AttentionScratch {
  std::vector<AttentionRows>& blocks;
  std::vector<float>& workspaces;
  std::vector<float>& unit_states;
};

void RunAttention(const IsaTable& table, ThreadPool& pool, const AttentionCall& call,
                  AttentionScratch scratch);

}  // namespace tern
