#include "text/stop_regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "base/utf8.h"

namespace tern {
namespace {

using ::testing::HasSubstr;

// The text up to the end of the match, and the expression; all text and "" without a match.
std::pair<std::string, std::string> Until(const std::vector<std::string>& patterns,
                                          std::string_view text) {
  StopRegexes::Search search(StopRegexes::Compile(patterns).value());
  for (size_t pos = 0; pos < text.size();) {
    size_t length = 0;
    DecodeUtf8(text, pos, &length);
    const auto match = search.Push(text.substr(pos, length));
    EXPECT_TRUE(match.ok()) << match.status().ToString();
    if (!match.ok()) return {};
    pos += length;
    if (*match) return {std::string(text.substr(0, pos)), std::string(**match)};
  }
  return {std::string(text), ""};
}

using Ends = std::pair<std::string, std::string>;

// What Python's re.search finds first when it is asked after each character.
TEST(StopRegexTest, EndsWhereTheShortestMatchingTextEnds) {
  EXPECT_EQ(Until({R"(\d{3})"}, "a12b345 678"), Ends("a12b345", R"(\d{3})"));
  EXPECT_EQ(Until({R"(\d+)"}, "a12"), Ends("a1", R"(\d+)"));
  EXPECT_EQ(Until({"x.*y"}, "0x1 2 3y4y"), Ends("0x1 2 3y", "x.*y"));
  EXPECT_EQ(Until({"b", "ab"}, "aab"), Ends("aab", "b"));
  EXPECT_EQ(Until({"(?<=é)t"}, "t été"), Ends("t ét", "(?<=é)t"));
  EXPECT_EQ(Until({R"(^b)"}, "ab\nb"), Ends("ab\nb", ""));
  EXPECT_EQ(Until({R"((?m)^b)"}, "ab\nb"), Ends("ab\nb", "(?m)^b"));
  EXPECT_EQ(Until({R"(\bcat\b)"}, "concat cat"), Ends("concat cat", R"(\bcat\b)"));
  EXPECT_EQ(Until({"a(?=b)"}, "aacab"), Ends("aacab", "a(?=b)"));
  EXPECT_EQ(Until({R"((\w)\1)"}, "abcddd"), Ends("abcdd", R"((\w)\1)"));
  EXPECT_EQ(Until({R"(日\w)"}, "今日は"), Ends("今日は", R"(日\w)"));
  EXPECT_EQ(Until({"x*"}, "aaxa"), Ends("aax", "x*"));  // an empty match is none
  EXPECT_EQ(Until({R"(\u00e9)"}, "caf\u00e9s"), Ends("caf\u00e9", R"(\u00e9)"));
  EXPECT_EQ(Until({"q"}, "no such letter"), Ends("no such letter", ""));
}

TEST(StopRegexTest, LongTextIsForgottenButForTheWindow) {
  const std::string filler(100'000, 'z');
  EXPECT_EQ(Until({"END"}, filler + "END").first.size(), filler.size() + 3);
  EXPECT_EQ(Until({"^END"}, filler + "END").second, "");
  EXPECT_EQ(Until({"(?<=zE)ND"}, filler + "END").second, "(?<=zE)ND");
  // A match may span the window and no more.
  const std::string near(StopRegexes::kWindowBytes - 10, 'z'), far(StopRegexes::kWindowBytes, 'z');
  EXPECT_EQ(Until({"a[^b]*b"}, filler + "a" + near + "b").second, "a[^b]*b");
  EXPECT_EQ(Until({"a[^b]*b"}, filler + "a" + far + "b").second, "");
}

TEST(StopRegexTest, WrongExpressionsSayWhere) {
  const auto error = [](std::vector<std::string> patterns) {
    const auto compiled = StopRegexes::Compile(patterns);
    EXPECT_EQ(compiled.status().code(), StatusCode::kInvalidArgument);
    return compiled.status().message();
  };
  EXPECT_THAT(error({"ok", "a(b"}), HasSubstr("'a(b' is wrong at byte 3"));
  EXPECT_THAT(error({R"(a\Cb)"}), HasSubstr("wrong at byte"));
  EXPECT_THAT(error({""}), HasSubstr("1 to 512 bytes"));
  EXPECT_THAT(error({std::string(513, 'a')}), HasSubstr("1 to 512 bytes"));
  EXPECT_THAT(error(std::vector<std::string>(9, "a")), HasSubstr("at most 8"));
  EXPECT_THAT(error({std::string(40, '(') + "a" + std::string(40, ')')}), HasSubstr("wrong"));
  EXPECT_THAT(error({"\xff"}), HasSubstr("wrong"));
}

// Expressions that backtrack without end end with an error, soon.
TEST(StopRegexTest, CostsNoMoreThanItsSteps) {
  const auto start = std::chrono::steady_clock::now();
  for (const char* pattern : {"(a+)+$b", "(a|aa)+b", "(.*)(.*)(.*)(.*)x", "(?:a?){30}a{30}b"}) {
    StopRegexes::Search search(StopRegexes::Compile(std::vector<std::string>{pattern}).value());
    Status status;
    for (int i = 0; i < 5000 && status.ok(); ++i) status = search.Push("a").status();
    EXPECT_TRUE(status.ok() || status.message().find("too many steps") != std::string::npos);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

}  // namespace
}  // namespace tern
