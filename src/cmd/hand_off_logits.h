// HandOffLogits: a text through two models, as two workers compute it: the first half of a window
// is the prompt, computed by prefill; its rows are converted to decode's, which computes the rest.
// Owner: the command. Thread: as LogitSource.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "engine/engine.h"
#include "eval/logit_source.h"
#include "kernels/ops.h"
#include "models/model.h"

namespace tern {

// One side. What it names outlives the source.
struct LogitSide {
  const std::string& name;  // for messages
  Model& model;
  Ops& ops;
  Activations activations;
  EngineOptions options;  // of them: kv_format, kv_bf16_layers, page_tokens
};

// Errors: kFailedPrecondition for rows that can't be converted; those of PageFormat::Make.
Result<std::unique_ptr<LogitSource>> MakeHandOffLogits(const LogitSide& prefill,
                                                       const LogitSide& decode);

}  // namespace tern
