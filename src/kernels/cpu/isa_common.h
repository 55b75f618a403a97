// What every ISA level's table.cc includes first: the table it fills, the weight layouts, and the
// rules. A level is one translation unit, compiled with its own CPU flags: table.cc, which includes
// vec.h of its folder (sixteen lanes of that level) and then the algorithms of this folder, written
// once over those lanes. Everything but Fill<Level>Table has internal linkage, also here: an inline
// function that two levels share would be merged by the linker, perhaps to the copy that this
// machine can't run. No std containers or algorithms. tools/check_isa_objects.py proves it.
//
// Sixteen lanes at every level, so all levels sum in one order; they differ in fused products.
// Attention is the exception: avx2/attention_dots.h and avx512/attention_bf16.h have their own.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/layout.h"
#include "kernels/isa_table.h"

namespace tern {
namespace {

constexpr int64_t kLanes = 16;

[[maybe_unused]] inline int64_t MinOf(int64_t a, int64_t b) { return a < b ? a : b; }
[[maybe_unused]] inline int64_t MaxOf(int64_t a, int64_t b) { return a > b ? a : b; }

// Unaligned bytes of a packed matrix or page as T.
template <typename T>
[[maybe_unused]] inline const T* At(const std::byte* base, int64_t offset) {
  return reinterpret_cast<const T*>(base + offset);
}

// Calls Block<count>::Run(args...) for 1 <= count <= kMax: register tiles of every size.
template <template <int> class Block, int kMax, typename... Args>
[[maybe_unused]] inline void RunBlock(int64_t count, Args... args) {
  if constexpr (kMax > 1) {
    if (count < kMax) return RunBlock<Block, kMax - 1>(count, args...);
  }
  Block<kMax>::Run(args...);
}

}  // namespace
}  // namespace tern
