#include "kv/page_format.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tern {
namespace {

KvLayerSpec Gqa(int64_t kv_heads, int64_t head_dim) {
  return {.kind = KvLayerSpec::Kind::kGqa, .kv_heads = kv_heads, .head_dim = head_dim};
}
KvLayerSpec Mla(int64_t latent, int64_t rope) {
  return {.kind = KvLayerSpec::Kind::kMla, .latent = latent, .rope = rope};
}

// DESIGN section 4: an MLA row of 512 + 64 numbers is 1152 bytes in BF16.
TEST(PageFormat, MlaRowBytesAreThePublishedOnes) {
  const std::vector<KvLayerSpec> layers(61, Mla(512, 64));
  const auto format = PageFormat::Make(layers, KvFormat::kBf16, 64);
  ASSERT_TRUE(format.ok()) << format.status().ToString();
  EXPECT_EQ(format->bytes_per_token(), 61 * 1152);
  EXPECT_EQ(format->page_bytes(), 64 + 61 * 64 * 1152);
  EXPECT_EQ(format->slab(0).offset_bytes, 64);
  EXPECT_EQ(format->slab(60).offset_bytes, 64 + 60 * 64 * 1152);
  EXPECT_EQ(format->slab(60).page_tokens, 64);

  // Tokens per GiB equal the arithmetic within 0.01 %.
  const double gib = double(1 << 30);
  const double exact = gib / (61 * 1152);
  const double paged = 64 * gib / double(format->page_bytes());
  EXPECT_LT((exact - paged) / exact, 1e-4);
}

// SmolLM2-135M: 30 layers, 3 KV heads of 64: 30 * 2 * 3 * 64 * 2 = 23040 bytes a token.
TEST(PageFormat, GroupedQueryRowBytes) {
  const std::vector<KvLayerSpec> layers(30, Gqa(3, 64));
  EXPECT_EQ(PageFormat::Make(layers, KvFormat::kBf16, 64)->bytes_per_token(), 23040);
  EXPECT_EQ(PageFormat::Make(layers, KvFormat::kF32, 64)->bytes_per_token(), 46080);
}

TEST(PageFormat, SlabsAreAlignedTo64Bytes) {
  // One token of 2 * 1 * 3 BF16 numbers is 12 bytes: each slab is padded to 64.
  const std::vector<KvLayerSpec> layers = {Gqa(1, 3), Mla(5, 0), Gqa(1, 3)};
  const auto format = PageFormat::Make(layers, KvFormat::kBf16, 1);
  ASSERT_TRUE(format.ok());
  EXPECT_EQ(format->layers(), 3);
  EXPECT_EQ(format->slab(0).offset_bytes, 64);
  EXPECT_EQ(format->slab(1).offset_bytes, 128);
  EXPECT_EQ(format->slab(2).offset_bytes, 192);
  EXPECT_EQ(format->page_bytes(), 256);
  EXPECT_EQ(format->bytes_per_token(), 12 + 10 + 12);
}

// GLM-5.2 (facts/models.md 4.4): 78 layers of 1152 bytes, 21 of them with an indexer key of 128
// numbers, 256 bytes in BF16.
TEST(PageFormat, IndexerKeysAreASlabOfTheirOwnBehindTheLayers) {
  std::vector<KvLayerSpec> layers(78, Mla(512, 64));
  for (size_t i = 0; i < 21; ++i) layers[3 * i + 1].index_dim = 128;
  const auto format = PageFormat::Make(layers, KvFormat::kBf16, 64);
  ASSERT_TRUE(format.ok()) << format.status().ToString();
  EXPECT_EQ(format->bytes_per_token(), 89856 + 21 * 256);
  EXPECT_EQ(format->page_bytes(), 64 + 64 * (89856 + 21 * 256));
  EXPECT_EQ(format->slab(1).offset_bytes, 64 + 64 * 1152);
  EXPECT_EQ(format->index_slab(1).offset_bytes, 64 + 2 * 64 * 1152);
  EXPECT_EQ(format->index_slab(1).page_tokens, 64);
  EXPECT_EQ(format->index_slab(1).format, KvFormat::kBf16);
  EXPECT_EQ(format->slab(2).offset_bytes, 64 + 2 * 64 * 1152 + 64 * 256);
  EXPECT_EQ(PageFormat::Make(layers, KvFormat::kF32, 64)->bytes_per_token(),
            2 * (89856 + 21 * 256));
}

TEST(PageFormat, IndexSlabsAreAlignedAndTheirSizesChecked) {
  KvLayerSpec layer = Mla(5, 3);
  layer.index_dim = 3;
  std::vector<KvLayerSpec> layers = {layer, layer};
  const auto format = PageFormat::Make(layers, KvFormat::kF32, 2);
  ASSERT_TRUE(format.ok());
  EXPECT_EQ(format->slab(0).offset_bytes, 64);         // 2 x 8 x 4 = 64 bytes
  EXPECT_EQ(format->index_slab(0).offset_bytes, 128);  // 2 x 3 x 4 = 24 bytes
  EXPECT_EQ(format->slab(1).offset_bytes, 192);
  EXPECT_EQ(format->index_slab(1).offset_bytes, 256);
  EXPECT_EQ(format->page_bytes(), 320);
  for (const int64_t bad : {int64_t{-1}, std::numeric_limits<int64_t>::max() / 2}) {
    layers[1].index_dim = bad;
    const Status status = PageFormat::Make(layers, KvFormat::kF32, 2).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("layer 1"), std::string::npos) << status.message();
  }
}

// The worked example of docs/formats/kv_page.md.
TEST(PageFormat, WorkedExampleOfTheSpecification) {
  std::vector<KvLayerSpec> layers = {Gqa(1, 3), Gqa(1, 3)};
  EXPECT_EQ(PageFormat::Make(layers, KvFormat::kBf16, 1)->page_bytes(), 192);
  layers[0].index_dim = 5;
  const auto format = PageFormat::Make(layers, KvFormat::kBf16, 1);
  EXPECT_EQ(format->index_slab(0).offset_bytes, 128);
  EXPECT_EQ(format->slab(1).offset_bytes, 192);
  EXPECT_EQ(format->page_bytes(), 256);
}

TEST(PageFormat, RefusesBadSizes) {
  const std::vector<KvLayerSpec> layers = {Gqa(1, 8)};
  for (const int64_t tokens : {0, -1, 3, 48, 2048, std::numeric_limits<int>::min()}) {
    EXPECT_EQ(PageFormat::Make(layers, KvFormat::kBf16, tokens).status().code(),
              StatusCode::kInvalidArgument)
        << tokens;
  }
  for (int64_t tokens = 1; tokens <= 1024; tokens *= 2) {
    EXPECT_TRUE(PageFormat::Make(layers, KvFormat::kBf16, tokens).ok()) << tokens;
  }
  EXPECT_EQ(PageFormat::Make({}, KvFormat::kBf16, 64).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(PageFormat, RefusesBadLayersNamingThem) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max() / 2;
  for (const KvLayerSpec& bad : {Gqa(0, 8), Gqa(1, -8), Gqa(kHuge, 2), Gqa(1, kHuge), Mla(0, 64),
                                 Mla(8, -1), Mla(kHuge, kHuge), Gqa(int64_t{1} << 31, 1 << 28)}) {
    const std::vector<KvLayerSpec> layers = {Gqa(1, 8), bad};
    const Status status = PageFormat::Make(layers, KvFormat::kBf16, 64).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("layer 1"), std::string::npos) << status.message();
  }
}

// Bytes per token of DESIGN's table; Kimi K2.6 has 61 layers.
TEST(PageFormat, BytesPerTokenOfTheNamedModels) {
  const std::vector<KvLayerSpec> kimi(61, Mla(512, 64));
  const std::pair<KvFormat, int64_t> cases[] = {{KvFormat::kBf16, 70272},
                                                {KvFormat::kFp8E4m3, 35136},
                                                {KvFormat::kFp8Tiled, 61 * 584},
                                                {KvFormat::kFp8DsMla, 61 * 656}};
  for (const auto& [format, bytes] : cases) {
    const auto made = PageFormat::Make(kimi, format, 64);
    ASSERT_TRUE(made.ok()) << made.status().message();
    EXPECT_EQ(made->bytes_per_token(), bytes);
    // 64 tokens of 512 + 64 and any scales are whole lines: nothing but the header is added.
    EXPECT_EQ(made->page_bytes(), 64 + 64 * bytes);
  }
  KvLayerSpec indexed = Mla(512, 64);
  indexed.index_dim = 128;
  const std::vector<KvLayerSpec> dsa(1, indexed);
  EXPECT_EQ(PageFormat::Make(dsa, KvFormat::kFp8DsMla, 64)->bytes_per_token(), 656 + 132);
  EXPECT_EQ(PageFormat::Make(dsa, KvFormat::kBf16, 64)->bytes_per_token(), 1152 + 256);
  // Grouped-query: 3 heads of 64; scale bytes of 6 heads take 8.
  const std::vector<KvLayerSpec> gqa(30, Gqa(3, 64));
  EXPECT_EQ(PageFormat::Make(gqa, KvFormat::kBf16, 64)->bytes_per_token(), 30 * 768);
  EXPECT_EQ(PageFormat::Make(gqa, KvFormat::kFp8E4m3, 64)->bytes_per_token(), 30 * 384);
  EXPECT_EQ(PageFormat::Make(gqa, KvFormat::kFp8Tiled, 64)->bytes_per_token(), 30 * 392);
}

TEST(PageFormat, ChosenLayersStayBf16) {
  std::vector<KvLayerSpec> layers(3, Mla(512, 64));
  layers[1].k_scale = 0.5f;
  const int64_t kept[] = {0, 2};
  const auto format = PageFormat::Make(layers, KvFormat::kFp8E4m3, 64, kept);
  ASSERT_TRUE(format.ok());
  EXPECT_EQ(format->slab(0).format, KvFormat::kBf16);
  EXPECT_EQ(format->slab(1).format, KvFormat::kFp8E4m3);
  EXPECT_EQ(format->slab(1).k_scale, 0.5f);
  EXPECT_EQ(format->slab(2).format, KvFormat::kBf16);
  EXPECT_EQ(format->bytes_per_token(), 2 * 1152 + 576);
  const int64_t absent[] = {3};
  EXPECT_EQ(PageFormat::Make(layers, KvFormat::kFp8E4m3, 64, absent).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(PageFormat, RefusesFormatsThatALayerCannotHave) {
  const auto refused = [](const KvLayerSpec& spec, KvFormat format) {
    const std::vector<KvLayerSpec> layers = {spec};
    return PageFormat::Make(layers, format, 64).status().code() == StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused(Gqa(1, 8), KvFormat::kFp8DsMla));
  EXPECT_TRUE(refused(Mla(40, 8), KvFormat::kFp8Tiled));  // 32 numbers share a scale
  EXPECT_TRUE(refused(Mla(40, 8), KvFormat::kFp8DsMla));
  EXPECT_FALSE(refused(Mla(40, 8), KvFormat::kFp8E4m3));
  EXPECT_FALSE(refused(Gqa(1, 8), KvFormat::kFp8Tiled));
  for (const float scale : {0.0f, -1.0f, INFINITY, NAN}) {
    KvLayerSpec spec = Gqa(1, 8);
    spec.v_scale = scale;
    EXPECT_TRUE(refused(spec, KvFormat::kFp8E4m3)) << scale;
  }
}

}  // namespace
}  // namespace tern
