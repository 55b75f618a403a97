// Attention over one chunk of BF16 or FP8 rows with BF16 dot products: queries and softmax weights
// are rounded to BF16, sums are float32. Keys and values are BF16 as stored; e4m3 numbers, and
// their products with e8m0 scales, are exact in BF16; those with the float32 scales of kFp8DsMla
// are rounded to it. Scores add pairs of dimensions in order, values pairs of positions (2 j, 2 j +
// 1) of the chunk in order; a query whose last position has an even number adds it with a zero
// beside it. So the order is the query's own, as in kernels/cpu/attention.h, whose states and rules
// these are. See kernels/cpu/isa_common.h for the rules of this file; vec.h of the level comes
// first.
#pragma once

#include "kernels/cpu/avx512/kv_tiles_e4m3.h"
#include "kernels/cpu/elementwise.h"

namespace tern {
namespace {

// Dots of 32 rows, transposed, and kQueries rows that are not: dots[query][half of the 32]. row(i):
// the numbers of the i-th.
template <int kQueries, typename RowOf>
inline void PairDots(const uint32_t* transposed, int64_t dim, const RowOf& row,
                     __m512 dots[kQueries][2]) {
  const uint16_t* rows[kQueries];
  for (int i = 0; i < kQueries; ++i) {
    rows[i] = row(i);
    dots[i][0] = dots[i][1] = _mm512_setzero_ps();
  }
  for (int64_t d = 0; d < dim; d += 2) {
    const auto* pairs = reinterpret_cast<const std::byte*>(transposed + d / 2 * kKeyTile);
    const __m512bh low = LoadPair(pairs), high = LoadPair(pairs + 64);
    for (int i = 0; i < kQueries; ++i) {
      dots[i][0] = Dot(dots[i][0], low, rows[i] + d);
      dots[i][1] = Dot(dots[i][1], high, rows[i] + d);
    }
  }
}

// scores[query][32 positions] of kQueries queries, rows of q `q_stride` apart.
template <int kQueries>
struct ScorePairs {
  static void Run(const uint32_t* keys, int64_t key_dim, const uint16_t* q, int64_t q_stride,
                  float scale, float* scores) {
    __m512 dots[kQueries][2];
    PairDots<kQueries>(
        keys, key_dim, [=](int i) { return q + i * q_stride; }, dots);
    for (int i = 0; i < kQueries; ++i) {
      Store(scores + i * kAttentionChunk, Mul({dots[i][0]}, Set(scale)));
      Store(scores + i * kAttentionChunk + kLanes, Mul({dots[i][1]}, Set(scale)));
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

// Scores of all queries against one tile of rows. Few queries multiply codes as they become words.
template <typename Loads, typename Ahead>
void ScoreRows(const Loads& format, const RowRef* rows, int64_t count, int64_t key_dim,
               int64_t queries, const uint16_t* q, int64_t q_stride, float scale, uint32_t* keys,
               float* scores, Ahead& ahead) {
  if constexpr (CodeFormat<Loads>) {
    if (queries <= kCodeQueries) {
      TransposeCodes(rows, count, key_dim, ahead, [&](int64_t d, int64_t half, __m512i codes) {
        _mm512_storeu_si512(keys + d / 4 * kKeyTile + half, codes);
      });
      return RunBlock<ScoreCodes, kCodeQueries>(queries, keys, key_dim, q, q_stride, scale, scores);
    }
  }
  TransposeKeyPairs(format, rows, count, key_dim, keys, ahead);
  ScoreQueryPairs(keys, key_dim, queries, q, q_stride, scale, scores);
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
      // Subnormal ones become zero, which products take them for.
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(weights + i * 2 * kAttentionChunk + j),
                          (__m256i)_mm512_cvtneps_pbh(Load(score + j).v));
    }
  }
  return weights;
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

// Queries as BF16 rows at stride AttentionMaxIndex(key_dim), with zeros up to a multiple of four.
inline void RoundQueries(QueryBlock query, int64_t queries, int64_t key_dim, uint16_t* rounded) {
  const int64_t stride = AttentionMaxIndex(key_dim);
  for (int64_t i = 0; i < queries; ++i) {
    for (int64_t d = key_dim; d % 4 != 0; ++d) rounded[i * stride + d] = 0;
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
  // Tile of keys, scores, rounded queries, expanded rows.
  auto* keys = reinterpret_cast<uint32_t*>(workspace);
  float* scores = workspace + AttentionMaxIndex(key_dim) * kKeyTile;
  auto* rounded = reinterpret_cast<uint16_t*>(scores + queries * kAttentionChunk);
  const int64_t q_stride = AttentionMaxIndex(key_dim);
  auto* expanded = rounded + queries * q_stride;
  const Bf16Loads bf16((RowShape()));
  RowRef row[kAttentionChunk];

  const QueryBlock query{q + block.first_head * key_dim, block.heads, key_dim,
                         args.heads * key_dim};
  RoundQueries(query, queries, key_dim, rounded);
  RowRefs(KeySource(args, block, format.Offset(key_dim)), begin, count, row);
  const RowScales<Loads> key_scales(row, count, 1);
  for (int64_t tile = 0; tile < count; tile += kKeyTile) {
    const int64_t positions = MinOf(kKeyTile, count - tile);
    NothingAhead nothing;
    const auto score = [&](const auto& loads) {
      ScoreRows(loads, row + tile, positions, key_dim, queries, rounded, q_stride, args.scale, keys,
                scores + tile, nothing);
    };
    Prefetch(row, MinOf(tile + kKeyTile, count), MinOf(tile + 2 * kKeyTile, count), 0,
             format.Offset(key_dim));
    if constexpr (LatentCodes<Loads>) {
      ExpandToBf16(format, row + tile, positions, args.latent, key_dim, expanded + tile * q_stride,
                   row + tile);
      score(bf16);
    } else {
      score(format);
    }
    key_scales.ScaleScores(0, tile, queries, scores + tile);
  }

  const auto limit = [&](int64_t i) { return SeenInChunk(args, block, i / block.heads, chunk); };
  uint16_t* weights = WeightsOfScores(queries, value_dim, limit, scores, states);

  const auto add_values = [&](const auto& loads) {
    AddChunkValues(loads, row, queries, value_dim, weights, limit, states);
  };
  if constexpr (LatentCodes<Loads>) {
    add_values(bf16);
  } else {
    RowRefs(ValueSource(args, block, format.Offset(value_dim)), begin, count, row);
    RowScales<Loads>(row, count, 1).ScaleWeights(0, count, queries, weights);
    if constexpr (CodeFormat<Loads>) {
      if (queries > kPairQueries) {
        ExpandToBf16(format, row, count, 0, value_dim, expanded, row);
        return add_values(bf16);
      }
    }
    add_values(format);
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
      if (args.latent == 0) return attend(E4m3Loads(shape));
      return attend(E4m3Latents(shape));
    case KvFormat::kFp8Tiled:
      if (args.latent == 0) return attend(RowScaledLoads(shape));
      return attend(TiledLatents(shape));
    case KvFormat::kFp8DsMla:
      return attend(DsMlaLatents(shape));
  }
}

}  // namespace
}  // namespace tern
