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
// Blocks are taken apart when whole ones would give a thread fewer tasks than this.
constexpr int64_t kTasksPerThread = 3;
// States of chunks that run side by side: at most 8 MiB.
constexpr int64_t kMaxSplitFloats = int64_t{1} << 21;

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
  int64_t chunks;       // of positions that the last row sees
  int64_t first_unit;   // units (chunk, KV head) of all blocks before this one
  int64_t first_position() const { return run->first_position + first; }
};

// One call of Ops::GqaAttention: the kernels on a block, a KV head and a chunk.
class Attention {
 public:
  Attention(const IsaTable& table, const GqaShape& shape, const KvSlab& slab, const float* q,
            float* out)
      : table_(table), shape_(shape), slab_(slab), q_(q), out_(out) {}

  int64_t group() const { return shape_.heads / shape_.kv_heads; }
  int64_t StatesFloats(int64_t rows) const {
    return rows * group() * AttentionStateFloats(shape_.head_dim);
  }

  void Chunk(const Block& block, int64_t kv_head, int64_t chunk, float* workspace,
             float* states) const {
    table_.attention_chunk(ArgsOf(block), q_ + RowOffset(block), block.first_position(), block.rows,
                           kv_head, chunk, workspace, states);
  }
  void Merge(const Block& block, const float* next, float* states) const {
    table_.attention_merge(block.rows * group(), shape_.head_dim, next, states);
  }
  void Finish(const Block& block, int64_t kv_head, const float* states) const {
    table_.attention_finish(ArgsOf(block), states, block.rows, kv_head, out_ + RowOffset(block));
  }

 private:
  int64_t RowOffset(const Block& block) const {
    return (block.run->first_row + block.first) * shape_.heads * shape_.head_dim;
  }
  AttentionArgs ArgsOf(const Block& block) const {
    return {.format = slab_.format,
            .pages = block.run->pages,
            .page_tokens = slab_.page_tokens,
            .k_offset_bytes = slab_.offset_bytes,
            .v_offset_bytes = VOffset(shape_, slab_),
            .heads = shape_.heads,
            .kv_heads = shape_.kv_heads,
            .head_dim = shape_.head_dim,
            .scale = shape_.scale};
  }

  const IsaTable& table_;
  const GqaShape& shape_;
  const KvSlab& slab_;
  const float* q_;
  float* out_;
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
  TERN_CHECK(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0);
  const Attention attention(table_, shape, slab, q, out);
  const int64_t kv_heads = shape.kv_heads;
  const int64_t block_rows = std::max<int64_t>(kQueriesPerBlock / attention.group(), 1);

  std::vector<Block> blocks;
  int64_t units = 0, most_rows = 0;
  for (const KvRun& run : runs) {
    for (int64_t first = 0; first < run.rows; first += block_rows) {
      const int64_t rows = std::min(block_rows, run.rows - first);
      const int64_t end = run.first_position + first + rows;
      const int64_t chunks = (end + kAttentionChunk - 1) / kAttentionChunk;
      blocks.push_back({&run, first, rows, chunks, units});
      units += chunks * kv_heads;
      most_rows = std::max(most_rows, rows);
    }
  }
  const auto count = static_cast<int64_t>(blocks.size());
  const int64_t states_floats = attention.StatesFloats(most_rows);
  const int64_t workspace_floats =
      AttentionWorkspaceFloats(most_rows * attention.group(), shape.head_dim);

  const bool few = pool_.threads() > 1 && count < kTasksPerThread * pool_.threads();
  if (few && units * states_floats <= kMaxSplitFloats) {
    scratch_->workspaces.resize(static_cast<size_t>(pool_.threads() * workspace_floats));
    scratch_->unit_states.resize(static_cast<size_t>(units * states_floats));
    // Heads of one chunk are neighbours: together they read whole rows.
    const auto states_of = [&](const Block& block, int64_t chunk, int64_t kv_head) {
      return scratch_->unit_states.data() +
             (block.first_unit + chunk * kv_heads + kv_head) * states_floats;
    };
    pool_.ParallelFor(units, [&](int64_t unit, int worker) {
      const Block& block =
          *(std::upper_bound(blocks.begin(), blocks.end(), unit,
                             [](int64_t u, const Block& b) { return u < b.first_unit; }) -
            1);
      const int64_t chunk = (unit - block.first_unit) / kv_heads;
      const int64_t kv_head = (unit - block.first_unit) % kv_heads;
      attention.Chunk(block, kv_head, chunk,
                      scratch_->workspaces.data() + worker * workspace_floats,
                      states_of(block, chunk, kv_head));
    });
    pool_.ParallelFor(count, [&](int64_t i, int) {
      const Block& block = blocks[static_cast<size_t>(i)];
      for (int64_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
        float* total = states_of(block, 0, kv_head);
        for (int64_t chunk = 1; chunk < block.chunks; ++chunk) {
          attention.Merge(block, states_of(block, chunk, kv_head), total);
        }
        attention.Finish(block, kv_head, total);
      }
    });
    return;
  }

  // Whole blocks, chunk by chunk; one KV head a task where blocks are few.
  const int64_t task_heads = few ? 1 : kv_heads;
  const int64_t worker_floats = workspace_floats + (task_heads + 1) * states_floats;
  scratch_->workspaces.resize(static_cast<size_t>(pool_.threads() * worker_floats));
  pool_.ParallelFor(count * (kv_heads / task_heads), [&](int64_t task, int worker) {
    const Block& block = blocks[static_cast<size_t>(task * task_heads / kv_heads)];
    const int64_t first_head = task * task_heads % kv_heads;
    float* workspace = scratch_->workspaces.data() + worker * worker_floats;
    float* next = workspace + workspace_floats;
    float* totals = next + states_floats;
    for (int64_t chunk = 0; chunk < block.chunks; ++chunk) {
      for (int64_t i = 0; i < task_heads; ++i) {
        float* total = totals + i * states_floats;
        attention.Chunk(block, first_head + i, chunk, workspace, chunk == 0 ? total : next);
        if (chunk > 0) attention.Merge(block, next, total);
      }
    }
    for (int64_t i = 0; i < task_heads; ++i) {
      attention.Finish(block, first_head + i, totals + i * states_floats);
    }
  });
}

}  // namespace tern
