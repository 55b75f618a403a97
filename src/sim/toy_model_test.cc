#include "sim/toy_model.h"

#include <gtest/gtest.h>

#include "kv/page_pool.h"
#include "sim/toy_reference.h"

namespace tern {
namespace {

// One forward pass over `tokens` in the given pages; the logits after the last one.
std::vector<float> Prefill(ToyModel& model, const PageFormat& format,
                           std::span<std::byte* const> pages, const std::vector<int32_t>& tokens,
                           RowForm form) {
  const ForwardRun run = {.kv = {&format, pages}, .rows = int64_t(tokens.size()), .form = form};
  const int32_t last = int32_t(tokens.size()) - 1;
  std::vector<float> logits(size_t(model.info().vocab_size));
  EXPECT_TRUE(
      model.Forward({.tokens = tokens, .runs = {&run, 1}, .logit_rows = {&last, 1}}, logits.data())
          .ok());
  return logits;
}

TEST(ToyModel, AgreesWithTheReferenceAndReadsEveryRow) {
  for (const bool two_forms : {false, true}) {
    const ToyOptions options = {.two_forms = two_forms};
    ToyModel model(options);
    const auto format = PageFormat::Make(model.info().kv_layers, KvFormat::kBf16, 2).value();
    auto pool = PagePool::Create(format, 3, 1).value();
    std::vector<std::byte*> pages;
    for (int i = 0; i < 3; ++i) pages.push_back(pool.base(pool.Alloc()->id));
    const std::vector<int32_t> tokens = {3, 1, 4, 1, 5};
    EXPECT_EQ(Prefill(model, format, pages, tokens, RowForm::kPrefill),
              LogitsOf(options, tokens, 5));
    EXPECT_EQ(Prefill(model, format, pages, tokens, RowForm::kDecode),
              LogitsOf(options, tokens, 0));
    EXPECT_EQ(LogitsOf(options, tokens, 5) == LogitsOf(options, tokens, 0), !two_forms);

    // The next token's logits change with every byte of every earlier row, and with the order.
    const std::vector<int32_t> more = {3, 1, 4, 1, 5, 9};
    const auto next = [&](std::span<std::byte* const> order) {
      const int32_t token = 9, row = 0;
      const ForwardRun run = {.kv = {&format, order}, .first_position = 5, .rows = 1};
      std::vector<float> logits(size_t(options.vocab_size));
      EXPECT_TRUE(model.Forward({{&token, 1}, {&run, 1}, {&row, 1}}, logits.data()).ok());
      return logits;
    };
    Prefill(model, format, pages, tokens, RowForm::kPrefill);
    const std::vector<float> want = next(pages);
    EXPECT_EQ(want, LogitsOf(options, more, 6));
    for (int64_t p = 0; p < 5; ++p) {
      for (int64_t layer = 0; layer < 2; ++layer) {
        for (int64_t half = 0; half < 2; ++half) {
          const int64_t row_bytes = two_forms ? 16 : 8;
          const int64_t at =
              format.slab(layer).offset_bytes + p % 2 * row_bytes + half * (two_forms ? 8 : 2 * 8);
          std::byte& byte = pages[size_t(p / 2)][at];
          byte ^= std::byte{4};
          EXPECT_NE(next(pages), want) << p << " " << layer << " " << half;
          byte ^= std::byte{4};
        }
      }
    }
    std::swap(pages[0], pages[1]);
    EXPECT_NE(next(pages), want);
  }
}

}  // namespace
}  // namespace tern
