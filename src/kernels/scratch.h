// Ops::Scratch: memory that drivers reuse between calls. Grows, never shrinks.
// Owned by Ops; thread: the one that calls Ops, workers use the part that the driver gives them.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/ops.h"

namespace tern {

// `count` numbers of memory that is kept. Contents are whatever was there: resize alone would clear
// what a smaller call has cut off.
template <typename T>
T* Grow(std::vector<T>& memory, int64_t count) {
  if (memory.size() < static_cast<size_t>(count)) memory.resize(static_cast<size_t>(count));
  return memory.data();
}

// Activations of a MatMul, rounded once for all targets: BF16, or INT8 in half of the place, and
// what MatMulArgs says of each 32 columns.
struct ActivationScratch {
  std::vector<uint16_t> bf16;
  std::vector<float> sums, scales;
  std::vector<int32_t> offsets;
};

struct Ops::Scratch {
  ActivationScratch activations;
  // Attention: per worker, a kernel's workspace and one block's states. The expanded form: all of
  // its memory (mla.cc).
  std::vector<float> workspaces;
  // Attention of few blocks: the states of every (chunk, head group). The indexer: its scores.
  std::vector<float> unit_states;
};

}  // namespace tern
