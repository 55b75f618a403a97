// The two engines of --disaggregation-mode local, out of two loaded models. Thread: call at start.
#pragma once

#include <memory>
#include <string>

#include "base/metrics.h"
#include "base/result.h"
#include "cmd/serving.h"
#include "engine/engine.h"
#include "kernels/ops.h"
#include "models/model.h"
#include "pd/model_id.h"
#include "text/tokenizer.h"

namespace tern {

// One side. What it names outlives the engine; each side has Ops of its own.
struct LocalSide {
  std::string path;  // the checkpoint's
  Model& model;
  Ops& ops;
  const Tokenizer& tokenizer;
};

// The path of prefill's checkpoint: --prefill-model-path, or --model-path.
const std::string& PrefillPathOf(const ModelOptions& options);

// What both are. Errors: kInvalidArgument when they are not one model in two formats; ModelIdOf's.
Result<ModelId> OneModelId(const std::string& prefill_path, const Tokenizer& prefill_tokenizer,
                           const std::string& path, const Tokenizer& tokenizer);

// A prefill and a decode engine behind one, whose rows pass in memory; memory is divided as `plan`
// prints it. `options.engine` is decode's, its KV format chosen. REQUIRES: decode's model was
// loaded first. Errors: rows that can't be converted; those of OneModelId, PlanLocal and
// Engine::Start.
Result<std::unique_ptr<Engine>> StartLocalEngines(const ModelOptions& options,
                                                  const LocalSide& prefill, const LocalSide& decode,
                                                  MetricRegistry& metrics);

}  // namespace tern
