// The conversation that a request belongs to, whose pages the prefix cache keeps longer: the body's
// prompt_cache_key (OpenAI), else the header x-session-affinity.
// Thread: pure function.
#pragma once

#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "net/http.h"
#include "server/generation.h"

namespace tern {

// Names it in all choices. Errors: kInvalidArgument for a field that is not a string.
Status AddSession(const Json& body, const HttpHeaders& headers, std::vector<ChoiceSpec>* choices);

}  // namespace tern
