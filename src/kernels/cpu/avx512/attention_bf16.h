// Attention over one chunk of BF16 or FP8 rows with BF16 dot products: queries and softmax weights
// are rounded to BF16, sums are float32. Keys and values are BF16 as stored; e4m3 numbers, and
// their products with e8m0 scales, are exact in BF16; those with the float32 scales of kFp8DsMla
// are rounded to it. Scores add pairs of dimensions in order, values pairs of positions (2 j, 2 j +
// 1) of the chunk in order; a query whose last position has an even number adds it with a zero
// beside it. So the order is the query's own, as in kernels/cpu/attention.h, whose states and rules
// these are. See kernels/cpu/isa_common.h for the rules of this file; vec.h of the level comes
// first.
#pragma once

#include "kernels/cpu/attention.h"
#include "kernels/cpu/avx512/matmul_bf16.h"
#include "kernels/cpu/elementwise.h"

namespace tern {
namespace {

constexpr int kPairQueries = 8;

// Lanes of a register of 32 numbers of which n are left.
inline __mmask32 FirstOf32(int64_t n) {
  return n >= 32 ? ~__mmask32{0} : static_cast<__mmask32>((uint32_t{1} << MaxOf(n, 0)) - 1);
}

// Thirty-two numbers of a row as BF16: the first n, then zeros. One struct per format, beside that
// of kv_row_formats.h.
struct Bf16Loads : Bf16Rows {
  using Bf16Rows::Bf16Rows;
  __m512i Load32(RowRef row, int64_t d, int64_t n) const {
    return _mm512_maskz_loadu_epi16(FirstOf32(n), row.numbers + d * 2);
  }
};

// Magnitudes of 32 e4m3 numbers as BF16, without the sign bit, and the codes, twice in each word.
struct E4m3Magnitudes {
  __m512i magnitude, codes;
};
struct E4m3Expansion {
  E4m3Magnitudes Load(const std::byte* p, int64_t n) const {
    const __m512i bytes = _mm512_castsi256_si512(_mm256_maskz_loadu_epi8(FirstOf32(n), p));
    const __m512i codes = _mm512_permutexvar_epi8(twice, bytes);
    // vpermi2b looks at seven index bits: the sign needs no masking.
    const __m512i low = _mm512_permutex2var_epi8(low0, codes, low1);
    const __m512i high = _mm512_permutex2var_epi8(high0, codes, high1);
    return {_mm512_mask_blend_epi8(0xAAAAAAAAAAAAAAAAu, low, high), codes};
  }
  static __m512i WithSign(E4m3Magnitudes x) {
    constexpr int kOrAnd = 0xF8;  // a | (b & c)
    return _mm512_ternarylogic_epi32(x.magnitude, x.codes, _mm512_set1_epi16(-0x8000), kOrAnd);
  }
  static __m512i Twice() {
    alignas(64) uint8_t index[64];
    for (int i = 0; i < 64; ++i) index[i] = static_cast<uint8_t>(i / 2);
    return _mm512_load_si512(index);
  }
  __m512i low0 = _mm512_load_si512(kE4m3Tables.low), low1 = _mm512_load_si512(kE4m3Tables.low + 64);
  __m512i high0 = _mm512_loadu_si512(kE4m3Tables.high),
          high1 = _mm512_loadu_si512(kE4m3Tables.high + 64);
  __m512i twice = Twice();
};

struct E4m3Loads : E4m3Rows, E4m3Expansion {
  using E4m3Rows::E4m3Rows;
  __m512i Load32(RowRef row, int64_t d, int64_t n) const {
    return WithSign(Load(row.numbers + d, n));
  }
};

struct TiledLoads : TiledRows, E4m3Expansion {
  using TiledRows::TiledRows;
  // Adds the scale's exponent to those of numbers other than zero. Results below BF16's normal
  // numbers become zero or subnormal, which BF16 products take for zero.
  __m512i Load32(RowRef row, int64_t d, int64_t n) const {
    E4m3Magnitudes x = Load(row.numbers + d, n);
    const int exponent = (static_cast<int>(row.scales[ScaleIndex(d)]) - 127) * 128;
    const __mmask32 some = _mm512_test_epi16_mask(x.magnitude, x.magnitude);
    x.magnitude = _mm512_mask_adds_epi16(x.magnitude, some, x.magnitude,
                                         _mm512_set1_epi16(static_cast<int16_t>(exponent)));
    x.magnitude = _mm512_max_epi16(x.magnitude, _mm512_setzero_si512());
    return WithSign(x);
  }
};

struct DsMlaLoads : DsMlaRows, E4m3Expansion {
  using DsMlaRows::DsMlaRows;
  __m512i Load32(RowRef row, int64_t d, int64_t n) const {
    if (d >= shape.latent) return _mm512_maskz_loadu_epi16(FirstOf32(n), Rope(row, d));
    const __m512i words = WithSign(Load(row.numbers + d, n));
    const __m512 scale = _mm512_set1_ps(Scale(row, d));
    const auto product = [&](__m256i half) {
      return _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16)),
                           scale);
    };
    return (__m512i)_mm512_cvtne2ps_pbh(product(_mm512_extracti64x4_epi64(words, 1)),
                                        product(_mm512_castsi512_si256(words)));
  }
};

// What is asked for while rows are read: Step comes once for each register of a row.
struct NothingAhead {
  static constexpr bool kAsks = false;
  void Step() {}
};
// Cache lines of other rows, in the order of addresses, into the second-level cache: it waits for
// more of them at a time than the first.
class LinesAhead {
 public:
  static constexpr bool kAsks = true;
  LinesAhead(const RowRef* rows, int64_t count, int64_t row_bytes)
      : row_(rows), end_(rows + count), row_bytes_(row_bytes) {}
  void Step() {
    if (row_ == end_) return;
    __builtin_prefetch(row_->numbers + at_, 0, 2);
    at_ += 64;
    if (at_ < row_bytes_) return;
    at_ = 0;
    ++row_;
  }
  void Rest() {
    while (row_ != end_) Step();
  }

 private:
  const RowRef *row_, *end_;
  int64_t row_bytes_, at_ = 0;
};

// keys[d / 2][32] of up to 32 positions, pairs of dimensions; absent numbers are zero.
template <typename Loads, typename Ahead>
void TransposeKeyPairs(const Loads& format, const RowRef* rows, int64_t count, int64_t key_dim,
                       uint32_t* keys, Ahead& ahead) {
  for (int64_t d = 0; d < key_dim; d += 2 * kLanes) {
    for (int64_t half = 0; half < kKeyTile; half += kLanes) {
      Vec tile[kLanes];
      for (int64_t i = 0; i < kLanes; ++i) {
        ahead.Step();
        tile[i].v = half + i < count
                        ? _mm512_castsi512_ps(format.Load32(rows[half + i], d, key_dim - d))
                        : _mm512_setzero_ps();
      }
      Transpose(tile);
      for (int64_t i = 0; i < MinOf(kLanes, (key_dim - d + 1) / 2); ++i) {
        _mm512_storeu_ps(keys + (d / 2 + i) * kKeyTile + half, tile[i].v);
      }
    }
  }
}

// scores[query][32 positions] of kQueries queries, rows of q `q_stride` apart.
template <int kQueries>
struct ScorePairs {
  static void Run(const uint32_t* keys, int64_t key_dim, const uint16_t* q, int64_t q_stride,
                  float scale, float* scores) {
    __m512 sum[kQueries][2];
    for (auto& halves : sum) halves[0] = halves[1] = _mm512_setzero_ps();
    for (int64_t d = 0; d < key_dim; d += 2) {
      const auto* pairs = reinterpret_cast<const std::byte*>(keys + d / 2 * kKeyTile);
      const __m512bh low = LoadPair(pairs), high = LoadPair(pairs + 64);
      for (int i = 0; i < kQueries; ++i) {
        sum[i][0] = Dot(sum[i][0], low, q + i * q_stride + d);
        sum[i][1] = Dot(sum[i][1], high, q + i * q_stride + d);
      }
    }
    for (int i = 0; i < kQueries; ++i) {
      Store(scores + i * kAttentionChunk, Mul({sum[i][0]}, Set(scale)));
      Store(scores + i * kAttentionChunk + kLanes, Mul({sum[i][1]}, Set(scale)));
    }
  }
};

// Scores of all queries, at stride kAttentionChunk, of one tile of positions.
inline void ScoreQueryPairs(const uint32_t* keys, int64_t key_dim, int64_t queries,
                            const uint16_t* q, int64_t q_stride, float scale, float* scores) {
  for (int64_t i = 0; i < queries; i += kPairQueries) {
    RunBlock<ScorePairs, kPairQueries>(queries - i, keys, key_dim, q + i * q_stride, q_stride,
                                       scale, scores + i * kAttentionChunk);
  }
}

// Begins the states of queries with what their scores say. The scores become softmax weights in
// BF16, each row in its first half: weights at stride 2 * kAttentionChunk.
template <typename Limit>
uint16_t* WeightsOfScores(int64_t queries, int64_t value_dim, const Limit& limit, float* scores,
                          float* states) {
  const int64_t stride = AttentionStateFloats(value_dim), max_index = AttentionMaxIndex(value_dim);
  auto* weights = reinterpret_cast<uint16_t*>(scores);
  for (int64_t i = 0; i < queries; ++i) {
    float* state = states + i * stride;
    __builtin_memset(state, 0, sizeof(float) * static_cast<size_t>(stride));
    state[max_index] = -__builtin_inff();
    if (limit(i) == 0) continue;
    float* score = scores + i * kAttentionChunk;
    Softmax(score, limit(i), state + max_index, state + max_index + 1);
    for (int64_t j = 0; j < limit(i); j += kLanes) {
      StoreU16(weights + i * 2 * kAttentionChunk + j, RoundBf16(Load(score + j)));
    }
  }
  return weights;
}

// states[query][d .. d + 31] += sum of weights[query][j] * value[j] for j in [begin, end).
// n: numbers of the row from d on. `second`: whether the state has lanes d + 16 .. d + 31.
// REQUIRES: begin is even.
template <typename Loads, typename Ahead>
struct ValuePairs {
  template <int kQueries>
  struct Queries {
    static void Run(const Loads* format, const RowRef* rows, int64_t begin, int64_t end, int64_t d,
                    int64_t n, bool second, const uint16_t* weights, float* states,
                    int64_t state_stride, Ahead* ahead) {
      // Numbers of two rows side by side: of dimensions 0 .. 15, and 16 .. 31.
      alignas(64) uint16_t order[2][32];
      for (int i = 0; i < 32; ++i) {
        order[0][i] = static_cast<uint16_t>(i / 2 + i % 2 * 32);
        order[1][i] = static_cast<uint16_t>(i / 2 + i % 2 * 32 + 16);
      }
      const __m512i order0 = _mm512_load_si512(order[0]), order1 = _mm512_load_si512(order[1]);
      __m512 sum[kQueries][2];
      for (int i = 0; i < kQueries; ++i) {
        sum[i][0] = _mm512_loadu_ps(states + i * state_stride + d);
        sum[i][1] =
            second ? _mm512_loadu_ps(states + i * state_stride + d + kLanes) : _mm512_setzero_ps();
      }
      for (int64_t j = begin; j < end; j += 2) {
        if constexpr (!Ahead::kAsks) {
          Prefetch(rows, MinOf(j + kValuesAhead, end), MinOf(j + kValuesAhead + 2, end),
                   format->Offset(d), format->Offset(d + 32) - format->Offset(d));
        }
        ahead->Step();
        ahead->Step();
        const __m512i a = format->Load32(rows[j], d, n);
        const __m512i b = j + 1 < end ? format->Load32(rows[j + 1], d, n) : _mm512_setzero_si512();
        const auto low = (__m512bh)_mm512_permutex2var_epi16(a, order0, b);
        const auto high = (__m512bh)_mm512_permutex2var_epi16(a, order1, b);
        for (int i = 0; i < kQueries; ++i) {
          const uint16_t* pair = weights + i * 2 * kAttentionChunk + j;
          sum[i][0] = Dot(sum[i][0], low, pair);
          sum[i][1] = Dot(sum[i][1], high, pair);
        }
      }
      for (int i = 0; i < kQueries; ++i) {
        _mm512_storeu_ps(states + i * state_stride + d, sum[i][0]);
        if (second) _mm512_storeu_ps(states + i * state_stride + d + kLanes, sum[i][1]);
      }
    }
  };
};

template <typename Loads, typename Ahead>
void AddValuePairs(const Loads& format, const RowRef* rows, int64_t begin, int64_t end,
                   int64_t value_dim, int64_t queries, const uint16_t* weights, float* states,
                   Ahead& ahead) {
  if (begin >= end) return;
  for (int64_t d = 0; d < value_dim; d += 2 * kLanes) {
    RunBlock<ValuePairs<Loads, Ahead>::template Queries, kPairQueries>(
        queries, &format, rows, begin, end, d, value_dim - d, d + kLanes < value_dim, weights,
        states, AttentionStateFloats(value_dim), &ahead);
  }
}

// Weighted sums of the values of `count` positions, blocks of queries one after another.
template <typename Loads, typename Limit>
void AddChunkValues(const Loads& format, const RowRef* row, int64_t queries, int64_t value_dim,
                    const uint16_t* weights, const Limit& limit, float* states) {
  const int64_t stride = AttentionStateFloats(value_dim);
  for (int64_t i = 0; i < queries; i += kPairQueries) {
    const int64_t block_queries = MinOf(kPairQueries, queries - i);
    // Limits ascend with the row. Where they differ, whole pairs are common.
    const bool equal = limit(i) == limit(i + block_queries - 1);
    const int64_t common = equal ? limit(i) : limit(i) / 2 * 2;
    NothingAhead nothing;
    AddValuePairs(format, row, 0, common, value_dim, block_queries,
                  weights + i * 2 * kAttentionChunk, states + i * stride, nothing);
    for (int64_t j = i; j < i + block_queries; ++j) {
      AddValuePairs(format, row, common, limit(j), value_dim, 1, weights + j * 2 * kAttentionChunk,
                    states + j * stride, nothing);
    }
  }
}

// The first value_dim numbers of `count` rows as BF16 rows, for more than one block of queries.
template <typename Loads>
void ExpandToBf16(const Loads& format, const RowRef* row, int64_t count, int64_t value_dim,
                  uint16_t* out, RowRef* expanded) {
  const int64_t stride = AttentionMaxIndex(value_dim);
  for (int64_t j = 0; j < count; ++j, out += stride) {
    for (int64_t d = 0; d < value_dim; d += 32) {
      _mm512_mask_storeu_epi16(out + d, FirstOf32(value_dim - d),
                               format.Load32(row[j], d, value_dim - d));
    }
    expanded[j] = {reinterpret_cast<const std::byte*>(out), nullptr};
  }
}

// Queries as BF16 rows at stride AttentionMaxIndex(key_dim), of an even number of numbers.
inline void RoundQueries(QueryBlock query, int64_t queries, int64_t key_dim, uint16_t* rounded) {
  const int64_t stride = AttentionMaxIndex(key_dim);
  for (int64_t i = 0; i < queries; ++i) {
    rounded[i * stride + key_dim - 1 + key_dim % 2] = 0;
    ToBf16(query[i], key_dim, rounded + i * stride);
  }
}

template <typename Loads>
void AttentionChunkBf16(const Loads& format, const AttentionArgs& args, const AttentionBlock& block,
                        const float* q, int64_t chunk, float* workspace, float* states) {
  const int64_t key_dim = args.key_dim, value_dim = args.value_dim;
  const int64_t queries = block.rows * block.heads;
  const int64_t begin = chunk * kAttentionChunk;
  const int64_t count = SeenInChunk(args, block, block.rows - 1, chunk);
  // Tile of keys, scores, rounded queries, expanded values.
  auto* keys = reinterpret_cast<uint32_t*>(workspace);
  float* scores = workspace + AttentionMaxIndex(key_dim) * kKeyTile;
  auto* rounded = reinterpret_cast<uint16_t*>(scores + queries * kAttentionChunk);
  const int64_t q_stride = AttentionMaxIndex(key_dim);
  auto* expanded = rounded + queries * AttentionMaxIndex(key_dim);
  RowRef row[kAttentionChunk];

  const QueryBlock query{q + block.first_head * key_dim, block.heads, key_dim,
                         args.heads * key_dim};
  RoundQueries(query, queries, key_dim, rounded);
  RowRefs(KeySource(args, block, format.Offset(key_dim)), begin, count, row);
  for (int64_t tile = 0; tile < count; tile += kKeyTile) {
    Prefetch(row, MinOf(tile + kKeyTile, count), MinOf(tile + 2 * kKeyTile, count), 0,
             format.Offset(key_dim));
    NothingAhead nothing;
    TransposeKeyPairs(format, row + tile, MinOf(kKeyTile, count - tile), key_dim, keys, nothing);
    ScoreQueryPairs(keys, key_dim, queries, rounded, q_stride, args.scale, scores + tile);
  }

  const auto limit = [&](int64_t i) { return SeenInChunk(args, block, i / block.heads, chunk); };
  const uint16_t* weights = WeightsOfScores(queries, value_dim, limit, scores, states);

  RowRefs(ValueSource(args, block, format.Offset(value_dim)), begin, count, row);
  if (args.format != KvFormat::kBf16 && queries > kPairQueries) {
    ExpandToBf16(format, row, count, value_dim, expanded, row);
    AddChunkValues(Bf16Loads(RowShape()), row, queries, value_dim, weights, limit, states);
  } else {
    AddChunkValues(format, row, queries, value_dim, weights, limit, states);
  }
}

void AttentionChunkOf512(const AttentionArgs& args, const AttentionBlock& block, const float* q,
                         int64_t chunk, float* workspace, float* states) {
  const auto attend = [&](const auto& format) {
    AttentionChunkBf16(format, args, block, q, chunk, workspace, states);
  };
  const RowShape shape{args.latent};
  if (!args.bf16_products) return AttentionChunk(args, block, q, chunk, workspace, states);
  switch (args.format) {
    case KvFormat::kF32:
      return AttentionChunk(args, block, q, chunk, workspace, states);
    case KvFormat::kBf16:
      return attend(Bf16Loads(shape));
    case KvFormat::kFp8E4m3:
      return attend(E4m3Loads(shape));
    case KvFormat::kFp8Tiled:
      return attend(TiledLoads(shape));
    case KvFormat::kFp8DsMla:
      return attend(DsMlaLoads(shape));
  }
}

}  // namespace
}  // namespace tern
