// LocalPlan: how the memory of a machine is divided between the prefill and the decode engine of
// one process: two pools, and weights that are held once where they are alike. `serve
// --disaggregation-mode local` allocates by it and `plan` prints it. Thread: values.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "engine/engine.h"
#include "engine/memory_plan.h"
#include "models/model.h"

namespace tern {

struct LocalPlan {
  MemoryPlan prefill;                // its weight_bytes: those that decode's model has not
  MemoryPlan decode;                 // of what prefill leaves
  uint64_t shared_weight_bytes = 0;  // of decode's: prefill computes with them too
  uint64_t available_bytes = 0;

  uint64_t total_bytes() const { return prefill.total_bytes() + decode.total_bytes(); }
  // The arithmetic: a line for each engine, and the sum.
  std::string Summary() const;
};

// Prefill gets the tokens that its options name, decode the static fraction of what is left, or the
// tokens that its options name. `prefill`: its model, loaded after decode's. `available_bytes`:
// before the weights of either are loaded. Errors: PlanMemory's, naming the engine.
Result<LocalPlan> PlanLocal(ModelInfo prefill, const EngineOptions& prefill_options,
                            const ModelInfo& decode, const EngineOptions& decode_options,
                            uint64_t available_bytes);

}  // namespace tern
