#include <cmath>

#include "kernels/isa_table.h"
#include "kernels/ops.h"
#include "kernels/testing.h"
#include "kernels/testing_kv.h"

namespace tern {
namespace {

using testing::BitsOf;
using testing::kAllKvFormats;
using testing::kUnitF32;
using testing::RandomFloats;

constexpr double kUnitBf16 = 0x1p-8;

// One sequence in paged storage; rows not yet written hold NaN.
struct Pages {
  Pages(const MlaShape& shape, KvFormat format, int64_t page_tokens, int64_t capacity)
      : slab{.format = format, .page_tokens = page_tokens, .offset_bytes = 128, .k_scale = 0.04f} {
    const int64_t number = format == KvFormat::kF32 ? 4 : 2;
    const int64_t scales = format == KvFormat::kFp8Tiled || format == KvFormat::kFp8DsMla ? 16 : 0;
    const int64_t bytes =
        slab.offset_bytes + page_tokens * ((shape.latent + shape.rope) * number + scales);
    for (int64_t at = 0; at < capacity; at += page_tokens) {
      storage.emplace_back(static_cast<size_t>(bytes), std::byte{0xFF});
    }
    for (auto& page : storage) bases.push_back(page.data());
  }
  KvSlab slab;
  std::vector<std::vector<std::byte>> storage;
  std::vector<std::byte*> bases;
};

// A layer's numbers: the twin's input, in both forms of attention.
struct Layer {
  Layer(const MlaShape& s, int64_t positions, uint32_t seed)
      : shape(s),
        latent(RandomFloats(positions * s.latent, seed)),
        rope(RandomFloats(positions * s.rope, seed + 1)),
        kv_b(RandomFloats(s.heads * (s.nope + s.value) * s.latent, seed + 2,
                          1.0f / std::sqrt(static_cast<float>(s.latent)))),
        q(RandomFloats(positions * s.heads * (s.nope + s.rope), seed + 3)) {}
  TensorView kv_b_view() const {
    return {DType::kF32, Shape{shape.heads * (shape.nope + shape.value), shape.latent},
            std::as_bytes(std::span(kv_b))};
  }
  double Weight(int64_t head, int64_t row, int64_t column) const {
    const int64_t at = (head * (shape.nope + shape.value) + row) * shape.latent + column;
    return kv_b[static_cast<size_t>(at)];
  }
  const float* Query(int64_t row, int64_t head) const {
    return q.data() + (row * shape.heads + head) * (shape.nope + shape.rope);
  }
  // Takes the rows that the pages hold.
  void ReadBack(const Pages& pages) {
    const int64_t tokens = pages.slab.page_tokens;
    for (int64_t p = 0; p * shape.latent < static_cast<int64_t>(latent.size()); ++p) {
      const testing::SlabReader reader{pages.slab, pages.bases[static_cast<size_t>(p / tokens)]};
      const auto read = [&](int64_t i) {
        return static_cast<float>(reader.Mla(shape.latent, shape.rope, p % tokens, i));
      };
      for (int64_t i = 0; i < shape.latent; ++i) {
        latent[static_cast<size_t>(p * shape.latent + i)] = read(i);
      }
      for (int64_t i = 0; i < shape.rope; ++i) {
        rope[static_cast<size_t>(p * shape.rope + i)] = read(shape.latent + i);
      }
    }
  }

  MlaShape shape;
  std::vector<float> latent, rope, kv_b, q;  // q: [positions, heads, nope + rope]
};

// Softmax attention of one query over `positions` in the expanded form, in float64, as the paper
// writes it: k_h = [W_UK c | k_rope], v_h = W_UV c. Also what a bound needs: per value the sum of
// |weight * terms|, and the largest sum of |terms| of a score.
struct Expected {
  std::vector<double> value, magnitude;
  double largest_terms = 0;
};
Expected Attend(const Layer& layer, int64_t row, int64_t head,
                const std::vector<int32_t>& positions) {
  const MlaShape& s = layer.shape;
  const float* q = layer.Query(row, head);
  Expected expected{std::vector<double>(static_cast<size_t>(s.value)),
                    std::vector<double>(static_cast<size_t>(s.value)), 0};
  std::vector<double> scores;
  for (const int32_t p : positions) {
    double score = 0, terms = 0;
    const float* c = layer.latent.data() + p * s.latent;
    for (int64_t i = 0; i < s.nope; ++i) {
      for (int64_t j = 0; j < s.latent; ++j) {
        score += q[i] * (layer.Weight(head, i, j) * c[j]);
        terms += std::fabs(q[i] * layer.Weight(head, i, j) * c[j]);
      }
    }
    for (int64_t i = 0; i < s.rope; ++i) {
      const double term = double{q[s.nope + i]} * layer.rope[static_cast<size_t>(p * s.rope + i)];
      score += term;
      terms += std::fabs(term);
    }
    scores.push_back(score * s.scale);
    expected.largest_terms = std::max(expected.largest_terms, terms * s.scale);
  }
  const double largest = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double& score : scores) sum += score = std::exp(score - largest);
  for (size_t i = 0; i < scores.size(); ++i) {
    const float* c = layer.latent.data() + positions[i] * s.latent;
    for (int64_t v = 0; v < s.value; ++v) {
      for (int64_t j = 0; j < s.latent; ++j) {
        const double term = scores[i] / sum * layer.Weight(head, s.nope + v, j) * c[j];
        expected.value[static_cast<size_t>(v)] += term;
        expected.magnitude[static_cast<size_t>(v)] += std::fabs(term);
      }
    }
  }
  return expected;
}

// Score: a sum of sums, (nope + rope + latent + 6) u of its terms T, which changes a softmax weight
// by twice that; exp and merges 6 u T + 8 u; sums over P positions in C chunks 2 (P + 4 C) u; the
// value's own sum over latents (latent + 2) u.
// With BF16 products, queries, keys, values and weights are each rounded once more: the terms of a
// score twice, which changes a weight by twice that, then weight and value.
double RelativeBound(const MlaShape& s, const Expected& expected, int64_t positions,
                     bool bf16_products) {
  const auto p = static_cast<double>(positions);
  const double score = 2.0 * static_cast<double>(s.nope + s.rope + s.latent + 6) + 6;
  const double bf16 = bf16_products ? kUnitBf16 * (4.0 * expected.largest_terms + 2) : 0.0;
  return bf16 + kUnitF32 * (score * expected.largest_terms + 2 * (p + 4 * (p / 256 + 1)) +
                            static_cast<double>(s.latent) + 10);
}

std::vector<int32_t> UpTo(int64_t positions) {
  std::vector<int32_t> all;
  for (int64_t p = 0; p < positions; ++p) all.push_back(static_cast<int32_t>(p));
  return all;
}

const MlaShape kShapes[] = {
    {.heads = 1, .latent = 1, .rope = 0, .nope = 1, .value = 1, .scale = 1.0f},
    {.heads = 6, .latent = 96, .rope = 16, .nope = 24, .value = 20, .scale = 0.16f},
    {.heads = 4, .latent = 32, .rope = 8, .nope = 16, .value = 16, .scale = 0.2f},
    {.heads = 37, .latent = 20, .rope = 6, .nope = 9, .value = 33, .scale = 0.26f},
    {.heads = 3, .latent = 160, .rope = 24, .nope = 8, .value = 8, .scale = 0.15f},
};

// Scales of 128 latents are read for 32 numbers at a time.
bool Takes(const MlaShape& shape, KvFormat format) {
  return shape.latent % 32 == 0 || (format != KvFormat::kFp8Tiled && format != KvFormat::kFp8DsMla);
}

class MlaTest : public ::testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Ops> MakeOps(ThreadPool& pool) {
    return std::move(Ops::Create(GetParam(), pool)).value();
  }
  bool slow() const { return GetParam() == "ref"; }
  // Whether the level rounds queries and softmax weights to BF16 where rows are.
  bool RoundsQueries(KvFormat format) const {
    return GetParam() == "avx512" && format != KvFormat::kF32;
  }

  // Writes positions [0, positions) of the layer.
  static void Write(const Ops& ops, const Layer& layer, Pages& pages, int64_t positions) {
    const KvRun run{pages.bases.data(), 0, 0, positions};
    ops.MlaWrite(layer.shape, pages.slab, {&run, 1}, layer.latent.data(), layer.rope.data());
  }

  // What a model does around the absorbed form, for rows [begin, begin + rows), in float64:
  // q_latent = W_UK^T q_nope before, W_UV o_latent after. Here q is rounded to float32.
  static std::vector<float> AbsorbedQueries(const Layer& layer, int64_t begin, int64_t rows) {
    const MlaShape& s = layer.shape;
    std::vector<float> q;
    for (int64_t row = begin; row < begin + rows; ++row) {
      for (int64_t head = 0; head < s.heads; ++head) {
        const float* from = layer.Query(row, head);
        for (int64_t j = 0; j < s.latent; ++j) {
          double sum = 0;
          for (int64_t i = 0; i < s.nope; ++i) sum += from[i] * layer.Weight(head, i, j);
          q.push_back(static_cast<float>(sum));
        }
        q.insert(q.end(), from + s.nope, from + s.nope + s.rope);
      }
    }
    return q;
  }
  static double Value(const Layer& layer, int64_t head, int64_t v, const float* o_latent) {
    double sum = 0;
    for (int64_t j = 0; j < layer.shape.latent; ++j) {
      sum += layer.Weight(head, layer.shape.nope + v, j) * o_latent[j];
    }
    return sum;
  }
};

TEST_P(MlaTest, BothFormsMatchTheExpandedFormInDouble) {
  ThreadPool pool(2);
  const auto ops = MakeOps(pool);
  uint32_t seed = 1;
  for (const MlaShape& shape : kShapes) {
    for (const auto& [history, rows] : {std::pair<int64_t, int64_t>{0, 1}, {0, 9}, {253, 5}}) {
      for (const KvFormat format : kAllKvFormats) {
        if (!Takes(shape, format)) continue;
        Layer layer(shape, history + rows, seed += 10);
        Pages pages(shape, format, 16, history + rows);
        Write(*ops, layer, pages, history + rows);
        layer.ReadBack(pages);
        const KvRun run{pages.bases.data(), history, 0, rows};
        const auto kv_b = ops->Pack(layer.kv_b_view(), Precision::kReference);
        ASSERT_TRUE(kv_b.ok());
        std::vector<float> prefill(static_cast<size_t>(rows * shape.heads * shape.value), NAN);
        ops->MlaPrefillAttention(shape, pages.slab, {&run, 1}, *kv_b, layer.Query(history, 0),
                                 prefill.data());
        const std::vector<float> q = AbsorbedQueries(layer, history, rows);
        std::vector<float> decode(static_cast<size_t>(rows * shape.heads * shape.latent), NAN);
        ops->MlaDecodeAttention(shape, pages.slab, {&run, 1}, q.data(), {}, decode.data());
        for (int64_t row = 0; row < rows; ++row) {
          for (int64_t head = 0; head < shape.heads; ++head) {
            const int64_t seen = history + row + 1, at = row * shape.heads + head;
            const Expected expected = Attend(layer, history + row, head, UpTo(seen));
            const double bound = RelativeBound(shape, expected, seen, RoundsQueries(format));
            for (int64_t v = 0; v < shape.value; ++v) {
              const auto i = static_cast<size_t>(v);
              const double limit = bound * expected.magnitude[i] + 1e-37;
              ASSERT_NEAR(prefill[static_cast<size_t>(at * shape.value + v)], expected.value[i],
                          limit)
                  << "expanded, row " << row << " head " << head << " v " << v;
              ASSERT_NEAR(Value(layer, head, v, decode.data() + at * shape.latent),
                          expected.value[i], limit)
                  << "absorbed, row " << row << " head " << head << " v " << v;
            }
          }
        }
      }
    }
  }
}

// The absorbed form as it is: attention of queries, rounded as the level does, over cached rows.
// Softmax weights may be rounded to BF16, products of subnormals may be zero; what remains is
// float32 summation as above, without the products around it.
TEST_P(MlaTest, AbsorbedFormMatchesDenseSoftmaxTightly) {
  ThreadPool pool(3);
  const auto ops = MakeOps(pool);
  uint32_t seed = 500;
  for (MlaShape shape : kShapes) {
    for (const auto& [history, rows] : {std::pair<int64_t, int64_t>{0, 11}, {249, 12}, {530, 1}}) {
      for (const KvFormat format : kAllKvFormats) {
        if (!Takes(shape, format)) continue;
        const int64_t width = shape.latent + shape.rope, positions = history + rows;
        Layer layer(shape, positions, seed += 10);
        Pages pages(shape, format, 16, positions);
        Write(*ops, layer, pages, positions);
        layer.ReadBack(pages);
        std::vector<float> q = RandomFloats(rows * shape.heads * width, ++seed);
        const KvRun run{pages.bases.data(), history, 0, rows};
        std::vector<float> out(static_cast<size_t>(rows * shape.heads * shape.latent), NAN);
        ops->MlaDecodeAttention(shape, pages.slab, {&run, 1}, q.data(), {}, out.data());
        if (RoundsQueries(format)) {
          for (float& x : q) x = RoundToBf16(x);
        }
        for (int64_t at = 0; at < rows * shape.heads; ++at) {
          const int64_t seen = history + at / shape.heads + 1;
          std::vector<double> scores;
          double largest = -INFINITY, largest_terms = 0, sum = 0;
          for (int64_t p = 0; p < seen; ++p) {
            double score = 0, terms = 0;
            for (int64_t d = 0; d < width; ++d) {
              const float k =
                  d < shape.latent
                      ? layer.latent[static_cast<size_t>(p * shape.latent + d)]
                      : layer.rope[static_cast<size_t>(p * shape.rope + d - shape.latent)];
              const double term = double{q[static_cast<size_t>(at * width + d)]} * k * shape.scale;
              score += term;
              terms += std::fabs(term);
            }
            scores.push_back(score);
            largest = std::max(largest, score);
            largest_terms = std::max(largest_terms, terms);
          }
          for (double& score : scores) sum += score = std::exp(score - largest);
          const double bound =
              kUnitF32 * ((2.0 * static_cast<double>(width + 2) + 6) * largest_terms +
                          2.0 * static_cast<double>(seen) + 40) +
              (RoundsQueries(format) ? kUnitBf16 : 0.0) +
              (RoundsQueries(format) && format == KvFormat::kFp8DsMla
                   ? kUnitBf16 * (largest_terms + 1)  // keys and values are rounded too
                   : 0.0);
          for (int64_t d = 0; d < shape.latent; ++d) {
            double value = 0, magnitude = 0;
            for (int64_t p = 0; p < seen; ++p) {
              const double term = scores[static_cast<size_t>(p)] / sum *
                                  layer.latent[static_cast<size_t>(p * shape.latent + d)];
              value += term;
              magnitude += std::fabs(term);
            }
            ASSERT_NEAR(out[static_cast<size_t>(at * shape.latent + d)], value,
                        bound * magnitude + 1e-35)
                << "row " << at / shape.heads << " head " << at % shape.heads << " d " << d;
          }
        }
      }
    }
  }
}

// A later row of the same run that overflowed must not reach the rows before it.
TEST_P(MlaTest, RowsNeverReadPastTheirPosition) {
  const MlaShape& shape = kShapes[2];
  ThreadPool pool(1);
  const auto ops = MakeOps(pool);
  Layer layer(shape, 12, 1);
  for (int64_t i = 11 * shape.latent; i < 12 * shape.latent; ++i) {
    layer.latent[static_cast<size_t>(i)] = INFINITY;
  }
  Pages pages(shape, KvFormat::kBf16, 8, 12);
  Write(*ops, layer, pages, 12);
  const KvRun run{pages.bases.data(), 0, 0, 12};
  const std::vector<float> q = AbsorbedQueries(layer, 0, 12);
  std::vector<float> out(static_cast<size_t>(12 * shape.heads * shape.latent));
  ops->MlaDecodeAttention(shape, pages.slab, {&run, 1}, q.data(), {}, out.data());
  const auto last = static_cast<size_t>(11 * shape.heads * shape.latent);
  for (size_t i = 0; i < last; ++i) ASSERT_TRUE(std::isfinite(out[i])) << i;
  EXPECT_FALSE(std::isfinite(out[last]));
  const auto kv_b = ops->Pack(layer.kv_b_view(), Precision::kProduction);
  out.resize(static_cast<size_t>(12 * shape.heads * shape.value));
  ops->MlaPrefillAttention(shape, pages.slab, {&run, 1}, *kv_b, layer.q.data(), out.data());
  for (int64_t i = 0; i < 11 * shape.heads * shape.value; ++i) {
    ASSERT_TRUE(std::isfinite(out[static_cast<size_t>(i)])) << i;
  }
}

TEST_P(MlaTest, SelectedRowsAttendTheirPositionsOnly) {
  ThreadPool pool(2);
  const auto ops = MakeOps(pool);
  const MlaShape& shape = kShapes[2];
  const int64_t history = 700, rows = 4;
  Layer layer(shape, history + rows, 99);
  Pages pages(shape, KvFormat::kBf16, 16, history + rows);
  Write(*ops, layer, pages, history + rows);
  layer.ReadBack(pages);
  // Rows 0 and 3 are dense; row 1 attends 300 positions, in two chunks; row 2 a single one.
  std::vector<std::vector<int32_t>> seen = {UpTo(history + 1), {}, {650}, UpTo(history + 4)};
  for (int32_t i = 0; i < 300; ++i) seen[1].push_back(2 * i + i % 2);
  std::vector<RowSelection> selections(4);
  for (const size_t i : {1, 2}) {
    selections[i] = {seen[i].data(), static_cast<int64_t>(seen[i].size())};
  }
  const KvRun run{pages.bases.data(), history, 0, rows};
  const std::vector<float> q = AbsorbedQueries(layer, history, rows);
  std::vector<float> out(static_cast<size_t>(rows * shape.heads * shape.latent), NAN);
  ops->MlaDecodeAttention(shape, pages.slab, {&run, 1}, q.data(), selections, out.data());
  for (int64_t row = 0; row < rows; ++row) {
    const auto& positions = seen[static_cast<size_t>(row)];
    for (int64_t head = 0; head < shape.heads; ++head) {
      const Expected expected = Attend(layer, history + row, head, positions);
      const double bound = RelativeBound(shape, expected, static_cast<int64_t>(positions.size()),
                                         RoundsQueries(KvFormat::kBf16));
      const float* o_latent = out.data() + (row * shape.heads + head) * shape.latent;
      for (int64_t v = 0; v < shape.value; ++v) {
        const auto i = static_cast<size_t>(v);
        ASSERT_NEAR(Value(layer, head, v, o_latent), expected.value[i],
                    bound * expected.magnitude[i])
            << "row " << row << " head " << head;
      }
    }
  }
}

// A selection of all positions is dense attention to the bit.
TEST_P(MlaTest, SelectingEverythingIsDense) {
  // One thread goes from chunk to chunk, two take chunks apart.
  for (const int threads : {1, 2}) {
    ThreadPool pool(threads);
    const auto ops = MakeOps(pool);
    for (const MlaShape& shape : {kShapes[1], kShapes[3]}) {
      const int64_t positions = slow() ? 270 : 600;
      const Layer layer(shape, positions, 5);
      Pages pages(shape, KvFormat::kBf16, 16, positions);
      Write(*ops, layer, pages, positions);
      const KvRun run{pages.bases.data(), positions - 1, 0, 1};
      const std::vector<float> q = AbsorbedQueries(layer, positions - 1, 1);
      std::vector<float> dense(static_cast<size_t>(shape.heads * shape.latent)), sparse = dense;
      ops->MlaDecodeAttention(shape, pages.slab, {&run, 1}, q.data(), {}, dense.data());
      const std::vector<int32_t> all = UpTo(positions);
      const RowSelection selection{all.data(), positions};
      ops->MlaDecodeAttention(shape, pages.slab, {&run, 1}, q.data(), {&selection, 1},
                              sparse.data());
      EXPECT_EQ(BitsOf(dense), BitsOf(sparse)) << shape.heads << " heads, " << threads;
    }
  }
}

// DESIGN section 5: the same bits whatever the page size, the runs, the batch, the threads.
TEST_P(MlaTest, BitsDependOnTheRowAlone) {
  // One row, and five rows, share a task.
  for (const MlaShape& shape : {kShapes[3], kShapes[1]}) {
    const int64_t length = slow() ? 264 : 540, tail = 20;
    const Layer layer(shape, length, 7);
    const std::vector<float> absorbed = AbsorbedQueries(layer, 0, length);
    for (const KvFormat format : kAllKvFormats) {
      if (!Takes(shape, format)) continue;
      std::vector<uint32_t> prefill_bits, decode_bits;
      for (const auto& [page_tokens, threads] : {std::pair{64, 1}, {1, 2}, {16, 3}, {64, 4}}) {
        if (slow() && threads > 2) continue;
        ThreadPool pool(threads);
        const auto ops = MakeOps(pool);
        const auto kv_b = ops->Pack(layer.kv_b_view(), Precision::kProduction);
        ASSERT_TRUE(kv_b.ok());
        for (const int64_t step : {int64_t{1}, int64_t{7}, tail}) {
          Pages pages(shape, format, page_tokens, length), other(shape, format, page_tokens, 1);
          Write(*ops, layer, pages, length);
          Write(*ops, layer, other, 1);
          std::vector<float> prefill, decode;
          for (int64_t at = length - tail; at < length; at += step) {
            const int64_t rows = std::min(step, length - at);
            // A sequence of one row comes first in the batch.
            const KvRun runs[] = {{other.bases.data(), 0, 0, 1}, {pages.bases.data(), at, 1, rows}};
            const auto batch = [&](const std::vector<float>& q, int64_t width) {
              std::vector<float> result(q.begin(), q.begin() + width);
              result.insert(result.end(), q.begin() + at * width, q.begin() + (at + rows) * width);
              return result;
            };
            const auto keep = [&](const std::vector<float>& out, int64_t width,
                                  std::vector<float>& to) {
              to.insert(to.end(), out.begin() + width, out.end());
            };
            std::vector<float> out(static_cast<size_t>((rows + 1) * shape.heads * shape.value));
            ops->MlaPrefillAttention(shape, pages.slab, runs, *kv_b,
                                     batch(layer.q, shape.heads * (shape.nope + shape.rope)).data(),
                                     out.data());
            keep(out, shape.heads * shape.value, prefill);
            out.resize(static_cast<size_t>((rows + 1) * shape.heads * shape.latent));
            ops->MlaDecodeAttention(
                shape, pages.slab, runs,
                batch(absorbed, shape.heads * (shape.latent + shape.rope)).data(), {}, out.data());
            keep(out, shape.heads * shape.latent, decode);
          }
          if (prefill_bits.empty()) {
            prefill_bits = BitsOf(prefill);
            decode_bits = BitsOf(decode);
          }
          ASSERT_EQ(BitsOf(prefill), prefill_bits) << page_tokens << " " << threads << " " << step;
          ASSERT_EQ(BitsOf(decode), decode_bits) << page_tokens << " " << threads << " " << step;
        }
      }
    }
  }
}

TEST_P(MlaTest, WritesLatentThenRopeRoundedAndNothingElse) {
  ThreadPool pool(1);
  const auto ops = MakeOps(pool);
  const MlaShape shape{.heads = 1, .latent = 5, .rope = 3, .nope = 1, .value = 1};
  Pages pages(shape, KvFormat::kBf16, 2, 4);
  const std::vector<float> latent = RandomFloats(2 * 5, 1), rope = RandomFloats(2 * 3, 2);
  const KvRun run{pages.bases.data(), 1, 0, 2};  // the last slot of page 0, the first of page 1
  ops->MlaWrite(shape, pages.slab, {&run, 1}, latent.data(), rope.data());
  for (size_t page = 0; page < 2; ++page) {
    std::vector<std::byte> expected(pages.storage[page].size(), std::byte{0xFF});
    for (size_t i = 0; i < 8; ++i) {
      const float x = i < 5 ? latent[page * 5 + i] : rope[page * 3 + i - 5];
      const uint16_t bits = Bf16FromFloat(x);
      std::memcpy(expected.data() + 128 + (page == 0 ? 16 : 0) + i * 2, &bits, 2);
    }
    EXPECT_EQ(pages.storage[page], expected) << page;
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, MlaTest, ::testing::ValuesIn(Ops::SupportedIsas()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tern
