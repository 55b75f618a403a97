// Choices: from a request's prompts to what the engine is asked for. Bounds are checked before the
// work that they bound. Thread: pure functions.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/request.h"
#include "server/generation.h"
#include "server/sampling_json.h"
#include "server/served_model.h"
#include "text/prompt_text.h"

namespace tern {

inline constexpr int64_t kMaxChoicesPerPrompt = 128;
inline constexpr size_t kMaxPrompts = 1024;
inline constexpr int64_t kMaxPromptLogprobs = 1'000'000;

// `choices`: of all prompts together. Errors: kInvalidArgument stating both numbers when one
// request may not bring so many.
Status CheckChoiceCount(int64_t choices, const ServedModel& model);

// The bytes of the tokenizer's longest token; 1 at least.
int64_t LongestTokenBytes(const Tokenizer& tokenizer);

// Token ids of a prompt. A text so long that its tokens can't fit into the context is refused
// unread: ContextOverflow stating both numbers. `framed`: in the tokenizer's frame, as for texts
// that no chat template has made.
Result<std::vector<int32_t>> TokenizePrompt(std::string_view text, bool framed,
                                            const ServedModel& model);
Result<std::vector<int32_t>> TokenizePrompt(const PromptText& prompt, const ServedModel& model);

// Log probabilities of prompts are all in memory at once: kInvalidArgument stating both numbers
// when the choices ask for too many.
Status CheckPromptLogprobs(const std::vector<ChoiceSpec>& choices);

// Appends n choices of one prompt. `common`: the request's fields but for tokens and sampling.
// Errors: those of ResolveMaxTokens.
Status AppendChoices(std::vector<int32_t> prompt, int64_t n, TextParams text,
                     const GenerateRequest& common, int64_t context_length,
                     std::vector<ChoiceSpec>* choices);

}  // namespace tern
