#include "engine/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "base/rng.h"
#include "engine/logit_math.h"

namespace tern {
namespace {

bool IsAllowed(std::span<const uint32_t> allowed, size_t token) {
  return allowed.empty() || (allowed[token / 32] >> token % 32 & 1) != 0;
}

// Index of the largest allowed logit, the lowest of equals; -1 when none is allowed.
int32_t ArgMaxAllowed(std::span<const float> logits, std::span<const uint32_t> allowed) {
  int32_t best = -1;
  for (size_t word = 0; word < allowed.size(); ++word) {
    for (uint32_t bits = allowed[word]; bits != 0; bits &= bits - 1) {
      const size_t i = word * 32 + static_cast<size_t>(std::countr_zero(bits));
      if (i >= logits.size()) break;
      if (best < 0 || logits[i] > logits[static_cast<size_t>(best)]) best = static_cast<int32_t>(i);
    }
  }
  return best;
}

// Most likely first, the lowest id among equals.
bool MoreLikely(const SamplerMemory::Candidate& a, const SamplerMemory::Candidate& b) {
  return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
}

// The least likely of the best candidates that together have `mass`, of all when they have less.
// Reorders them. A weighted quickselect: time is linear in their number on average.
// REQUIRES: not empty.
template <typename Size>
SamplerMemory::Candidate LeastWithin(std::vector<SamplerMemory::Candidate>& ranks, double mass,
                                     Size&& size) {
  auto begin = ranks.begin(), end = ranks.end();
  double sum = 0;  // of those before `begin`
  while (end - begin > 1) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, MoreLikely);
    double upper = 0;
    for (auto it = begin; it != middle; ++it) upper += size(*it);
    if (sum + upper >= mass) {
      end = middle;
    } else {
      sum += upper;
      begin = middle;
    }
  }
  return *begin;
}

// The same of `weights`, given what each bucket has: whole buckets first, from the largest weights
// on, then the candidates of the one in which `mass` is reached.
template <typename Size>
SamplerMemory::Candidate LeastWithin(std::span<const float> weights, SamplerMemory& m, double mass,
                                     Size&& size) {
  size_t bucket = kWeightBuckets - 1;
  double above = 0;
  for (; bucket > 0 && above + m.buckets[bucket] < mass; --bucket) above += m.buckets[bucket];
  m.candidates.clear();
  ForEachInBucket(weights, bucket, [&](size_t i) {
    m.candidates.push_back({weights[i], static_cast<int32_t>(i)});
  });
  // Empty only if what the buckets have in all is less: then every weight stays.
  if (m.candidates.empty()) return {0, static_cast<int32_t>(weights.size())};
  return LeastWithin(m.candidates, mass - above, size);
}

// What top_k, top_p and min_p leave of the weights, which have the sum `total`; m.tokens tells
// whose they are. The most likely token always stays; it has weight 1.
std::span<float> Truncate(const SamplingParams& params, double total, SamplerMemory& m) {
  const auto n = static_cast<double>(m.weights.size());
  // Those below the least float that is no less than min_p don't stay, nor those that have less
  // than 1 - top_p of the total even if all n were as large. (A part less, for rounding.)
  auto least = std::max(static_cast<float>(params.min_p), std::numeric_limits<float>::min());
  if (least < params.min_p) least = std::nextafter(least, 2.0f);
  least = std::max(least, static_cast<float>(0.999 * (1 - params.top_p) * total / n));
  m.tokens.resize(m.weights.size());
  const std::span<float> weights =
      std::span(m.weights).first(KeepWeights(m.weights, least, m.tokens.data()));

  SamplerMemory::Candidate last = {0, static_cast<int32_t>(weights.size())};
  const auto restrict = [&last](const SamplerMemory::Candidate& other) {
    if (MoreLikely(other, last)) last = other;
  };
  m.buckets.resize(kWeightBuckets);
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < weights.size()) {
    CountBuckets(weights, m.buckets.data());
    restrict(LeastWithin(weights, m, static_cast<double>(params.top_k),
                         [](const auto&) { return 1.0; }));
  }
  if (params.top_p < 1) {
    SumBuckets(weights, m.buckets.data());
    restrict(LeastWithin(weights, m, params.top_p * total,
                         [](const auto& c) { return double{c.weight}; }));
  }
  DropWeights(weights, last.weight);
  // Of the tokens as likely as the last one, those behind it.
  for (auto at = std::min(static_cast<size_t>(last.token) + 1, weights.size()); last.weight > 0;) {
    at += FirstEqual(weights.subspan(at), last.weight);
    if (at == weights.size()) break;
    weights[at++] = 0;
  }
  return weights;
}

// The place where the running sum of weights passes share * total.
size_t PickWeight(std::span<const float> weights, std::span<const double> block_sums, double total,
                  double share) {
  const double target = share * total;
  double sum = 0;
  size_t begin = 0, last = 0;
  for (const double block : block_sums) {
    if (sum + block > target) break;
    sum += block;
    begin += kWeightBlock;
  }
  for (size_t i = std::min(begin, weights.size()); i < weights.size(); ++i) {
    sum += weights[i];
    if (weights[i] > 0) last = i;
    if (sum > target) return i;
  }
  if (weights[last] > 0) return last;  // only through rounding
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] > 0) last = i;
  }
  return last;
}

int32_t Draw(const SampleRequest& request, std::span<const float> logits, float largest,
             SamplerMemory& m) {
  const SamplingParams& params = *request.params;
  m.weights.resize(logits.size());
  m.block_sums.resize(WeightBlocks(logits.size()));
  double* block_sums = m.block_sums.data();
  double total =
      SoftmaxWeights(logits, largest, 1.0 / params.temperature, m.weights.data(), block_sums);
  // First of all: the logit of a token that isn't allowed may be above `largest`, and its weight
  // above 1, for which there is no bucket.
  if (!request.allowed.empty()) {
    for (size_t i = 0; i < m.weights.size(); ++i) {
      if (!IsAllowed(request.allowed, i)) m.weights[i] = 0;
    }
    total = SumWeights(m.weights, block_sums);
  }
  const double share = UniformAt(request.seed, request.position);
  if (params.top_k <= 0 && params.top_p >= 1 && params.min_p <= 0) {
    return static_cast<int32_t>(PickWeight(m.weights, m.block_sums, total, share));
  }
  const std::span<const float> kept = Truncate(params, total, m);
  total = SumWeights(kept, block_sums);
  return m.tokens[PickWeight(kept, {block_sums, WeightBlocks(kept.size())}, total, share)];
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
  const size_t n = std::min(static_cast<size_t>(count), logits.size());
  std::vector<SamplerMemory::Candidate> heap;  // weight: the logit
  heap.reserve(n);
  for (size_t i = 0; n > 0 && i < logits.size(); ++i) {
    const SamplerMemory::Candidate candidate = {logits[i], static_cast<int32_t>(i)};
    if (heap.size() == n) {
      if (!MoreLikely(candidate, heap.front())) continue;
      std::pop_heap(heap.begin(), heap.end(), MoreLikely);
      heap.pop_back();
    }
    heap.push_back(candidate);
    std::push_heap(heap.begin(), heap.end(), MoreLikely);
  }
  std::sort_heap(heap.begin(), heap.end(), MoreLikely);
  std::vector<TokenLogprob> top;
  top.reserve(n);
  for (const SamplerMemory::Candidate& c : heap) {
    top.push_back({c.token, static_cast<float>(double{c.weight} - log_sum)});
  }
  return top;
}

bool ChangesLogits(const SampleRequest& request) {
  const SamplingParams& p = *request.params;
  return p.presence_penalty != 0 || p.frequency_penalty != 0 || p.repetition_penalty != 1 ||
         !p.logit_bias.empty() || !request.banned.empty();
}

// Each token changes by itself, so no order shows.
std::span<const float> ChangedLogits(const SampleRequest& request, SamplerMemory& m) {
  const SamplingParams& p = *request.params;
  m.logits.assign(request.logits.begin(), request.logits.end());
  constexpr int32_t kAbsent = -1;
  m.counts.resize(m.logits.size(), kAbsent);  // how often generated, 0 for the prompt's
  for (size_t i = 0; i < request.tokens.size(); ++i) {
    int32_t& count = m.counts[static_cast<size_t>(request.tokens[i])];
    count = std::max(count, 0) + (static_cast<int64_t>(i) >= request.prompt_tokens ? 1 : 0);
  }
  for (const int32_t token : request.tokens) {
    const int32_t count = std::exchange(m.counts[static_cast<size_t>(token)], kAbsent);
    if (count == kAbsent) continue;  // done
    float& logit = m.logits[static_cast<size_t>(token)];
    double x = logit > 0 ? logit / p.repetition_penalty : logit * p.repetition_penalty;
    if (count > 0) x -= p.presence_penalty + static_cast<double>(count) * p.frequency_penalty;
    logit = static_cast<float>(x);
  }
  for (const auto& [token, bias] : p.logit_bias) m.logits[static_cast<size_t>(token)] += bias;
  for (const int32_t token : request.banned) {
    if (token < 0 || static_cast<size_t>(token) >= m.logits.size()) continue;
    m.logits[static_cast<size_t>(token)] = -std::numeric_limits<float>::infinity();
  }
  return m.logits;
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
  if (!SurveyLogits(logits).finite) return Internal("the model gave logits that are not finite");
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

Result<SampledToken> SampleToken(const SampleRequest& request, SamplerMemory& memory) {
  LogitSurvey survey = SurveyLogits(request.logits);
  if (!survey.finite) return Internal("the model gave logits that are not finite");
  std::span<const float> logits = request.logits;
  if (ChangesLogits(request)) {
    logits = ChangedLogits(request, memory);
    survey = SurveyLogits(logits);  // banned ones are infinite, the largest is none of them
  }
  const int32_t best = request.allowed.empty()
                           ? static_cast<int32_t>(FirstEqual(logits, survey.largest))
                           : ArgMaxAllowed(logits, request.allowed);
  if (best < 0 || static_cast<size_t>(best) >= logits.size() ||
      std::isinf(logits[static_cast<size_t>(best)])) {
    return Internal("the token mask allows no token");
  }
  const SamplingParams& params = *request.params;
  SampledToken result;
  result.token = params.temperature == 0 || params.top_k == 1
                     ? best
                     : Draw(request, logits, logits[static_cast<size_t>(best)], memory);
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

Result<SampledToken> SampleToken(const SampleRequest& request) {
  SamplerMemory memory;
  return SampleToken(request, memory);
}

}  // namespace tern
