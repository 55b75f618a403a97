// KvView: what a model sees of the KV cache: the layout and, per sequence, page base pointers.
// Models never see the pool. Valid for one forward pass. Thread: the engine thread.
#pragma once

#include <cstddef>
#include <span>

#include "kv/page_format.h"

namespace tern {

struct KvView {
  const PageFormat* format = nullptr;
  // Bases of one sequence's pages; page i holds positions [i*P, (i+1)*P). Long enough for every
  // position that the pass reads or writes.
  std::span<std::byte* const> pages;
};

}  // namespace tern
