#include "models/moe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace tern {
namespace {

struct Choice {
  std::vector<int32_t> experts;
  std::vector<float> weights;
};

Choice Choose(const MoeConfig& config, const std::vector<float>& logits,
              const std::vector<float>& bias) {
  Choice choice;
  const auto top = static_cast<size_t>(config.num_experts_per_tok);
  choice.experts.resize(top);
  choice.weights.resize(top);
  std::vector<float> scratch(3 * logits.size());
  ChooseExperts(config, logits.data(), bias.data(), scratch.data(), choice.experts.data(),
                choice.weights.data());
  return choice;
}

// By sorting, in double: stable sorts give ties to the lowest index.
Choice Naive(const MoeConfig& config, const std::vector<float>& logits,
             const std::vector<float>& bias) {
  const auto n = static_cast<size_t>(config.n_routed_experts);
  std::vector<float> score(n), choice(n);
  for (size_t e = 0; e < n; ++e) {
    score[e] = 1.0f / (1.0f + std::exp(-logits[e]));
    choice[e] = score[e] + bias[e];
  }
  const size_t size = n / static_cast<size_t>(config.n_group);
  std::vector<std::pair<float, size_t>> groups;
  for (size_t g = 0; g < static_cast<size_t>(config.n_group); ++g) {
    std::vector<float> members(choice.begin() + static_cast<int64_t>(g * size),
                               choice.begin() + static_cast<int64_t>((g + 1) * size));
    std::sort(members.rbegin(), members.rend());
    groups.push_back({members[0] + (size > 1 ? members[1] : 0), g});
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<size_t> candidates;
  for (int64_t k = 0; k < config.topk_group; ++k) {
    for (size_t i = 0; i < size; ++i) {
      candidates.push_back(groups[static_cast<size_t>(k)].second * size + i);
    }
  }
  std::sort(candidates.begin(), candidates.end());
  std::stable_sort(candidates.begin(), candidates.end(),
                   [&](size_t a, size_t b) { return choice[a] > choice[b]; });
  Choice result;
  double sum = 0;
  for (int64_t k = 0; k < config.num_experts_per_tok; ++k) {
    const size_t e = candidates[static_cast<size_t>(k)];
    result.experts.push_back(static_cast<int32_t>(e));
    sum += score[e];
  }
  for (const int32_t e : result.experts) {
    const double weight = config.norm_topk_prob ? score[static_cast<size_t>(e)] / (sum + 1e-20)
                                                : score[static_cast<size_t>(e)];
    result.weights.push_back(static_cast<float>(weight * config.routed_scaling_factor));
  }
  return result;
}

TEST(RouterTest, AgreesWithSorting) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (int trial = 0; trial < 2000; ++trial) {
    MoeConfig config;
    config.n_group = int64_t{1} << (trial % 3);  // 1, 2, 4
    config.topk_group = 1 + trial % config.n_group;
    config.n_routed_experts = config.n_group * (4 + trial % 5);
    config.num_experts_per_tok = 1 + trial % 4;
    config.norm_topk_prob = trial % 5 != 0;
    config.routed_scaling_factor = 2.5;
    std::vector<float> logits(static_cast<size_t>(config.n_routed_experts)), bias(logits.size());
    for (size_t e = 0; e < logits.size(); ++e) {
      // Coarse numbers tie often.
      logits[e] = trial % 2 ? std::round(normal(random)) : normal(random);
      bias[e] = trial % 2 ? 0.0f : 0.1f * normal(random);
    }
    const Choice have = Choose(config, logits, bias), want = Naive(config, logits, bias);
    ASSERT_EQ(have.experts, want.experts) << trial;
    for (size_t k = 0; k < have.weights.size(); ++k) {
      ASSERT_NEAR(have.weights[k], want.weights[k], 1e-6) << trial;
    }
  }
}

TEST(RouterTest, BiasChoosesAndDoesNotWeigh) {
  MoeConfig config;
  config.n_routed_experts = 4;
  config.num_experts_per_tok = 2;
  config.norm_topk_prob = false;
  const Choice choice = Choose(config, {0, 0, 0, 0}, {0, 0, 1, 0});
  EXPECT_EQ(choice.experts, (std::vector<int32_t>{2, 0}));  // a tie goes to the lowest index
  EXPECT_EQ(choice.weights, (std::vector<float>{0.5f, 0.5f}));
}

TEST(RouterTest, NanLogitsStayInRange) {
  MoeConfig config;
  config.n_routed_experts = 8;
  config.num_experts_per_tok = 3;
  config.n_group = 2;
  const Choice choice =
      Choose(config, std::vector<float>(8, std::nanf("")), std::vector<float>(8, 0.0f));
  for (const int32_t e : choice.experts) EXPECT_TRUE(e >= 0 && e < 8);
}

}  // namespace
}  // namespace tern
