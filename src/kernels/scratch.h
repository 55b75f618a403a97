// Ops::Scratch: memory that drivers reuse between calls. Grows, never shrinks.
// Owned by Ops; thread: the one that calls Ops, workers use the part that the driver gives them.
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include "kernels/attention.h"
#include "kernels/isa_table.h"
#include "kernels/ops.h"

namespace tern {

// `count` numbers of memory that is kept, from the start of a cache line on: registers as long as a
// line that lie across two take twice as long to load and store. Contents are whatever was there:
// resize alone would clear what a smaller call has cut off.
template <typename T>
T* Grow(std::vector<T>& memory, int64_t count) {
  static_assert(std::is_arithmetic_v<T>);
  constexpr size_t kLine = 64;
  const size_t size = static_cast<size_t>(count) + kLine / sizeof(T);
  if (memory.size() < size) memory.resize(size);
  return reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(memory.data()) + kLine - 1) / kLine *
                              kLine);
}

// One product of a MatMul: [rows, k] by a weight.
struct MatMulProduct {
  MatMulArgs args;
  int64_t rows = 0;
  int64_t panels_per_task = 0;
  int64_t first_task = 0;  // tasks (panel range, row block) of all products before this one
  int64_t input = -1;      // which RoundedInput; -1: none
};

// The rows of one input, rounded to BF16 or to INT8.
struct RoundedInput {
  const float* x;
  int64_t x_stride, k, rows;
  bool int8;
  int64_t first_row;              // of all inputs
  int64_t offset, groups_offset;  // in the scratch: of numbers, and of numbers per 32 columns
  // No power of two: rows of a tile would share a cache set.
  int64_t stride() const { return (k + 31) / 32 * 32 + (int8 ? 64 : 32); }
  int64_t groups() const { return (k + 31) / 32; }
  bool SameAs(const RoundedInput& o) const {
    return x == o.x && x_stride == o.x_stride && k == o.k && rows == o.rows && int8 == o.int8;
  }
};

// Activations of a MatMul, rounded once for all targets: BF16, or INT8 in half of the place, and
// what MatMulArgs says of each 32 columns.
struct ActivationScratch {
  std::vector<RoundedInput> inputs;
  std::vector<uint16_t> bf16;
  std::vector<float> sums, scales;
  std::vector<int32_t> offsets;
};

struct Ops::Scratch {
  std::vector<MatMulProduct> products;
  std::vector<int64_t> runs;  // of their tasks: the first of each, and the end
  ActivationScratch activations;
  // Attention: per worker, a kernel's workspace and one block's states. The expanded form: all of
  // its memory (mla.cc).
  std::vector<float> workspaces;
  // Attention of few blocks: the states of every (chunk, head group). The indexer: its scores.
  std::vector<float> unit_states;
  std::vector<AttentionRows> attention_rows;
};

}  // namespace tern
