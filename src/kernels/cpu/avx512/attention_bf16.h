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

namespace tern {
namespace {

// dots[row][half] += products of numbers [begin, end) of kRows rows, which lie as they are, and of
// 16 * kHalves transposed ones.
template <int kRows, int kHalves>
inline void AddPairDots(const uint32_t* transposed, int64_t dim, int64_t begin, int64_t end,
                        const uint16_t* const rows[kRows], __m512 dots[kRows][kHalves]) {
  const uint32_t* halves[] = {transposed, transposed + SixteenWords(dim)};
  for (int64_t d = begin; d < end; d += 2) {
    __m512bh pairs[kHalves];
    for (int half = 0; half < kHalves; ++half) {
      pairs[half] = (__m512bh)_mm512_loadu_si512(halves[half] + d / 2 * kLanes);
    }
    for (int i = 0; i < kRows; ++i) {
      for (int half = 0; half < kHalves; ++half) {
        dots[i][half] = Dot(dots[i][half], pairs[half], rows[i] + d);
      }
    }
  }
}

// Dots of 32 rows, transposed, and kRows rows that are not: dots[row][half of the 32]. row(i): the
// numbers of the i-th.
template <int kRows, typename RowOf>
inline void PairDots(const uint32_t* transposed, int64_t dim, const RowOf& row,
                     __m512 dots[kRows][2]) {
  const uint16_t* rows[kRows];
  for (int i = 0; i < kRows; ++i) {
    rows[i] = row(i);
    dots[i][0] = dots[i][1] = _mm512_setzero_ps();
  }
  AddPairDots<kRows, 2>(transposed, dim, 0, dim, rows, dots);
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

// Scores with queries as lanes: nothing of the rows is transposed, and they are read in order, the
// row kLaneTile further on being asked for. Positions of a tile are a multiple of a register's.
constexpr int64_t kLaneTile = 48;
// Queries that make lanes the faster way, though half of them are idle.
constexpr int64_t kLaneQueries = 8;

// dots[half][kLaneTile positions][16 queries]. The rows asked for have ahead_bytes per 32 numbers.
template <int kHalves>
struct LaneDots {
  // As many as have registers for their sums and pointers.
  static constexpr int kMostRows = kHalves == 1 ? 12 : 8;
  template <int kRows>
  struct Rows {
    static void Run(const uint32_t* queries, int64_t key_dim, const RowRef* rows,
                    int64_t ahead_bytes, float* dots) {
      const uint16_t* numbers[kRows];
      __m512 sums[kRows][kHalves];
      for (int i = 0; i < kRows; ++i) {
        numbers[i] = reinterpret_cast<const uint16_t*>(rows[i].numbers);
        for (int half = 0; half < kHalves; ++half) sums[i][half] = _mm512_setzero_ps();
      }
      for (int64_t d = 0; d < key_dim; d += 32) {
        for (int i = 0; i < kRows; ++i) {
          __builtin_prefetch(rows[kLaneTile + i].numbers + d / 32 * ahead_bytes, 0, 2);
        }
        AddPairDots<kRows, kHalves>(queries, key_dim, d, MinOf(d + 32, key_dim), numbers, sums);
      }
      for (int i = 0; i < kRows; ++i) {
        for (int half = 0; half < kHalves; ++half) {
          _mm512_store_ps(dots + (half * kLaneTile + i) * kLanes, sums[i][half]);
        }
      }
    }
  };
};

// Scores of up to 16 * kHalves queries, transposed, against BF16 rows of up to kLaneTile positions.
template <int kHalves>
void ScoreLanes(const uint32_t* transposed, int64_t queries, int64_t key_dim, const RowRef* rows,
                int64_t count, int64_t ahead_bytes, float scale, float* scores) {
  constexpr int kMostRows = LaneDots<kHalves>::kMostRows;
  alignas(64) float dots[kHalves * kLaneTile * kLanes];
  for (int64_t j = 0; j < count; j += kMostRows) {
    RunBlock<LaneDots<kHalves>::template Rows, kMostRows>(count - j, transposed, key_dim, rows + j,
                                                          ahead_bytes, dots + j * kLanes);
  }
  for (int64_t first = 0; first < queries; first += kLanes) {
    for (int64_t j = 0; j < count; j += kLanes) {
      Vec tile[kLanes];
      for (int i = 0; i < kLanes; ++i) tile[i] = Load(dots + first * kLaneTile + (j + i) * kLanes);
      Transpose(tile);
      for (int64_t i = 0; i < MinOf(kLanes, queries - first); ++i) {
        Store(scores + (first + i) * kAttentionChunk + j, Mul(tile[i], Set(scale)));
      }
    }
  }
}

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

// Weighted sums of the values of a chunk. Where queries see different numbers of positions, blocks
// of them go one after another.
template <typename Loads, typename Limit>
void AddChunkValues(const Loads& format, const RowRef* row, int64_t queries, int64_t value_dim,
                    const uint16_t* weights, const Limit& limit, float* states) {
  const int64_t stride = AttentionStateFloats(value_dim);
  const int64_t block = limit(0) == limit(queries - 1) ? queries : kPairQueries;
  for (int64_t i = 0; i < queries; i += block) {
    const int64_t last = MinOf(i + block, queries) - 1;
    // Limits ascend with the row. Where they differ, whole pairs are common.
    const int64_t common = limit(i) == limit(last) ? limit(i) : limit(i) / 2 * 2;
    NothingAhead nothing;
    AddValuePairs(format, row, 0, common, value_dim, last + 1 - i,
                  weights + i * 2 * kAttentionChunk, states + i * stride, nothing);
    for (int64_t j = i; j <= last; ++j) {
      AddValuePairs(format, row, common, limit(j), value_dim, 1, weights + j * 2 * kAttentionChunk,
                    states + j * stride, nothing);
    }
  }
}

// A query's numbers, as the rows of a tile are given.
inline RowRef QueryRow(const float* numbers) {
  RowRef row;
  row.numbers = reinterpret_cast<const std::byte*>(numbers);
  return row;
}

// Queries as BF16 rows at stride AttentionMaxIndex(key_dim), zeros at their ends.
inline void RoundQueries(QueryBlock query, int64_t queries, int64_t key_dim, uint16_t* rounded) {
  const int64_t stride = AttentionMaxIndex(key_dim);
  for (int64_t i = 0; i < queries; ++i, rounded += stride) {
    for (int64_t d = 0; d < key_dim; d += 2 * kLanes) {
      _mm512_mask_storeu_epi16(rounded + d, FirstOf32(stride - d),
                               RoundedLoads().Load32(QueryRow(query[i]), d, key_dim - d));
    }
  }
}

// Queries as tiles of 32, rounded and transposed.
inline void TransposeQueries(QueryBlock query, int64_t queries, int64_t key_dim, uint32_t* tiles) {
  for (int64_t first = 0; first < queries; first += kKeyTile) {
    const int64_t count = MinOf(kKeyTile, queries - first);
    RowRef rows[kKeyTile];
    for (int64_t i = 0; i < count; ++i) rows[i] = QueryRow(query[first + i]);
    NothingAhead nothing;
    TransposeKeyPairs(RoundedLoads(), rows, count, key_dim,
                      tiles + first / kLanes * SixteenWords(key_dim), nothing, count);
  }
}

template <typename Loads>
void AttentionChunkBf16(const Loads& format, const AttentionArgs& args, const AttentionBlock& block,
                        const float* q, int64_t chunk, float* workspace, float* states) {
  const int64_t key_dim = args.key_dim, value_dim = args.value_dim;
  const int64_t queries = block.rows * block.heads;
  const int64_t begin = chunk * kAttentionChunk;
  const int64_t count = SeenInChunk(args, block, block.rows - 1, chunk);
  const int64_t q_stride = AttentionMaxIndex(key_dim),
                q_tiles = (queries + kKeyTile - 1) / kKeyTile;
  // A transposed tile of keys, rounded queries, transposed or not, scores, expanded rows.
  auto* keys = reinterpret_cast<uint32_t*>(workspace);
  auto* transposed = keys + 2 * SixteenWords(key_dim);
  auto* rounded = reinterpret_cast<uint16_t*>(transposed);
  auto* scores = reinterpret_cast<float*>(transposed + q_tiles * 2 * SixteenWords(key_dim));
  auto* expanded = reinterpret_cast<uint16_t*>(scores + queries * kAttentionChunk);
  const Bf16Loads bf16((RowShape()));

  // Rows that are not transposed are read in pairs.
  const bool lanes = queries >= kLaneQueries && key_dim % 2 == 0;
  const int64_t tile_rows = lanes ? kLaneTile : kKeyTile, row_bytes = format.Offset(key_dim);
  // Rows to ask for: a tile of the next chunk where that comes next, or the last one again.
  const int64_t after =
      args.goes_on ? MinOf(tile_rows, SeenInChunk(args, block, block.rows - 1, chunk + 1)) : 0;
  RowRef row[kAttentionChunk + kLaneTile];
  RowRefs(KeySource(args, block, format.Offset(key_dim)), begin, count + after, row);
  for (int64_t i = count + after; i < count + kLaneTile; ++i) row[i] = row[count + after - 1];
  LinesAhead(row, MinOf(tile_rows, count), row_bytes).Rest();
  const QueryBlock query{q + block.first_head * key_dim, block.heads, key_dim,
                         args.heads * key_dim};
  if (lanes) {
    TransposeQueries(query, queries, key_dim, transposed);
  } else {
    RoundQueries(query, queries, key_dim, rounded);
  }
  const RowScales<Loads> key_scales(row, count, 1);
  for (int64_t tile = 0; tile < count; tile += tile_rows) {
    const int64_t positions = MinOf(tile_rows, count - tile), next = tile + tile_rows;
    if constexpr (!WordFormat<Loads>) {
      if (lanes || LatentCodes<Loads>) {
        ExpandToBf16(format, row + tile, positions, args.latent, key_dim,
                     expanded + tile * q_stride, row + tile);
      }
    }
    if (lanes) {
      const int64_t ahead_bytes = (row_bytes * 32 + key_dim - 1) / key_dim;
      for (int64_t i = 0; i < queries; i += kKeyTile) {
        const int64_t n = MinOf(kKeyTile, queries - i);
        const auto score = n > kLanes ? ScoreLanes<2> : ScoreLanes<1>;
        score(transposed + i / kLanes * SixteenWords(key_dim), n, key_dim, row + tile, positions,
              ahead_bytes, args.scale, scores + i * kAttentionChunk + tile);
      }
      continue;
    }
    LinesAhead(row + next, MaxOf(MinOf(tile_rows, count + after - next), 0), row_bytes).Rest();
    NothingAhead nothing;
    const auto score = [&](const auto& loads) {
      ScoreRows(loads, row + tile, positions, key_dim, queries, rounded, q_stride, args.scale, keys,
                scores + tile, nothing);
    };
    if constexpr (LatentCodes<Loads>) {
      score(bf16);
    } else {
      score(format);
    }
  }
  for (int64_t tile = 0; tile < count; tile += kKeyTile) {
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
