#include "text/bpe.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <random>
#include <set>

namespace tern {
namespace {

// A random vocabulary of strings over "abc" and merges that make its longer ones.
struct RandomModel {
  std::vector<std::string> tokens{"a", "b", "c"};
  std::vector<MergeRule> rules;

  explicit RandomModel(uint64_t seed) {
    std::mt19937_64 rng(seed);
    std::set<std::string> seen(tokens.begin(), tokens.end());
    for (int i = 0; i < 30; ++i) {
      const auto left = static_cast<TokenId>(rng() % tokens.size());
      const auto right = static_cast<TokenId>(rng() % tokens.size());
      const std::string both = tokens[left] + tokens[right];
      if (both.size() > 9 || !seen.insert(both).second) continue;
      rules.push_back({left, right, static_cast<TokenId>(tokens.size()), 0});
      tokens.push_back(both);
    }
    std::shuffle(rules.begin(), rules.end(), rng);
    for (size_t i = 0; i < rules.size(); ++i) rules[i].rank = static_cast<uint32_t>(i);
  }
  Bpe::Vocabulary vocabulary() const { return {tokens.begin(), tokens.end()}; }
};

// The definition: apply the best rule at its leftmost place until none applies.
std::vector<TokenId> NaiveMerge(const RandomModel& model, const std::string& text) {
  std::vector<TokenId> ids;
  for (const char c : text) ids.push_back(c - 'a');
  for (;;) {
    const MergeRule* best = nullptr;
    size_t at = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      for (const MergeRule& r : model.rules) {
        if (r.left != ids[i] || r.right != ids[i + 1] || (best && r.rank >= best->rank)) continue;
        best = &r;
        at = i;
      }
    }
    if (!best) return ids;
    ids[at] = best->token;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(at) + 1);
  }
}

TEST(Bpe, MergesAsDefined) {
  std::mt19937_64 rng(7);
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const RandomModel model(seed);
    const Bpe bpe(model.vocabulary(), model.rules, {});
    for (int round = 0; round < 20; ++round) {
      std::string text;  // up to 120 bytes: both the short and the long way
      for (size_t i = 1 + rng() % 120; i > 0; --i) text += static_cast<char>('a' + rng() % 3);
      std::vector<TokenId> ids;
      bpe.Encode(text, &ids);
      EXPECT_EQ(ids, NaiveMerge(model, text)) << "seed " << seed << " " << text;
    }
  }
}

// tiktoken's definition: among all neighbours whose bytes together are a token, the lowest id.
std::vector<TokenId> NaiveRanks(const std::vector<std::string>& tokens, const std::string& text) {
  std::map<std::string, TokenId> ids;
  for (size_t i = 0; i < tokens.size(); ++i) ids[tokens[i]] = static_cast<TokenId>(i);
  std::vector<std::string> parts;
  for (const char c : text) parts.emplace_back(1, c);
  for (;;) {
    size_t at = 0;
    TokenId best = -1;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto it = ids.find(parts[i] + parts[i + 1]);
      if (it == ids.end() || (best >= 0 && it->second >= best)) continue;
      best = it->second;
      at = i;
    }
    if (best < 0) break;
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<ptrdiff_t>(at) + 1);
  }
  std::vector<TokenId> out;
  for (const std::string& part : parts) out.push_back(ids[part]);
  return out;
}

TEST(Bpe, MergesByRankAsTiktokenDoes) {
  std::mt19937_64 rng(8);
  for (uint64_t seed = 100; seed < 140; ++seed) {
    const RandomModel model(seed);
    const Bpe bpe(model.vocabulary(), Bpe::MergesByRank(model.vocabulary()), {});
    for (int round = 0; round < 20; ++round) {
      std::string text;
      for (size_t i = 1 + rng() % 90; i > 0; --i) text += static_cast<char>('a' + rng() % 3);
      std::vector<TokenId> ids;
      bpe.Encode(text, &ids);
      EXPECT_EQ(ids, NaiveRanks(model.tokens, text)) << "seed " << seed << " " << text;
    }
  }
}

TEST(Bpe, LeavesOutOrReplacesUnknownBytes) {
  const Bpe::Vocabulary vocabulary{"a", "b", "ab", "?"};
  const std::vector<MergeRule> rules{{0, 1, 2, 0}};
  std::vector<TokenId> out, replaced, fused;
  Bpe(vocabulary, rules, {}).Encode("axyb", &out);
  Bpe(vocabulary, rules, {.unk = 3}).Encode("axyb", &replaced);
  Bpe(vocabulary, rules, {.unk = 3, .fuse_unk = true}).Encode("axyb", &fused);
  EXPECT_EQ(out, (std::vector<TokenId>{2}));
  EXPECT_EQ(replaced, (std::vector<TokenId>{0, 3, 3, 1}));
  EXPECT_EQ(fused, (std::vector<TokenId>{0, 3, 1}));
}

TEST(Bpe, AMegabyteOfOneLetterIsFast) {
  Bpe::Vocabulary vocabulary{"a", "aa", "aaaa", "aaaaaaaa"};
  const Bpe bpe(vocabulary, {{0, 0, 1, 0}, {1, 1, 2, 1}, {2, 2, 3, 2}}, {});
  const std::string text(1 << 20, 'a');
  const auto start = std::chrono::steady_clock::now();
  std::vector<TokenId> ids;
  bpe.Encode(text, &ids);
  EXPECT_EQ(ids, std::vector<TokenId>(1 << 17, 3));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

}  // namespace
}  // namespace tern
