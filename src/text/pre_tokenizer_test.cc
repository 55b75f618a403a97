#include "text/pre_tokenizer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "base/utf8.h"
#include "text/piece_regex.h"
#include "text/scanners.h"
#include "text/testing.h"

namespace tern {
namespace {

std::vector<std::string> PiecesOf(const PreTokenizer& pre, std::string_view text) {
  struct Collect : PreTokenizer::Sink {
    void Piece(std::string_view piece) override { pieces.emplace_back(piece); }
    std::vector<std::string> pieces;
  } sink;
  pre.Split(text, &sink);
  return sink.pieces;
}

SplitBehavior BehaviorNamed(const std::string& name) {
  if (name == "removed") return SplitBehavior::kRemoved;
  if (name == "merged_with_previous") return SplitBehavior::kMergedWithPrevious;
  if (name == "merged_with_next") return SplitBehavior::kMergedWithNext;
  if (name == "contiguous") return SplitBehavior::kContiguous;
  return SplitBehavior::kIsolated;
}

Status AddStep(const Json& step, PreTokenizer* pre) {
  if (step.contains("digits")) return pre->AddDigits(step["digits"].get<bool>());
  const SplitBehavior behavior = BehaviorNamed(step["behavior"].get<std::string>());
  const bool invert = step["invert"].get<bool>();
  if (step.contains("text")) {
    return pre->AddSplitByText(step["text"].get<std::string>(), behavior, invert);
  }
  return pre->AddSplitByRegex(step["regex"].get<std::string>(), behavior, invert);
}

TEST(PreTokenizer, SplitsAsHuggingFace) {
  const Json reference = TestJson("text/hf_cases.json");
  ASSERT_EQ(reference["pre_tokenizers"].size(), 35u);
  for (const Json& chain : reference["pre_tokenizers"]) {
    PreTokenizer pre;
    for (const Json& step : chain["steps"]) {
      const Status status = AddStep(step, &pre);
      ASSERT_TRUE(status.ok()) << status.ToString();
    }
    for (const Json& c : chain["cases"]) {
      EXPECT_EQ(PiecesOf(pre, c[0].get<std::string>()), c[1].get<std::vector<std::string>>())
          << chain["steps"].dump() << "\n"
          << c[0].dump();
    }
  }
}

TEST(PreTokenizer, NamedDeepSeekIsThePublishedChain) {
  PreTokenizer pre;
  ASSERT_TRUE(pre.AddNamed("deepseek-v3").ok());
  EXPECT_EQ(PiecesOf(pre, "ab12345 \xE4\xB8\xAD\xE6\x96\x87.Net\n\n x"),
            (std::vector<std::string>{"ab", "123", "45", " ", "\xE4\xB8\xAD\xE6\x96\x87", ".Net",
                                      "\n\n", " x"}));
}

TEST(PreTokenizer, UnknownNameIsRefused) {
  PreTokenizer pre;
  const Status status = pre.AddNamed("no-such");
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(status.message(), testing::HasSubstr("no-such"));
}

TEST(PreTokenizer, StepsAreBounded) {
  PreTokenizer pre;
  for (size_t i = 0; i < PreTokenizer::kMaxSteps; ++i) ASSERT_TRUE(pre.AddDigits(true).ok());
  EXPECT_EQ(pre.AddDigits(true).code(), StatusCode::kInvalidArgument);
}

constexpr std::string_view kKnownPatterns[] = {kGpt2Pattern, kLlama3Pattern, kQwen2Pattern,
                                               kKimiPattern, kO200kPattern};

// A random string over all of Unicode with weight on what the patterns distinguish; sometimes not
// UTF-8.
std::string RandomText(std::mt19937_64* rng) {
  static constexpr std::string_view kFrequent[] = {"a",
                                                   "b",
                                                   "Z",
                                                   "Q",
                                                   "'",
                                                   "'s",
                                                   "'LL",
                                                   "s",
                                                   " ",
                                                   " ",
                                                   "\n",
                                                   "\r\n",
                                                   "\t",
                                                   "1",
                                                   "2",
                                                   ".",
                                                   "/",
                                                   "\xCC\x81",
                                                   "\xE4\xB8\xAD",
                                                   "\xC7\x85",
                                                   "\xCA\xB0",
                                                   "\xC5\xBF",
                                                   "\xE3\x80\x80",
                                                   "\xFF"};
  std::string text;
  const size_t length = (*rng)() % 16;
  for (size_t i = 0; i < length; ++i) {
    if ((*rng)() % 3 != 0) {
      text += kFrequent[(*rng)() % std::size(kFrequent)];
      continue;
    }
    const char32_t limit = (*rng)() % 2 == 0 ? 0x3100 : 0x20000;
    const auto c = static_cast<char32_t>((*rng)() % limit);
    AppendUtf8(c >= 0xD800 && c < 0xE000 ? U'x' : c, &text);
  }
  return text;
}

// Two implementations that share only the Unicode tables: the scanners and PCRE2.
TEST(Scanners, AgreeWithTheRegularExpressions) {
  std::mt19937_64 rng(1);
  for (const std::string_view pattern : kKnownPatterns) {
    const Scanner scanner = FindScanner(pattern);
    ASSERT_NE(scanner, nullptr);
    const auto regex = PieceRegex::Compile(pattern);
    ASSERT_TRUE(regex.ok()) << regex.status().ToString();
    for (int round = 0; round < 4000; ++round) {
      const std::string text = RandomText(&rng);
      if (!IsValidUtf8(text)) continue;
      for (size_t pos = 0; pos < text.size();) {
        const auto match = (*regex)->Find(text, pos);
        ASSERT_TRUE(match) << text;
        EXPECT_EQ(match->first, pos);
        const size_t end = scanner(text, pos);
        ASSERT_EQ(end, match->second) << pattern << "\n" << JsonQuote(text) << " at " << pos;
        pos = end;
      }
    }
  }
}

TEST(Scanners, CoverTextThatIsNotUtf8) {
  std::mt19937_64 rng(2);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (size_t i = rng() % 24; i > 0; --i) text += static_cast<char>(rng() % 256);
    for (const std::string_view pattern : kKnownPatterns) {
      PreTokenizer pre;
      ASSERT_TRUE(pre.AddSplitByRegex(pattern, SplitBehavior::kIsolated, false).ok());
      std::string joined;
      for (const std::string& piece : PiecesOf(pre, text)) joined += piece;
      EXPECT_EQ(joined, text);
    }
  }
}

TEST(PieceRegex, SkipsWhatIsNotUtf8) {
  const auto regex = PieceRegex::Compile("\\p{L}+|\\s");
  ASSERT_TRUE(regex.ok());
  const std::string text =
      "\xFF\xE4\xB8"
      "ab\xC0";
  EXPECT_EQ((*regex)->Find(text, 0), (std::pair<size_t, size_t>{3, 5}));
  EXPECT_EQ((*regex)->Find(text, 5), std::nullopt);
}

// A megabyte of one thing must not take quadratic time: the limit is loose, quadratic is hours.
TEST(PreTokenizer, IsLinearOnHostileText) {
  constexpr std::string_view kUnits[] = {
      "a",        "A",         " ", "\n",           " \n", "1",   "'", "\xCC\x81",
      "\xC2\xAA", "A\xCC\x81", "!", "\xE4\xB8\xAD", "aA",  "\t ", "\r"};
  std::vector<PreTokenizer> pres;
  for (const char* name :
       {"gpt2", "smollm", "llama-bpe", "qwen2", "gpt-4o", "kimi-k2", "deepseek-v3"}) {
    ASSERT_TRUE(pres.emplace_back().AddNamed(name).ok());
  }
  for (const std::string_view unit : kUnits) {
    std::string text;
    while (text.size() < 1 << 18) text += unit;
    for (const PreTokenizer& pre : pres) {
      const auto start = std::chrono::steady_clock::now();
      size_t bytes = 0;
      for (const std::string& piece : PiecesOf(pre, text)) bytes += piece.size();
      EXPECT_EQ(bytes, text.size());
      EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2))
          << JsonQuote(unit);
    }
  }
}

}  // namespace
}  // namespace tern
