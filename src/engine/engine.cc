#include "engine/engine.h"

#include <fmt/format.h>

#include <utility>

#include "base/log.h"
#include "base/rng.h"
#include "base/topology.h"
#include "engine/engine_thread.h"

namespace tern {

MemoryPlanInput MemoryPlanInputOf(const EngineOptions& options, uint64_t available_bytes) {
  return {.kv_format = options.kv_format,
          .kv_bf16_layers = options.kv_bf16_layers,
          .page_tokens = options.page_tokens,
          .max_total_tokens = options.max_total_tokens,
          .mem_fraction_static = options.mem_fraction_static,
          .available_bytes = available_bytes,
          .max_running_requests = options.max_running_requests,
          .chunked_prefill_size = options.chunked_prefill_size,
          .context_length = options.context_length,
          .recompute = options.integrity.action == IntegrityAction::kRecompute};
}

Result<std::unique_ptr<Engine>> Engine::Start(Model& model, Ops& ops, EngineOptions options,
                                              MetricRegistry& registry, const Clock& clock,
                                              Disaggregation disaggregation) {
  if (options.max_queued_requests < 1) {
    return InvalidArgument("max_queued_requests must be 1 or more");
  }
  // Rows of other engines' prompts are theirs: what is cached here is what this engine computed.
  if (disaggregation.role == EngineRole::kDecode) options.disable_radix_cache = true;
  // The weights are loaded already: what they took was available before.
  const EngineRole role = disaggregation.role;
  MemoryPlan plan;
  if (disaggregation.plan) {
    plan = *disaggregation.plan;
  } else {
    const MemoryPlanInput input =
        MemoryPlanInputOf(options, AvailableMemoryBytes() + model.info().weight_bytes);
    TERN_ASSIGN_OR_RETURN(plan, PlanMemory(model.info(), input));
  }
  disaggregation.ops = &ops;
  TERN_LOG(kInfo, "memory{}: {}",
           role == EngineRole::kUnified ? "" : fmt::format(" ({})", EngineRoleName(role)),
           plan.Summary());
  // No plan can know it. Two engines of a process have a plan of their own for both.
  if (const uint64_t resident = ResidentBytes();
      !disaggregation.plan && resident > plan.weight_bytes) {
    TERN_LOG(kInfo, "memory: besides, the program itself (code, tokenizer, templates): {:.2f} GiB",
             static_cast<double>(resident - plan.weight_bytes) / (1 << 30));
  }
  auto metrics = std::make_unique<EngineMetrics>(registry, role);
  metrics->SetPlan(plan, options.page_tokens);
  TERN_ASSIGN_OR_RETURN(
      std::unique_ptr<EngineCore> core,
      EngineCore::Create(model, ops.pool(), options, plan,
                         role == EngineRole::kUnified ? RandomSeed() : disaggregation.boot_nonce,
                         clock, metrics.get()));
  const bool sealed = options.integrity.mode == KvIntegrity::kSealed;
  return std::unique_ptr<Engine>(std::make_unique<EngineThread>(
      std::move(core), std::move(metrics), clock, options.max_queued_requests,
      sealed ? options.integrity.sweep_idle_fraction : 0, std::move(disaggregation)));
}

}  // namespace tern
