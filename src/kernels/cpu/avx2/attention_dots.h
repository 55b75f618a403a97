// Attention over one chunk of positions with eight lanes: a score adds products lane by lane over
// dimensions, 16 at a time, and then folds its 16 lanes as ReduceAdd does; eight positions fold
// together, or, where many queries share keys, lanes are positions and whole registers fold. Values
// are added in the order of positions. Both orders are the query's own, as in
// kernels/cpu/attention.h, whose states and rules these are. Keys of eight positions, and values
// where more than three queries share them, are expanded to float32 once, in the first-level cache.
// Formats with one scale for a row keep it out of the products: it multiplies scores and weights.
// See kernels/cpu/isa_common.h for the rules of this file; vec.h of the level comes first.
#pragma once

#include "kernels/cpu/attention.h"

namespace tern {
namespace {

constexpr int64_t kDotTile = 8;  // positions whose scores fold together
// Of values expanded at a time: with what all queries add to them, they fit the first-level cache.
constexpr int64_t kValueTile = 32, kValueDims = 128;
// Positions from now that are asked for, into the second-level cache: what is expanded fills the
// first.
constexpr int64_t kDotRowsAhead = 32;
constexpr int kDotQueries = 3;       // queries that share a register of keys or values
constexpr int64_t kValueLanes = 32;  // dimensions of values in flight

// Reads one byte of each cache line of `count` rows of all KV heads, in the order of addresses, so
// that the passes of single heads find them in the second-level cache: memory gives whole rows at
// twice the rate of one head's parts of them.
inline void ReadWholeRows(const RowRef* rows, int64_t count, int64_t row_bytes) {
  for (int64_t i = 0; i < count; ++i) {
    const auto* row = reinterpret_cast<const volatile std::byte*>(rows[i].numbers);
    for (int64_t at = 0; at < row_bytes; at += 64) (void)row[at];
  }
}

// Whether a call is the first of several that take parts of the same rows, and waits for memory
// more than it computes.
inline bool ReadsWholeRows(const AttentionArgs& args, const AttentionBlock& block) {
  return args.kv_heads > 1 && block.kv_head == 0 && block.rows * block.heads <= 8;
}

// Eight numbers of a row. RowFactor: what makes them the row's, 1 where Load8 does it all; kFactor:
// the same for all rows.
struct Bf16Eights : Bf16Rows {
  using Bf16Rows::Bf16Rows;
  static constexpr bool kRowFactor = false;
  static constexpr float kFactor = 1.0f;
  static float RowFactor(RowRef) { return 1.0f; }
  static __m256 Load8(RowRef row, int64_t d) {
    const auto* words = reinterpret_cast<const __m128i*>(row.numbers + d * 2);
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(words)), 16));
  }
};

struct F32Eights : F32Rows {
  using F32Rows::F32Rows;
  static constexpr bool kRowFactor = false;
  static constexpr float kFactor = 1.0f;
  static float RowFactor(RowRef) { return 1.0f; }
  static __m256 Load8(RowRef row, int64_t d) {
    return _mm256_loadu_ps(At<float>(row.numbers, d * 4));
  }
};

// e4m3 numbers, over 256: as half-precision numbers with their exponent and mantissa bits, exact.
inline __m256 E4m3Over256(const std::byte* p) {
  int64_t bytes;
  __builtin_memcpy(&bytes, p, sizeof(bytes));
  const __m128i words = _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_cvtsi64_si128(bytes)), 7);
  return _mm256_cvtph_ps(_mm_and_si128(words, _mm_set1_epi16(static_cast<int16_t>(0xBFFF))));
}

struct E4m3Eights : E4m3Rows {
  using E4m3Rows::E4m3Rows;
  static constexpr bool kRowFactor = false;
  static constexpr float kFactor = 256.0f;
  static float RowFactor(RowRef) { return 1.0f; }
  static __m256 Load8(RowRef row, int64_t d) { return E4m3Over256(row.numbers + d); }
};

// Grouped-query rows: one scale for a head's row.
struct TiledEights : TiledRows {
  using TiledRows::TiledRows;
  static constexpr bool kRowFactor = true;
  static constexpr float kFactor = 256.0f;
  static float RowFactor(RowRef row) { return FloatOfE8m0(row.scales[0]); }
  static __m256 Load8(RowRef row, int64_t d) { return E4m3Over256(row.numbers + d); }
};

// Latent rows: a scale for each 128 numbers.
struct LatentTiledEights : TiledRows {
  using TiledRows::TiledRows;
  static constexpr bool kRowFactor = false;
  static constexpr float kFactor = 256.0f;
  static float RowFactor(RowRef) { return 1.0f; }
  __m256 Load8(RowRef row, int64_t d) const {
    return _mm256_mul_ps(E4m3Over256(row.numbers + d), _mm256_set1_ps(Scale(row, d)));
  }
};

struct DsMlaEights : DsMlaRows {
  using DsMlaRows::DsMlaRows;
  static constexpr bool kRowFactor = false;
  static constexpr float kFactor = 1.0f;
  static float RowFactor(RowRef) { return 1.0f; }
  __m256 Load8(RowRef row, int64_t d) const {
    if (d >= shape.latent) return Bf16Eights::Load8({Rope(row, d), nullptr}, 0);
    return _mm256_mul_ps(_mm256_mul_ps(E4m3Over256(row.numbers + d), _mm256_set1_ps(256.0f)),
                         _mm256_set1_ps(Scale(row, d)));
  }
};

// Lane sums of eight registers, lanes i and i + 4, then i + 2, i + 1; register j's in lane j.
inline __m256 FoldEight(const __m256* x) {
  __m256 halves[4];
  for (int j = 0; j < 4; ++j) {
    halves[j] = _mm256_add_ps(_mm256_permute2f128_ps(x[j], x[j + 4], 0x20),
                              _mm256_permute2f128_ps(x[j], x[j + 4], 0x31));
  }
  __m256 pairs[2];
  for (int j = 0; j < 2; ++j) {
    pairs[j] = _mm256_add_ps(_mm256_shuffle_ps(halves[2 * j], halves[2 * j + 1], 0x44),
                             _mm256_shuffle_ps(halves[2 * j], halves[2 * j + 1], 0xEE));
  }
  return _mm256_add_ps(_mm256_shuffle_ps(pairs[0], pairs[1], 0x88),
                       _mm256_shuffle_ps(pairs[0], pairs[1], 0xDD));
}

// Lanes [half, half + 8) of the sums of kKeys keys by kQueries queries: as many registers as keys
// and queries share without waiting for memory.
template <int kQueries, int kKeys>
inline void AddDots(const float* key, int64_t dim, const float* const* vectors, int64_t half,
                    __m256 sum[kKeys][kQueries]) {
  for (int j = 0; j < kKeys; ++j) {
    for (int i = 0; i < kQueries; ++i) sum[j][i] = _mm256_setzero_ps();
  }
  for (int64_t d = half; d < dim; d += kLanes) {
    __m256 x[kQueries];
    for (int i = 0; i < kQueries; ++i) x[i] = _mm256_loadu_ps(vectors[i] + d);
    for (int j = 0; j < kKeys; ++j) {
      const __m256 k = _mm256_loadu_ps(key + j * dim + d);
      for (int i = 0; i < kQueries; ++i) sum[j][i] = _mm256_fmadd_ps(k, x[i], sum[j][i]);
    }
  }
}

// keys: [kDotTile][key_dim]. scores[i * kAttentionChunk + j]: query i by key j, times factors[j].
template <int kQueries>
struct DotBlock {
  static constexpr int kKeys = kQueries == 1 ? 8 : 4;
  static void Run(const float* keys, QueryBlock q, int64_t query, __m256 factors, float* scores) {
    __m256 dots[kQueries][kDotTile];
    const float* vectors[kQueries];
    for (int i = 0; i < kQueries; ++i) vectors[i] = q[query + i];
    for (int first = 0; first < kDotTile; first += kKeys) {
      const float* key = keys + first * q.head_dim;
      __m256 sum[kKeys][kQueries];
      AddDots<kQueries, kKeys>(key, q.head_dim, vectors, 0, sum);
      for (int j = 0; j < kKeys; ++j) {
        for (int i = 0; i < kQueries; ++i) dots[i][first + j] = sum[j][i];
      }
      AddDots<kQueries, kKeys>(key, q.head_dim, vectors, 8, sum);
      for (int j = 0; j < kKeys; ++j) {
        for (int i = 0; i < kQueries; ++i) {
          dots[i][first + j] = _mm256_add_ps(dots[i][first + j], sum[j][i]);
        }
      }
    }
    for (int i = 0; i < kQueries; ++i) {
      _mm256_storeu_ps(scores + (query + i) * kAttentionChunk,
                       _mm256_mul_ps(FoldEight(dots[i]), factors));
    }
  }
};

// Scores of all queries at positions [0, count) of the chunk; those up to the next multiple of
// eight are not scores.
template <typename Eights>
void ScoreRows(const Eights& format, const RowRef* rows, int64_t count, QueryBlock q,
               int64_t queries, float scale, float* keys, float* scores) {
  const __m256 all = _mm256_set1_ps(scale * Eights::kFactor);
  const int64_t even = EvenTile(queries, kDotQueries);
  // Rows ahead are asked for before each block of queries: all at once, they would be waited for.
  const int64_t share = (kDotTile * even + queries - 1) / queries;
  Prefetch<2>(rows, 0, MinOf(kDotRowsAhead, count), 0, format.Offset(q.head_dim));
  for (int64_t tile = 0; tile < count; tile += kDotTile) {
    int64_t ahead = tile + kDotRowsAhead;
    const int64_t ahead_end = MinOf(ahead + kDotTile, count);
    alignas(32) float factors[kDotTile];
    for (int64_t j = 0; j < kDotTile; ++j) {
      const RowRef row = rows[MinOf(tile + j, count - 1)];
      factors[j] = Eights::RowFactor(row);
      float* key = keys + j * q.head_dim;
      for (int64_t d = 0; d < q.head_dim; d += 8) _mm256_storeu_ps(key + d, format.Load8(row, d));
    }
    const __m256 row_factors =
        Eights::kRowFactor ? _mm256_mul_ps(_mm256_load_ps(factors), all) : all;
    for (int64_t i = 0; i < queries; i += even) {
      Prefetch<2>(rows, ahead, MinOf(ahead + share, ahead_end), 0, format.Offset(q.head_dim));
      ahead += share;
      RunBlock<DotBlock, kDotQueries>(MinOf(even, queries - i), keys, q, i, row_factors,
                                      scores + tile);
    }
  }
}

// Many queries share keys: then lanes are positions, which costs transposing keys and spares the
// folding of each score. The additions are those of ScoreRows, in the same order.
constexpr int64_t kColumnTile = 16;      // positions
constexpr int64_t kColumnQueries = 12;   // as many queries pay for transposing
constexpr int64_t kColumnFloats = 4096;  // of a tile: it stays in the first-level cache
constexpr int kQueriesOfColumn = 4;      // queries that share a column of keys

// keys: [key_dim][kColumnTile]. Dimensions of one lane l, l + 16, ... are summed first; the sums of
// lanes are added as lanes fold: l and l + 8, then 4, 2 and 1 apart.
template <int kQueries>
struct ColumnBlock {
  // Lanes kLane, kLane + kStride, ... below 16.
  template <int kLane, int kStride>
  [[gnu::always_inline]] static void SumLanes(const float* keys, int64_t dim,
                                              const float* const* vectors, Vec* sum) {
    if constexpr (kStride < kLanes) {
      Vec other[kQueries];
      SumLanes<kLane, 2 * kStride>(keys, dim, vectors, sum);
      SumLanes<kLane + kStride, 2 * kStride>(keys, dim, vectors, other);
#pragma GCC unroll 4
      for (int i = 0; i < kQueries; ++i) sum[i] = Add(sum[i], other[i]);
    } else {
#pragma GCC unroll 4
      for (int i = 0; i < kQueries; ++i) sum[i] = Zero();
      for (int64_t d = kLane; d < dim; d += kLanes) {
        const Vec key = Load(keys + d * kColumnTile);
#pragma GCC unroll 4
        for (int i = 0; i < kQueries; ++i) sum[i] = MulAdd(key, Set(vectors[i][d]), sum[i]);
      }
    }
  }

  static void Run(const float* keys, QueryBlock q, int64_t query, Vec factors, float* scores) {
    const float* vectors[kQueries];
    for (int i = 0; i < kQueries; ++i) vectors[i] = q[query + i];
    Vec sum[kQueries];
    SumLanes<0, 1>(keys, q.head_dim, vectors, sum);
    for (int i = 0; i < kQueries; ++i) {
      Store(scores + (query + i) * kAttentionChunk, Mul(sum[i], factors));
    }
  }
};

// As ScoreRows; scores up to the next multiple of kColumnTile are not scores.
template <typename Eights>
void ScoreColumns(const Eights& format, const RowRef* rows, int64_t count, QueryBlock q,
                  int64_t queries, float scale, float* keys, float* scores) {
  const Vec all = Set(scale * Eights::kFactor);
  const int64_t even = EvenTile(queries, kQueriesOfColumn);
  Prefetch<2>(rows, 0, MinOf(kDotRowsAhead, count), 0, format.Offset(q.head_dim));
  for (int64_t first = 0; first < count; first += kColumnTile) {
    Prefetch<2>(rows, MinOf(first + kDotRowsAhead, count),
                MinOf(first + kDotRowsAhead + kColumnTile, count), 0, format.Offset(q.head_dim));
    float factors[kColumnTile];
    for (int64_t j = 0; j < kColumnTile; ++j) {
      factors[j] = Eights::RowFactor(rows[MinOf(first + j, count - 1)]);
    }
    for (int64_t d = 0; d < q.head_dim; d += kLanes) {
      Vec tile[kLanes];
      for (int64_t j = 0; j < kColumnTile; ++j) {
        const RowRef row = rows[MinOf(first + j, count - 1)];
        tile[j] = {format.Load8(row, d), format.Load8(row, d + 8)};
      }
      Transpose(tile);
      for (int64_t i = 0; i < kLanes; ++i) Store(keys + (d + i) * kColumnTile, tile[i]);
    }
    const Vec row_factors = Eights::kRowFactor ? Mul(Load(factors), all) : all;
    for (int64_t i = 0; i < queries; i += even) {
      RunBlock<ColumnBlock, kQueriesOfColumn>(MinOf(even, queries - i), keys, q, i, row_factors,
                                              scores + first);
    }
  }
}

// Values that have been expanded: [positions][value_dim] float32.
struct ExpandedEights {
  const float* values;
  int64_t value_dim;
  __m256 Value(int64_t j, int64_t d) const { return _mm256_loadu_ps(values + j * value_dim + d); }
};
template <typename Eights>
struct StoredEights {
  const Eights* format;
  const RowRef* rows;
  __m256 Value(int64_t j, int64_t d) const { return format->Load8(rows[j], d); }
};

// states[i][d..] += weights[i][j] * value[j][d..] for j in [begin, end), 32 dimensions at a time.
template <typename Source, int kEights>
struct WeighedBlock {
  template <int kQueries>
  struct Queries {
    static void Run(const Source* source, int64_t begin, int64_t end, int64_t d,
                    const float* weights, float* states, int64_t stride) {
      __m256 sum[kQueries][kEights];
      // Unrolled late, these loops would keep `sum` in memory.
#pragma GCC unroll 4
      for (int i = 0; i < kQueries; ++i) {
#pragma GCC unroll 4
        for (int v = 0; v < kEights; ++v)
          sum[i][v] = _mm256_loadu_ps(states + i * stride + d + 8 * v);
      }
      for (int64_t j = begin; j < end; ++j) {
        __m256 weight[kQueries];
#pragma GCC unroll 4
        for (int i = 0; i < kQueries; ++i) {
          weight[i] = _mm256_broadcast_ss(weights + i * kAttentionChunk + j);
        }
#pragma GCC unroll 4
        for (int v = 0; v < kEights; ++v) {
          const __m256 value = source->Value(j, d + 8 * v);
#pragma GCC unroll 4
          for (int i = 0; i < kQueries; ++i)
            sum[i][v] = _mm256_fmadd_ps(weight[i], value, sum[i][v]);
        }
      }
#pragma GCC unroll 4
      for (int i = 0; i < kQueries; ++i) {
#pragma GCC unroll 4
        for (int v = 0; v < kEights; ++v)
          _mm256_storeu_ps(states + i * stride + d + 8 * v, sum[i][v]);
      }
    }
  };
};

// Of `dims` dimensions; the sources and states begin with the first of them.
template <typename Source>
void AddWeighed(const Source& source, int64_t begin, int64_t end, int64_t dims, int64_t queries,
                const float* weights, float* states, int64_t stride) {
  if (begin >= end) return;
  int64_t d = 0;
  for (; d + kValueLanes <= dims; d += kValueLanes) {
    RunBlock<WeighedBlock<Source, 4>::template Queries, kDotQueries>(queries, &source, begin, end,
                                                                     d, weights, states, stride);
  }
  if (d < dims) {
    RunBlock<WeighedBlock<Source, 2>::template Queries, kDotQueries>(queries, &source, begin, end,
                                                                     d, weights, states, stride);
  }
}

// Weighted values of all queries. limit(i): the positions of the chunk that query i sees.
template <typename Source, typename Limit>
void WeighRows(const Source& source, int64_t begin, int64_t count, int64_t dims, int64_t queries,
               Limit limit, const float* scores, float* states, int64_t stride) {
  const int64_t even = EvenTile(queries, kDotQueries);
  const auto seen = [&](int64_t i) { return MaxOf(0, MinOf(limit(i) - begin, count)); };
  for (int64_t i = 0; i < queries; i += even) {
    const int64_t block = MinOf(even, queries - i);
    const int64_t common = seen(i);  // limits ascend with the row
    AddWeighed(source, 0, common, dims, block, scores + i * kAttentionChunk + begin,
               states + i * stride, stride);
    for (int64_t j = i + 1; j < i + block; ++j) {
      AddWeighed(source, common, seen(j), dims, 1, scores + j * kAttentionChunk + begin,
                 states + j * stride, stride);
    }
  }
}

template <typename Eights>
void AttentionDotsOf(const Eights& format, const AttentionArgs& args, const AttentionBlock& block,
                     const float* q, int64_t chunk, float* workspace, float* states) {
  const int64_t key_dim = args.key_dim, value_dim = args.value_dim;
  const int64_t queries = block.rows * block.heads, stride = AttentionStateFloats(value_dim);
  const int64_t max_index = AttentionMaxIndex(value_dim);
  const int64_t begin = chunk * kAttentionChunk;
  const int64_t count = SeenInChunk(args, block, block.rows - 1, chunk);
  const auto limit = [&](int64_t i) { return SeenInChunk(args, block, i / block.heads, chunk); };
  float* expanded = workspace;  // keys, then values
  float* scores = workspace + AttentionMaxIndex(key_dim) * kKeyTile;
  RowRef row[kAttentionChunk];

  RowRefs(KeySource(args, block, format.Offset(key_dim)), begin, count, row);
  if (ReadsWholeRows(args, block)) ReadWholeRows(row, count, args.k_row_bytes);
  const QueryBlock query{q + block.first_head * key_dim, block.heads, key_dim,
                         args.heads * key_dim};
  if (queries >= kColumnQueries && key_dim * kColumnTile <= kColumnFloats) {
    ScoreColumns(format, row, count, query, queries, args.scale, expanded, scores);
  } else {
    ScoreRows(format, row, count, query, queries, args.scale, expanded, scores);
  }

  RowRefs(ValueSource(args, block, format.Offset(value_dim)), begin, count, row);
  if (ReadsWholeRows(args, block)) ReadWholeRows(row, count, args.v_row_bytes);
  // Rows whose keys hold the values are near by now.
  const int64_t asked = args.latent == 0 ? count : 0;
  Prefetch<2>(row, 0, MinOf(kDotRowsAhead, asked), 0, format.Offset(value_dim));
  for (int64_t i = 0; i < queries; ++i) {
    float* state = states + i * stride;
    __builtin_memset(state, 0, sizeof(float) * static_cast<size_t>(stride));
    state[max_index] = -__builtin_inff();
    const int64_t seen = limit(i);
    if (seen == 0) continue;
    float* weights = scores + i * kAttentionChunk;
    Softmax(weights, seen, state + max_index, state + max_index + 1);
    if constexpr (Eights::kRowFactor) {
      for (int64_t j = 0; j < seen; ++j) weights[j] *= Eights::RowFactor(row[j]);
    }
  }

  for (int64_t first = 0; first < count; first += kValueTile) {
    const int64_t positions = MinOf(kValueTile, count - first);
    Prefetch<2>(row, MinOf(first + kDotRowsAhead, asked),
                MinOf(first + kDotRowsAhead + positions, asked), 0, format.Offset(value_dim));
    if (queries <= kDotQueries) {
      WeighRows(StoredEights<Eights>{&format, row + first}, first, positions, value_dim, queries,
                limit, scores, states, stride);
      continue;
    }
    for (int64_t d = 0; d < value_dim; d += kValueDims) {
      const int64_t dims = MinOf(kValueDims, value_dim - d);
      for (int64_t j = 0; j < positions; ++j) {
        for (int64_t i = 0; i < dims; i += 8) {
          _mm256_storeu_ps(expanded + j * dims + i, format.Load8(row[first + j], d + i));
        }
      }
      WeighRows(ExpandedEights{expanded, dims}, first, positions, dims, queries, limit, scores,
                states + d, stride);
    }
  }
  if (Eights::kFactor == 1.0f) return;
  const __m256 factor = _mm256_set1_ps(Eights::kFactor);
  for (int64_t i = 0; i < queries; ++i) {
    float* state = states + i * stride;
    for (int64_t d = 0; d < value_dim; d += 8) {
      _mm256_storeu_ps(state + d, _mm256_mul_ps(_mm256_loadu_ps(state + d), factor));
    }
  }
}

// Indexer keys of the FP8 formats: one float32 scale per key.
struct ScaledEights : ScaledRows {
  using ScaledRows::ScaledRows;
  static constexpr bool kRowFactor = true;
  static constexpr float kFactor = 256.0f;
  static float RowFactor(RowRef row) { return Scale(row); }
  static __m256 Load8(RowRef row, int64_t d) { return E4m3Over256(row.numbers + d); }
};

// As IndexScoresOf: heads in order.
template <typename Eights>
void IndexDotsOf(const Eights& format, const AttentionArgs& args, const AttentionBlock& block,
                 const float* q, const float* w, int64_t chunk, float* workspace, float* scores,
                 int64_t scores_stride) {
  const int64_t heads = args.heads, dim = args.key_dim;
  const int64_t count = SeenInChunk(args, block, block.rows - 1, chunk);
  float* dots = workspace + AttentionMaxIndex(dim) * kKeyTile;
  RowRef row[kAttentionChunk];
  RowRefs(KeySource(args, {}, 0), chunk * kAttentionChunk, count, row);
  for (int64_t r = 0; r < block.rows; ++r, q += heads * dim, w += heads) {
    ScoreRows(format, row, count, QueryBlock{q, heads, dim, heads * dim}, heads, args.scale,
              workspace, dots);
    float* out = scores + r * scores_stride;
    for (int64_t j = 0; j < count; j += kLanes) {
      Vec sum = Zero();
      for (int64_t head = 0; head < heads; ++head) {
        const Vec dot = Load(dots + head * kAttentionChunk + j);
        sum = MulAdd(Set(w[head]), Max(dot, Zero()), sum);
      }
      StorePartial(out + j, sum, count - j);
    }
  }
}

void IndexDots(const AttentionArgs& args, const AttentionBlock& block, const float* q,
               const float* w, int64_t chunk, float* workspace, float* scores,
               int64_t scores_stride) {
  const auto run = [&](const auto& format) {
    IndexDotsOf(format, args, block, q, w, chunk, workspace, scores, scores_stride);
  };
  if (args.key_dim % kLanes != 0) {
    return IndexScores(args, block, q, w, chunk, workspace, scores, scores_stride);
  }
  switch (args.format) {
    case KvFormat::kF32:
      return run(F32Eights(RowShape()));
    case KvFormat::kBf16:
      return run(Bf16Eights(RowShape()));
    default:
      return run(ScaledEights(RowShape()));
  }
}

void AttentionDots(const AttentionArgs& args, const AttentionBlock& block, const float* q,
                   int64_t chunk, float* workspace, float* states) {
  // Whole groups of sixteen, values no wider than keys: what models have.
  if (args.key_dim % kLanes != 0 || args.value_dim % kLanes != 0 || args.value_dim > args.key_dim) {
    return AttentionChunk(args, block, q, chunk, workspace, states);
  }
  const RowShape shape{args.latent};
  const auto run = [&](const auto& format) {
    AttentionDotsOf(format, args, block, q, chunk, workspace, states);
  };
  switch (args.format) {
    case KvFormat::kF32:
      return run(F32Eights(shape));
    case KvFormat::kBf16:
      return run(Bf16Eights(shape));
    case KvFormat::kFp8E4m3:
      return run(E4m3Eights(shape));
    case KvFormat::kFp8Tiled:
      return args.latent == 0 ? run(TiledEights(shape)) : run(LatentTiledEights(shape));
    case KvFormat::kFp8DsMla:
      return run(DsMlaEights(shape));
  }
}

}  // namespace
}  // namespace tern
