// Drivers of grouped-query attention: cut the batch into blocks of rows, and long contexts into
// chunks of 256 positions, for the pool. A block's chunks are folded in order whether one worker
// runs them all or many run them side by side, so the bits are the same.
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "kernels/isa_table.h"
#include "kernels/ops.h"
#include "kernels/scratch.h"

namespace tern {
namespace {

// Queries (rows x heads of one KV head) that share each row read: their scores of one chunk fill
// 32 KiB, and stay in the first-level cache.
constexpr int64_t kQueriesPerBlock = 32;
// Chunks run side by side when whole blocks would give a thread fewer tasks than this.
constexpr int64_t kTasksPerThread = 3;

int64_t BytesOf(KvFormat format) {
  TERN_CHECK(format == KvFormat::kF32 || format == KvFormat::kBf16);
  return format == KvFormat::kF32 ? 4 : 2;
}

int64_t VOffset(const GqaShape& shape, const KvSlab& slab) {
  return slab.offset_bytes +
         slab.page_tokens * shape.kv_heads * shape.head_dim * BytesOf(slab.format);
}

// Consecutive rows of one run.
struct Block {
  const KvRun* run;
  int64_t first, rows;  // in the run
  int64_t chunks;
  int64_t first_state;  // split blocks: index of (kv head 0, chunk 0) in chunk_states
  int64_t first_position() const { return run->first_position + first; }
};

}  // namespace

void Ops::GqaWrite(const GqaShape& shape, const KvSlab& slab, std::span<const KvRun> runs,
                   const float* k, const float* v) const {
  const int64_t width = shape.kv_heads * shape.head_dim;
  const int64_t row_bytes = width * BytesOf(slab.format), v_offset = VOffset(shape, slab);
  const auto write = [&](const float* from, std::byte* to) {
    if (slab.format == KvFormat::kF32) {
      std::memcpy(to, from, static_cast<size_t>(row_bytes));
    } else {
      table_.to_bf16(from, width, reinterpret_cast<uint16_t*>(to));
    }
  };
  pool_.ParallelFor(static_cast<int64_t>(runs.size()), [&](int64_t i, int) {
    const KvRun& run = runs[static_cast<size_t>(i)];
    for (int64_t row = 0; row < run.rows; ++row) {
      const int64_t position = run.first_position + row;
      std::byte* page = run.pages[position / slab.page_tokens];
      const int64_t offset = position % slab.page_tokens * row_bytes;
      write(k + (run.first_row + row) * width, page + slab.offset_bytes + offset);
      write(v + (run.first_row + row) * width, page + v_offset + offset);
    }
  });
}

void Ops::GqaAttention(const GqaShape& shape, const KvSlab& slab, std::span<const KvRun> runs,
                       const float* q, float* out) const {
  const int64_t group = shape.heads / shape.kv_heads;
  TERN_CHECK(group * shape.kv_heads == shape.heads);
  const int64_t rows_per_block = std::max<int64_t>(kQueriesPerBlock / group, 1);
  const int64_t block_queries = rows_per_block * group;
  const int64_t state_floats = AttentionStateFloats(shape.head_dim);
  const int64_t row_floats = shape.heads * shape.head_dim;

  std::vector<Block> blocks;
  int64_t longest = 0, states = 0;
  for (const KvRun& run : runs) {
    for (int64_t first = 0; first < run.rows; first += rows_per_block) {
      const int64_t rows = std::min(rows_per_block, run.rows - first);
      const int64_t end = run.first_position + first + rows;
      const int64_t chunks = (end + kAttentionChunk - 1) / kAttentionChunk;
      blocks.push_back({&run, first, rows, chunks, states});
      states += chunks * shape.kv_heads;
      longest = std::max(longest, chunks);
    }
  }
  const auto count = static_cast<int64_t>(blocks.size());
  const int64_t whole_tasks = count * shape.kv_heads;
  const bool split =
      pool_.threads() > 1 && longest > 1 && whole_tasks < kTasksPerThread * pool_.threads();

  const int64_t workspace_floats = AttentionWorkspaceFloats(block_queries, shape.head_dim);
  const int64_t worker_floats = workspace_floats + 2 * block_queries * state_floats;
  scratch_->workspaces.resize(static_cast<size_t>(pool_.threads() * worker_floats));
  if (split) {
    scratch_->chunk_states.resize(static_cast<size_t>(states * block_queries * state_floats));
  }
  const auto args_of = [&](const Block& block) {
    return AttentionArgs{.format = slab.format,
                         .pages = block.run->pages,
                         .page_tokens = slab.page_tokens,
                         .k_offset_bytes = slab.offset_bytes,
                         .v_offset_bytes = VOffset(shape, slab),
                         .heads = shape.heads,
                         .kv_heads = shape.kv_heads,
                         .head_dim = shape.head_dim,
                         .scale = shape.scale};
  };
  const auto run_chunk = [&](const Block& block, int64_t kv_head, int64_t chunk, int worker,
                             float* to) {
    table_.attention_chunk(args_of(block), q + (block.run->first_row + block.first) * row_floats,
                           block.first_position(), block.rows, kv_head, chunk,
                           scratch_->workspaces.data() + worker * worker_floats, to);
  };
  const auto finish = [&](const Block& block, int64_t kv_head, const float* from) {
    table_.attention_finish(args_of(block), from, block.rows, kv_head,
                            out + (block.run->first_row + block.first) * row_floats);
  };
  const auto state_of = [&](const Block& block, int64_t kv_head, int64_t chunk) {
    return scratch_->chunk_states.data() +
           (block.first_state + kv_head * block.chunks + chunk) * block_queries * state_floats;
  };

  if (!split) {
    pool_.ParallelFor(whole_tasks, [&](int64_t task, int worker) {
      const Block& block = blocks[static_cast<size_t>(task / shape.kv_heads)];
      const int64_t kv_head = task % shape.kv_heads;
      float* total = scratch_->workspaces.data() + worker * worker_floats + workspace_floats;
      float* next = total + block_queries * state_floats;
      run_chunk(block, kv_head, 0, worker, total);
      for (int64_t chunk = 1; chunk < block.chunks; ++chunk) {
        run_chunk(block, kv_head, chunk, worker, next);
        table_.attention_merge(block.rows * group, shape.head_dim, next, total);
      }
      finish(block, kv_head, total);
    });
    return;
  }
  pool_.ParallelFor(states, [&](int64_t task, int worker) {
    const auto after =
        std::upper_bound(blocks.begin(), blocks.end(), task,
                         [&](int64_t t, const Block& block) { return t < block.first_state; });
    const Block& block = *(after - 1);
    const int64_t index = task - block.first_state;
    const int64_t kv_head = index / block.chunks, chunk = index % block.chunks;
    run_chunk(block, kv_head, chunk, worker, state_of(block, kv_head, chunk));
  });
  pool_.ParallelFor(whole_tasks, [&](int64_t task, int) {
    const Block& block = blocks[static_cast<size_t>(task / shape.kv_heads)];
    const int64_t kv_head = task % shape.kv_heads;
    float* total = state_of(block, kv_head, 0);
    for (int64_t chunk = 1; chunk < block.chunks; ++chunk) {
      table_.attention_merge(block.rows * group, shape.head_dim, state_of(block, kv_head, chunk),
                             total);
    }
    finish(block, kv_head, total);
  });
}

}  // namespace tern
