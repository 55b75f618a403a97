// TensorSpec: one tensor that an architecture asks for. An architecture's list follows from its
// config alone: loading checks a checkpoint against it, `inspect` and `plan` count bytes by it.
// Thread: values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tensor/tensor.h"

namespace tern {

enum class TensorKind { kEmbedding, kHead, kNorm, kAttention, kMlp };
// "embedding", "head", ...
std::string_view TensorKindName(TensorKind kind);

// How tensor parallelism cuts a tensor: not at all, by output features, or by input features.
enum class TensorSplit { kReplicated, kRows, kColumns };

struct TensorSpec {
  std::string name;  // Hugging Face's
  Shape shape;
  TensorKind kind = TensorKind::kNorm;
  TensorSplit split = TensorSplit::kReplicated;
  int64_t split_units = 1;  // the cut dimension is this many indivisible parts (heads, or features)
};

}  // namespace tern
