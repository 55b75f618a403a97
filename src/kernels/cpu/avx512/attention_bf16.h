// Attention over one chunk of BF16 rows with BF16 dot products: queries and softmax weights are
// rounded to BF16, keys and values are as stored, sums are float32. Scores add pairs of dimensions
// in order, values pairs of positions (2 j, 2 j + 1) of the chunk in order; a query whose last
// position has an even number adds it with a zero beside it. So the order is the query's own, as in
// kernels/cpu/attention.h, whose states and rules these are.
// See kernels/cpu/isa_common.h for the rules of this file; vec.h of the level comes first.
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

// keys[d / 2][32] of up to 32 positions, pairs of dimensions; absent numbers are zero.
void TransposeKeyPairs(const std::byte* const* rows, int64_t count, int64_t key_dim,
                       uint32_t* keys) {
  for (int64_t d = 0; d < key_dim; d += 2 * kLanes) {
    const __mmask32 mask = FirstOf32(key_dim - d);
    for (int64_t half = 0; half < kKeyTile; half += kLanes) {
      Vec tile[kLanes];
      for (int64_t i = 0; i < kLanes; ++i) {
        const __mmask32 present = half + i < count ? mask : 0;
        const std::byte* row = half + i < count ? rows[half + i] + d * 2 : rows[0];
        tile[i].v = _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(present, row));
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

// states[query][d .. d + 31] += sum of weights[query][j] * value[j] for j in [begin, end).
// `second`: whether the state has lanes d + 16 .. d + 31. REQUIRES: begin is even.
template <int kQueries>
struct ValuePairs {
  static void Run(const std::byte* const* rows, int64_t begin, int64_t end, int64_t d,
                  __mmask32 mask, bool second, const uint16_t* weights, float* states,
                  int64_t state_stride) {
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
      Prefetch(rows, MinOf(j + kValuesAhead, end), MinOf(j + kValuesAhead + 2, end), d * 2, 64);
      const __m512i a = _mm512_maskz_loadu_epi16(mask, rows[j] + d * 2);
      const __m512i b = j + 1 < end ? _mm512_maskz_loadu_epi16(mask, rows[j + 1] + d * 2)
                                    : _mm512_setzero_si512();
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

void AddValuePairs(const std::byte* const* rows, int64_t begin, int64_t end, int64_t value_dim,
                   int64_t queries, const uint16_t* weights, float* states) {
  if (begin >= end) return;
  for (int64_t d = 0; d < value_dim; d += 2 * kLanes) {
    RunBlock<ValuePairs, kPairQueries>(queries, rows, begin, end, d, FirstOf32(value_dim - d),
                                       d + kLanes < value_dim, weights, states,
                                       AttentionStateFloats(value_dim));
  }
}

void AttentionChunkBf16(const AttentionArgs& args, const AttentionBlock& block, const float* q,
                        int64_t chunk, float* workspace, float* states) {
  const int64_t key_dim = args.key_dim, value_dim = args.value_dim;
  const int64_t queries = block.rows * block.heads, stride = AttentionStateFloats(value_dim);
  const int64_t max_index = AttentionMaxIndex(value_dim);
  const int64_t begin = chunk * kAttentionChunk;
  const int64_t count = SeenInChunk(args, block, block.rows - 1, chunk);
  // Tile of keys, scores (then weights, in the first half of each row), rounded queries.
  auto* keys = reinterpret_cast<uint32_t*>(workspace);
  float* scores = workspace + AttentionMaxIndex(key_dim) * kKeyTile;
  auto* weights = reinterpret_cast<uint16_t*>(scores);
  auto* rounded = reinterpret_cast<uint16_t*>(scores + queries * kAttentionChunk);
  const int64_t q_stride = AttentionMaxIndex(key_dim);
  const std::byte* row[kAttentionChunk];

  const QueryBlock query{q + block.first_head * key_dim, block.heads, key_dim,
                         args.heads * key_dim};
  for (int64_t i = 0; i < queries; ++i) {
    rounded[i * q_stride + key_dim - 1 + key_dim % 2] = 0;
    ToBf16(query[i], key_dim, rounded + i * q_stride);
  }
  RowPointers<Bf16Rows>(args, args.k_offset_bytes, args.k_row, key_dim, block.kv_head, begin, count,
                        row);
  for (int64_t tile = 0; tile < count; tile += kKeyTile) {
    Prefetch(row, MinOf(tile + kKeyTile, count), MinOf(tile + 2 * kKeyTile, count), 0, key_dim * 2);
    TransposeKeyPairs(row + tile, MinOf(kKeyTile, count - tile), key_dim, keys);
    for (int64_t i = 0; i < queries; i += kPairQueries) {
      RunBlock<ScorePairs, kPairQueries>(queries - i, static_cast<const uint32_t*>(keys), key_dim,
                                         static_cast<const uint16_t*>(rounded + i * q_stride),
                                         q_stride, args.scale, scores + i * kAttentionChunk + tile);
    }
  }

  const auto limit = [&](int64_t i) { return SeenInChunk(args, block, i / block.heads, chunk); };
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

  RowPointers<Bf16Rows>(args, args.v_offset_bytes, args.v_row, value_dim, block.kv_head, begin,
                        count, row);
  for (int64_t i = 0; i < queries; i += kPairQueries) {
    const int64_t block_queries = MinOf(kPairQueries, queries - i);
    // Limits ascend with the row. Where they differ, whole pairs are common.
    const bool equal = limit(i) == limit(i + block_queries - 1);
    const int64_t common = equal ? limit(i) : limit(i) / 2 * 2;
    AddValuePairs(row, 0, common, value_dim, block_queries, weights + i * 2 * kAttentionChunk,
                  states + i * stride);
    for (int64_t j = i; j < i + block_queries; ++j) {
      AddValuePairs(row, common, limit(j), value_dim, 1, weights + j * 2 * kAttentionChunk,
                    states + j * stride);
    }
  }
}

void AttentionChunkOf512(const AttentionArgs& args, const AttentionBlock& block, const float* q,
                         int64_t chunk, float* workspace, float* states) {
  if (args.bf16_products && args.format == KvFormat::kBf16) {
    AttentionChunkBf16(args, block, q, chunk, workspace, states);
  } else {
    AttentionChunk(args, block, q, chunk, workspace, states);
  }
}

}  // namespace
}  // namespace tern
