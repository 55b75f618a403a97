// Ops::Scratch: memory that drivers reuse between calls. Grows, never shrinks.
// Owned by Ops; thread: the one that calls Ops, workers use the part that the driver gives them.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/ops.h"

namespace tern {

struct Ops::Scratch {
  // Activations of a MatMul, rounded to BF16 once for all targets, and their group sums.
  std::vector<uint16_t> x_bf16;
  std::vector<float> x_sums;
  // Attention: per worker, a kernel's workspace and one block's states.
  std::vector<float> workspaces;
  // Attention of few blocks: the states of every (chunk, KV head).
  std::vector<float> unit_states;
};

}  // namespace tern
