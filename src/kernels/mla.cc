// Drivers of multi-head latent attention: the absorbed form is attention with one KV head (driver
// in attention.cc); the expanded form makes keys and values of 256 cached positions at a time.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/attention.h"
#include "kernels/cpu/layout.h"
#include "kernels/kv_rows.h"
#include "kernels/scratch.h"

namespace tern {
namespace {

// Heads of one task of the absorbed form. More share what is read of each row, fewer give more
// tasks.
constexpr int64_t kHeadsPerTask = 32;
// Rows of one task of the expanded form, for one head.
constexpr int64_t kRowsPerTask = 64;
// Softmax states of the rows that share one pass over the expanded positions: at most 64 MiB.
constexpr int64_t kMaxStateFloats = int64_t{1} << 24;

// How kernels find the latent rows of a slab.
AttentionArgs LatentArgs(const MlaShape& shape, const KvSlab& slab) {
  const KvRowLayout layout = MlaRowLayout(slab.format, slab.page_tokens, shape.latent, shape.rope);
  const bool scaled = slab.format == KvFormat::kFp8E4m3;
  return {.format = slab.format,
          .page_tokens = slab.page_tokens,
          .k_offset_bytes = slab.offset_bytes,
          .v_offset_bytes = slab.offset_bytes,
          .k_row_bytes = layout.k_row,
          .v_row_bytes = layout.v_row,
          .scales_offset_bytes = slab.offset_bytes + layout.scales_offset,
          .scales_row_bytes = layout.scales_row,
          .latent = shape.latent,
          .heads = shape.heads,
          .key_dim = shape.latent + shape.rope,
          .value_dim = shape.latent,
          .scale = scaled ? shape.scale * slab.k_scale : shape.scale,
          .value_scale = scaled ? slab.k_scale : 1.0f,
          .bf16_products = true};
}

// Rows [first, first + rows) of one run, all heads, over all their positions.
struct Pass {
  const KvRun* run;
  int64_t first, rows;
  int64_t first_position() const { return run->first_position + first; }
};

// Rows of one pass over the expanded positions.
int64_t PassRows(const MlaShape& shape, int64_t rows) {
  const int64_t row_floats = shape.heads * AttentionStateFloats(shape.value);
  return std::min(rows, std::max(kMaxStateFloats / row_floats, kAttentionChunk));
}

// Of a worker: a page of one head, a kernel's workspace, and a task's states.
int64_t WorkerFloats(const MlaShape& shape) {
  const int64_t key_dim = shape.nope + shape.rope;
  return kAttentionChunk * (key_dim + shape.value) +
         AttentionWorkspaceFloats(kRowsPerTask, key_dim) +
         kRowsPerTask * AttentionStateFloats(shape.value);
}

// All of Expanded's memory.
int64_t ExpandedFloats(const MlaShape& shape, int64_t threads, int64_t pass_rows) {
  const int64_t head = shape.nope + shape.value;
  return kAttentionChunk * (shape.latent + shape.rope + shape.heads * head) +
         threads * WorkerFloats(shape) +
         pass_rows * shape.heads * AttentionStateFloats(shape.value);
}

// What one call of Ops::MlaPrefillAttention holds: 256 positions, expanded, and the states of a
// pass's rows. Head h of `expanded` is [nope keys | values]; a worker copies a head's keys, with
// the shared rope part, and its values to a page of its own, which the kernels then read: float32,
// or BF16 as the cached rows on a level with BF16 products.
class Expanded {
 public:
  Expanded(const IsaTable& table, ThreadPool& pool, const MlaShape& shape, KvFormat rows,
           std::vector<float>& memory, int64_t pass_rows)
      : table_(table),
        pool_(pool),
        shape_(shape),
        format_(table.bf16_activations && rows != KvFormat::kF32 ? KvFormat::kBf16
                                                                 : KvFormat::kF32) {
    worker_floats_ = WorkerFloats(shape);
    const int64_t latents = kAttentionChunk * shape.latent, ropes = kAttentionChunk * shape.rope;
    const int64_t expanded = kAttentionChunk * shape.heads * (shape.nope + shape.value);
    latents_ = Grow(memory, ExpandedFloats(shape, pool.threads(), pass_rows));
    ropes_ = latents_ + latents;
    expanded_ = ropes_ + ropes;
    workers_ = expanded_ + expanded;
    states_ = workers_ + pool.threads() * worker_floats_;
  }

  int64_t state_floats() const { return AttentionStateFloats(shape_.value); }
  float* latents() { return latents_; }
  float* expanded() { return expanded_; }

  // Latent and rope parts of `count` positions from `begin` on.
  void Read(const KvSlab& slab, const KvRun& run, int64_t begin, int64_t count) {
    AttentionArgs args = LatentArgs(shape_, slab);
    args.pages = run.pages;
    constexpr int64_t kRows = 32;
    pool_.ParallelFor((count + kRows - 1) / kRows, [&](int64_t task, int) {
      const int64_t first = task * kRows, rows = std::min(kRows, count - first);
      const auto read = [&](int64_t from, int64_t numbers, float* out) {
        if (numbers == 0) return;
        out += first * numbers;
        table_.expand_rows(args, begin + first, rows, from, numbers, out);
        if (args.value_scale == 1.0f) return;
        for (int64_t i = 0; i < rows * numbers; ++i) out[i] *= args.value_scale;
      };
      read(0, shape_.latent, latents_);
      read(shape_.latent, shape_.rope, ropes_);
    });
  }

  // Folds the `count` expanded positions of chunk `chunk` into the states of the pass's rows.
  void Attend(const Pass& pass, int64_t chunk, int64_t count, const float* q) {
    // Rows before `begin` see none of them. One task per head and range of blocks.
    const int64_t begin = std::max<int64_t>(0, chunk * kAttentionChunk - pass.first_position());
    const int64_t blocks = (pass.rows - begin + kRowsPerTask - 1) / kRowsPerTask;
    const int64_t splits = std::clamp<int64_t>(2 * pool_.threads() / shape_.heads, 1, blocks);
    pool_.ParallelFor(shape_.heads * splits, [&](int64_t task, int worker) {
      const int64_t head = task / splits, split = task % splits;
      float* page = workers_ + worker * worker_floats_;
      CopyHead(head, count, reinterpret_cast<std::byte*>(page));
      for (int64_t block = blocks * split / splits; block < blocks * (split + 1) / splits;
           ++block) {
        const int64_t row = begin + block * kRowsPerTask;
        AttendBlock(pass, head, chunk, row, std::min(kRowsPerTask, pass.rows - row), q, page);
      }
    });
  }

  void Finish(const Pass& pass, float* out) {
    pool_.ParallelFor(shape_.heads, [&](int64_t head, int) {
      const AttentionBlock block{.rows = pass.rows, .first_head = head, .heads = 1};
      table_.attention_finish(
          ArgsOf(nullptr), block, StatesOf(pass, head, 0),
          out + (pass.run->first_row + pass.first) * shape_.heads * shape_.value);
    });
  }

 private:
  int64_t key_dim() const { return shape_.nope + shape_.rope; }
  float* StatesOf(const Pass& pass, int64_t head, int64_t row) {
    return states_ + (head * pass.rows + row) * state_floats();
  }
  AttentionArgs ArgsOf(std::byte* const* page) const {
    return {.format = format_,
            .pages = page,
            .page_tokens = kAttentionChunk,
            .k_offset_bytes = 0,
            .v_offset_bytes = kAttentionChunk * key_dim() * KvNumberBytes(format_),
            .k_row_bytes = key_dim() * KvNumberBytes(format_),
            .v_row_bytes = shape_.value * KvNumberBytes(format_),
            .heads = shape_.heads,
            .key_dim = key_dim(),
            .value_dim = shape_.value,
            .scale = shape_.scale,
            .bf16_products = true};
  }

  void CopyHead(int64_t head, int64_t count, std::byte* page) const {
    const int64_t bytes = KvNumberBytes(format_), width = shape_.nope + shape_.value;
    std::byte* values = page + kAttentionChunk * key_dim() * bytes;
    const auto copy = [&](const float* from, int64_t n, std::byte* to) {
      if (format_ == KvFormat::kF32) {
        std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
      } else {
        table_.to_bf16(from, n, reinterpret_cast<uint16_t*>(to));
      }
    };
    for (int64_t i = 0; i < count; ++i) {
      const float* from = expanded_ + (i * shape_.heads + head) * width;
      std::byte* key = page + i * key_dim() * bytes;
      copy(from, shape_.nope, key);
      copy(ropes_ + i * shape_.rope, shape_.rope, key + shape_.nope * bytes);
      copy(from + shape_.nope, shape_.value, values + i * shape_.value * bytes);
    }
  }

  // The page holds one chunk: its positions are counted from the chunk's first.
  void AttendBlock(const Pass& pass, int64_t head, int64_t chunk, int64_t row, int64_t rows,
                   const float* q, float* page) {
    auto* base = reinterpret_cast<std::byte*>(page);
    float* workspace = page + kAttentionChunk * (key_dim() + shape_.value);
    float* next = workspace + AttentionWorkspaceFloats(kRowsPerTask, key_dim());
    float* states = StatesOf(pass, head, row);
    const AttentionBlock block{
        .first_position = pass.first_position() + row - chunk * kAttentionChunk,
        .rows = rows,
        .first_head = head,
        .heads = 1};
    const float* queries = q + (pass.run->first_row + pass.first + row) * shape_.heads * key_dim();
    table_.attention_chunk(ArgsOf(&base), block, queries, 0, workspace, chunk == 0 ? states : next);
    if (chunk > 0) table_.attention_merge(rows, shape_.value, next, states);
  }

  const IsaTable& table_;
  ThreadPool& pool_;
  const MlaShape& shape_;
  KvFormat format_;  // of the workers' pages
  int64_t worker_floats_ = 0;
  float* latents_ = nullptr;   // [256, latent]
  float* ropes_ = nullptr;     // [256, rope]
  float* expanded_ = nullptr;  // [256, heads, nope + value]
  float* workers_ = nullptr;
  float* states_ = nullptr;  // [heads, rows of the pass]
};

}  // namespace

void Ops::MlaWrite(const MlaShape& shape, const KvSlab& slab, std::span<const KvRun> runs,
                   const float* latent, const float* rope) const {
  Begin(Operation::kKvWrite);
  const KvRowLayout layout = MlaRowLayout(slab.format, slab.page_tokens, shape.latent, shape.rope);
  const int64_t tiles = KvTiles(shape.latent);
  KvPart latents{.from = latent,
                 .numbers = shape.latent,
                 .offset_bytes = slab.offset_bytes,
                 .row_bytes = layout.k_row,
                 .divisor = slab.k_scale,
                 .tile = kKvTile,
                 .scales_offset_bytes = slab.offset_bytes + layout.scales_offset,
                 .scales_row_bytes = layout.scales_row};
  KvPart ropes = latents;
  ropes.from = rope;
  ropes.numbers = shape.rope;
  ropes.offset_bytes += shape.latent * KvNumberBytes(slab.format);
  KvPadding padding;
  switch (slab.format) {
    case KvFormat::kF32:
    case KvFormat::kBf16:
      break;
    case KvFormat::kFp8E4m3:
      latents.scale = ropes.scale = KvScale::kLayer;
      break;
    case KvFormat::kFp8Tiled:
      latents.scale = ropes.scale = KvScale::kTile;
      ropes.tile = shape.rope;
      ropes.scales_offset_bytes += tiles;
      padding = {.offset_bytes = latents.scales_offset_bytes + tiles,
                 .bytes = layout.scales_row - tiles,
                 .row_bytes = layout.scales_row};
      break;
    case KvFormat::kFp8DsMla:
      latents.scale = KvScale::kFloat;
      latents.scales_offset_bytes = slab.offset_bytes + shape.latent;
      latents.scales_row_bytes = layout.k_row;
      ropes.offset_bytes += 4 * tiles;
      break;
  }
  const KvPart parts[] = {latents, ropes};
  WriteKvRows(table_, pool_, slab, runs, parts, padding);
}

void Ops::MlaDecodeAttention(const MlaShape& shape, const KvSlab& slab, std::span<const KvRun> runs,
                             const float* q, std::span<const RowSelection> selections,
                             float* out) const {
  Begin(Operation::kAttention);
  const AttentionCall call{.args = LatentArgs(shape, slab),
                           .kv_heads = 1,
                           .group = std::min(shape.heads, kHeadsPerTask),
                           .runs = runs,
                           .selections = selections,
                           .q = q,
                           .out = out};
  RunAttention(table_, pool_, call,
               {scratch_->attention_rows, scratch_->workspaces, scratch_->unit_states});
}

void Ops::MlaPrefillAttention(const MlaShape& shape, const KvSlab& slab,
                              std::span<const KvRun> runs, const PackedMatrix& kv_b, const float* q,
                              float* out) const {
  Begin(Operation::kAttention);
  TERN_CHECK(kv_b.rows() == shape.heads * (shape.nope + shape.value) &&
             kv_b.columns() == shape.latent);
  int64_t most_rows = 0;
  for (const KvRun& run : runs) most_rows = std::max(most_rows, run.rows);
  if (most_rows == 0) return;
  const int64_t pass_rows = PassRows(shape, most_rows);
  Expanded expanded(table_, pool_, shape, slab.format, scratch_->workspaces, pass_rows);
  for (const KvRun& run : runs) {
    for (int64_t first = 0; first < run.rows; first += pass_rows) {
      const Pass pass{&run, first, std::min(pass_rows, run.rows - first)};
      const int64_t positions = pass.first_position() + pass.rows;
      for (int64_t chunk = 0; chunk * kAttentionChunk < positions; ++chunk) {
        const int64_t begin = chunk * kAttentionChunk;
        const int64_t count = std::min(kAttentionChunk, positions - begin);
        expanded.Read(slab, run, begin, count);
        const MatMulTarget target{&kv_b, expanded.expanded()};
        Multiply(expanded.latents(), count, {&target, 1});
        expanded.Attend(pass, chunk, count, q);
      }
      expanded.Finish(pass, out);
    }
  }
}

uint64_t Ops::MlaPrefillBytes(const MlaShape& shape, int64_t rows) const {
  const int64_t floats = ExpandedFloats(shape, pool_.threads(), PassRows(shape, rows));
  return static_cast<uint64_t>(floats) * sizeof(float);
}

}  // namespace tern
