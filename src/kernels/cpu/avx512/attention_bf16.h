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
    format.ScaleScores(row + tile, MinOf(kKeyTile, count - tile), queries, scores + tile);
  }

  const auto limit = [&](int64_t i) { return SeenInChunk(args, block, i / block.heads, chunk); };
  uint16_t* weights = WeightsOfScores(queries, value_dim, limit, scores, states);

  RowRefs(ValueSource(args, block, format.Offset(value_dim)), begin, count, row);
  format.ScaleWeights(row, count, queries, weights);
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
      if (args.latent == 0) return attend(RowScaledLoads(shape));
      return attend(TiledLoads(shape));
    case KvFormat::kFp8DsMla:
      return attend(DsMlaLoads(shape));
  }
}

}  // namespace
}  // namespace tern
