// Against closed forms: a model whose logits are known functions of the token before.
#include "eval/text_score.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

namespace tern {
namespace {

using ::testing::HasSubstr;

// Logits after a token: fn(token, i) for the vocabulary's i.
class KnownModel final : public LogitSource {
 public:
  using Fn = std::function<float(int32_t token, int64_t position, int64_t i)>;
  KnownModel(int64_t vocab, Fn fn) : vocab_(vocab), fn_(std::move(fn)) {}
  const std::string& name() const override { return name_; }
  int64_t vocab_size() const override { return vocab_; }
  int64_t context_length() const override { return 1024; }
  Status Begin(int64_t) override {
    position_ = 0;
    return OkStatus();
  }
  Status Append(std::span<const int32_t> tokens, float* logits) override {
    for (const int32_t token : tokens) {
      for (int64_t i = 0; i < vocab_; ++i) *logits++ = fn_(token, position_, i);
      ++position_;
    }
    return OkStatus();
  }

 private:
  const int64_t vocab_;
  const Fn fn_;
  const std::string name_ = "known";
  int64_t position_ = 0;
};

TextTokens Text(int64_t n, int32_t vocab) {
  TextTokens tokens;
  for (int64_t i = 0; i < n; ++i) tokens.push_back(static_cast<int32_t>((i * 7) % vocab));
  return tokens;
}

TEST(CutWindows, CountsEveryTokenBehindABos) {
  const auto windows = CutWindows(Text(1000, 50), 512, 49);
  ASSERT_TRUE(windows.ok());
  ASSERT_EQ(windows->size(), 2u);
  EXPECT_EQ((*windows)[0].size(), 512u);
  EXPECT_EQ((*windows)[0][0], 49);
  EXPECT_EQ((*windows)[1].size(), 1u + 1000 - 511);
}

TEST(CutWindows, WithoutBosTheFirstTokenHasNoContext) {
  const auto windows = CutWindows(Text(1025, 50), 512, std::nullopt);
  ASSERT_EQ(windows->size(), 2u) << "a last token alone has nothing to be scored by";
  EXPECT_EQ((*windows)[1][0], (512 * 7) % 50);
  EXPECT_THAT(CutWindows(Text(40, 50), 512, std::nullopt).status().message(),
              HasSubstr("too short: 39 tokens to count, 64 are needed"));
  EXPECT_FALSE(CutWindows({}, 512, 1).ok());
}

TEST(ScoreText, AUniformModelHasThePerplexityOfItsVocabulary) {
  KnownModel uniform(50, [](int32_t, int64_t, int64_t) { return 3.0f; });
  ThreadPool pool(2);
  const auto windows = CutWindows(Text(2000, 50), 256, std::nullopt);
  const auto score = ScoreText(uniform, nullptr, *windows, pool, nullptr);
  ASSERT_TRUE(score.ok());
  EXPECT_EQ(score->tokens.size(), 2000u - 8);
  EXPECT_GE(score->blocks, kWantedBlocks);
  const Figure perplexity = PerplexityOf(LossBlocks(*score));
  EXPECT_NEAR(perplexity.value, 50, 1e-9);
  EXPECT_NEAR(perplexity.interval->low, 50, 1e-9);
}

TEST(ScoreText, DivergenceOfTwoKnownDistributions) {
  // P: token 0 has probability a, the others share the rest; Q likewise with b.
  const double a = 0.7, b = 0.5;
  const auto two = [](double p) {
    return KnownModel(2, [p](int32_t, int64_t, int64_t i) {
      return static_cast<float>(std::log(i == 0 ? p : 1 - p)) + 11;
    });
  };
  KnownModel reference = two(a), model = two(b);
  ThreadPool pool(2);
  const auto windows = CutWindows(Text(5000, 2), 100, std::nullopt);
  const auto score = ScoreText(model, &reference, *windows, pool, nullptr);
  ASSERT_TRUE(score.ok());
  EXPECT_EQ(score->blocks, 50);
  const double kl = a * std::log(a / b) + (1 - a) * std::log((1 - a) / (1 - b));
  const DivergenceFigures d = DivergenceOf(*score);
  EXPECT_NEAR(d.mean.value, kl, 1e-6);
  EXPECT_NEAR(d.median.value, kl, 1e-6);
  EXPECT_NEAR(d.max, kl, 1e-6);
  EXPECT_EQ(d.same_top.value, 1) << "0.5 against 0.5: the lowest id wins the tie";
  const auto n = static_cast<double>(score->tokens.size());
  EXPECT_NEAR(d.share_above_max, 3 / n, 0.01 / n) << "the rule of three";
  const double z2 = kNormal975 * kNormal975;
  EXPECT_NEAR(d.same_top.interval->low, n / (n + z2), 1e-9) << "Wilson's, where nothing varies";
}

TEST(ScoreText, NamesWhatIsNotFinite) {
  KnownModel broken(4, [](int32_t, int64_t position, int64_t i) {
    return position == 70 && i == 2 ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
  });
  KnownModel good(4, [](int32_t, int64_t, int64_t) { return 0.0f; });
  ThreadPool pool(2);
  const auto windows = CutWindows(Text(200, 4), 150, std::nullopt);
  const auto score = ScoreText(broken, nullptr, *windows, pool, nullptr);
  EXPECT_EQ(score.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(score.status().message(), HasSubstr("token 70 of window 0 are not finite"));
  EXPECT_FALSE(ScoreText(good, &broken, *windows, pool, nullptr).ok());
  KnownModel infinite(4, [](int32_t, int64_t, int64_t i) {
    return i == 0 ? std::numeric_limits<float>::infinity() : 0.0f;
  });
  EXPECT_FALSE(ScoreText(infinite, nullptr, *windows, pool, nullptr).ok());
}

TEST(ScoreText, RefusesOtherVocabulariesAndTokensOutside) {
  const auto zero = [](int32_t, int64_t, int64_t) { return 0.0f; };
  KnownModel four(4, zero), five(5, zero);
  ThreadPool pool(1);
  const auto windows = CutWindows(Text(200, 5), 150, std::nullopt);
  EXPECT_THAT(ScoreText(five, &four, *windows, pool, nullptr).status().message(),
              HasSubstr("vocabularies differ"));
  EXPECT_THAT(ScoreText(four, nullptr, *windows, pool, nullptr).status().message(),
              HasSubstr("token 4 of the text is outside the vocabulary of known, 4"));
  const auto long_windows = CutWindows(Text(2000, 5), 1500, std::nullopt);
  EXPECT_THAT(ScoreText(five, nullptr, *long_windows, pool, nullptr).status().message(),
              HasSubstr("exceeds the context"));
}

}  // namespace
}  // namespace tern
