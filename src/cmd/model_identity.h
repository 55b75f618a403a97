// What a checkpoint's model_id is made of (pd/model_id.h): architecture, vocabulary, norms; nothing
// of the formats that weights are stored in. Thread: call at start.
#pragma once

#include <string>

#include "base/result.h"
#include "pd/model_id.h"
#include "text/tokenizer.h"

namespace tern {

// `path`: a checkpoint as Checkpoint::Open takes it. Errors name the file.
Result<ModelId> ModelIdOf(const std::string& path, const Tokenizer& tokenizer);

}  // namespace tern
