#include "base/utf8.h"

#include <gtest/gtest.h>

namespace tern {
namespace {

const std::string kFffd = "\xEF\xBF\xBD";

TEST(Utf8, ReplacesMaximalSubparts) {
  // Examples of the Unicode Standard 15.0, section 3.9, tables 3-8 to 3-11; each F is U+FFFD.
  const auto expand = [](std::string text) {
    std::string out;
    for (const char c : text) out += c == 'F' ? kFffd : std::string(1, c);
    return out;
  };
  EXPECT_EQ(ReplaceInvalidUtf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), expand("FFFFFFFFA"));
  EXPECT_EQ(ReplaceInvalidUtf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), expand("FFFFFFFFA"));
  EXPECT_EQ(ReplaceInvalidUtf8("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), expand("FFFFFAFFB"));
  EXPECT_EQ(ReplaceInvalidUtf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), expand("FFFFA"));
}

TEST(Utf8, EveryScalarValueRoundTrips) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    AppendUtf8(c, &text);
    size_t length = 0;
    ASSERT_EQ(DecodeUtf8(text, 0, &length), c);
    ASSERT_EQ(length, text.size());
    ASSERT_EQ(CompleteUtf8Prefix(text), text.size());
    for (size_t cut = 1; cut < text.size(); ++cut) {
      ASSERT_EQ(CompleteUtf8Prefix(text.substr(0, cut)), 0u) << std::hex << uint32_t{c};
      ASSERT_FALSE(IsValidUtf8(text.substr(0, cut)));
    }
  }
}

TEST(Utf8, BytesThatCanNeverCompleteAreNotHeldBack) {
  EXPECT_EQ(CompleteUtf8Prefix("a\xFF"), 2u);
  EXPECT_EQ(CompleteUtf8Prefix("a\x80\x80\x80"), 4u);
  EXPECT_EQ(CompleteUtf8Prefix("a\xED\xA0"), 3u);
  EXPECT_EQ(CompleteUtf8Prefix("a\xE2\x82"), 1u);
  EXPECT_EQ(CompleteUtf8Prefix(""), 0u);
}

}  // namespace
}  // namespace tern
