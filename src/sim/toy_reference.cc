#include "sim/toy_reference.h"

#include <algorithm>
#include <limits>

#include "base/rng.h"
#include "engine/sampler.h"

namespace tern {

std::vector<float> LogitsOf(const ToyOptions& model, const std::vector<int32_t>& tokens,
                            int64_t prompt_tokens) {
  uint64_t first = 0, second = 0;  // digests of the two layers so far
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int64_t position = static_cast<int64_t>(i);
    const RowForm form =
        model.two_forms && position >= prompt_tokens ? RowForm::kDecode : RowForm::kPrefill;
    first = ToyFold(first, ToyRow(0, ToyInput(model, tokens[i]), position, form));
    second = ToyFold(second, ToyRow(1, first, position, form));
  }
  std::vector<float> logits;
  for (int32_t token = 0; token < model.vocab_size; ++token) {
    logits.push_back(ToyLogit(second, token));
  }
  return logits;
}

bool ToyMaskAllows(uint64_t mask, int64_t index, int32_t token) {
  if (mask == 0) return true;
  const uint64_t draw = Mix64(mask * 1'000'003 + static_cast<uint64_t>(index) * 1009);
  // Whole groups of three are cut to two, so that something is always allowed.
  return (draw + static_cast<uint64_t>(token)) % 3 != 0;
}

ToyAnswer AnswerOf(const ToyOptions& model, const std::vector<int32_t>& prompt,
                   const SamplingParams& sampling, int64_t max_tokens, uint64_t mask) {
  ToyAnswer answer;
  std::vector<int32_t> tokens = prompt;
  const int64_t prompt_tokens = static_cast<int64_t>(prompt.size());
  while (static_cast<int64_t>(answer.tokens.size()) < sampling.max_new_tokens &&
         static_cast<int64_t>(tokens.size()) < max_tokens) {
    std::vector<float> logits = LogitsOf(model, tokens, prompt_tokens);
    std::vector<uint32_t> allowed(logits.size() / 32 + 1, 0);
    for (size_t t = 0; t < logits.size(); ++t) {
      const auto index = static_cast<int64_t>(answer.tokens.size());
      if (ToyMaskAllows(mask, index, static_cast<int32_t>(t))) {
        allowed[t / 32] |= 1u << t % 32;
      } else if (sampling.temperature == 0) {
        logits[t] = -std::numeric_limits<float>::infinity();
      }
    }
    int32_t token =
        static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    if (sampling.temperature > 0) {
      token = SampleToken({.logits = logits,
                           .params = &sampling,
                           .seed = *sampling.seed,
                           .position = static_cast<int64_t>(tokens.size()),
                           .allowed = allowed})
                  .value()
                  .token;
    }
    const auto& stops = sampling.stop_token_ids;
    if ((token == model.eos_token && !sampling.ignore_eos) ||
        std::count(stops.begin(), stops.end(), token) > 0) {
      answer.stopped = true;
      answer.stop_token = token;
      break;
    }
    tokens.push_back(token);
    answer.tokens.push_back(token);
  }
  return answer;
}

}  // namespace tern
