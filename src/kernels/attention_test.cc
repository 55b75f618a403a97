#include <cmath>

#include "kernels/isa_table.h"
#include "kernels/ops.h"
#include "kernels/testing.h"
#include "kernels/testing_kv.h"

namespace tern {
namespace {

using testing::BitsOf;
using testing::kUnitF32;
using testing::RandomFloats;

constexpr KvFormat kGqaFormats[] = {KvFormat::kF32, KvFormat::kBf16, KvFormat::kFp8E4m3,
                                    KvFormat::kFp8Tiled};
constexpr double kUnitBf16 = 0x1p-8;

// Sequences in paged storage, written differently from the kernels: dense K and V beside it.
struct Sequence {
  int64_t length = 0;  // positions written so far
  std::vector<std::vector<std::byte>> pages;
  std::vector<std::byte*> bases;
  std::vector<float> k, v;  // [length, kv_heads, head_dim], as given
};

class Cache {
 public:
  Cache(const GqaShape& shape, KvFormat format, int64_t page_tokens)
      : shape_(shape),
        slab_{.format = format,
              .page_tokens = page_tokens,
              .offset_bytes = 192,
              .k_scale = 0.03f,
              .v_scale = 0.05f} {}

  Sequence Make(int64_t capacity) const {
    Sequence sequence;
    // Room for float32 rows, and for scales.
    const int64_t bytes = slab_.offset_bytes + slab_.page_tokens * shape_.kv_heads *
                                                   (2 * shape_.head_dim * element_bytes() + 16);
    for (int64_t at = 0; at < capacity; at += slab_.page_tokens) {
      // Rows not yet written hold NaN: whatever reads them shows.
      sequence.pages.emplace_back(static_cast<size_t>(bytes), std::byte{0xFF});
    }
    for (auto& page : sequence.pages) sequence.bases.push_back(page.data());
    return sequence;
  }
  const KvSlab& slab() const { return slab_; }
  int64_t element_bytes() const { return slab_.format == KvFormat::kF32 ? 4 : 2; }
  // What the sequence's pages hold.
  std::vector<float> ReadBack(const Sequence& sequence, bool value, int64_t positions) const {
    std::vector<float> numbers;
    for (int64_t p = 0; p < positions; ++p) {
      const testing::SlabReader reader{slab_, sequence.bases[p / slab_.page_tokens]};
      for (int64_t i = 0; i < shape_.kv_heads * shape_.head_dim; ++i) {
        numbers.push_back(static_cast<float>(reader.Gqa(value, shape_.kv_heads, shape_.head_dim,
                                                        p % slab_.page_tokens, i / shape_.head_dim,
                                                        i % shape_.head_dim)));
      }
    }
    return numbers;
  }

 private:
  GqaShape shape_;
  KvSlab slab_;
};

// softmax(scale q.K) V in float64 over dense rows, and per output element the sum of |weight * v|.
struct Expected {
  std::vector<double> out, magnitude;
  double largest_dot = 0;  // max over positions of sum |q_d k_d|, times scale
};
Expected Naive(const GqaShape& shape, const std::vector<float>& k, const std::vector<float>& v,
               const float* query, int64_t head, int64_t positions) {
  const int64_t kv_head = head / (shape.heads / shape.kv_heads), dim = shape.head_dim;
  Expected expected{std::vector<double>(static_cast<size_t>(dim)),
                    std::vector<double>(static_cast<size_t>(dim)), 0};
  std::vector<double> scores;
  for (int64_t p = 0; p < positions; ++p) {
    double dot = 0, terms = 0;
    for (int64_t d = 0; d < dim; ++d) {
      const double term =
          double{query[d]} * k[static_cast<size_t>((p * shape.kv_heads + kv_head) * dim + d)];
      dot += term;
      terms += std::fabs(term);
    }
    scores.push_back(dot * shape.scale);
    expected.largest_dot = std::max(expected.largest_dot, terms * std::fabs(shape.scale));
  }
  const double largest = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (const double score : scores) sum += std::exp(score - largest);
  for (int64_t p = 0; p < positions; ++p) {
    const double weight = std::exp(scores[static_cast<size_t>(p)] - largest) / sum;
    for (int64_t d = 0; d < dim; ++d) {
      const double term = weight * v[static_cast<size_t>((p * shape.kv_heads + kv_head) * dim + d)];
      expected.out[static_cast<size_t>(d)] += term;
      expected.magnitude[static_cast<size_t>(d)] += std::fabs(term);
    }
  }
  return expected;
}

class AttentionTest : public ::testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Ops> MakeOps(ThreadPool& pool) {
    Result<std::unique_ptr<Ops>> ops = Ops::Create(GetParam(), pool);
    EXPECT_TRUE(ops.ok()) << ops.status().message();
    return std::move(ops).value();
  }
  bool slow() const { return GetParam() == "ref"; }
  // Whether the level rounds queries and softmax weights to BF16.
  bool RoundsQueries(KvFormat format) const {
    return GetParam() == "avx512" && format != KvFormat::kF32;
  }
};

// Error bound. A score of n = head_dim products has an absolute error of at most e = (n + 2) u T,
// T = scale * sum |q_d k_d|: softmax weights change by a factor within exp(+-2e). exp itself has
// 2 ulp = 4u, its argument (score - largest, at most 2T apart, rounded at each of two merges) adds
// 6 u T; sums of weights and of values over P positions and C chunks (P + 4C) u each, division u:
// relative error <= 2 (n + 2) u T + 6 u T + 2 (P + 4C + 8) u, relative to sum |weight * v|.
// A query rounded to BF16 changes a score by at most 2^-9 T, so a weight by twice that; weights are
// rounded once more: 2^-8 T + 2^-9, doubled here for second-order terms. kFp8E4m3's scales
// multiply scores and sums: 4 u, in the 8 u.
TEST_P(AttentionTest, MatchesDenseSoftmaxWithinTheDerivedBound) {
  struct Case {
    GqaShape shape;
    int64_t history, rows;
  };
  const Case cases[] = {
      {{.heads = 1, .kv_heads = 1, .head_dim = 1, .scale = 1.0f}, 0, 1},
      {{.heads = 9, .kv_heads = 3, .head_dim = 64, .scale = 0.125f}, 0, 70},
      {{.heads = 9, .kv_heads = 3, .head_dim = 64, .scale = 0.125f}, 300, 1},
      {{.heads = 4, .kv_heads = 1, .head_dim = 80, .scale = 0.11f}, 255, 2},
      {{.heads = 6, .kv_heads = 2, .head_dim = 24, .scale = 3.0f}, 31, 9},
      {{.heads = 2, .kv_heads = 2, .head_dim = 128, .scale = 0.09f}, 530, 7},
      {{.heads = 40, .kv_heads = 1, .head_dim = 16, .scale = 0.25f}, 17, 3},
      {{.heads = 16, .kv_heads = 8, .head_dim = 64, .scale = 0.125f}, 300, 1},
  };
  ThreadPool pool(2);
  const auto ops = MakeOps(pool);
  uint32_t seed = 10;
  for (const Case& c : cases) {
    for (const KvFormat format : kGqaFormats) {
      const Cache cache(c.shape, format, 16);
      const int64_t positions = c.history + c.rows, width = c.shape.kv_heads * c.shape.head_dim;
      Sequence sequence = cache.Make(positions);
      std::vector<float> k = RandomFloats(positions * width, ++seed);
      std::vector<float> v = RandomFloats(positions * width, ++seed);
      const std::vector<float> q = RandomFloats(c.rows * c.shape.heads * c.shape.head_dim, ++seed);
      const KvRun write{sequence.bases.data(), 0, 0, positions};
      ops->GqaWrite(c.shape, cache.slab(), {&write, 1}, k.data(), v.data());
      std::vector<float> out(q.size(), NAN);
      const KvRun read{sequence.bases.data(), c.history, 0, c.rows};
      ops->GqaAttention(c.shape, cache.slab(), {&read, 1}, q.data(), out.data());
      k = cache.ReadBack(sequence, false, positions);
      v = cache.ReadBack(sequence, true, positions);
      for (int64_t row = 0; row < c.rows; ++row) {
        for (int64_t head = 0; head < c.shape.heads; ++head) {
          const int64_t at = (row * c.shape.heads + head) * c.shape.head_dim;
          const int64_t seen = c.history + row + 1;
          const Expected expected = Naive(c.shape, k, v, q.data() + at, head, seen);
          const double chunks = static_cast<double>(seen / kAttentionChunk + 1);
          const double relative =
              (RoundsQueries(format) ? kUnitBf16 * (2 * expected.largest_dot + 1) : 0.0) +
              kUnitF32 *
                  ((2.0 * static_cast<double>(c.shape.head_dim + 2) + 6) * expected.largest_dot +
                   2 * (static_cast<double>(seen) + 4 * chunks + 8));
          for (int64_t d = 0; d < c.shape.head_dim; ++d) {
            const auto i = static_cast<size_t>(d);
            ASSERT_LE(std::fabs(out[static_cast<size_t>(at + d)] - expected.out[i]),
                      relative * expected.magnitude[i] + 1e-37)
                << "row " << row << " head " << head << " d " << d << " dim " << c.shape.head_dim;
          }
        }
      }
    }
  }
}

// DESIGN section 5: the same bits whatever the page size, the runs, the batch, the threads. Levels
// have kernels of their own for heads that are whole groups of sixteen numbers.
TEST_P(AttentionTest, BitsDependOnTheRowAlone) {
  for (const auto& [heads, head_dim] : {std::pair<int64_t, int64_t>{6, 40}, {6, 48}, {16, 48}}) {
    const GqaShape shape{.heads = heads, .kv_heads = 2, .head_dim = head_dim, .scale = 0.2f};
    const int64_t length = slow() ? 280 : 600, tail = 40;  // the last `tail` rows are compared
    const int64_t width = shape.kv_heads * shape.head_dim, row = shape.heads * shape.head_dim;
    const std::vector<float> k = RandomFloats(length * width, 1),
                             v = RandomFloats(length * width, 2);
    const std::vector<float> q = RandomFloats(length * row, 3);
    for (const KvFormat format : kGqaFormats) {
      std::vector<uint32_t> expected;
      for (const auto& [page_tokens, threads] :
           {std::pair{64, 1}, {1, 1}, {16, 2}, {1, 3}, {64, 4}}) {
        const Cache cache(shape, format, page_tokens);
        ThreadPool pool(threads);
        const auto ops = MakeOps(pool);
        for (const int64_t step : {int64_t{1}, int64_t{7}, tail, length}) {
          Sequence sequence = cache.Make(length), other = cache.Make(length);
          std::vector<float> out(static_cast<size_t>(length * row));
          const auto forward = [&](int64_t begin, int64_t rows) {
            // A shorter sequence is computed in the same batch; its rows come first.
            std::vector<float> batch_k(k.begin(), k.begin() + width), batch_v = batch_k;
            std::vector<float> batch_q(q.begin(), q.begin() + row);
            batch_k.insert(batch_k.end(), k.begin() + begin * width,
                           k.begin() + (begin + rows) * width);
            batch_v.insert(batch_v.end(), v.begin() + begin * width,
                           v.begin() + (begin + rows) * width);
            batch_q.insert(batch_q.end(), q.begin() + begin * row,
                           q.begin() + (begin + rows) * row);
            std::vector<float> batch_out(batch_q.size());
            const KvRun runs[] = {{other.bases.data(), 0, 0, 1},
                                  {sequence.bases.data(), begin, 1, rows}};
            ops->GqaWrite(shape, cache.slab(), runs, batch_k.data(), batch_v.data());
            ops->GqaAttention(shape, cache.slab(), runs, batch_q.data(), batch_out.data());
            std::copy(batch_out.begin() + row, batch_out.end(), out.begin() + begin * row);
          };
          if (step == length) {
            forward(0, length);
          } else {
            forward(0, length - tail);
            for (int64_t at = length - tail; at < length; at += step) {
              forward(at, std::min(step, length - at));
            }
          }
          if (expected.empty()) expected = BitsOf(out);
          ASSERT_EQ(BitsOf(out), expected) << "head " << head_dim << " page " << page_tokens
                                           << " threads " << threads << " step " << step;
        }
      }
    }
  }
}

// Levels compute few and many queries of a KV head in different ways, to the same bits.
TEST_P(AttentionTest, BitsDoNotDependOnTheOtherHeads) {
  constexpr int64_t kMostHeads = 40, kRows = 3, kPositions = 300;
  for (const int64_t head_dim : {9, 10, 48, 90}) {
    const std::vector<float> k = RandomFloats(kPositions * head_dim, 1),
                             v = RandomFloats(kPositions * head_dim, 2);
    const std::vector<float> q = RandomFloats(kMostHeads * kRows * head_dim, 3);
    for (const KvFormat format : kGqaFormats) {
      ThreadPool pool(1);
      const auto ops = MakeOps(pool);
      std::vector<std::vector<uint32_t>> expected;  // of each head, alone
      for (const int64_t heads : {1, 4, 8, 9, 16, 20, 40}) {
        const GqaShape shape{.heads = heads, .kv_heads = 1, .head_dim = head_dim, .scale = 0.2f};
        const Cache cache(shape, format, 64);
        Sequence sequence = cache.Make(kPositions);
        const KvRun write{sequence.bases.data(), 0, 0, kPositions};
        ops->GqaWrite(shape, cache.slab(), {&write, 1}, k.data(), v.data());
        for (const int64_t rows : {int64_t{1}, kRows}) {
          for (int64_t first = 0; first + heads <= kMostHeads; first += heads) {
            // Head by head in `q`, row by row in what attention takes.
            std::vector<float> some;
            for (int64_t i = 0; i < rows * heads; ++i) {
              const auto from =
                  q.begin() + ((first + i % heads) * kRows + kRows - rows + i / heads) * head_dim;
              some.insert(some.end(), from, from + head_dim);
            }
            std::vector<float> out(some.size(), NAN);
            const KvRun read{sequence.bases.data(), kPositions - rows, 0, rows};
            ops->GqaAttention(shape, cache.slab(), {&read, 1}, some.data(), out.data());
            const std::vector<uint32_t> bits = BitsOf(out);
            if (heads == 1 && rows == 1) expected.push_back(bits);
            for (int64_t i = 0; i < heads; ++i) {
              const auto last_row = bits.begin() + ((rows - 1) * heads + i) * head_dim;
              ASSERT_EQ(std::vector<uint32_t>(last_row, last_row + head_dim),
                        expected[static_cast<size_t>(first + i)])
                  << KvFormatName(format) << " dim " << head_dim << " heads " << heads << " rows "
                  << rows << " head " << first + i;
            }
          }
        }
      }
    }
  }
}

// A later row of the same run that overflowed must not reach the rows before it.
TEST_P(AttentionTest, RowsNeverReadPastTheirPosition) {
  const GqaShape shape{.heads = 4, .kv_heads = 1, .head_dim = 20, .scale = 0.2f};
  ThreadPool pool(1);
  const auto ops = MakeOps(pool);
  const Cache cache(shape, KvFormat::kBf16, 8);
  Sequence sequence = cache.Make(12);
  std::vector<float> k = RandomFloats(12 * 20, 1), v = RandomFloats(12 * 20, 2);
  const std::vector<float> q = RandomFloats(12 * 80, 3);
  for (int64_t d = 0; d < 20; ++d) {
    k[static_cast<size_t>(11 * 20 + d)] = v[static_cast<size_t>(11 * 20 + d)] = INFINITY;
  }
  std::vector<float> out(q.size());
  const KvRun run{sequence.bases.data(), 0, 0, 12};
  ops->GqaWrite(shape, cache.slab(), {&run, 1}, k.data(), v.data());
  ops->GqaAttention(shape, cache.slab(), {&run, 1}, q.data(), out.data());
  for (size_t i = 0; i < 11 * 80; ++i) ASSERT_TRUE(std::isfinite(out[i])) << i;
  EXPECT_FALSE(std::isfinite(out[11 * 80]));
}

TEST_P(AttentionTest, WritesRoundedRowsToTheirPlaceAndNothingElse) {
  const GqaShape shape{.heads = 2, .kv_heads = 2, .head_dim = 3, .scale = 1.0f};
  ThreadPool pool(1);
  const auto ops = MakeOps(pool);
  const Cache cache(shape, KvFormat::kBf16, 4);
  Sequence sequence = cache.Make(8);
  const std::vector<float> k = RandomFloats(2 * 6, 1), v = RandomFloats(2 * 6, 2);
  const KvRun run{sequence.bases.data(), 3, 0, 2};  // the last slot of page 0, the first of page 1
  ops->GqaWrite(shape, cache.slab(), {&run, 1}, k.data(), v.data());
  for (int64_t page = 0; page < 2; ++page) {
    std::vector<std::byte> expected(sequence.pages[0].size(), std::byte{0xFF});
    const int64_t slot = page == 0 ? 3 : 0;
    for (int64_t i = 0; i < 6; ++i) {
      const uint16_t k_bits = Bf16FromFloat(k[static_cast<size_t>(page * 6 + i)]);
      const uint16_t v_bits = Bf16FromFloat(v[static_cast<size_t>(page * 6 + i)]);
      std::memcpy(expected.data() + 192 + (slot * 6 + i) * 2, &k_bits, 2);
      std::memcpy(expected.data() + 192 + 4 * 6 * 2 + (slot * 6 + i) * 2, &v_bits, 2);
    }
    EXPECT_EQ(sequence.pages[static_cast<size_t>(page)], expected) << page;
  }
}

// Few blocks whose chunk states would not fit in memory take a third way through the driver.
TEST(AttentionDriverTest, BitsAreTheSameWhenStatesOfAllChunksDoNotFit) {
  const GqaShape shape{.heads = 1024, .kv_heads = 1024, .head_dim = 1, .scale = 1.0f};
  const int64_t positions = 3 * kAttentionChunk, rows = 32;
  const Cache cache(shape, KvFormat::kBf16, 64);
  Sequence sequence = cache.Make(positions);
  const std::vector<float> kv = RandomFloats(positions * 1024, 1), q = RandomFloats(rows * 1024, 2);
  const KvRun write{sequence.bases.data(), 0, 0, positions};
  const KvRun read{sequence.bases.data(), positions - rows, 0, rows};
  std::vector<std::vector<uint32_t>> bits;
  for (const int threads : {1, 2}) {
    ThreadPool pool(threads);
    const auto ops = std::move(Ops::Create("", pool)).value();
    if (threads == 1) ops->GqaWrite(shape, cache.slab(), {&write, 1}, kv.data(), kv.data());
    std::vector<float> out(q.size());
    ops->GqaAttention(shape, cache.slab(), {&read, 1}, q.data(), out.data());
    bits.push_back(BitsOf(out));
  }
  EXPECT_EQ(bits[0], bits[1]);
}

INSTANTIATE_TEST_SUITE_P(Isa, AttentionTest, ::testing::ValuesIn(Ops::SupportedIsas()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tern
