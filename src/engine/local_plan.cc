#include "engine/local_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/units.h"

namespace tern {
namespace {

uint64_t Less(uint64_t bytes, uint64_t taken) { return bytes - std::min(bytes, taken); }

}  // namespace

std::string LocalPlan::Summary() const {
  return fmt::format(
      "prefill {}\ndecode {}\nboth {:.2f} of {:.2f} GiB; {:.2f} GiB of decode's weights are "
      "prefill's too",
      prefill.Summary(), decode.Summary(), Gib(total_bytes()), Gib(available_bytes),
      Gib(shared_weight_bytes));
}

Result<LocalPlan> PlanLocal(ModelInfo prefill, const EngineOptions& prefill_options,
                            const ModelInfo& decode, const EngineOptions& decode_options,
                            uint64_t available_bytes) {
  LocalPlan plan;
  plan.available_bytes = available_bytes;
  plan.shared_weight_bytes = prefill.shared_weight_bytes;
  prefill.weight_bytes -= prefill.shared_weight_bytes;
  Result<MemoryPlan> first = PlanMemory(
      prefill, MemoryPlanInputOf(prefill_options, Less(available_bytes, decode.weight_bytes)));
  if (!first.ok()) return first.status().WithContext("prefill");
  plan.prefill = *std::move(first);
  Result<MemoryPlan> second = PlanMemory(
      decode, MemoryPlanInputOf(decode_options, Less(available_bytes, plan.prefill.total_bytes())));
  if (!second.ok()) return second.status().WithContext("decode");
  plan.decode = *std::move(second);
  return plan;
}

}  // namespace tern
