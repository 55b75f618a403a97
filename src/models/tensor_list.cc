#include "models/tensor_list.h"

#include <fmt/format.h>

namespace tern {

std::string_view TensorKindName(TensorKind kind) {
  switch (kind) {
    case TensorKind::kEmbedding:
      return "embedding";
    case TensorKind::kHead:
      return "head";
    case TensorKind::kNorm:
      return "norm";
    case TensorKind::kAttention:
      return "attention";
    case TensorKind::kIndexer:
      return "indexer";
    case TensorKind::kMlp:
      return "mlp";
    case TensorKind::kRouter:
      return "router";
    case TensorKind::kExpert:
      return "expert";
    case TensorKind::kSharedExpert:
      return "shared_expert";
    case TensorKind::kNextToken:
      return "next_token";
  }
  return "unknown";
}

bool IsLinear(const TensorSpec& spec) {
  if (spec.shape.rank() != 2) return false;
  switch (spec.kind) {
    case TensorKind::kEmbedding:
    case TensorKind::kNorm:
    case TensorKind::kRouter:
      return false;
    default:
      return true;
  }
}

std::string LayerName(int64_t layer, std::string_view name) {
  return fmt::format("model.layers.{}.{}", layer, name);
}

}  // namespace tern
