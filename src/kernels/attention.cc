#include "kernels/attention.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/kv_rows.h"
#include "kernels/scratch.h"

namespace tern {
namespace {

// Queries (rows x heads of one group) that share each row read: their scores of one chunk fill
// 32 KiB, and stay in the first-level cache.
constexpr int64_t kQueriesPerBlock = 32;
// Blocks are taken apart when whole ones would give a thread fewer tasks than this.
constexpr int64_t kTasksPerThread = 3;
// Work that takes about as long as sharing it out: some microseconds.
constexpr int64_t kProductsAlone = 1 << 17;
constexpr int64_t kMergedFloatsAlone = 1 << 13;
// States of chunks that run side by side: at most 8 MiB.
constexpr int64_t kMaxSplitFloats = int64_t{1} << 21;

// The kernels on a block, a head group and a chunk.
class Kernels {
 public:
  Kernels(const IsaTable& table, const AttentionCall& call) : table_(table), call_(call) {}

  int64_t groups() const { return (call_.args.heads + call_.group - 1) / call_.group; }
  int64_t StatesFloats(int64_t rows) const {
    return rows * call_.group * AttentionStateFloats(call_.args.value_dim);
  }
  int64_t WorkspaceFloats(int64_t most_rows) const {
    const int64_t queries = std::max(most_rows * call_.group, AllAtOnce() ? call_.args.heads : 0);
    return AttentionWorkspaceFloats(queries, call_.args.key_dim);
  }
  // Groups [first, first + count); states: of one group after another's. goes_on: the next chunk of
  // these groups is this thread's next work.
  void Chunk(const AttentionRows& block, int64_t first, int64_t count, int64_t chunk, bool goes_on,
             float* workspace, float* states) const {
    AttentionArgs args = ArgsOf(block);
    args.goes_on = goes_on;
    const float* q = call_.q + FirstRow(block) * call_.args.heads * call_.args.key_dim;
    if (block.rows == 1 && count == groups() && AllAtOnce()) {
      AttentionBlock all = BlockOf(block, 0);
      all.heads = call_.args.heads;
      return table_.attention_row(args, all, q, chunk, workspace, states);
    }
    for (int64_t i = 0; i < count; ++i) {
      table_.attention_chunk(args, BlockOf(block, first + i), q, chunk, workspace,
                             states + i * StatesFloats(block.rows));
    }
  }
  void Merge(const AttentionRows& block, int64_t group, const float* next, float* states) const {
    const AttentionBlock b = BlockOf(block, group);
    table_.attention_merge(b.rows * b.heads, call_.args.value_dim, next, states);
  }
  void Finish(const AttentionRows& block, int64_t group, const float* states) const {
    table_.attention_finish(ArgsOf(block), BlockOf(block, group), states,
                            call_.out + FirstRow(block) * call_.args.heads * call_.args.value_dim);
  }

 private:
  // Whether one kernel call can take all KV heads of a row.
  bool AllAtOnce() const {
    return table_.attention_row != nullptr && call_.args.bf16_products &&
           call_.args.format != KvFormat::kF32 && call_.kv_heads > 1 &&
           call_.args.heads <= kAttentionRowHeads;
  }
  static int64_t FirstRow(const AttentionRows& block) { return block.run->first_row + block.first; }
  AttentionBlock BlockOf(const AttentionRows& block, int64_t group) const {
    const int64_t first_head = group * call_.group;
    return {.first_position = block.run->first_position + block.first,
            .rows = block.rows,
            .first_head = first_head,
            .heads = std::min(call_.group, call_.args.heads - first_head),
            .kv_head = call_.kv_heads == 1 ? 0 : group};
  }
  AttentionArgs ArgsOf(const AttentionRows& block) const {
    AttentionArgs args = call_.args;
    args.pages = block.run->pages;
    if (block.selection != nullptr) {
      args.positions = block.selection->positions;
      args.selected = block.selection->count;
    }
    return args;
  }

  const IsaTable& table_;
  const AttentionCall& call_;
};

// A row with a selection is a block of its own: it has positions of its own.
void CutIntoBlocks(const AttentionCall& call, int64_t groups, std::vector<AttentionRows>& blocks) {
  const int64_t most_rows = std::max<int64_t>(kQueriesPerBlock / call.group, 1);
  const auto selection_of = [&](const KvRun& run, int64_t row) -> const RowSelection* {
    if (call.selections.empty()) return nullptr;
    const RowSelection& s = call.selections[static_cast<size_t>(run.first_row + row)];
    return s.count > 0 ? &s : nullptr;
  };
  blocks.clear();
  int64_t units = 0;
  for (const KvRun& run : call.runs) {
    for (int64_t first = 0; first < run.rows;) {
      const RowSelection* selection = selection_of(run, first);
      int64_t rows = 1;
      while (selection == nullptr && rows < most_rows && first + rows < run.rows &&
             selection_of(run, first + rows) == nullptr) {
        ++rows;
      }
      const int64_t seen =
          selection != nullptr ? selection->count : run.first_position + first + rows;
      const int64_t chunks = (seen + kAttentionChunk - 1) / kAttentionChunk;
      blocks.push_back({&run, selection, first, rows, seen, chunks, units});
      units += chunks * groups;
      first += rows;
    }
  }
}

// Calls fn(task, worker) for each task, without the pool where `alone`.
template <typename Fn>
void ForTasks(ThreadPool& pool, int64_t tasks, bool alone, const Fn& fn) {
  if (!alone) return pool.ParallelFor(tasks, fn);
  for (int64_t task = 0; task < tasks; ++task) fn(task, 0);
}

}  // namespace

void RunAttention(const IsaTable& table, ThreadPool& pool, const AttentionCall& call,
                  AttentionScratch scratch) {
  const Kernels kernels(table, call);
  const int64_t groups = kernels.groups();
  std::vector<AttentionRows>& blocks = scratch.blocks;
  CutIntoBlocks(call, groups, blocks);
  const auto count = static_cast<int64_t>(blocks.size());
  int64_t units = 0, most_rows = 0, products = 0;
  for (const AttentionRows& block : blocks) {
    units += block.chunks * groups;
    most_rows = std::max(most_rows, block.rows);
    products += block.rows * call.args.heads * block.seen;
  }
  products *= call.args.key_dim + call.args.value_dim;
  const int64_t states_floats = kernels.StatesFloats(most_rows);
  const int64_t workspace_floats = kernels.WorkspaceFloats(most_rows);

  const bool few = pool.threads() > 1 && count < kTasksPerThread * pool.threads();
  if (few && units * states_floats <= kMaxSplitFloats) {
    float* workspaces = Grow(scratch.workspaces, pool.threads() * workspace_floats);
    float* unit_states = Grow(scratch.unit_states, units * states_floats);
    const auto states_of = [&](const AttentionRows& block, int64_t chunk, int64_t group) {
      return unit_states + block.first_unit * states_floats +
             (chunk * groups + group) * kernels.StatesFloats(block.rows);
    };
    // All groups of a chunk are one task where chunks suffice: together they read whole rows.
    const int64_t task_units = units >= kTasksPerThread * pool.threads() * groups ? groups : 1;
    const auto run_task = [&](int64_t task, int worker) {
      const int64_t first = task * task_units;
      const AttentionRows& block =
          *(std::upper_bound(blocks.begin(), blocks.end(), first,
                             [](int64_t u, const AttentionRows& b) { return u < b.first_unit; }) -
            1);
      const int64_t chunk = (first - block.first_unit) / groups;
      const int64_t group = (first - block.first_unit) % groups;
      kernels.Chunk(block, group, task_units, chunk, false, workspaces + worker * workspace_floats,
                    states_of(block, chunk, group));
    };
    ForTasks(pool, units / task_units, products < kProductsAlone, run_task);
    const bool little = units * states_floats < kMergedFloatsAlone;
    ForTasks(pool, count * groups, little, [&](int64_t i, int) {
      const AttentionRows& block = blocks[static_cast<size_t>(i / groups)];
      const int64_t group = i % groups;
      float* total = states_of(block, 0, group);
      for (int64_t chunk = 1; chunk < block.chunks; ++chunk) {
        kernels.Merge(block, group, states_of(block, chunk, group), total);
      }
      kernels.Finish(block, group, total);
    });
    return;
  }

  // Whole blocks, chunk by chunk; one group a task where blocks are few.
  const int64_t task_groups = few ? 1 : groups;
  const int64_t worker_floats = workspace_floats + 2 * task_groups * states_floats;
  float* workspaces = Grow(scratch.workspaces, pool.threads() * worker_floats);
  pool.ParallelFor(count * (groups / task_groups), [&](int64_t task, int worker) {
    const AttentionRows& block = blocks[static_cast<size_t>(task * task_groups / groups)];
    const int64_t first_group = task * task_groups % groups;
    const int64_t group_floats = kernels.StatesFloats(block.rows);
    float* workspace = workspaces + worker * worker_floats;
    float* totals = workspace + workspace_floats;
    float* next = totals + task_groups * states_floats;
    for (int64_t chunk = 0; chunk < block.chunks; ++chunk) {
      float* states = chunk == 0 ? totals : next;
      kernels.Chunk(block, first_group, task_groups, chunk, chunk + 1 < block.chunks, workspace,
                    states);
      for (int64_t i = 0; chunk > 0 && i < task_groups; ++i) {
        kernels.Merge(block, first_group + i, next + i * group_floats, totals + i * group_floats);
      }
    }
    for (int64_t i = 0; i < task_groups; ++i) {
      kernels.Finish(block, first_group + i, totals + i * group_floats);
    }
  });
}

void Ops::GqaWrite(const GqaShape& shape, const KvSlab& slab, std::span<const KvRun> runs,
                   const float* k, const float* v) const {
  Begin(Operation::kKvWrite);
  const KvRowLayout layout =
      GqaRowLayout(slab.format, slab.page_tokens, shape.kv_heads, shape.head_dim);
  KvPart key{.from = k,
             .numbers = shape.kv_heads * shape.head_dim,
             .offset_bytes = slab.offset_bytes,
             .row_bytes = layout.k_row,
             .scale = slab.format == KvFormat::kFp8E4m3    ? KvScale::kLayer
                      : slab.format == KvFormat::kFp8Tiled ? KvScale::kTile
                                                           : KvScale::kNone,
             .divisor = slab.k_scale,
             .tile = shape.head_dim,
             .scales_offset_bytes = slab.offset_bytes + layout.scales_offset,
             .scales_row_bytes = layout.scales_row};
  KvPart value = key;
  value.from = v;
  value.offset_bytes += layout.v_offset;
  value.divisor = slab.v_scale;
  value.scales_offset_bytes += shape.kv_heads;
  const KvPart parts[] = {key, value};
  const int64_t scales = 2 * shape.kv_heads;
  WriteKvRows(table_, pool_, slab, runs, parts,
              {.offset_bytes = key.scales_offset_bytes + scales,
               .bytes = slab.format == KvFormat::kFp8Tiled ? layout.scales_row - scales : 0,
               .row_bytes = layout.scales_row});
}

void Ops::GqaAttention(const GqaShape& shape, const KvSlab& slab, std::span<const KvRun> runs,
                       const float* q, float* out) const {
  Begin(Operation::kAttention);
  TERN_CHECK(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0);
  const KvRowLayout layout =
      GqaRowLayout(slab.format, slab.page_tokens, shape.kv_heads, shape.head_dim);
  const bool scaled = slab.format == KvFormat::kFp8E4m3;
  const AttentionCall call{.args = {.format = slab.format,
                                    .page_tokens = slab.page_tokens,
                                    .k_offset_bytes = slab.offset_bytes + layout.k_offset,
                                    .v_offset_bytes = slab.offset_bytes + layout.v_offset,
                                    .k_row_bytes = layout.k_row,
                                    .v_row_bytes = layout.v_row,
                                    .scales_offset_bytes = slab.offset_bytes + layout.scales_offset,
                                    .scales_row_bytes = layout.scales_row,
                                    .kv_heads = shape.kv_heads,
                                    .heads = shape.heads,
                                    .key_dim = shape.head_dim,
                                    .value_dim = shape.head_dim,
                                    .scale = scaled ? shape.scale * slab.k_scale : shape.scale,
                                    .value_scale = scaled ? slab.v_scale : 1.0f,
                                    .bf16_products = true},
                           .kv_heads = shape.kv_heads,
                           .group = shape.heads / shape.kv_heads,
                           .runs = runs,
                           .q = q,
                           .out = out};
  RunAttention(table_, pool_, call,
               {scratch_->attention_rows, scratch_->workspaces, scratch_->unit_states});
}

}  // namespace tern
