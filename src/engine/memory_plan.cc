#include "engine/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/units.h"

namespace tern {
namespace {

Status Validate(const ModelInfo& model, const MemoryPlanInput& input) {
  if (!(input.mem_fraction_static > 0 && input.mem_fraction_static <= 1)) {
    return InvalidArgument("mem_fraction_static must be in (0, 1]");
  }
  if (input.max_total_tokens < 0) return InvalidArgument("max_total_tokens must be 0 or more");
  if (input.max_running_requests < 1) {
    return InvalidArgument("max_running_requests must be 1 or more");
  }
  if (input.chunked_prefill_size < 1) {
    return InvalidArgument("chunked_prefill_size must be 1 or more");
  }
  if (input.context_length < 0 || input.context_length > model.context_length) {
    return InvalidArgument(
        fmt::format("context_length {} is not in 0..{}, what the model was made for",
                    input.context_length, model.context_length));
  }
  if (input.max_total_tokens > 0 && input.max_total_tokens < input.page_tokens) {
    return InvalidArgument(fmt::format("max_total_tokens {} is less than one page of {} tokens",
                                       input.max_total_tokens, input.page_tokens));
  }
  return OkStatus();
}

// a * b, or the largest number: a plan that large never fits.
uint64_t Times(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX / 4
                                                : std::min(product, UINT64_MAX / 4);
}

// Logits of every running request and of some other tokens, activations of the largest batch (a
// full chunk, or one row of every running request and one of a prompt), and what kernels hold
// besides.
uint64_t WorkspaceBytes(const ModelInfo& model, const MemoryPlanInput& input) {
  const uint64_t running = static_cast<uint64_t>(input.max_running_requests);
  const uint64_t rows = std::max(static_cast<uint64_t>(input.chunked_prefill_size), running + 1);
  const auto logit_rows =
      static_cast<uint64_t>(LogitRows(input.max_running_requests, input.recompute));
  const uint64_t logits =
      Times(logit_rows, static_cast<uint64_t>(model.vocab_size) * sizeof(float));
  return logits + Times(rows, model.workspace_bytes_per_row) + model.scratch_bytes;
}

}  // namespace

std::string MemoryPlan::Summary() const {
  return fmt::format(
      "weights {:.2f} GiB + KV {:.2f} GiB ({} tokens, {} bytes each, {} pages) + workspace {:.2f} "
      "GiB "
      "= {:.2f} of {:.2f} GiB",
      Gib(weight_bytes), Gib(kv_bytes), total_tokens, bytes_per_token, pages, Gib(workspace_bytes),
      Gib(total_bytes()), Gib(available_bytes));
}

Result<MemoryPlan> PlanMemory(const ModelInfo& model, const MemoryPlanInput& input) {
  TERN_RETURN_IF_ERROR(Validate(model, input));
  TERN_ASSIGN_OR_RETURN(
      const PageFormat format,
      PageFormat::Make(model.kv_layers, input.kv_format, input.page_tokens, input.kv_bf16_layers));
  MemoryPlan plan;
  plan.available_bytes = input.available_bytes;
  plan.weight_bytes = model.weight_bytes;
  plan.workspace_bytes = WorkspaceBytes(model, input);
  plan.page_bytes = static_cast<uint64_t>(format.page_bytes());
  plan.bytes_per_token = static_cast<uint64_t>(format.bytes_per_token());
  plan.context_length = input.context_length > 0 ? input.context_length : model.context_length;
  const uint64_t context_pages =
      static_cast<uint64_t>((plan.context_length + input.page_tokens - 1) / input.page_tokens);

  const uint64_t taken = plan.weight_bytes + plan.workspace_bytes;
  const uint64_t left = input.available_bytes - std::min(taken, input.available_bytes);
  uint64_t pages = 0;
  if (input.max_total_tokens > 0) {
    pages = static_cast<uint64_t>(input.max_total_tokens / input.page_tokens);
  } else {
    const uint64_t statics = static_cast<uint64_t>(static_cast<double>(input.available_bytes) *
                                                   input.mem_fraction_static);
    const uint64_t room = std::min(left, statics - std::min(plan.weight_bytes, statics));
    pages = std::min(room / plan.page_bytes,
                     Times(static_cast<uint64_t>(input.max_running_requests), context_pages));
  }
  plan.kv_bytes = Times(std::max<uint64_t>(pages, 1), plan.page_bytes);
  if (pages == 0 || plan.kv_bytes > left) {
    return ResourceExhausted(fmt::format(
        "not enough memory: weights {:.2f} GiB + workspace {:.2f} GiB leave {:.2f} of {:.2f} GiB "
        "for "
        "KV, and {} needs {:.4f} GiB; {}",
        Gib(plan.weight_bytes), Gib(plan.workspace_bytes), Gib(left), Gib(plan.available_bytes),
        pages == 0 ? "one page" : fmt::format("max_total_tokens {}", input.max_total_tokens),
        Gib(plan.kv_bytes),
        pages == 0 ? "raise mem_fraction_static or lower max_running_requests"
                   : "lower max_total_tokens"));
  }
  plan.pages = static_cast<int64_t>(pages);
  plan.total_tokens = plan.pages * input.page_tokens;
  plan.full_contexts = plan.pages / std::max<int64_t>(static_cast<int64_t>(context_pages), 1);
  return plan;
}

}  // namespace tern
