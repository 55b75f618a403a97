#include "base/json.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>

namespace tern {
namespace {

TEST(Json, PrintsWhatPythonPrints) {
  // Expectations: json.dumps(json.loads(text), separators=(',', ':'), ensure_ascii=False),
  // Python 3.11.
  EXPECT_EQ(DumpJson(*ParseJson(R"({"b": 1.0, "a": [1e16, 0.1, 1e-7, 18446744073709551615]})")),
            R"({"b":1.0,"a":[1e+16,0.1,1e-07,18446744073709551615]})");
  EXPECT_EQ(DumpJson(*ParseJson(R"("\u00e9\n\u0001")")), "\"\xC3\xA9\\n\\u0001\"");
}

TEST(Json, MalformedTextIsAnError) {
  for (const char* text : {"", "{", "[1,]", "{\"a\":}", "nul", "1 2", "\"\\ud800\"", "\"\xff\""}) {
    const Result<Json> json = ParseJson(text);
    ASSERT_FALSE(json.ok()) << text;
    EXPECT_EQ(json.status().code(), StatusCode::kInvalidArgument);
  }
  EXPECT_NE(ParseJson("[1, x]").status().message().find("byte 5"), std::string::npos);
}

TEST(Json, NothingHidesBehindANulByte) {
  using std::string_literals::operator""s;
  EXPECT_EQ(ParseJson("[1]\0 x"s).status().message(), "malformed JSON at byte 4");
  EXPECT_FALSE(ParseJson("[1]\0"s).ok());
  EXPECT_FALSE(ParseJson("\"a\0b\""s).ok());
}

TEST(Json, DepthIsCapped) {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_TRUE(ParseJson(nested(kMaxJsonDepth)).ok());
  EXPECT_FALSE(ParseJson(nested(kMaxJsonDepth + 2)).ok());
  const Result<Json> bomb = ParseJson(nested(1'000'000));
  ASSERT_FALSE(bomb.ok());
  EXPECT_NE(bomb.status().message().find("nested deeper"), std::string::npos);
}

// Each of these took minutes with nlohmann's own means; here a second is already too much.
TEST(Json, TimeIsLinearInHostileText) {
  const auto start = std::chrono::steady_clock::now();
  std::string array = "[", object = "{", pairs = "[";
  for (int i = 0; i < 500'000; ++i) {
    array += "{},";
    object += fmt::format("\"k{}\":0,", i);
    if (i % 10 == 0) pairs += "{\"a\":1,\"b\":[1,2]},";
  }
  EXPECT_TRUE(ParseJson(array + "{}]").ok());
  EXPECT_TRUE(ParseJson(pairs + "{}]").ok());
  const Result<Json> keys = ParseJson(object + "\"z\":0}");
  ASSERT_FALSE(keys.ok());
  EXPECT_NE(keys.status().message().find("too many keys"), std::string::npos);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST(Json, BracketsInStringsDoNotCount) {
  EXPECT_TRUE(ParseJson("\"" + std::string(1000, '[') + "\"").ok());
  EXPECT_TRUE(ParseJson("\"\\\"" + std::string(1000, '[') + "\"").ok());
}

TEST(Json, HugeNumbersAreAClearError) {
  EXPECT_EQ(ParseJson("[1e400]").status().message(), "JSON holds a number that is too large");
  EXPECT_EQ(ParseJson(std::string(400, '9')).status().code(), StatusCode::kInvalidArgument);
}

TEST(Json, TypedReadsNameTheField) {
  const Json json = *ParseJson(R"({"i": 3, "f": 2.5, "w": 4.0, "s": "x", "b": true, "n": null,
                                   "big": 18446744073709551615, "e": 1e300})");
  EXPECT_EQ(*JsonInt(json, "i", 0, "config"), 3);
  EXPECT_EQ(*JsonInt(json, "w", 0, "config"), 4);
  EXPECT_EQ(*JsonInt(json, "n", 9, "config"), 9);
  EXPECT_EQ(*JsonInt(json, "absent", 9, "config"), 9);
  EXPECT_FALSE(JsonInt(json, "big", 0, "config").ok());
  EXPECT_FALSE(JsonInt(json, "e", 0, "config").ok());
  EXPECT_EQ(JsonInt(json, "s", 0, "config").status().message(), "config.s must be an integer");
  EXPECT_EQ(JsonBool(json, "i", false, "config").status().message(),
            "config.i must be true or false");
  EXPECT_EQ(*JsonDouble(json, "i", 0, "config"), 3.0);
  EXPECT_FALSE(JsonString(json, "b", "", "config").ok());
}

TEST(Json, QuoteReplacesInvalidUtf8) { EXPECT_EQ(JsonQuote("a\"\xff"), "\"a\\\"\xEF\xBF\xBD\""); }

}  // namespace
}  // namespace tern
