#include "text/byte_alphabet.h"

#include <gtest/gtest.h>

#include <set>

namespace tern {
namespace {

// Values of bytes_to_unicode() in OpenAI's GPT-2 encoder.py.
TEST(ByteAlphabet, IsGpt2s) {
  EXPECT_EQ(EncodeByteAlphabet("a b\n"),
            "a\xC4\xA0"
            "b\xC4\x8A");                                                // U+0120, U+010A
  EXPECT_EQ(EncodeByteAlphabet(std::string_view("\0", 1)), "\xC4\x80");  // U+0100
  EXPECT_EQ(EncodeByteAlphabet("\x7F"), "\xC4\xA1");                     // U+0121
  EXPECT_EQ(EncodeByteAlphabet("\xAD"), "\xC5\x83");                     // U+0143, the last one
  EXPECT_EQ(EncodeByteAlphabet("\xFF"), "\xC3\xBF");                     // itself
}

TEST(ByteAlphabet, RoundTripsEveryByte) {
  std::set<std::string> seen;
  for (int b = 0; b < 256; ++b) {
    const std::string byte(1, static_cast<char>(b));
    const std::string visible = EncodeByteAlphabet(byte);
    EXPECT_TRUE(seen.insert(visible).second);
    std::string back;
    EXPECT_TRUE(DecodeByteAlphabet(visible, &back));
    EXPECT_EQ(back, byte);
  }
}

TEST(ByteAlphabet, KeepsTextOutsideTheAlphabet) {
  std::string bytes;
  for (const char* text : {"a b", "\xE2\x96\x81x", "\xC5\x84", "\xFF"}) {
    EXPECT_FALSE(DecodeByteAlphabet(text, &bytes)) << text;
    EXPECT_EQ(bytes, text);
  }
}

}  // namespace
}  // namespace tern
