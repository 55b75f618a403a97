// What a GGUF file says of its model, as Hugging Face's config.json and generation_config.json, so
// that a model taken out of the file can be loaded without it. Thread: pure functions.
#pragma once

#include "base/json.h"
#include "base/result.h"
#include "checkpoint/checkpoint.h"

namespace tern {

// config.json. REQUIRES: the checkpoint is a GGUF file.
// Errors: kUnimplemented: rope_freqs.weight divides frequencies as no rope type does.
Result<Json> HfConfigOfGguf(const Checkpoint& checkpoint);

// generation_config.json: the stop tokens.
Json HfGenerationConfigOfGguf(const Checkpoint& checkpoint);

}  // namespace tern
