// The table "Bytes on the wire" of docs/formats/pd_wire.md, against what a sender counts.
#include <gtest/gtest.h>

#include <sstream>

#include "base/file.h"
#include "pd/hand_off_testing.h"

namespace tern {
namespace {

using testing::Destination;
using testing::Prompt;
using testing::VirtualWorkers;
using testing::Workers;

// The cells of the row that begins with `name`; "-" is 0.
std::vector<double> RowOf(const std::string& name) {
  std::istringstream doc(ReadFile(TERN_SOURCE_DIR "/docs/formats/pd_wire.md").value());
  for (std::string line; std::getline(doc, line);) {
    if (!line.starts_with("| " + name + " |")) continue;
    std::istringstream cells(line.substr(name.size() + 4));
    std::vector<double> values;
    for (std::string cell; std::getline(cells, cell, '|');) {
      if (cell.find_first_not_of(' ') == std::string::npos) continue;
      values.push_back(cell == " - " ? 0.0 : std::stod(cell));
    }
    return values;
  }
  return {};
}

double BytesPerToken(const std::vector<KvLayerSpec>& specs, KvFormat format) {
  constexpr int64_t kTokens = 128;
  VirtualWorkers w({.decode_format = format,
                    .prefill_page = 64,
                    .decode_page = 64,
                    .decode_pages = 2,
                    .specs = specs});
  Prompt prompt(w.prefill.format, kTokens, 1);
  Destination to(&w.pool, kTokens);
  EXPECT_TRUE(w.sender->Open(1, prompt.ids, &prompt).ok());
  EXPECT_TRUE(w.receiver->Open(Workers::OpenOf(1, prompt), &to).ok());
  w.sender->Finish(1, prompt.first());
  w.Settle();
  EXPECT_EQ(w.receiver->state(1), PdState::kSuccess) << w.receiver->error(1).message();
  EXPECT_EQ(w.receiver->times(1).bytes, w.sender->times(1).bytes);
  return static_cast<double>(w.sender->times(1).bytes) / kTokens;
}

TEST(WireBytes, AreTheDocuments) {
  constexpr KvFormat kFormats[] = {KvFormat::kBf16, KvFormat::kFp8E4m3, KvFormat::kFp8Tiled,
                                   KvFormat::kFp8DsMla};
  const KvLayerSpec latent{.kind = KvLayerSpec::Kind::kMla, .latent = 512, .rope = 64};
  KvLayerSpec indexed = latent;
  indexed.index_dim = 128;
  const KvLayerSpec grouped{.kv_heads = 3, .head_dim = 64};
  struct Row {
    const char* name;
    std::vector<KvLayerSpec> specs;
  };
  for (const auto& [name, specs] :
       {Row{"61 latent, 512 + 64", {61, latent}},
        Row{"61 latent, 512 + 64, each with indexer keys of 128", {61, indexed}},
        Row{"30 grouped-query, 3 heads of 64", {30, grouped}}}) {
    const std::vector<double> expected = RowOf(name);
    ASSERT_EQ(expected.size(), 4u) << name;
    for (size_t i = 0; i < 4; ++i) {
      if (expected[i] == 0.0) continue;
      EXPECT_EQ(BytesPerToken(specs, kFormats[i]), expected[i]) << name << " " << i;
    }
  }
}

}  // namespace
}  // namespace tern
