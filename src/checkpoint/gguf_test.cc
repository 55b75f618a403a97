#include "checkpoint/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "checkpoint/gguf_tokenizer.h"
#include "checkpoint/test_files.h"

namespace tern {
namespace {

using test::GgufString;
using test::GgufWriter;
using test::Raw;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Result<Gguf> Parse(const std::string& bytes) {
  return Gguf::Parse(std::as_bytes(std::span(bytes)), "x.gguf");
}

void ExpectError(const std::string& bytes, const std::string& what) {
  const auto result = Parse(bytes);
  ASSERT_FALSE(result.ok()) << what;
  EXPECT_THAT(result.status().message(), HasSubstr("x.gguf"));
  EXPECT_THAT(result.status().message(), HasSubstr(what));
}

GgufWriter EveryType(uint32_t version) {
  GgufWriter writer(version);
  writer.Key("u8", 0, Raw<uint8_t>(200))
      .Key("i8", 1, Raw<int8_t>(-100))
      .Key("u16", 2, Raw<uint16_t>(60000))
      .Key("i16", 3, Raw<int16_t>(-30000))
      .U32("u32", 4000000000u)
      .Key("i32", 5, Raw<int32_t>(-2000000000))
      .F32("f32", 0.25f)
      .Bool("bool", true)
      .String("string", "text")
      .Strings("strings", {"a", "", "ccc"})
      .I32s("i32s", {1, -2, 3})
      .Key("u64", 10, Raw<uint64_t>(std::numeric_limits<uint64_t>::max()))
      .Key("i64", 11, Raw<int64_t>(-5))
      .Key("f64", 12, Raw(0.1))
      .Key("nested", 9,
           Raw<uint32_t>(9) + Raw<uint64_t>(2) + Raw<uint32_t>(0) + Raw<uint64_t>(1) + "x" +
               Raw<uint32_t>(8) + Raw<uint64_t>(1) + GgufString("deep"));
  writer.Tensor("t.weight", {3, 2}, 0, std::string(24, 'x'));
  writer.Tensor("q.weight", {64, 1}, 2, std::string(36, 'y'));
  return writer;
}

TEST(GgufTest, ReadsEveryMetadataType) {
  for (const uint32_t version : {2u, 3u}) {
    const std::string bytes = EveryType(version).Bytes();
    const auto gguf = Parse(bytes);
    ASSERT_TRUE(gguf.ok()) << gguf.status().message();
    EXPECT_EQ(gguf->version(), version);
    EXPECT_EQ(**gguf->Int("u8"), 200);
    EXPECT_EQ(**gguf->Int("i8"), -100);
    EXPECT_EQ(**gguf->Int("u16"), 60000);
    EXPECT_EQ(**gguf->Int("i16"), -30000);
    EXPECT_EQ(**gguf->Int("u32"), 4000000000);
    EXPECT_EQ(**gguf->Int("i32"), -2000000000);
    EXPECT_EQ(**gguf->Int("i64"), -5);
    EXPECT_EQ(**gguf->Float("f32"), 0.25);
    EXPECT_EQ(**gguf->Float("f64"), 0.1);
    EXPECT_EQ(**gguf->Float("u8"), 200.0);
    EXPECT_EQ(**gguf->Bool("bool"), true);
    EXPECT_EQ(**gguf->String("string"), "text");
    EXPECT_THAT(**gguf->Strings("strings"), ElementsAre("a", "", "ccc"));
    EXPECT_THAT(**gguf->Ints("i32s"), ElementsAre(1, -2, 3));
    EXPECT_EQ(std::get<uint64_t>(gguf->metadata().at("u64")), std::numeric_limits<uint64_t>::max());
    EXPECT_EQ(std::get<GgufArray>(gguf->metadata().at("nested")).count, 2u);
    EXPECT_FALSE(gguf->Int("absent")->has_value());
    EXPECT_THAT(gguf->Int("string").status().message(), HasSubstr("string must be an integer"));
    EXPECT_FALSE(gguf->Int("u64").ok());
    EXPECT_FALSE(gguf->Strings("i32s").ok());
    EXPECT_FALSE(gguf->Ints("strings").ok());
  }
}

TEST(GgufTest, TensorsAreRowMajorViewsIntoTheFile) {
  const std::string bytes = EveryType(3).Bytes();
  const auto gguf = Parse(bytes);
  ASSERT_TRUE(gguf.ok()) << gguf.status().message();
  ASSERT_EQ(gguf->tensors().size(), 2u);
  EXPECT_EQ(gguf->tensors()[0].view.shape, Shape({2, 3}));
  EXPECT_EQ(gguf->tensors()[1].view.dtype, DType::kQ4_0);
  const auto& view = gguf->tensors()[1].view;
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(view.bytes.data()), view.bytes.size()),
            std::string(36, 'y'));
}

TEST(GgufTest, EveryTruncationIsAnError) {
  const std::string whole = EveryType(3).Bytes();
  ASSERT_TRUE(Parse(whole).ok());
  for (size_t size = 0; size < whole.size(); ++size) {
    const std::string bytes = whole.substr(0, size);
    const auto result = Parse(bytes);
    ASSERT_FALSE(result.ok()) << size;
    EXPECT_THAT(result.status().message(), HasSubstr("x.gguf"));
  }
}

TEST(GgufTest, EveryFlippedByteEndsInATensorInsideTheFileOrInAnError) {
  const std::string whole = EveryType(3).Bytes();
  for (size_t i = 0; i < whole.size(); ++i) {
    for (const int flip : {1, 0x10, 0x80, 0xFF}) {
      std::string bytes = whole;
      bytes[i] = static_cast<char>(bytes[i] ^ flip);
      const auto result = Parse(bytes);
      if (!result.ok()) continue;
      for (const auto& [key, value] : result->metadata()) {
        const std::string_view name = key;
        (void)result->Strings(name).ok();
        (void)result->Ints(name).ok();
      }
      for (const auto& tensor : result->tensors()) {
        const auto* begin = reinterpret_cast<const std::byte*>(bytes.data());
        ASSERT_GE(tensor.view.bytes.data(), begin);
        ASSERT_LE(tensor.view.bytes.data() + tensor.view.bytes.size(), begin + bytes.size());
      }
    }
  }
}

TEST(GgufTest, HostileFilesAreNamed) {
  ExpectError("", "ends at byte 0");
  ExpectError("GGML" + Raw<uint32_t>(3), "not a GGUF file");
  ExpectError(GgufWriter(1).Bytes(), "version 1");
  ExpectError(GgufWriter(4).Bytes(), "version 4");
  ExpectError(GgufWriter(0x03000000).Bytes(), "big-endian");

  const std::string head = "GGUF" + Raw<uint32_t>(3);
  const uint64_t huge = uint64_t{1} << 60;
  ExpectError(head + Raw<uint64_t>(huge) + Raw<uint64_t>(0), "the name of tensor 0");
  ExpectError(head + Raw<uint64_t>(0) + Raw<uint64_t>(huge), "metadata key 0");
  ExpectError(head + Raw<uint64_t>(0) + Raw<uint64_t>(1) + Raw<uint64_t>(huge), "claims");

  ExpectError(GgufWriter().Key("k", 13, "").Bytes(), "k has unknown value type 13");
  ExpectError(GgufWriter().Key("k", 8, Raw(huge)).Bytes(), "k claims");
  ExpectError(GgufWriter().Key("k", 9, Raw<uint32_t>(4) + Raw(huge)).Bytes(), "k claims");
  ExpectError(GgufWriter().Key("k", 9, Raw<uint32_t>(8) + Raw(huge)).Bytes(), "k");
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += Raw<uint32_t>(9) + Raw<uint64_t>(1);
  ExpectError(GgufWriter().Key("k", 9, deep).Bytes(), "nests arrays deeper");
  ExpectError(GgufWriter().U32("k\x1b[2J", 1).Bytes(), "x.gguf: metadata key 0 is no plain text");
  ExpectError(GgufWriter().U32("k", 1).U32("k", 2).Bytes(), "'k' occurs twice");
  ExpectError(GgufWriter().U32(std::string(300, 'k'), 1).Bytes(), "300 bytes");
  ExpectError(GgufWriter().U32("general.alignment", 0).Bytes(), "general.alignment");
  ExpectError(GgufWriter().U32("general.alignment", 24).Bytes(), "general.alignment");
  ExpectError(GgufWriter().String("general.alignment", "x").Bytes(), "general.alignment");
  ExpectError(GgufWriter().U32("split.count", 2).Bytes(), "split");

  const std::string data(64, 'x');
  const auto tensor = [&](std::vector<uint64_t> dims, uint32_t type) {
    return GgufWriter().Tensor("t", dims, type, data).Bytes();
  };
  ExpectError(tensor({}, 0), "tensor 't' has 0 dimensions");
  ExpectError(tensor({1, 1, 1, 1, 1}, 0), "tensor 't' has 5 dimensions");
  ExpectError(tensor({0}, 0), "dimension 0 is 0");
  ExpectError(tensor({uint64_t{1} << 63}, 0), "tensor 't'");
  ExpectError(tensor({huge}, 0), "tensor 't'");
  ExpectError(tensor({uint64_t{1} << 32, uint64_t{1} << 32}, 0), "overflows");
  ExpectError(tensor({17}, 0), "lie outside");
  ExpectError(tensor({33}, 2), "cut inside a Q4_0 block");
  ExpectError(tensor({16}, 13), "type Q5_K, which is not supported");
  ExpectError(tensor({16}, 99), "unknown type 99");
  ExpectError(GgufWriter().Tensor("t", {16}, 0, data).Tensor("t", {16}, 0, data).Bytes(),
              "tensor 't' occurs twice");
  ExpectError(GgufWriter().Tensor("t", {16}, 0, data).TensorAt("u", {8}, 0, 32).Bytes(),
              "'t' and 'u' overlap");
  ExpectError(GgufWriter().Tensor("t", {16}, 0, data).TensorAt("u", {8}, 0, 8).Bytes(),
              "not aligned");
  ExpectError(GgufWriter().Tensor("t", {16}, 0, data).TensorAt("u", {8}, 0, ~uint64_t{31}).Bytes(),
              "lie outside");
}

TEST(GgufTokenizerTest, ReadsVocabularyTypesAndTemplate) {
  GgufWriter writer;
  writer.String("tokenizer.ggml.model", "gpt2")
      .String("tokenizer.ggml.pre", "smollm")
      .Strings("tokenizer.ggml.tokens", {"<s>", "a", "b", "ab"})
      .I32s("tokenizer.ggml.token_type", {3, 1, 1, 4})
      .Strings("tokenizer.ggml.merges", {"a b"})
      .U32("tokenizer.ggml.bos_token_id", 0)
      .String("tokenizer.chat_template", "{{ x }}");
  const std::string bytes = writer.Bytes();
  const auto gguf = Parse(bytes);
  ASSERT_TRUE(gguf.ok());
  const auto tokenizer = TokenizerFromGguf(*gguf);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_EQ(tokenizer->pre, "smollm");
  EXPECT_THAT(tokenizer->tokens, ElementsAre("<s>", "a", "b", "ab"));
  EXPECT_EQ(tokenizer->token_types[0], GgufTokenType::kControl);
  EXPECT_EQ(tokenizer->token_types[3], GgufTokenType::kUserDefined);
  EXPECT_EQ(tokenizer->bos, 0);
  EXPECT_FALSE(tokenizer->eos.has_value());
  EXPECT_EQ(tokenizer->chat_template, "{{ x }}");
}

TEST(GgufTokenizerTest, BadFieldsAreNamed) {
  const auto expect = [](GgufWriter writer, const char* what) {
    const std::string bytes = writer.Bytes();
    const auto gguf = Parse(bytes);
    ASSERT_TRUE(gguf.ok()) << gguf.status().message();
    const auto tokenizer = TokenizerFromGguf(*gguf);
    ASSERT_FALSE(tokenizer.ok()) << what;
    EXPECT_THAT(tokenizer.status().message(), HasSubstr(what));
  };
  expect(GgufWriter(), "tokenizer.ggml.model is missing");
  GgufWriter base;
  base.String("tokenizer.ggml.model", "gpt2");
  expect(base, "tokenizer.ggml.tokens is missing");
  base.Strings("tokenizer.ggml.tokens", {"a"});
  expect(GgufWriter(base).I32s("tokenizer.ggml.token_type", {1, 1}), "2 entries for 1 tokens");
  expect(GgufWriter(base).I32s("tokenizer.ggml.token_type", {9}), "token 0 is 9");
  expect(GgufWriter(base).U32("tokenizer.ggml.eos_token_id", 1), "eos_token_id 1 is outside");
  expect(GgufWriter(base).U32("tokenizer.ggml.merges", 1), "tokenizer.ggml.merges must be");
}

}  // namespace
}  // namespace tern
