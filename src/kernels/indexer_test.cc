#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/dispatch.h"
#include "kernels/kv_layout.h"
#include "kernels/ops.h"
#include "kernels/testing.h"
#include "kernels/testing_kv.h"
#include "kernels/top_k.h"

namespace tern {
namespace {

using testing::BitsOf;
using testing::kUnitF32;
using testing::RandomFloats;

constexpr double kUnitBf16 = 0x1p-8;

// The rule, as a stable sort: larger first, NaN last, the lowest index wins a tie.
std::vector<int32_t> SortedTopK(const std::vector<float>& x, int64_t k) {
  std::vector<int32_t> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const float left = x[static_cast<size_t>(a)], right = x[static_cast<size_t>(b)];
    if (std::isnan(right)) return !std::isnan(left);
    return left > right;
  });
  order.resize(static_cast<size_t>(k));
  std::sort(order.begin(), order.end());
  return order;
}
std::vector<int32_t> TopK(const std::vector<float>& x, int64_t k) {
  std::vector<int32_t> out(static_cast<size_t>(k));
  SelectTopK(x.data(), static_cast<int64_t>(x.size()), k, out.data());
  return out;
}

TEST(TopKTest, TiesGoToTheLowestIndexAndZerosAreEqual) {
  EXPECT_EQ(TopK({1, 3, 3, 3, 2}, 2), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(TopK({0.0f, -0.0f, 0.0f, -1}, 2), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(TopK({-0.0f, 0.0f, -0.0f}, 1), (std::vector<int32_t>{0}));
  EXPECT_EQ(TopK({NAN, -INFINITY, NAN, 5, INFINITY}, 3), (std::vector<int32_t>{1, 3, 4}));
  EXPECT_EQ(TopK({NAN, NAN, 1}, 2), (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(TopK({2, 1}, 0), (std::vector<int32_t>{}));
  EXPECT_EQ(TopK({2, 1}, 2), (std::vector<int32_t>{0, 1}));
}

TEST(TopKTest, EqualsAStableSortOnRandomNumbers) {
  std::mt19937 generator(1);
  for (int round = 0; round < 300; ++round) {
    const auto n = static_cast<int64_t>(generator() % 500 + 1);
    std::vector<float> x = RandomFloats(n, generator(), round % 2 == 0 ? 1.0f : 1e-3f);
    for (float& value : x) {
      if (round % 3 == 0) value = std::round(value * 4);  // many ties, zeros of both signs
      if (generator() % 50 == 0) value = std::bit_cast<float>(static_cast<uint32_t>(generator()));
    }
    const auto k = static_cast<int64_t>(generator()) % (n + 1);
    ASSERT_EQ(TopK(x, k), SortedTopK(x, k)) << "round " << round;
  }
}

class IndexerTest : public ::testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Ops> MakeOps(ThreadPool& pool) {
    return std::move(Ops::Create(GetParam(), pool)).value();
  }
  // Unit roundoff of queries: avx512 multiplies them as BF16 where keys are no float32 and are
  // whole pairs.
  double UnitOfQueries(KvFormat format, int64_t dim) const {
    return GetParam() == "avx512" && format != KvFormat::kF32 && dim % 2 == 0 ? kUnitBf16 : 0.0;
  }
};

struct KeyPages {
  KeyPages(const IndexerShape& shape, KvFormat format, int64_t page_tokens, int64_t capacity)
      : slab{.format = format, .page_tokens = page_tokens, .offset_bytes = 64} {
    for (int64_t at = 0; at < capacity; at += page_tokens) {
      storage.emplace_back(static_cast<size_t>(64 + page_tokens * (shape.dim * 4 + 4)),
                           std::byte{0xFF});
    }
    for (auto& page : storage) bases.push_back(page.data());
  }
  // Keys [positions, dim] as they are stored.
  std::vector<float> Keys(int64_t dim, int64_t positions) const {
    std::vector<float> keys;
    for (int64_t i = 0; i < positions * dim; ++i) {
      const int64_t p = i / dim;
      const testing::SlabReader reader{slab, bases[static_cast<size_t>(p / slab.page_tokens)]};
      keys.push_back(static_cast<float>(reader.IndexKey(dim, p % slab.page_tokens, i % dim)));
    }
    return keys;
  }
  KvSlab slab;
  std::vector<std::vector<std::byte>> storage;
  std::vector<std::byte*> bases;
};

// I(t, s) in float64, and the sum of |terms| of its rounding errors.
struct Score {
  double value, magnitude;
};
Score ScoreOf(const IndexerShape& shape, const float* q, const float* w, const float* k) {
  Score score{0, 0};
  for (int64_t head = 0; head < shape.heads; ++head) {
    double dot = 0, terms = 0;
    for (int64_t d = 0; d < shape.dim; ++d) {
      dot += double{q[head * shape.dim + d]} * k[d];
      terms += std::fabs(double{q[head * shape.dim + d]} * k[d]);
    }
    score.value += w[head] * std::max(dot * shape.scale, 0.0);
    score.magnitude += std::fabs(w[head]) * terms * shape.scale;
  }
  return score;
}

// Of a score's terms: products and sums of a dot, then weight, heads, scale and the key's own scale
// are (dim + heads + 4) u; relu makes no error larger. Rounded queries add their unit roundoff:
// each product has one.
double RelativeBound(const IndexerShape& shape, double unit_of_queries) {
  return static_cast<double>(shape.dim + shape.heads + 4) * kUnitF32 + unit_of_queries;
}

// Scores of rows from position `history` on, `block_rows` rows at a time: [rows, history + rows],
// NaN where a row sees no position.
std::vector<float> ScoresOf(const IsaTable& table, const IndexerShape& shape, const KeyPages& pages,
                            int64_t history, int64_t rows, int64_t block_rows, const float* q,
                            const float* w) {
  const KvSlab& slab = pages.slab;
  const KvRowLayout layout = IndexRowLayout(slab.format, slab.page_tokens, shape.dim);
  const AttentionArgs args{.format = slab.format,
                           .pages = pages.bases.data(),
                           .page_tokens = slab.page_tokens,
                           .k_offset_bytes = slab.offset_bytes,
                           .k_row_bytes = layout.k_row,
                           .scales_offset_bytes = slab.offset_bytes + layout.scales_offset,
                           .scales_row_bytes = layout.scales_row,
                           .heads = shape.heads,
                           .key_dim = shape.dim,
                           .scale = shape.scale};
  const int64_t stride = history + rows;
  std::vector<float> workspace(
      static_cast<size_t>(AttentionWorkspaceFloats(shape.heads, shape.dim)));
  std::vector<float> scores(static_cast<size_t>(rows * stride), NAN);
  for (int64_t row = 0; row < rows; row += block_rows) {
    const AttentionBlock block{.first_position = history + row,
                               .rows = std::min(block_rows, rows - row)};
    for (int64_t p = 0; p < block.first_position + block.rows; p += kAttentionChunk) {
      table.index_scores(args, block, q + row * shape.heads * shape.dim, w + row * shape.heads,
                         p / kAttentionChunk, workspace.data(), scores.data() + row * stride + p,
                         stride);
    }
  }
  for (int64_t row = 0; row < rows; ++row) {
    const auto begin = scores.begin() + row * stride;
    std::fill(begin + history + row + 1, begin + stride, NAN);
  }
  return scores;
}

// Also that a score's bits are its position's own: pages and blocks of rows leave them.
TEST_P(IndexerTest, ScoresAreWithinTheirBoundWhateverIsBesideThem) {
  const IsaTable& table = **FindIsa(GetParam());
  ThreadPool pool(1);
  const auto ops = MakeOps(pool);
  uint32_t seed = 1;
  const std::tuple<IndexerShape, int64_t, int64_t> cases[] = {
      {{.heads = 1, .dim = 2, .scale = 1.0f}, 270, 19},
      {{.heads = 3, .dim = 20, .scale = 0.3f}, 0, 40},
      {{.heads = 5, .dim = 7, .scale = 0.3f}, 20, 3},
      {{.heads = 32, .dim = 128, .scale = 0.088f}, 250, 18},
      {{.heads = 33, .dim = 34, .scale = 0.17f}, 21, 2},
      {{.heads = 64, .dim = 70, .scale = 0.12f}, 255, 2},
  };
  for (const auto& [shape, history, rows] : cases) {
    for (const KvFormat format : testing::kAllKvFormats) {
      const int64_t positions = history + rows;
      const std::vector<float> written = RandomFloats(positions * shape.dim, ++seed);
      const std::vector<float> q = RandomFloats(rows * shape.heads * shape.dim, ++seed);
      const std::vector<float> w = RandomFloats(rows * shape.heads, ++seed);
      const double bound = RelativeBound(shape, UnitOfQueries(format, shape.dim));
      std::vector<uint32_t> expected_bits;
      for (const auto& [page_tokens, block_rows] : {std::pair{64, 16}, {1, 1}, {16, 7}}) {
        KeyPages pages(shape, format, page_tokens, positions);
        const KvRun write{pages.bases.data(), 0, 0, positions};
        ops->IndexerWrite(shape, pages.slab, {&write, 1}, written.data());
        const std::vector<float> scores =
            ScoresOf(table, shape, pages, history, rows, block_rows, q.data(), w.data());
        if (!expected_bits.empty()) {
          ASSERT_EQ(BitsOf(scores), expected_bits)
              << shape.heads << "x" << shape.dim << ", pages of " << page_tokens;
          continue;
        }
        expected_bits = BitsOf(scores);
        const std::vector<float> k = pages.Keys(shape.dim, positions);
        for (int64_t row = 0; row < rows; ++row) {
          for (int64_t p = 0; p <= history + row; ++p) {
            const Score score = ScoreOf(shape, q.data() + row * shape.heads * shape.dim,
                                        w.data() + row * shape.heads, k.data() + p * shape.dim);
            ASSERT_NEAR(scores[static_cast<size_t>(row * positions + p)], score.value,
                        bound * score.magnitude)
                << shape.heads << "x" << shape.dim << ", row " << row << ", position " << p;
          }
        }
      }
    }
  }
}

// Scores may order positions differently from float64 only where their scores are closer than the
// error of both.
TEST_P(IndexerTest, SelectsTheLargestScoresWithinTheirErrorAscending) {
  ThreadPool pool(2);
  const auto ops = MakeOps(pool);
  uint32_t seed = 1;
  const std::tuple<IndexerShape, int64_t, int64_t> cases[] = {
      {{.heads = 4, .dim = 32, .top_k = 8, .scale = 0.18f}, 0, 30},
      {{.heads = 32, .dim = 128, .top_k = 64, .scale = 0.088f}, 500, 3},
      {{.heads = 3, .dim = 20, .top_k = 300, .scale = 0.3f}, 290, 40},
      {{.heads = 1, .dim = 1, .top_k = 1, .scale = 1.0f}, 0, 3},
  };
  for (const auto& [shape, history, rows] : cases) {
    for (const KvFormat format : testing::kAllKvFormats) {
      const int64_t positions = history + rows;
      KeyPages pages(shape, format, 16, positions);
      std::vector<float> k = RandomFloats(positions * shape.dim, ++seed);
      const std::vector<float> q = RandomFloats(rows * shape.heads * shape.dim, ++seed);
      const std::vector<float> w = RandomFloats(rows * shape.heads, ++seed);
      const KvRun write{pages.bases.data(), 0, 0, positions};
      ops->IndexerWrite(shape, pages.slab, {&write, 1}, k.data());
      k = pages.Keys(shape.dim, positions);
      std::vector<int32_t> selected(static_cast<size_t>(rows * shape.top_k), -1);
      std::vector<RowSelection> selections(static_cast<size_t>(rows), RowSelection{nullptr, 77});
      const KvRun run{pages.bases.data(), history, 0, rows};
      ops->IndexerSelect(shape, pages.slab, {&run, 1}, q.data(), w.data(), selected.data(),
                         selections.data());
      for (int64_t row = 0; row < rows; ++row) {
        const RowSelection& selection = selections[static_cast<size_t>(row)];
        const int64_t seen = history + row + 1;
        if (seen <= shape.top_k) {
          ASSERT_EQ(selection.count, 0);
          ASSERT_EQ(selection.positions, nullptr);
          continue;
        }
        ASSERT_EQ(selection.count, shape.top_k);
        ASSERT_EQ(selection.positions, selected.data() + row * shape.top_k);
        std::vector<bool> taken(static_cast<size_t>(seen));
        for (int64_t i = 0; i < shape.top_k; ++i) {
          ASSERT_GE(selection.positions[i], i == 0 ? 0 : selection.positions[i - 1] + 1);
          ASSERT_LT(selection.positions[i], seen);
          taken[static_cast<size_t>(selection.positions[i])] = true;
        }
        double lowest_taken = INFINITY, highest_left = -INFINITY, error = 0;
        for (int64_t p = 0; p < seen; ++p) {
          const Score score = ScoreOf(shape, q.data() + row * shape.heads * shape.dim,
                                      w.data() + row * shape.heads, k.data() + p * shape.dim);
          error = std::max(
              error, RelativeBound(shape, UnitOfQueries(format, shape.dim)) * score.magnitude);
          if (taken[static_cast<size_t>(p)]) {
            lowest_taken = std::min(lowest_taken, score.value);
          } else {
            highest_left = std::max(highest_left, score.value);
          }
        }
        ASSERT_GE(lowest_taken, highest_left - 2 * error) << "row " << row;
      }
    }
  }
}

// Keys that repeat have equal scores, at whatever place of a tile, chunk or page they lie: the
// earliest of them are taken.
TEST_P(IndexerTest, EqualScoresGoToTheLowestPosition) {
  ThreadPool pool(3);
  const auto ops = MakeOps(pool);
  const IndexerShape shape{.heads = 2, .dim = 10, .top_k = 7, .scale = 0.3f};
  const int64_t positions = 600;
  std::vector<float> k = RandomFloats(positions * shape.dim, 1);
  const std::vector<float> q = RandomFloats(2 * shape.dim, 2);
  const std::vector<float> w = {1.0f, 0.5f};
  // Five positions hold the best score by far, four the second best, of which two fit.
  std::vector<float> both(10);
  for (size_t d = 0; d < 10; ++d) both[d] = q[d] / 2 + q[10 + d] / 2;
  const double best = ScoreOf(shape, q.data(), w.data(), both.data()).value;
  ASSERT_GT(best, 0.0);
  const auto put = [&](int64_t position, float factor) {
    for (int64_t d = 0; d < 10; ++d)
      k[static_cast<size_t>(position * 10 + d)] = both[static_cast<size_t>(d)] * factor;
  };
  for (const int64_t p : {5, 31, 100, 256, 400}) put(p, 1000.0f);
  for (const int64_t p : {3, 300, 500, 599}) put(p, 500.0f);
  for (const int64_t page_tokens : {1, 64}) {
    KeyPages pages(shape, KvFormat::kF32, page_tokens, positions);
    const KvRun write{pages.bases.data(), 0, 0, positions};
    ops->IndexerWrite(shape, pages.slab, {&write, 1}, k.data());
    std::vector<int32_t> selected(7);
    RowSelection selection;
    const KvRun run{pages.bases.data(), positions - 1, 0, 1};
    ops->IndexerSelect(shape, pages.slab, {&run, 1}, q.data(), w.data(), selected.data(),
                       &selection);
    EXPECT_EQ(selected, (std::vector<int32_t>{3, 5, 31, 100, 256, 300, 400}));
  }
}

// Scores of all-negative dots are zero everywhere: relu's zeros tie, also where w is negative.
TEST_P(IndexerTest, ZeroScoresOfEitherSignTie) {
  ThreadPool pool(1);
  const auto ops = MakeOps(pool);
  const IndexerShape shape{.heads = 2, .dim = 3, .top_k = 2, .scale = 1.0f};
  KeyPages pages(shape, KvFormat::kBf16, 4, 9);
  const std::vector<float> k(9 * 3, 1.0f), q(2 * 3, -1.0f), w = {-1.0f, -2.0f};
  const KvRun write{pages.bases.data(), 0, 0, 9}, run{pages.bases.data(), 8, 0, 1};
  ops->IndexerWrite(shape, pages.slab, {&write, 1}, k.data());
  std::vector<int32_t> selected(2);
  RowSelection selection;
  ops->IndexerSelect(shape, pages.slab, {&run, 1}, q.data(), w.data(), selected.data(), &selection);
  EXPECT_EQ(selected, (std::vector<int32_t>{0, 1}));
}

TEST_P(IndexerTest, SelectionDependsOnTheRowAlone) {
  const IndexerShape shape{.heads = 5, .dim = 24, .top_k = 40, .scale = 0.2f};
  const int64_t length = 300, first = 30;
  std::vector<float> k = RandomFloats(length * shape.dim, 1);
  // Keys in near pairs, so that other summation orders would select others.
  for (size_t i = 0; i < k.size(); ++i)
    k[i] = k[i % (k.size() / 2)] * (1 + (i > k.size() / 2 ? 0x1p-23f : 0));
  const std::vector<float> q = RandomFloats(length * shape.heads * shape.dim, 2);
  const std::vector<float> w = RandomFloats(length * shape.heads, 3);
  std::vector<int32_t> expected;
  for (const auto& [page_tokens, threads] : {std::pair{64, 1}, {1, 2}, {16, 3}}) {
    ThreadPool pool(threads);
    const auto ops = MakeOps(pool);
    KeyPages pages(shape, KvFormat::kF32, page_tokens, length);
    const KvRun write{pages.bases.data(), 0, 0, length};
    ops->IndexerWrite(shape, pages.slab, {&write, 1}, k.data());
    for (const int64_t step : {int64_t{1}, int64_t{23}, length - first}) {
      std::vector<int32_t> selected(static_cast<size_t>(length * shape.top_k), -1);
      std::vector<RowSelection> selections(static_cast<size_t>(length));
      for (int64_t at = first; at < length; at += step) {
        const KvRun run{pages.bases.data(), at, at, std::min(step, length - at)};
        ops->IndexerSelect(shape, pages.slab, {&run, 1}, q.data(), w.data(), selected.data(),
                           selections.data());
      }
      if (expected.empty()) expected = selected;
      ASSERT_EQ(selected, expected) << page_tokens << " " << threads << " " << step;
    }
  }
}

// Two-pass mean and variance: (n + 4) u of the largest |x - mean| terms; the difference x - mean
// is off by (n + 1) u of the mean |x|.
TEST_P(IndexerTest, LayerNorm) {
  ThreadPool pool(2);
  const auto ops = MakeOps(pool);
  for (const int64_t columns : {1, 2, 15, 16, 17, 128}) {
    const int64_t rows = 3;
    std::vector<float> x = RandomFloats(rows * columns, 1);
    for (float& value : x) value += 3.0f;
    const std::vector<float> weight = RandomFloats(columns, 2), bias = RandomFloats(columns, 3);
    std::vector<float> y(x.size());
    ops->LayerNorm(x.data(), rows, columns, weight.data(), bias.data(), 1e-6f, y.data());
    for (int64_t row = 0; row < rows; ++row) {
      const float* from = x.data() + row * columns;
      double mean = 0, variance = 0, size = 0;
      for (int64_t i = 0; i < columns; ++i) {
        mean += from[i];
        size += std::fabs(from[i]);
      }
      mean /= static_cast<double>(columns);
      size /= static_cast<double>(columns);
      for (int64_t i = 0; i < columns; ++i) variance += (from[i] - mean) * (from[i] - mean);
      variance /= static_cast<double>(columns);
      const double norm = std::sqrt(variance + 1e-6f);
      const double n = static_cast<double>(columns);
      for (int64_t i = 0; i < columns; ++i) {
        const auto at = static_cast<size_t>(i);
        const double expected = (from[i] - mean) / norm * weight[at] + bias[at];
        const double shift = (n + 2) * kUnitF32 * size / norm;  // of the mean, after scaling
        const double bound =
            std::fabs(weight[at]) * (shift * (1 + std::fabs(from[i] - mean) / norm) +
                                     (n + 8) * kUnitF32 * std::fabs(from[i] - mean) / norm) +
            2 * kUnitF32 * (std::fabs(expected) + std::fabs(bias[at]));
        ASSERT_NEAR(y[static_cast<size_t>(row * columns + i)], expected, bound) << columns;
      }
    }
    ops->LayerNorm(x.data(), rows, columns, weight.data(), bias.data(), 1e-6f, x.data());
    EXPECT_EQ(BitsOf(x), BitsOf(y));
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, IndexerTest, ::testing::ValuesIn(Ops::SupportedIsas()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tern
