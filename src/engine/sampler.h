// Sampler: from a row of logits to the next token.
//
// The draw is a function of (seed, position) alone, so batch mates, retraction and recomputation
// never change it. Thread: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/request.h"

namespace tern {

// The values of a request that sampling reads. Errors: kInvalidArgument naming the field.
Status ValidateSampling(const SamplingParams& params);

// log_softmax of a row of logits: of one token, of the most likely ones (the lower id wins a tie),
// and of those that are asked for.
struct RowLogprobs {
  float chosen = 0;
  std::vector<TokenLogprob> top, asked;
};

struct SampledToken {
  int32_t token = 0;
  float logprob = 0;                                       // only when logprobs are asked for
  std::vector<TokenLogprob> top_logprobs, asked_logprobs;  // as in RowLogprobs
};

struct SampleRequest {
  std::span<const float> logits;  // [vocab]
  const SamplingParams* params = nullptr;
  uint64_t seed = 0;
  int64_t position = 0;               // of the token to be chosen, in its sequence
  std::span<const uint32_t> allowed;  // bit per token as TokenMask fills it; empty: all
  std::span<const int32_t> tokens;    // the sequence so far; read for penalties alone
  int64_t prompt_tokens = 0;          // of them
  std::span<const int32_t> banned;    // tokens that can't come now
  bool return_logprob = false;        // of log_softmax(logits), before temperature and mask
  int64_t top_logprobs = 0;
  std::span<const int32_t> logprob_token_ids;
};

// Memory that sampling keeps between calls, so that no token allocates; contents mean nothing
// outside a call. One per thread that samples.
struct SamplerMemory {
  struct Candidate {
    float weight;
    int32_t token;
  };
  std::vector<float> logits, weights;
  std::vector<double> block_sums, buckets;
  std::vector<Candidate> candidates;
  std::vector<int32_t> tokens;  // of the weights that are left
  std::vector<int32_t> counts;  // -1 everywhere
};

// Logits change first. A token of the sequence: divided by repetition_penalty, or multiplied when
// negative (Keskar et al., 2019). One that was generated n times: less presence_penalty and n times
// frequency_penalty (OpenAI's). Then logit_bias is added, and `banned` go to minus infinity.
// temperature 0 or top_k 1: the largest logit, the lowest id on a tie. Else softmax(logits /
// temperature) over the allowed tokens, restricted to those that satisfy all of: among the top_k
// most likely; in the smallest set of most likely tokens that holds top_p of the probability
// (Holtzman et al., 2020); probability >= min_p times the largest. Ties rank by id.
// Errors: kInternal (a logit that is not finite, no allowed token).
Result<SampledToken> SampleToken(const SampleRequest& request, SamplerMemory& memory);
Result<SampledToken> SampleToken(const SampleRequest& request);

// Sums in float64. Errors: kInternal (a logit that is not finite).
Result<RowLogprobs> LogprobsOf(std::span<const float> logits, int32_t token, int64_t top,
                               std::span<const int32_t> asked);

// Uniform in [0, 1), 53 bits.
double UniformAt(uint64_t seed, int64_t position);

}  // namespace tern
