#include "pd/convert.h"

#include <gtest/gtest.h>

#include "base/thread_pool.h"
#include "kernels/kv_layout.h"
#include "pd/testing.h"

namespace tern {
namespace {

using testing::FillBf16;
using testing::RowsWith;
using testing::SmallSpecs;
using testing::TestPages;

// Numbers [from, from + count) of part `part` of every position, read from the document's layout.
std::vector<float> Numbers(const PageFormat& format, const KvRowPart& part, const TestPages& pages,
                           int64_t tokens, int64_t from, int64_t count) {
  std::vector<float> values;
  for (int64_t position = 0; position < tokens; ++position) {
    const std::byte* row = pages.bases[static_cast<size_t>(position / format.page_tokens())] +
                           part.offset_bytes + position % format.page_tokens() * part.row_bytes;
    for (int64_t i = from; i < from + count; ++i) {
      uint16_t bits = 0;
      std::memcpy(&bits, row + 2 * i, 2);
      values.push_back(FloatFromBf16(bits));
    }
  }
  return values;
}

// Writes the BF16 rows of `source` into `target` as a model that computes them would.
void QuantizeOnWrite(const Ops& ops, const PdRows& from, const TestPages& source, int64_t tokens,
                     const PdRows& to, TestPages* target) {
  for (int64_t layer = 0; layer < to.format.layers(); ++layer) {
    const KvLayerSpec& spec = to.specs[static_cast<size_t>(layer)];
    const auto parts = from.format.row_parts(layer);
    const KvRun run{.pages = target->bases.data(), .rows = tokens};
    if (spec.kind == KvLayerSpec::Kind::kGqa) {
      const int64_t n = spec.kv_heads * spec.head_dim;
      const auto k = Numbers(from.format, parts[0], source, tokens, 0, n);
      const auto v = Numbers(from.format, parts[1], source, tokens, 0, n);
      ops.GqaWrite({.heads = spec.kv_heads, .kv_heads = spec.kv_heads, .head_dim = spec.head_dim},
                   to.format.slab(layer), {&run, 1}, k.data(), v.data());
    } else {
      const auto latent = Numbers(from.format, parts[0], source, tokens, 0, spec.latent);
      const auto rope = Numbers(from.format, parts[0], source, tokens, spec.latent, spec.rope);
      ops.MlaWrite({.heads = 1, .latent = spec.latent, .rope = spec.rope}, to.format.slab(layer),
                   {&run, 1}, latent.data(), rope.data());
    }
    if (spec.index_dim == 0) continue;
    auto keys = Numbers(from.format, parts.back(), source, tokens, 0, spec.index_dim);
    if (IsFp8(to.format.index_slab(layer).format)) {
      ops.Hadamard(keys.data(), tokens, spec.index_dim);
    }
    ops.IndexerWrite({.heads = 1, .dim = spec.index_dim}, to.format.index_slab(layer), {&run, 1},
                     keys.data());
  }
}

class ConvertTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ops_ = std::move(Ops::Create(GetParam(), pool_)).value(); }
  ThreadPool pool_{2};
  std::unique_ptr<Ops> ops_;
};

TEST_P(ConvertTest, BitEqualToQuantizeOnWriteWhateverThePageSizes) {
  for (const KvFormat format :
       {KvFormat::kBf16, KvFormat::kFp8E4m3, KvFormat::kFp8Tiled, KvFormat::kFp8DsMla}) {
    const auto specs = SmallSpecs(format);
    for (const auto& [from_page, to_page] :
         {std::pair<int64_t, int64_t>{64, 16}, {16, 64}, {64, 64}, {8, 1}, {1, 32}}) {
      for (const int64_t tokens : {1, 16, 63, 64, 65, 131}) {
        const PdRows from = RowsWith(specs, KvFormat::kBf16, from_page);
        const PdRows to = RowsWith(specs, format, to_page);
        TestPages source(from.format, tokens), expected(to.format, tokens), got(to.format, tokens);
        FillBf16(from.format, tokens, static_cast<uint32_t>(tokens * 100 + from_page), &source);
        QuantizeOnWrite(*ops_, from, source, tokens, to, &expected);
        RowConverter converter(*ops_, from, to);
        for (size_t page = 0; page < got.bases.size(); ++page) {
          const int64_t first = static_cast<int64_t>(page) * to_page;
          converter.Convert(source.bases, first, std::min(to_page, tokens - first),
                            got.bases[page]);
        }
        // Also what is not a row: neither writes it.
        ASSERT_EQ(got.memory, expected.memory)
            << KvFormatName(format) << " " << from_page << " to " << to_page << ", " << tokens;
      }
    }
  }
}

// The way over a payload, in the sender's rows or in the receiver's.
TEST_P(ConvertTest, ReceiverAndSenderConvertAlike) {
  constexpr int64_t kTokens = 75;
  for (const KvFormat format : {KvFormat::kFp8E4m3, KvFormat::kFp8Tiled, KvFormat::kFp8DsMla}) {
    const auto specs = SmallSpecs(format);
    const PdRows from = RowsWith(specs, KvFormat::kBf16, 64), to = RowsWith(specs, format, 16);
    TestPages source(from.format, kTokens), at_sender(to.format, kTokens),
        at_receiver(to.format, kTokens);
    FillBf16(from.format, kTokens, 5, &source);
    const PdRows wire = NegotiateRows(from, to, true).value();
    EXPECT_EQ(wire.format.page_tokens(), 16);
    EXPECT_EQ(wire.format.format(), KvFormat::kBf16);
    RowConverter whole(*ops_, from, to), cut(*ops_, from, wire), late(*ops_, wire, to);
    for (size_t page = 0; page < at_sender.bases.size(); ++page) {
      const int64_t first = static_cast<int64_t>(page) * 16,
                    rows = std::min<int64_t>(16, kTokens - first);
      whole.Convert(source.bases, first, rows, at_sender.bases[page]);
      TestPages sent(wire.format, 16), landed(wire.format, 16);
      cut.Convert(source.bases, first, rows, sent.bases[0]);
      std::vector<std::byte> payload(static_cast<size_t>(PayloadBytes(wire.format, rows)));
      PackRows(wire.format, sent.bases[0], rows, payload);
      UnpackRows(wire.format, payload, rows, landed.bases[0]);
      late.Convert(landed.bases, 0, rows, at_receiver.bases[page]);
    }
    EXPECT_EQ(at_receiver.memory, at_sender.memory) << KvFormatName(format);
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, ConvertTest, ::testing::ValuesIn(Ops::SupportedIsas()),
                         [](const auto& info) { return info.param; });

// A payload is a page's rows without the rest: as long as the document says, and reversible.
TEST(PayloadTest, HoldsExactlyTheRows) {
  for (const KvFormat format : {KvFormat::kBf16, KvFormat::kFp8E4m3, KvFormat::kFp8Tiled}) {
    const auto specs = SmallSpecs(format);
    const PdRows rows = RowsWith(specs, format, 16);
    for (const int64_t count : {1, 5, 16}) {
      TestPages page(rows.format, 16), back(rows.format, 16);
      std::mt19937 generator(1);
      for (std::byte& b : page.memory) b = static_cast<std::byte>(generator());
      std::vector<std::byte> payload(static_cast<size_t>(PayloadBytes(rows.format, count)));
      PackRows(rows.format, page.bases[0], count, payload);
      UnpackRows(rows.format, payload, count, back.bases[0]);
      std::vector<uint64_t> a, b;
      SealSums(rows.format, page.bases[0], 32, count, &a);
      SealSums(rows.format, back.bases[0], 32, count, &b);
      EXPECT_EQ(a, b);
    }
  }
}

}  // namespace
}  // namespace tern
