#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "base/rng.h"

namespace tern {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> RandomLogits(Rng& rng, size_t n, double spread) {
  std::vector<float> logits(n);
  for (float& x : logits) x = static_cast<float>(std::round(rng.Uniform() * spread * 4) / 4);
  return logits;
}

// The tokens that may be drawn and their probabilities, straight from the definition: sort, sum in
// double, no early exits.
std::map<int32_t, double> NaiveDistribution(const std::vector<float>& logits,
                                            const SamplingParams& params,
                                            const std::vector<bool>& allowed) {
  std::vector<int32_t> order;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (allowed[i]) order.push_back(int32_t(i));
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return logits[size_t(a)] > logits[size_t(b)]; });
  std::vector<double> p;
  for (const int32_t token : order) {
    p.push_back(
        std::exp((double(logits[size_t(token)]) - logits[size_t(order[0])]) / params.temperature));
  }
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  std::map<int32_t, double> kept;
  double before = 0, kept_sum = 0;
  for (size_t rank = 0; rank < order.size(); ++rank) {
    const bool in_k = params.top_k <= 0 || rank < size_t(params.top_k);
    const bool in_p = before / total < params.top_p;
    const bool in_min_p = rank == 0 || p[rank] >= params.min_p * p[0];
    if (in_k && in_p && in_min_p) {
      kept[order[rank]] = p[rank];
      kept_sum += p[rank];
    }
    before += p[rank];
  }
  for (auto& [token, probability] : kept) probability /= kept_sum;
  return kept;
}

int32_t Draw(const std::vector<float>& logits, const SamplingParams& params, uint64_t seed,
             int64_t position, std::span<const uint32_t> allowed = {}) {
  const auto sampled = SampleToken({.logits = logits,
                                    .params = &params,
                                    .seed = seed,
                                    .position = position,
                                    .allowed = allowed});
  EXPECT_TRUE(sampled.ok()) << sampled.status().ToString();
  return sampled.ok() ? sampled->token : -1;
}

TEST(Sampler, GreedyTakesTheLowestIndexOfATie) {
  const SamplingParams greedy = {.temperature = 0};
  EXPECT_EQ(Draw({1, 5, 5, 2}, greedy, 1, 1), 1);
  EXPECT_EQ(Draw({-0.0f, 0.0f}, greedy, 1, 1), 0);
  EXPECT_EQ(Draw({0.0f, -0.0f}, greedy, 1, 1), 0);
  EXPECT_EQ(Draw({-3, -2, -2}, {.temperature = 2, .top_k = 1}, 1, 1), 1);
}

// Frequencies over many positions against the definition's probabilities.
TEST(Sampler, DrawsFollowTheDefinition) {
  Rng rng(5);
  for (int trial = 0; trial < 40; ++trial) {
    const std::vector<float> logits = RandomLogits(rng, 12, 6);
    SamplingParams params = {.temperature = 0.3 + 1.5 * rng.Uniform()};
    if (rng.Chance(0.5)) params.top_k = int64_t(rng.Below(14));
    if (rng.Chance(0.5)) params.top_p = 0.05 + 0.95 * rng.Uniform();
    if (rng.Chance(0.5)) params.min_p = 0.4 * rng.Uniform();
    std::vector<bool> allowed(12, true);
    std::vector<uint32_t> bits = {0xFFF};
    if (rng.Chance(0.5)) {
      for (size_t i = 0; i < 12; ++i) {
        if (i != 3 && rng.Chance(0.4)) {
          allowed[i] = false;
          bits[0] &= ~(1u << i);
        }
      }
    }
    const std::map<int32_t, double> want = NaiveDistribution(logits, params, allowed);
    constexpr int kDraws = 4000;
    std::map<int32_t, int> seen;
    for (int i = 0; i < kDraws; ++i) ++seen[Draw(logits, params, 77, i, bits)];
    for (const auto& [token, count] : seen) {
      ASSERT_TRUE(want.contains(token)) << "trial " << trial << " token " << token;
    }
    for (const auto& [token, p] : want) {
      // Five standard deviations of a binomial.
      const double slack = 5 * std::sqrt(kDraws * p * (1 - p)) + 1;
      EXPECT_NEAR(seen[token], kDraws * p, slack) << "trial " << trial << " token " << token;
    }
  }
}

// Vocabularies of many blocks, flat and steep, with ties at the border of what is kept: only kept
// tokens come, and the halves of what is kept come as often as the definition says. One memory
// serves them all.
TEST(Sampler, LargeVocabulariesKeepWhatTheDefinitionKeeps) {
  Rng rng(8);
  SamplerMemory memory;
  for (int trial = 0; trial < 24; ++trial) {
    const size_t n = 900 + rng.Below(3000);
    const std::vector<float> logits = RandomLogits(rng, n, trial % 3 == 0 ? 0.6 : 9.0);
    SamplingParams params = {.temperature = 0.5 + rng.Uniform()};
    if (trial % 2 == 0) params.top_p = 0.3 + 0.69 * rng.Uniform();
    if (trial % 4 == 1) params.top_k = 1 + int64_t(rng.Below(n));
    if (trial % 4 == 2) params.min_p = 0.2 * rng.Uniform();
    std::vector<bool> allowed(n, true);
    std::vector<uint32_t> bits;
    if (trial % 5 == 0) {
      bits.assign((n + 31) / 32, 0);
      for (size_t i = 0; i < n; ++i) {
        allowed[i] = i == 5 || rng.Chance(0.5);
        if (allowed[i]) bits[i / 32] |= 1u << i % 32;
      }
    }
    const std::map<int32_t, double> want = NaiveDistribution(logits, params, allowed);
    double low = 0;  // of the first half of the kept tokens
    const int32_t half = std::next(want.begin(), long(want.size() / 2))->first;
    for (const auto& [token, p] : want) low += token < half ? p : 0;
    constexpr int kDraws = 1500;
    int seen_low = 0;
    for (int i = 0; i < kDraws; ++i) {
      const auto sampled = SampleToken(
          {.logits = logits, .params = &params, .seed = 5, .position = i, .allowed = bits}, memory);
      ASSERT_TRUE(sampled.ok());
      ASSERT_TRUE(want.contains(sampled->token)) << "trial " << trial << " " << sampled->token;
      seen_low += sampled->token < half ? 1 : 0;
    }
    EXPECT_NEAR(seen_low, kDraws * low, 5 * std::sqrt(kDraws * low * (1 - low)) + 1) << trial;
  }
}

TEST(Sampler, DrawsDependOnSeedAndPositionAlone) {
  Rng rng(6);
  const std::vector<float> logits = RandomLogits(rng, 100, 3);
  const SamplingParams params = {.temperature = 1};
  std::vector<int32_t> forward, backward;
  for (int64_t i = 0; i < 64; ++i) forward.push_back(Draw(logits, params, 9, i));
  for (int64_t i = 63; i >= 0; --i) backward.push_back(Draw(logits, params, 9, i));
  std::reverse(backward.begin(), backward.end());
  EXPECT_EQ(forward, backward);
  std::vector<int32_t> other;
  for (int64_t i = 0; i < 64; ++i) other.push_back(Draw(logits, params, 10, i));
  EXPECT_NE(forward, other);
}

// Pearson's chi-squared over 64 bins, along positions and along seeds; 63 degrees of freedom: above
// 120 once in 10^5.
TEST(Sampler, UniformAtIsUniform) {
  for (const bool along_positions : {true, false}) {
    std::vector<int> bins(64);
    constexpr int kDraws = 64'000;
    for (int i = 0; i < kDraws; ++i) {
      const double u = along_positions ? UniformAt(3, i) : UniformAt(uint64_t(i), 3);
      ASSERT_GE(u, 0);
      ASSERT_LT(u, 1);
      ++bins[size_t(u * 64)];
    }
    double chi2 = 0;
    for (const int n : bins) chi2 += (n - 1000.0) * (n - 1000.0) / 1000.0;
    EXPECT_LT(chi2, 120);
  }
}

TEST(Sampler, ExtremeTemperaturesStaySane) {
  const std::vector<float> logits = {1, 3, 2, 3};
  for (const double t : {1e-300, 1e-30, 1e-6}) {
    for (int i = 0; i < 50; ++i) {
      const int32_t token = Draw(logits, {.temperature = t}, 1, i);
      EXPECT_TRUE(token == 1 || token == 3) << t;
    }
  }
  std::map<int32_t, int> seen;
  for (int i = 0; i < 4000; ++i) ++seen[Draw(logits, {.temperature = 1e300}, 1, i)];
  for (int32_t token = 0; token < 4; ++token) EXPECT_NEAR(seen[token], 1000, 150);
  const std::vector<float> huge = {3e38f, -3e38f, 3e38f};
  EXPECT_NE(Draw(huge, {.temperature = 1}, 1, 1), 1);
}

TEST(Sampler, LogprobsAreOfTheUnscaledDistribution) {
  const std::vector<float> logits = {0, std::log(2.0f), std::log(5.0f), std::log(2.0f)};
  const SamplingParams params = {.temperature = 0};
  const uint32_t mask[] = {0b1011};  // the likeliest token is not allowed
  const auto sampled = SampleToken({.logits = logits,
                                    .params = &params,
                                    .allowed = mask,
                                    .return_logprob = true,
                                    .top_logprobs = 3});
  ASSERT_TRUE(sampled.ok());
  EXPECT_EQ(sampled->token, 1);
  EXPECT_NEAR(sampled->logprob, std::log(0.2), 1e-6);
  ASSERT_EQ(sampled->top_logprobs.size(), 3u);
  const int32_t ids[] = {2, 1, 3};
  const double p[] = {0.5, 0.2, 0.2};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(sampled->top_logprobs[i].token, ids[i]);
    EXPECT_NEAR(sampled->top_logprobs[i].logprob, std::log(p[i]), 1e-6);
  }
  const auto all = SampleToken({.logits = logits, .params = &params, .top_logprobs = 20});
  EXPECT_EQ(all->top_logprobs.size(), 4u);
}

// Logprobs are of the unchanged logits, so greedy choices tell: of two tokens the one that the
// formula leaves larger wins.
TEST(Sampler, PenaltiesFollowTheirFormulas) {
  const auto pick = [](const std::vector<float>& logits, const SamplingParams& params,
                       const std::vector<int32_t>& tokens, int64_t prompt_tokens,
                       const std::vector<int32_t>& banned = {}) {
    const auto sampled = SampleToken({.logits = logits,
                                      .params = &params,
                                      .tokens = tokens,
                                      .prompt_tokens = prompt_tokens,
                                      .banned = banned});
    EXPECT_TRUE(sampled.ok());
    return sampled.ok() ? sampled->token : -1;
  };
  SamplingParams p = {.temperature = 0};
  // 3 - 0.5 - 2 * 0.5 = 1.5
  p.presence_penalty = p.frequency_penalty = 0.5;
  EXPECT_EQ(pick({3, 1.49f}, p, {1, 0, 0}, 1), 0);
  EXPECT_EQ(pick({3, 1.51f}, p, {1, 0, 0}, 1), 1);
  EXPECT_EQ(pick({3, 2.99f}, p, {0, 0}, 2), 0);  // the prompt's do not count
  p = {.temperature = 0};
  p.repetition_penalty = 2;  // the prompt's count: 3 / 2; -1 * 2
  EXPECT_EQ(pick({3, 1.49f}, p, {0, 0}, 2), 0);
  EXPECT_EQ(pick({3, 1.51f}, p, {0}, 1), 1);
  EXPECT_EQ(pick({-1, -1.99f}, p, {0}, 0), 1);
  EXPECT_EQ(pick({-1, -2.01f}, p, {0}, 0), 0);
  p = {.temperature = 0};
  p.logit_bias = {{1, 2.5f}};
  EXPECT_EQ(pick({3, 0.51f}, p, {}, 0), 1);
  EXPECT_EQ(pick({3, 0.49f}, p, {}, 0), 0);
  EXPECT_EQ(pick({3, 0.51f}, p, {}, 0, {1}), 0);
  // Draws: a banned token never comes, and two tokens that a bias makes equal come alike often.
  p = {.temperature = 1};
  p.logit_bias = {{1, 2}};
  int ones = 0;
  constexpr int kDraws = 4000;
  for (int i = 0; i < kDraws; ++i) {
    const std::vector<float> logits = {2, 0, 5};
    const std::vector<int32_t> banned = {2};
    const auto sampled =
        SampleToken({.logits = logits, .params = &p, .seed = 3, .position = i, .banned = banned});
    ASSERT_NE(sampled->token, 2);
    ones += sampled->token;
  }
  EXPECT_NEAR(ones, kDraws / 2, 150);  // over 4 standard deviations of 32
}

TEST(Sampler, RefusesLogitsThatAreNotFinite) {
  const SamplingParams params;
  for (const float bad : {kNan, kInf, -kInf}) {
    for (size_t at = 0; at < 5; ++at) {
      std::vector<float> logits = {1, 2, 3, 4, 5};
      logits[at] = bad;
      EXPECT_EQ(SampleToken({.logits = logits, .params = &params}).status().code(),
                StatusCode::kInternal);
    }
  }
}

TEST(Sampler, RefusesAnEmptyMask) {
  const SamplingParams params;
  const std::vector<float> logits(40, 1.0f);
  const uint32_t none[] = {0, 0};
  EXPECT_EQ(SampleToken({.logits = logits, .params = &params, .allowed = none}).status().code(),
            StatusCode::kInternal);
  const uint32_t last[] = {0, 1u << 7};
  EXPECT_EQ(Draw(logits, params, 1, 1, last), 39);
}

TEST(Sampler, ValidationNamesTheField) {
  const auto expect = [](SamplingParams params, const char* field) {
    const Status status = ValidateSampling(params);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << field;
    EXPECT_NE(status.message().find(field), std::string::npos) << status.message();
  };
  for (const double bad : {-1.0, double{kNan}, double{kInf}, -1e-9}) {
    expect({.temperature = bad}, "temperature");
  }
  for (const double bad : {0.0, -0.1, 1.1, double{kNan}}) expect({.top_p = bad}, "top_p");
  for (const double bad : {-0.1, 1.1, double{kNan}}) expect({.min_p = bad}, "min_p");
  expect({.top_k = -2}, "top_k");
  expect({.max_new_tokens = -1}, "max_new_tokens");
  EXPECT_TRUE(ValidateSampling({}).ok());
  EXPECT_TRUE(ValidateSampling({.temperature = 1e300,
                                .top_k = std::numeric_limits<int64_t>::max(),
                                .top_p = 1,
                                .min_p = 1,
                                .max_new_tokens = std::numeric_limits<int64_t>::max()})
                  .ok());
}

}  // namespace
}  // namespace tern
