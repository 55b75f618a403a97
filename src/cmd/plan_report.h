// PlanReport: what `tern plan` found, as a table, as JSON and as a picture. Thread: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "cmd/plan_model.h"
#include "engine/local_plan.h"
#include "engine/memory_plan.h"
#include "report/svg_chart.h"

namespace tern {

struct PlanPoint {
  int64_t batch = 1;        // decode: sequences of a replica; prefill: 1
  int64_t tokens = 0;       // decode: positions of each; prefill: the prompt
  StepCost cost;            // of the step, or of the whole prompt
  double tokens_per_s = 0;  // of all replicas
};

// The prefill side of --disaggregation-mode local; decode's is the report's own.
struct PrefillPool {
  std::string path, recipe, kv_format;
  LocalPlan plan;
};

struct PlanReport {
  std::string path, recipe, kv_format;
  PlannedModel model;
  MemoryPlan memory;           // of one rank
  uint64_t program_bytes = 0;  // this machine: code, libraries, tokenizer; 0: not known
  std::optional<PrefillPool> prefill_pool;
  std::optional<SpeedModel> prefill_speed;  // where it is not the model's
  int64_t page_tokens = 0;
  bool host = false;        // this machine, as `serve` allocates
  std::string machine;      // in words
  int64_t gpus = 1;         // devices in all; replicas = gpus / model.tp
  SpeedMachine limits;      // of one rank; 0: not known
  std::string limits_from;  // "--bandwidth and --flops", "memory measured here; --flops"
  double mem_fraction_static = 0;
  uint64_t reserve_bytes = 0;
  bool kv_memory_given = false;
  double price_per_hour = 0;  // of all; 0: none given
  std::vector<PlanPoint> decode, prefill, curve;

  int64_t replicas() const { return gpus / model.tp; }
};

Json PlanJson(const PlanReport& report);
std::string PlanText(const PlanReport& report);
SvgPicture PlanPicture(const PlanReport& report);

}  // namespace tern
