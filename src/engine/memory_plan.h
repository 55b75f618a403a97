// MemoryPlan: how the memory of a machine is divided: weights, KV pages, workspace. `serve`
// allocates by it and `plan` prints it, so the two can't disagree. Thread: values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "kv/page_format.h"
#include "models/model.h"

namespace tern {

// Rows of logits that a batch has room for besides one for each running request: of prompt tokens
// whose log probabilities are asked for; of tokens that are derived again.
inline constexpr int64_t kPromptLogitRows = 64;
inline constexpr int64_t kRederiveRows = 32;
// `recompute`: requests are computed anew when a KV page has failed.
constexpr int64_t LogitRows(int64_t max_running_requests, bool recompute) {
  return max_running_requests + kPromptLogitRows + (recompute ? kRederiveRows : 0);
}

struct MemoryPlanInput {
  KvFormat kv_format = KvFormat::kBf16;
  std::vector<int64_t> kv_bf16_layers;
  int64_t page_tokens = 64;
  int64_t max_total_tokens = 0;      // KV capacity, rounded down to whole pages; 0: what fits
  double mem_fraction_static = 0.8;  // of available_bytes, for weights and KV together
  uint64_t available_bytes = 0;      // before the weights are loaded
  int64_t max_running_requests = 64;
  int64_t chunked_prefill_size = 512;
  int64_t context_length = 0;  // 0: the model's
  bool recompute = false;      // as LogitRows has it
};

struct MemoryPlan {
  uint64_t available_bytes = 0;
  uint64_t weight_bytes = 0;
  uint64_t workspace_bytes = 0;  // logits, activations of the largest batch, kernels' scratch
  uint64_t kv_bytes = 0;         // pages * page_bytes
  uint64_t bytes_per_token = 0;  // KV rows of one token over all layers
  uint64_t page_bytes = 0;
  int64_t pages = 0;
  int64_t total_tokens = 0;  // pages * page_tokens
  int64_t context_length = 0;
  int64_t full_contexts = 0;  // requests of context_length tokens that fit at once

  uint64_t total_bytes() const { return weight_bytes + workspace_bytes + kv_bytes; }
  // The arithmetic in one line: "weights 0.10 GiB + KV ... <= ...".
  std::string Summary() const;
};

// Without max_total_tokens, KV gets the static fraction less the weights, but no more than all
// running requests could use. Errors: kInvalidArgument (naming the option), kResourceExhausted
// with the arithmetic when the plan does not fit, and those of PageFormat::Make.
Result<MemoryPlan> PlanMemory(const ModelInfo& model, const MemoryPlanInput& input);

}  // namespace tern
