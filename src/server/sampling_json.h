// Sampling parameters as JSON spells them, for OpenAI's bodies and for SGLang's `sampling_params`.
// Thread: pure functions.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "engine/request.h"
#include "server/served_model.h"
#include "text/stop_regex.h"

namespace tern {

// How text is made and where it ends; what the engine needs plus what the server does itself.
struct TextParams {
  SamplingParams sampling;            // max_new_tokens is set by ResolveMaxTokens
  std::optional<int64_t> max_tokens;  // absent: up to the context length
  std::vector<std::string> stops;
  std::shared_ptr<const StopRegexes> stop_regexes;  // null: none
  bool no_stop_trim = false;                        // the stop string stays in the text
  bool skip_special_tokens = true;
};

// Reads temperature, top_p, top_k, min_p, seed (or sampling_seed), stop, stop_regex,
// stop_token_ids, ignore_eos, no_stop_trim, skip_special_tokens, the three penalties, logit_bias
// and min_tokens (or min_new_tokens). Values that tern can't honour yet (grammars) are refused
// unless they ask for nothing. Errors: kInvalidArgument naming
// "<where>.<field>".
Result<TextParams> ParseTextParams(const Json& object, const SamplingDefaults& defaults,
                                   std::string_view where);

// Refuses the keys of `object` whose values ask for something: not those that are absent, null,
// false, empty, or lists of such. Routers send them so. Errors: kInvalidArgument naming
// "<where>.<key>".
Status RefuseKeys(const Json& object, std::initializer_list<const char*> keys,
                  std::string_view where);

// A list of token ids. Errors: kInvalidArgument naming `where`.
Result<std::vector<int32_t>> ParseTokenIds(const Json& list, std::string_view where);

// Sets sampling.max_new_tokens. Errors: ContextOverflow stating both numbers when the prompt, or
// prompt and max_tokens together, exceed the context; kInvalidArgument for an empty prompt and a
// min_new_tokens that is too large.
Status ResolveMaxTokens(int64_t prompt_tokens, int64_t context_length, TextParams* params);

}  // namespace tern
