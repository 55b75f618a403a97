#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include "text/testing.h"

namespace tern {
namespace {

void ExpectGolden(const Tokenizer& tokenizer, const std::string& golden_file) {
  const Json golden = TestJson(golden_file);
  ASSERT_EQ(golden.size(), 495u);
  for (const Json& c : golden) {
    const auto text = c["text"].get<std::string>();
    EXPECT_EQ(tokenizer.Encode(text), IdsOf(c["ids"])) << text;
    if (c.contains("ids_no_special")) {
      EXPECT_EQ(tokenizer.Encode(text, false), IdsOf(c["ids_no_special"])) << text;
    }
    if (c.contains("decoded")) {
      EXPECT_EQ(tokenizer.Decode(IdsOf(c["ids"]), false), c["decoded"].get<std::string>());
    }
  }
}

TEST(Tokenizer, SmolLm2FromGgufMetadata) {
  const auto tokenizer = MustMake(Tokenizer::FromSpec(SmolLm2Spec()));
  EXPECT_EQ(tokenizer->vocab_size(), 49152);
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->IdOf("<|im_end|>"), 2);
  EXPECT_TRUE(tokenizer->IsSpecial(2));
  ExpectGolden(*tokenizer, "text/smollm2_golden.json");
}

TEST(Tokenizer, Tiny) {
  const auto tokenizer = TinyTokenizer();
  EXPECT_EQ(tokenizer->vocab_size(), 2048);
  EXPECT_EQ(tokenizer->bos(), 2032);
  EXPECT_EQ(tokenizer->eos(), 2033);
  ExpectGolden(*tokenizer, "text/tiny_golden.json");
}

TEST(Tokenizer, GlmStyle) {
  const auto tokenizer =
      MustMake(Tokenizer::FromTokenizerJson(TestData("text/glm-style/tokenizer.json"), ""));
  EXPECT_FALSE(tokenizer->bos());
  EXPECT_TRUE(tokenizer->IsSpecial(1500));
  EXPECT_FALSE(tokenizer->IsSpecial(1507));  // <think>
  ExpectGolden(*tokenizer, "text/glm-style/golden.json");
}

TEST(Tokenizer, KimiStyle) {
  const auto tokenizer =
      MustMake(Tokenizer::FromTiktoken(TestData("text/kimi-style/tiktoken.model"),
                                       TestData("text/kimi-style/tokenizer_config.json")));
  EXPECT_EQ(tokenizer->bos(), 1500);
  EXPECT_EQ(tokenizer->IdOf("<|reserved_token_1755|>"), 1755);
  EXPECT_EQ(tokenizer->vocab_size(), 1756);
  ExpectGolden(*tokenizer, "text/kimi-style/golden.json");
}

TEST(Tokenizer, EdgeCases) {
  for (const Json& c : TestJson("text/edge-cases/golden.json")) {
    const auto file = "text/edge-cases/" + c["tokenizer"].get<std::string>();
    const auto tokenizer = MustMake(Tokenizer::FromTokenizerJson(TestData(file), ""));
    const auto text = c["text"].get<std::string>();
    EXPECT_EQ(tokenizer->Encode(text), IdsOf(c["ids"])) << file << ": " << text;
  }
}

TEST(Tokenizer, AnyBytesRoundTrip) {
  const auto tokenizer = TinyTokenizer();
  std::string text;
  for (int round = 0; round < 3; ++round) {
    for (int b = 0; b < 256; ++b) text += static_cast<char>(round == 1 ? 255 - b : b);
  }
  for (const bool parse_special : {true, false}) {
    EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(text, parse_special), false), text);
  }
}

TEST(Tokenizer, UnknownIdsHaveNoBytes) {
  const auto tokenizer = TinyTokenizer();
  for (const TokenId id : {-1, 2048, 1 << 30}) {
    EXPECT_EQ(tokenizer->TokenBytes(id), "");
    EXPECT_FALSE(tokenizer->IsSpecial(id));
  }
  EXPECT_FALSE(tokenizer->IdOf("no such token"));
}

}  // namespace
}  // namespace tern
