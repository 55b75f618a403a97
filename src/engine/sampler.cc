#include "engine/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "base/rng.h"

namespace tern {
namespace {

// A token that may be chosen; weight = exp((logit - largest) / temperature), in (0, 1].
struct Candidate {
  float weight;
  int32_t token;
};
// The heap's top is the most likely candidate, the lowest id among equals.
bool LessLikely(const Candidate& a, const Candidate& b) {
  return a.weight != b.weight ? a.weight < b.weight : a.token > b.token;
}

bool AllFinite(std::span<const float> x) {
  float sum = 0;  // x - x is 0 for a finite number, else NaN
  for (const float value : x) sum += value - value;
  return sum == 0;
}

bool IsAllowed(std::span<const uint32_t> allowed, size_t token) {
  return allowed.empty() || (allowed[token / 32] >> token % 32 & 1) != 0;
}

// This and LogSumExp are plain C++, not Ops': they take a mask and sum in float64, and the
// simulator, which has no kernels, samples too. Index of the largest allowed logit, -1 when none is
// allowed.
int32_t ArgMaxAllowed(std::span<const float> logits, std::span<const uint32_t> allowed) {
  int32_t best = -1;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!IsAllowed(allowed, i)) continue;
    if (best < 0 || logits[i] > logits[static_cast<size_t>(best)]) best = static_cast<int32_t>(i);
  }
  return best;
}

// The candidate where the running sum of weights passes `target`.
int32_t PickAt(std::span<const Candidate> candidates, double target) {
  double sum = 0;
  for (const Candidate& candidate : candidates) {
    sum += candidate.weight;
    if (sum > target) return candidate.token;
  }
  return candidates.back().token;  // only through rounding
}

// Keeps what top_k, top_p and min_p leave, most likely first. The most likely one always stays.
void Truncate(const SamplingParams& params, double total, std::vector<Candidate>* candidates) {
  const size_t limit = params.top_k > 0 ? static_cast<size_t>(params.top_k) : candidates->size();
  std::vector<Candidate>& heap = *candidates;
  std::make_heap(heap.begin(), heap.end(), LessLikely);
  const float smallest = static_cast<float>(params.min_p) * heap.front().weight;
  std::vector<Candidate> kept;
  for (double sum = 0; !heap.empty() && kept.size() < limit && sum < params.top_p * total;) {
    if (!kept.empty() && heap.front().weight < smallest) break;
    kept.push_back(heap.front());
    sum += heap.front().weight;
    std::pop_heap(heap.begin(), heap.end(), LessLikely);
    heap.pop_back();
  }
  heap = std::move(kept);
}

double SumOf(std::span<const Candidate> candidates) {
  double sum = 0;
  for (const Candidate& candidate : candidates) sum += candidate.weight;
  return sum;
}

int32_t Draw(const SampleRequest& request, float largest) {
  const SamplingParams& params = *request.params;
  std::vector<Candidate> candidates;
  candidates.reserve(request.logits.size());
  const double scale = 1.0 / params.temperature;
  for (size_t i = 0; i < request.logits.size(); ++i) {
    if (!IsAllowed(request.allowed, i)) continue;
    // 0 * infinity (a temperature near 0) must stay 0: the largest always has weight 1.
    const double below = double{request.logits[i]} - double{largest};
    const float weight = below == 0 ? 1.0f : std::exp(static_cast<float>(below * scale));
    if (weight > 0) candidates.push_back({weight, static_cast<int32_t>(i)});
  }
  const bool truncates = params.top_k > 0 || params.top_p < 1 || params.min_p > 0;
  if (truncates) Truncate(params, SumOf(candidates), &candidates);
  return PickAt(candidates, UniformAt(request.seed, request.position) * SumOf(candidates));
}

// log(sum(exp(logits))), against the largest.
double LogSumExp(std::span<const float> logits) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  return largest + std::log(sum);
}

// The `count` most likely tokens. A heap of them, its top the least likely one: most logits are
// below it and cost one comparison.
std::vector<TokenLogprob> TopLogprobs(std::span<const float> logits, int64_t count,
                                      double log_sum) {
  const auto more_likely = [](const Candidate& a, const Candidate& b) { return LessLikely(b, a); };
  const size_t n = std::min(static_cast<size_t>(count), logits.size());
  std::vector<Candidate> heap;  // weight: the logit
  for (size_t i = 0; n > 0 && i < logits.size(); ++i) {
    const Candidate candidate = {logits[i], static_cast<int32_t>(i)};
    if (heap.size() == n) {
      if (!LessLikely(heap.front(), candidate)) continue;
      std::pop_heap(heap.begin(), heap.end(), more_likely);
      heap.pop_back();
    }
    heap.push_back(candidate);
    std::push_heap(heap.begin(), heap.end(), more_likely);
  }
  std::sort_heap(heap.begin(), heap.end(), more_likely);
  std::vector<TokenLogprob> top;
  for (const Candidate& c : heap) {
    top.push_back({c.token, static_cast<float>(double{c.weight} - log_sum)});
  }
  return top;
}

bool ChangesLogits(const SampleRequest& request) {
  const SamplingParams& p = *request.params;
  return p.presence_penalty != 0 || p.frequency_penalty != 0 || p.repetition_penalty != 1 ||
         !p.logit_bias.empty() || !request.banned.empty();
}

// Each token changes by itself, so no order of the maps shows.
std::vector<float> ChangedLogits(const SampleRequest& request) {
  const SamplingParams& p = *request.params;
  std::vector<float> logits(request.logits.begin(), request.logits.end());
  std::unordered_map<int32_t, int64_t> generated;  // how often, 0 for the prompt's
  for (size_t i = 0; i < request.tokens.size(); ++i) {
    const bool is_new = static_cast<int64_t>(i) >= request.prompt_tokens;
    generated[request.tokens[i]] += is_new ? 1 : 0;
  }
  for (const auto& [token, count] : generated) {
    float& logit = logits[static_cast<size_t>(token)];
    double x = logit > 0 ? logit / p.repetition_penalty : logit * p.repetition_penalty;
    if (count > 0) x -= p.presence_penalty + static_cast<double>(count) * p.frequency_penalty;
    logit = static_cast<float>(x);
  }
  for (const auto& [token, bias] : p.logit_bias) logits[static_cast<size_t>(token)] += bias;
  for (const int32_t token : request.banned) {
    if (token < 0 || static_cast<size_t>(token) >= logits.size()) continue;
    logits[static_cast<size_t>(token)] = -std::numeric_limits<float>::infinity();
  }
  return logits;
}

}  // namespace

Status ValidateSampling(const SamplingParams& params) {
  const auto refuse = [](const char* field, const char* rule) {
    return InvalidArgument(fmt::format("{} must be {}", field, rule));
  };
  // Written so that NaN fails.
  if (!(params.temperature >= 0 && std::isfinite(params.temperature))) {
    return refuse("temperature", "a number from 0 up");
  }
  if (params.top_k < -1) return refuse("top_k", "-1 or 0 (all) or a positive number");
  if (!(params.top_p > 0 && params.top_p <= 1)) return refuse("top_p", "in (0, 1]");
  if (!(params.min_p >= 0 && params.min_p <= 1)) return refuse("min_p", "in [0, 1]");
  if (params.max_new_tokens < 0) return refuse("max_new_tokens", "0 or more");
  if (!(std::abs(params.presence_penalty) <= 2)) return refuse("presence_penalty", "in [-2, 2]");
  if (!(std::abs(params.frequency_penalty) <= 2)) return refuse("frequency_penalty", "in [-2, 2]");
  // From below too: dividing by less could leave float's range.
  if (!(params.repetition_penalty >= 1e-6 && params.repetition_penalty <= 2)) {
    return refuse("repetition_penalty", "over 0 and at most 2");
  }
  for (const auto& [token, bias] : params.logit_bias) {
    if (token < 0 || !(std::abs(bias) <= 100)) {
      return refuse("logit_bias", "token ids with numbers in [-100, 100]");
    }
  }
  if (params.min_new_tokens < 0 || params.min_new_tokens > params.max_new_tokens) {
    return refuse("min_new_tokens", "from 0 to max_new_tokens");
  }
  return OkStatus();
}

double UniformAt(uint64_t seed, int64_t position) {
  // The bit stream of a SplitMix64 that starts at a mix of both.
  return Rng(Mix64(seed) + Mix64(~static_cast<uint64_t>(position))).Uniform();
}

Result<RowLogprobs> LogprobsOf(std::span<const float> logits, int32_t token, int64_t top,
                               std::span<const int32_t> asked) {
  if (!AllFinite(logits)) return Internal("the model gave logits that are not finite");
  const double log_sum = LogSumExp(logits);
  const auto logprob = [&](int32_t id) {
    return static_cast<float>(double{logits[static_cast<size_t>(id)]} - log_sum);
  };
  RowLogprobs row;
  row.chosen = logprob(token);
  row.top = TopLogprobs(logits, top, log_sum);
  for (const int32_t id : asked) row.asked.push_back({id, logprob(id)});
  return row;
}

Result<SampledToken> SampleToken(const SampleRequest& request) {
  if (!AllFinite(request.logits)) return Internal("the model gave logits that are not finite");
  SampleRequest changed = request;
  std::vector<float> changed_logits;
  if (ChangesLogits(request)) changed.logits = changed_logits = ChangedLogits(request);
  const int32_t best = ArgMaxAllowed(changed.logits, request.allowed);
  if (best < 0 || std::isinf(changed.logits[static_cast<size_t>(best)])) {
    return Internal("the token mask allows no token");
  }
  const SamplingParams& params = *request.params;
  SampledToken result;
  result.token = params.temperature == 0 || params.top_k == 1
                     ? best
                     : Draw(changed, changed.logits[static_cast<size_t>(best)]);
  if (request.return_logprob || request.top_logprobs > 0) {
    TERN_ASSIGN_OR_RETURN(
        RowLogprobs row,
        LogprobsOf(request.logits, result.token, request.top_logprobs, request.logprob_token_ids));
    result.logprob = row.chosen;
    result.top_logprobs = std::move(row.top);
    result.asked_logprobs = std::move(row.asked);
  }
  return result;
}

}  // namespace tern
