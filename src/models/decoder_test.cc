// The determinism contract (DESIGN section 5) on models with latent attention, experts and
// indexers: a row's logits have the same bits alone and in any batch, chunk, page size and thread
// count.
#include "models/decoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "models/test_golden.h"

namespace tern {
namespace {

using test::Golden;

std::string FolderOf(const std::string& name) { return "tests/data/golden/" + name; }

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class DecoderDeterminismTest : public ::testing::TestWithParam<const char*> {};

TEST_P(DecoderDeterminismTest, ChunksPagesAndThreadsLeaveEveryBit) {
  const Golden golden = test::LoadGolden(FolderOf(GetParam()));
  const auto length = static_cast<int64_t>(golden.prompt.size());
  for (const int64_t prefill : {length, length / 3}) {
    std::vector<float> expected;
    for (const int threads : {1, 3}) {
      ThreadPool pool(threads);
      const auto ops = test::MakeOps("", pool);
      const auto model = test::MakeModel(FolderOf(GetParam()), *ops, Precision::kProduction);
      ASSERT_NE(model, nullptr);
      for (const int64_t page_tokens : {1, 64}) {
        for (const int64_t chunk : {int64_t{1}, int64_t{33}, length}) {
          auto sequence = test::MakeSequence(*model, KvFormat::kBf16, page_tokens, length);
          const auto logits = test::RunAll(*model, sequence, golden.prompt, chunk, prefill);
          if (expected.empty()) expected = logits;
          EXPECT_TRUE(SameBits(logits, expected))
              << "threads " << threads << " page " << page_tokens << " chunk " << chunk;
        }
      }
    }
  }
}

// Sequences of rotated prompts, fed in rounds of mixed lengths in one batch; each prefills its
// first two thirds and decodes the rest, so that both forms meet in one pass.
TEST_P(DecoderDeterminismTest, BatchMatesLeaveEveryBit) {
  ThreadPool pool(2);
  const auto ops = test::MakeOps("", pool);
  const auto model = test::MakeModel(FolderOf(GetParam()), *ops, Precision::kProduction);
  ASSERT_NE(model, nullptr);
  const Golden golden = test::LoadGolden(FolderOf(GetParam()));
  const auto vocab = model->info().vocab_size;
  const auto length = static_cast<int64_t>(golden.prompt.size()), prefill = length * 2 / 3;
  constexpr size_t kSequences = 4;
  std::vector<std::vector<int32_t>> tokens;
  std::vector<std::vector<float>> alone, together(kSequences);
  std::vector<SingleSequence> sequences;
  for (size_t s = 0; s < kSequences; ++s) {
    tokens.push_back(golden.prompt);
    std::rotate(tokens[s].begin(), tokens[s].begin() + static_cast<int64_t>(s), tokens[s].end());
    auto solo = test::MakeSequence(*model, KvFormat::kBf16, 16, length);
    alone.push_back(test::RunAll(*model, solo, tokens[s], length, prefill));
    sequences.push_back(test::MakeSequence(*model, KvFormat::kBf16, 16, length));
  }
  for (int64_t round = 0;; ++round) {
    std::vector<int32_t> batch, logit_rows;
    std::vector<ForwardRun> runs;
    std::vector<size_t> owner;  // of each row
    for (size_t s = 0; s < kSequences; ++s) {
      const int64_t at = sequences[s].position();
      const bool decode = at >= prefill;
      // Different paces bring prompts and generated rows together.
      const int64_t pace = decode ? 1 : 1 + (round + static_cast<int64_t>(s)) % 9;
      const int64_t rows = std::min((decode ? length : prefill) - at, pace);
      if (rows == 0) continue;
      runs.push_back(sequences[s].NextRun(static_cast<int64_t>(batch.size()), rows,
                                          decode ? RowForm::kDecode : RowForm::kPrefill));
      batch.insert(batch.end(), tokens[s].begin() + at, tokens[s].begin() + at + rows);
      owner.insert(owner.end(), static_cast<size_t>(rows), s);
      sequences[s].Advance(rows);
    }
    if (batch.empty()) break;
    for (size_t row = 0; row < batch.size(); ++row) {
      logit_rows.push_back(static_cast<int32_t>(row));
    }
    std::vector<float> logits(batch.size() * static_cast<size_t>(vocab));
    const Status status =
        model->Forward({.tokens = batch, .runs = runs, .logit_rows = logit_rows}, logits.data());
    ASSERT_TRUE(status.ok()) << status.message();
    for (size_t row = 0; row < owner.size(); ++row) {
      const auto begin = logits.begin() + static_cast<int64_t>(row) * vocab;
      together[owner[row]].insert(together[owner[row]].end(), begin, begin + vocab);
    }
  }
  for (size_t s = 0; s < kSequences; ++s) EXPECT_TRUE(SameBits(alone[s], together[s])) << s;
}

INSTANTIATE_TEST_SUITE_P(Models, DecoderDeterminismTest,
                         ::testing::Values("kimi-k2-int4", "deepseek-v3-groups-fp8",
                                           "glm52-dsa-shared", "odd-dsa", "glm4-moe"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace tern
