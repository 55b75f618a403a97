#include "kv/seal.h"

#include <gtest/gtest.h>

#include <charconv>
#include <string>

#include "base/json.h"
#include "kv/test_pool.h"

namespace tern {
namespace {

std::vector<std::byte> MadeUpPage(int64_t bytes) {
  std::vector<std::byte> page(static_cast<size_t>(bytes));
  for (size_t i = 0; i < page.size(); ++i) page[i] = std::byte((i * 131 + i / 251 * 17 + 7) % 256);
  return page;
}

uint64_t Hex(const Json& text) {
  const std::string s = text.get<std::string>();
  uint64_t value = 0;
  std::from_chars(s.data(), s.data() + s.size(), value, 16);
  return value;
}

// Values by Python's xxhash and page arithmetic of its own (tests/data/kv/make_seals.py).
TEST(Seal, AgreesWithPythonForEveryFormat) {
  const Result<Json> cases = ParseJsonFile("tests/data/kv/seals.json");
  ASSERT_TRUE(cases.ok()) << cases.status().ToString();
  ASSERT_EQ(cases->size(), 9u);
  for (const Json& c : *cases) {
    std::vector<KvLayerSpec> layers;
    for (const Json& layer : c["layers"]) {
      KvLayerSpec spec;
      if (layer.contains("heads")) {
        spec.kv_heads = layer["heads"];
        spec.head_dim = layer["dim"];
      } else {
        spec.kind = KvLayerSpec::Kind::kMla;
        spec.latent = layer["latent"];
        spec.rope = layer["rope"];
      }
      if (layer.contains("index")) spec.index_dim = layer["index"];
      layers.push_back(spec);
    }
    const auto bf16_layers = c["bf16_layers"].get<std::vector<int64_t>>();
    const PageFormat format =
        PageFormat::Make(layers, *KvFormatNamed(c["format"].get<std::string>()), c["page_tokens"],
                         bf16_layers)
            .value();
    ASSERT_EQ(format.page_bytes(), c["page_bytes"].get<int64_t>());
    const std::vector<std::byte> page = MadeUpPage(format.page_bytes());
    const int64_t first = c["first_position"], rows = c["rows"];
    for (int64_t layer = 0; layer < format.layers(); ++layer) {
      const Seal want = {Hex(c["seals"][size_t(layer)]), rows};
      EXPECT_EQ(SealRows(format, layer, page.data(), first, rows), want) << c["format"] << layer;
      EXPECT_EQ(RowHash(format, layer, page.data(), first), Hex(c["first"][size_t(layer)]));
    }
  }
}

TEST(Seal, SeedsNeverMeet) {
  std::vector<uint64_t> seeds;
  for (int64_t layer = 0; layer < 80; ++layer) {
    for (int64_t position = 0; position < 500; ++position) {
      for (const KvFormat format : {KvFormat::kBf16, KvFormat::kFp8Tiled}) {
        seeds.push_back(RowSeed(layer, position, format));
      }
    }
  }
  std::sort(seeds.begin(), seeds.end());
  EXPECT_EQ(std::adjacent_find(seeds.begin(), seeds.end()), seeds.end());
}

TEST(Seal, RowsAddUpInAnyOrderAndFromAnyPageSize) {
  const PageFormat format = TestPageFormat(4);
  const std::vector<std::byte> page = MadeUpPage(format.page_bytes());
  Seal backwards;
  for (int64_t position = 7; position >= 4; --position) {
    backwards.Add(RowHash(format, 0, page.data(), position));
  }
  EXPECT_EQ(backwards, SealRows(format, 0, page.data(), 4, 4));

  // The same rows, gathered: keys, then values.
  Seal gathered;
  for (int64_t row = 0; row < 4; ++row) {
    std::vector<std::byte> bytes;
    for (const KvRowPart& part : format.row_parts(0)) {
      const auto at = page.begin() + part.offset_bytes + row * part.row_bytes;
      bytes.insert(bytes.end(), at, at + part.row_bytes);
    }
    gathered.Add(RowHash(bytes, 0, 4 + row, KvFormat::kBf16));
  }
  EXPECT_EQ(gathered, backwards);
}

TEST(Seal, RowsThatDoNotFitTheStackAreGatheredToo) {
  const KvLayerSpec wide = {.kv_heads = 64, .head_dim = 128};
  const PageFormat format = PageFormat::Make({&wide, 1}, KvFormat::kF32, 1).value();
  const std::vector<std::byte> page = MadeUpPage(format.page_bytes());
  const std::span<const std::byte> row = std::span(page).subspan(64, 2 * 64 * 128 * 4);
  EXPECT_EQ(RowHash(format, 0, page.data(), 3), RowHash(row, 0, 3, KvFormat::kF32));
}

// Every bit of every sealed row counts, and so do layer, position and format.
TEST(Seal, EveryFlippedBitAndEveryWrongPlaceIsSeen) {
  KvLayerSpec spec = {.kind = KvLayerSpec::Kind::kMla, .latent = 32, .rope = 4};
  spec.index_dim = 8;
  const std::vector<KvLayerSpec> layers = {spec, spec};
  const PageFormat format = PageFormat::Make(layers, KvFormat::kFp8Tiled, 4).value();
  std::vector<std::byte> page = MadeUpPage(format.page_bytes());
  const Seal seals[] = {SealRows(format, 0, page.data(), 0, 3),
                        SealRows(format, 1, page.data(), 0, 3)};
  std::vector<bool> covered(page.size(), false);
  for (int64_t layer = 0; layer < 2; ++layer) {
    for (const KvRowPart& part : format.row_parts(layer)) {
      for (int64_t i = 0; i < 3 * part.row_bytes; ++i)
        covered[size_t(part.offset_bytes + i)] = true;
    }
  }
  EXPECT_EQ(std::count(covered.begin(), covered.end(), true), 3 * format.bytes_per_token());
  for (size_t i = 0; i < page.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      page[i] ^= std::byte(1 << bit);
      const bool seen = SealRows(format, 0, page.data(), 0, 3) != seals[0] ||
                        SealRows(format, 1, page.data(), 0, 3) != seals[1];
      ASSERT_EQ(seen, covered[i]) << i;
      page[i] ^= std::byte(1 << bit);
    }
  }
  EXPECT_NE(SealRows(format, 0, page.data(), 4, 3), seals[0]);
  EXPECT_NE(SealRows(format, 0, page.data(), 0, 2), seals[0]);
  const std::span<const std::byte> row = std::span(page).first(40);
  EXPECT_NE(RowHash(row, 0, 0, KvFormat::kBf16), RowHash(row, 0, 0, KvFormat::kFp8E4m3));
  EXPECT_NE(RowHash(row, 0, 0, KvFormat::kBf16), RowHash(row, 1, 0, KvFormat::kBf16));
  EXPECT_NE(RowHash(row, 0, 1, KvFormat::kBf16), RowHash(row, 1, 0, KvFormat::kBf16));
}

}  // namespace
}  // namespace tern
