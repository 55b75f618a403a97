#include "pd/model_id.h"

#include <gtest/gtest.h>

#include <set>

namespace tern {
namespace {

std::string Hex(const ModelId& id) {
  std::string hex;
  for (const std::byte b : id) {
    hex += "0123456789abcdef"[std::to_integer<int>(b) >> 4];
    hex += "0123456789abcdef"[std::to_integer<int>(b) & 15];
  }
  return hex;
}

void Fill(ModelIdBuilder& id, bool swap_tensors = false) {
  id.Field("model_type", "toy");
  id.Field("hidden_size", 64);
  id.Field("rms_norm_eps", 1e-6);
  id.Field("norm_topk_prob", true);
  id.Field("sparse_layers", std::vector<bool>{false, true});
  for (const char* token : {"a", "b", "ab"}) id.Token(token);
  id.Merge("a", "b");
  id.AddedToken("<eos>", 3);
  const std::vector<float> norm = {1.0f, 0.5f}, bias = {0.25f};
  if (swap_tensors) id.ScoreBias("m.e_score_correction_bias", bias);
  id.NormWeight("m.a_norm.weight", norm);
  if (!swap_tensors) id.ScoreBias("m.e_score_correction_bias", bias);
}

// tests/data/pd/model_id.py, written from the document.
TEST(ModelId, IsTheDocuments) {
  ModelIdBuilder id;
  Fill(id);
  EXPECT_EQ(Hex(id.Finish()), "4d058ba088de4d08d9737d359a2b08adbead591bdce8f03f04705d0c04f89b46");
}

TEST(ModelId, OrderOfTensorsDoesNotMatter) {
  ModelIdBuilder a, b;
  Fill(a);
  Fill(b, true);
  EXPECT_EQ(a.Finish(), b.Finish());
}

TEST(ModelId, NormWeightsCountAsBf16) {
  ModelIdBuilder a, b, c;
  a.NormWeight("n", std::vector<float>{1.0f});
  b.NormWeight("n", std::vector<float>{1.0f + 0x1p-10f});  // rounds to the same BF16
  c.NormWeight("n", std::vector<float>{1.0f + 0x1p-7f});
  const ModelId id = a.Finish();
  EXPECT_EQ(id, b.Finish());
  EXPECT_NE(id, c.Finish());
}

TEST(ModelId, EveryPartCounts) {
  std::set<ModelId> ids;
  const auto add = [&](auto fill) {
    ModelIdBuilder id;
    fill(id);
    EXPECT_TRUE(ids.insert(id.Finish()).second);
  };
  add([](ModelIdBuilder&) {});
  add([](ModelIdBuilder& id) { id.Field("a", 1); });
  add([](ModelIdBuilder& id) { id.Field("a", 2); });
  add([](ModelIdBuilder& id) { id.Field("a", 1.0); });
  add([](ModelIdBuilder& id) { id.Field("a", true); });
  add([](ModelIdBuilder& id) { id.Field("a", std::vector<bool>{true, false}); });
  add([](ModelIdBuilder& id) { id.Token("ab"); });
  add([](ModelIdBuilder& id) { id.Token("a"), id.Token("b"); });
  add([](ModelIdBuilder& id) { id.Merge("a", "b"); });
  add([](ModelIdBuilder& id) { id.AddedToken("ab", 1); });
  add([](ModelIdBuilder& id) { id.ScoreBias("a", std::vector<float>{1}); });
  add([](ModelIdBuilder& id) { id.NormWeight("a", std::vector<float>{1}); });
}

}  // namespace
}  // namespace tern
