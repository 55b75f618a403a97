// ToyReference: what the toy model says about a request, computed from its tokens alone: no pages,
// no batches, no cache. The naive twin of the whole engine. Thread: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/request.h"
#include "sim/toy_model.h"

namespace tern {

struct ToyAnswer {
  std::vector<int32_t> tokens;  // generated, without the stop token
  bool stopped = false;         // by a stop or EOS token; else by length
  int32_t stop_token = -1;
};

// Whether `token` may be generated token number `index` under a mask: some two thirds may. Mask 0
// allows everything.
bool ToyMaskAllows(uint64_t mask, int64_t index, int32_t token);

// At most max_tokens in all, prompt included. REQUIRES: sampling.seed is set or temperature is 0.
ToyAnswer AnswerOf(const ToyOptions& model, const std::vector<int32_t>& prompt,
                   const SamplingParams& sampling, int64_t max_tokens, uint64_t mask = 0);

// The logits after the last of `tokens`, of which the first `prompt_tokens` are the prompt.
std::vector<float> LogitsOf(const ToyOptions& model, const std::vector<int32_t>& tokens,
                            int64_t prompt_tokens);

}  // namespace tern
