// The body of /generate as a typed request, its prompts in token ids. Unknown keys are ignored; a
// known key of a wrong type or range is an error that names it.
// Thread: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "server/generation.h"
#include "server/served_model.h"

namespace tern {

struct GenerateBody {
  std::vector<ChoiceSpec> choices;  // n for each prompt, in order; every one has a rid
  bool is_list = false;             // the answer is a list, events carry an index
  bool stream = false;
  bool logprobs = false;
  int64_t top_logprobs = 0;
  bool text_in_logprobs = false;
  bool token_ids_logprobs = false;  // some token ids' are asked for
  bool prompt_token_ids = false;    // answers bring the prompt's
  bool require_reasoning = false;   // the answer begins with reasoning, to be counted
};

// Errors: kInvalidArgument naming the field.
Result<GenerateBody> ParseGenerateBody(const Json& body, const ServedModel& model);

}  // namespace tern
