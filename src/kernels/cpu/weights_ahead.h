// What is asked for while a panel is read: the weights 8 KiB further on, in this panel or the next,
// each line once. Not every CPU looks that far by itself.
// See kernels/cpu/isa_common.h for the rules of this file.
#pragma once

#include "kernels/cpu/isa_common.h"

namespace tern {
namespace {

// 8 KiB behind `bytes` bytes from `from` on, a multiple of 64.
[[maybe_unused]] inline void AskAhead(const std::byte* from, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(from + 8192 + at, 0, 2);
}

// Behind a block's scales, when its first column is read.
[[maybe_unused]] inline void AskAheadOfScales(const PanelBlock& block, const std::byte* panel,
                                              int64_t column) {
  if (InBlock(block, column) == 0) AskAhead(panel + BlockAt(block, column), block.quants);
}

}  // namespace
}  // namespace tern
