// Tokenizers take linear time, whatever the text, and 5 MB/s of a core on ordinary text: all four
// kinds of files. Times are the thread's own, so that a busy machine does not count.
#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>

#include "text/testing.h"

namespace tern {
namespace {

// Sanitizers and checks cost several times as much: they get less text, and no bound on the speed.
#ifdef NDEBUG
constexpr bool kOptimised = true;
#else
constexpr bool kOptimised = false;
#endif
constexpr size_t kBytes = kOptimised ? 1 << 20 : 1 << 17;

double ThreadSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The least time of `runs` ones.
double EncodeSeconds(const Tokenizer& tokenizer, std::string_view text, int runs) {
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < runs; ++i) {
    const double start = ThreadSeconds();
    tokenizer.Encode(text);
    least = std::min(least, ThreadSeconds() - start);
  }
  return least;
}

std::string Repeated(std::string_view unit, size_t bytes) {
  std::string text;
  text.reserve(bytes + unit.size());
  while (text.size() < bytes) text += unit;
  return text;
}

struct Kind {
  const char* name;
  std::shared_ptr<const Tokenizer> (*make)();
};

class TokenizerSpeed : public testing::TestWithParam<Kind> {};

TEST_P(TokenizerSpeed, HostileTextTakesLinearTime) {
  const auto tokenizer = GetParam().make();
  // Four times the text takes four times as long, more where caches overflow and by the logarithm
  // of a heap. Quadratic time would take sixteen times as long.
  constexpr double kMost = 10;
  for (const std::string_view unit :
       {"a", " ", "\xCC\x81", "\n", "1", "'", "<", "\xFF", "a\xCC\x81", "\xE4\xB8\xAD", " \n"}) {
    const std::string quarter = Repeated(unit, kBytes / 4), whole = Repeated(unit, kBytes);
    double ratio = 0, seconds = 0;
    for (int runs = 2; runs <= 8; runs *= 2) {  // longer only when it looks bad
      seconds = EncodeSeconds(*tokenizer, whole, runs);
      ratio = seconds / EncodeSeconds(*tokenizer, quarter, runs);
      if (ratio < kMost) break;
    }
    EXPECT_LT(ratio, kMost) << JsonQuote(unit);
    printf("%s: %zu bytes of %s in %.0f ms, %.1f times a quarter of it\n", GetParam().name,
           whole.size(), JsonQuote(unit).c_str(), seconds * 1e3, ratio);
  }
}

TEST_P(TokenizerSpeed, FiveMegabytesASecond) {
  const auto tokenizer = GetParam().make();
  std::string strings;  // the reference strings: many scripts, code, digits, control tokens
  for (const Json& c : TestJson("text/kimi-style/golden.json")) {
    strings += c["text"].get<std::string>() + "\n";
  }
  const std::string text = Repeated(strings, 4 * kBytes);
  const double speed = static_cast<double>(text.size()) / 1e6 / EncodeSeconds(*tokenizer, text, 3);
  printf("%s: %.1f MB/s\n", GetParam().name, speed);
  if (kOptimised) EXPECT_GT(speed, 5);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, TokenizerSpeed,
    testing::Values(Kind{"tiktoken_kimi",
                         [] {
                           return MustMake(Tokenizer::FromTiktoken(
                               TestData("text/kimi-style/tiktoken.model"),
                               TestData("text/kimi-style/tokenizer_config.json")));
                         }},
                    Kind{"json_glm",
                         [] {
                           return MustMake(Tokenizer::FromTokenizerJson(
                               TestData("text/glm-style/tokenizer.json"), ""));
                         }},
                    Kind{"gguf_smollm2",
                         [] { return MustMake(Tokenizer::FromSpec(SmolLm2Spec())); }},
                    Kind{"json_tiny", [] { return TinyTokenizer(); }}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tern
