// TensorSpec: one tensor that an architecture asks for. An architecture's list follows from its
// config alone: loading checks a checkpoint against it, `inspect` and `plan` count bytes by it.
// Thread: values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/tensor.h"

namespace tern {

enum class TensorKind {
  kEmbedding,
  kHead,
  kNorm,
  kAttention,
  kIndexer,
  kMlp,  // dense
  kRouter,
  kExpert,
  kSharedExpert,
  kNextToken,  // what only a next-token-prediction layer has
};
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
  bool next_token = false;  // of a next-token-prediction layer: counted, never loaded
};

// Whether the tensor is the weight of a linear layer, which quantization configs speak of.
bool IsLinear(const TensorSpec& spec);
// "model.layers.3." + name.
std::string LayerName(int64_t layer, std::string_view name);

}  // namespace tern
