#include "cmd/local_engines.h"

#include <fmt/format.h>

#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/topology.h"
#include "base/units.h"
#include "cmd/model_identity.h"
#include "engine/local_pair.h"
#include "engine/local_plan.h"

namespace tern {

const std::string& PrefillPathOf(const ModelOptions& options) {
  const std::string& own = options.disaggregation.prefill_model_path;
  return own.empty() ? options.model_path : own;
}

Result<ModelId> OneModelId(const std::string& prefill_path, const Tokenizer& prefill_tokenizer,
                           const std::string& path, const Tokenizer& tokenizer) {
  TERN_ASSIGN_OR_RETURN(const ModelId prefill_id, ModelIdOf(prefill_path, prefill_tokenizer));
  TERN_ASSIGN_OR_RETURN(const ModelId id, ModelIdOf(path, tokenizer));
  if (prefill_id == id) return id;
  return InvalidArgument(
      fmt::format("--prefill-model-path {} is not the model of --model-path in another format: "
                  "architecture, vocabulary or norms differ",
                  prefill_path));
}

Result<std::unique_ptr<Engine>> StartLocalEngines(const ModelOptions& options,
                                                  const LocalSide& prefill, const LocalSide& decode,
                                                  MetricRegistry& metrics) {
  const DisaggregationOptions& apart = options.disaggregation;
  const ModelInfo &prefill_info = prefill.model.info(), &info = decode.model.info();
  TERN_ASSIGN_OR_RETURN(const ModelId id,
                        OneModelId(prefill.path, prefill.tokenizer, decode.path, decode.tokenizer));
  TERN_ASSIGN_OR_RETURN(const EngineOptions prefill_options,
                        PrefillEngineOptions(apart, options.engine, prefill_info));
  TERN_ASSIGN_OR_RETURN(
      LocalDisaggregation local,
      MakeLocalDisaggregation(apart, id, prefill_info, prefill_options, info, options.engine));
  const uint64_t weights =
      info.weight_bytes + prefill_info.weight_bytes - prefill_info.shared_weight_bytes;
  // The weights are loaded already: what they took was available before.
  TERN_ASSIGN_OR_RETURN(const LocalPlan plan,
                        PlanLocal(prefill_info, prefill_options, info, options.engine,
                                  AvailableMemoryBytes() + weights));
  TERN_LOG(kInfo, "memory of both engines: {:.2f} of {:.2f} GiB; {:.2f} GiB of weights are shared",
           Gib(plan.total_bytes()), Gib(plan.available_bytes), Gib(plan.shared_weight_bytes));
  local.prefill.plan = plan.prefill;
  local.decode.plan = plan.decode;
  TERN_ASSIGN_OR_RETURN(auto prefill_engine,
                        Engine::Start(prefill.model, prefill.ops, prefill_options, metrics,
                                      SystemClock(), std::move(local.prefill)));
  TERN_ASSIGN_OR_RETURN(auto decode_engine,
                        Engine::Start(decode.model, decode.ops, options.engine, metrics,
                                      SystemClock(), std::move(local.decode)));
  return std::unique_ptr<Engine>(std::make_unique<LocalPair>(
      std::move(prefill_engine), std::move(decode_engine), std::move(local.meeting)));
}

}  // namespace tern
