#include "text/detokenizer.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "base/utf8.h"
#include "text/testing.h"

namespace tern {
namespace {

std::string Stream(const std::shared_ptr<const Tokenizer>& tokenizer,
                   const std::vector<TokenId>& ids, bool skip_special) {
  Detokenizer detokenizer(tokenizer, skip_special);
  std::string text;
  for (const TokenId id : ids) {
    const std::string part = detokenizer.Push(id);
    EXPECT_TRUE(IsValidUtf8(part));
    text += part;
  }
  return text + detokenizer.Flush();
}

TEST(Detokenizer, GivesTheTextOfTheReferenceStrings) {
  const auto tokenizer = TinyTokenizer();
  for (const Json& c : TestJson("text/tiny_golden.json")) {
    EXPECT_EQ(Stream(tokenizer, IdsOf(c["ids"]), false), c["text"].get<std::string>());
  }
}

TEST(Detokenizer, HoldsACharacterUntilItIsWhole) {
  const auto tokenizer = TinyTokenizer();
  const std::string face = "\xF0\x9F\x98\x80";
  Detokenizer detokenizer(tokenizer, false);
  std::vector<TokenId> bytes;
  for (const char byte : face) bytes.push_back(*tokenizer->IdOf(std::string(1, byte)));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(detokenizer.Push(bytes[i]), "");
  EXPECT_EQ(detokenizer.Push(bytes[3]), face);
  EXPECT_EQ(detokenizer.Push(bytes[0]), "");
  EXPECT_EQ(detokenizer.Push(*tokenizer->IdOf("a")),
            "\xEF\xBF\xBD"
            "a");
  EXPECT_EQ(detokenizer.Push(bytes[0]), "");
  EXPECT_EQ(detokenizer.Flush(), "\xEF\xBF\xBD");
  EXPECT_EQ(detokenizer.Flush(), "");
}

TEST(Detokenizer, SkipsSpecialTokensWithinACharacter) {
  const auto tokenizer = TinyTokenizer();
  const TokenId first = *tokenizer->IdOf("\xC3"), second = *tokenizer->IdOf("\xA9");
  const TokenId bos = *tokenizer->bos();
  EXPECT_EQ(Stream(tokenizer, {bos, first, bos, second}, true), "\xC3\xA9");
  EXPECT_EQ(Stream(tokenizer, {first, bos, second}, false), "\xEF\xBF\xBD[BOS]\xEF\xBF\xBD");
}

TEST(Detokenizer, ShowsTheSpecialTokensThatItIsTold) {
  const auto tokenizer = TinyTokenizer();
  const TokenId think = *tokenizer->IdOf("<think>"), bos = *tokenizer->bos();
  ASSERT_TRUE(tokenizer->IsSpecial(think));
  Detokenizer detokenizer(tokenizer, true, {think});
  EXPECT_EQ(detokenizer.Push(bos), "");
  EXPECT_EQ(detokenizer.Push(think), "<think>");
}

// Tokens are cuts of the bytes: wherever they fall, the text is that of all bytes together.
RC_GTEST_PROP(Detokenizer, AnyCutGivesTheSameText, ()) {
  static const auto tokenizer = TinyTokenizer();
  const auto ids = *rc::gen::container<std::vector<TokenId>>(
      rc::gen::inRange<TokenId>(-1, static_cast<TokenId>(tokenizer->vocab_size()) + 1));
  RC_ASSERT(Stream(tokenizer, ids, false) == ReplaceInvalidUtf8(tokenizer->Decode(ids, false)));
  RC_ASSERT(Stream(tokenizer, ids, true) == ReplaceInvalidUtf8(tokenizer->Decode(ids, true)));
}

// The same for bytes that are often halves of characters.
RC_GTEST_PROP(Detokenizer, AnyBytesGiveTheSameText, ()) {
  static const auto tokenizer = TinyTokenizer();
  const auto bytes = *rc::gen::container<std::string>(
      rc::gen::element<char>('a', '\xC3', '\xA9', '\xE4', '\xB8', '\xAD', '\xF0', '\x9F', '\x98',
                             '\x80', '\xFF', '\xC0', '\xED', '\xA0'));
  std::vector<TokenId> ids;
  for (const char byte : bytes) ids.push_back(*tokenizer->IdOf(std::string(1, byte)));
  RC_ASSERT(Stream(tokenizer, ids, false) == ReplaceInvalidUtf8(bytes));
}

}  // namespace
}  // namespace tern
