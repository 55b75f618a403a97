// Attention over one chunk of positions, and the indexer's scores of it, written once over Vec.
// Latent attention is the case of one KV head whose value is the first part of its key.
//
// Keys of 32 positions are transposed so that lanes are positions: every query of the block (rows x
// heads that share the KV head) then adds its products in the order of dimensions. Values are read
// row by row with lanes over dimensions: products are added in the order of positions. Both orders
// are the query's own: they depend on neither the block, nor pages, nor the batch. A query never
// multiplies a value past its own position (a later row may hold infinities).
// See kernels/cpu/isa_common.h for the rules of this file; vec.h of a level comes first.
#pragma once

#include "kernels/cpu/kv_row_formats.h"

namespace tern {
namespace {

constexpr int64_t kKeyTile = 32;
constexpr int64_t kValuesAhead = 16;

// keys[d][32] of up to 32 positions; absent positions are zero.
template <typename Rows>
void TransposeKeys(const Rows& format, const RowRef* rows, int64_t count, int64_t head_dim,
                   float* keys) {
  for (int64_t d = 0; d < head_dim; d += kLanes) {
    const int64_t dims = MinOf(kLanes, head_dim - d);
    for (int64_t half = 0; half < kKeyTile; half += kLanes) {
      Vec tile[kLanes];
      for (int64_t i = 0; i < kLanes; ++i) {
        tile[i] = half + i >= count ? Zero()
                  : dims == kLanes  ? format.Read(rows[half + i], d)
                                    : format.ReadPartial(rows[half + i], d, dims);
      }
      Transpose(tile);
      for (int64_t i = 0; i < dims; ++i) Store(keys + (d + i) * kKeyTile + half, tile[i]);
    }
  }
}

// Asks for rows that are needed soon: a KV head's rows lie a row of all heads apart, too far for
// the CPU's own prefetching. kLevel 3: into the first-level cache; 2: the second.
template <int kLevel = 3>
inline void Prefetch(const RowRef* rows, int64_t begin, int64_t end, int64_t offset,
                     int64_t bytes) {
  for (int64_t i = begin; i < end; ++i) {
    for (int64_t at = 0; at < bytes; at += 64) {
      __builtin_prefetch(rows[i].numbers + offset + at, 0, kLevel);
    }
  }
}

// Query number i of a block: rows of all heads, `group` of which belong to the block.
struct QueryBlock {
  const float* first;
  int64_t group, head_dim, row_stride;
  const float* operator[](int64_t i) const {
    return first + i / group * row_stride + i % group * head_dim;
  }
};

template <int kQueries>
struct ScoreQueries {
  static void Run(const float* keys, QueryBlock q, int64_t query, float scale, float* scores) {
    Vec sum[kQueries][2];
    const float* vectors[kQueries];
    for (int i = 0; i < kQueries; ++i) {
      sum[i][0] = sum[i][1] = Zero();
      vectors[i] = q[query + i];
    }
    for (int64_t d = 0; d < q.head_dim; ++d) {
      const Vec low = Load(keys + d * kKeyTile), high = Load(keys + d * kKeyTile + kLanes);
      for (int i = 0; i < kQueries; ++i) {
        const Vec x = Set(vectors[i][d]);
        sum[i][0] = MulAdd(low, x, sum[i][0]);
        sum[i][1] = MulAdd(high, x, sum[i][1]);
      }
    }
    for (int i = 0; i < kQueries; ++i) {
      float* out = scores + (query + i) * kAttentionChunk;
      Store(out, Mul(sum[i][0], Set(scale)));
      Store(out + kLanes, Mul(sum[i][1], Set(scale)));
    }
  }
};

// Scores [0, count) become exp(score - largest), the rest of the last lanes zero.
[[maybe_unused]] void Softmax(float* scores, int64_t count, float* largest_out, float* sum_out) {
  float largest = -__builtin_inff();
  for (int64_t i = count; i % kLanes != 0; ++i) scores[i] = -__builtin_inff();
  Vec lanes = Set(largest);
  for (int64_t i = 0; i < count; i += kLanes) lanes = Max(Load(scores + i), lanes);
  largest = ReduceMax(lanes);
  Vec sum = Zero();
  for (int64_t i = 0; i < count; i += kLanes) {
    const Vec weight = Exp(Sub(Load(scores + i), Set(largest)));
    Store(scores + i, weight);
    sum = Add(sum, weight);
  }
  *largest_out = largest;
  *sum_out = ReduceAdd(sum);
}

// states[query + i][d..] += weights[query + i][j] * value[j][d..] for j in [begin, end).
template <typename Rows, int kVecs>
struct ValueBlock {
  template <int kQueries>
  struct Queries {
    static void Run(const Rows* format, const RowRef* rows, int64_t begin, int64_t end, int64_t d,
                    const float* weights, float* states, int64_t state_stride) {
      Vec sum[kQueries][kVecs];
      for (int i = 0; i < kQueries; ++i) {
        for (int v = 0; v < kVecs; ++v)
          sum[i][v] = Load(states + i * state_stride + d + v * kLanes);
      }
      for (int64_t j = begin; j < end; ++j) {
        Prefetch(rows, MinOf(j + kValuesAhead, end), MinOf(j + kValuesAhead + 1, end),
                 format->Offset(d), format->Offset(d + kVecs * kLanes) - format->Offset(d));
        Vec value[kVecs];
        for (int v = 0; v < kVecs; ++v) value[v] = format->Read(rows[j], d + v * kLanes);
        for (int i = 0; i < kQueries; ++i) {
          const Vec weight = Set(weights[i * kAttentionChunk + j]);
          for (int v = 0; v < kVecs; ++v) sum[i][v] = MulAdd(weight, value[v], sum[i][v]);
        }
      }
      for (int i = 0; i < kQueries; ++i) {
        for (int v = 0; v < kVecs; ++v)
          Store(states + i * state_stride + d + v * kLanes, sum[i][v]);
      }
    }
  };
};

// All dimensions of `queries` queries over positions [begin, end) of the chunk.
template <typename Rows>
void AddValues(const Rows& format, const RowRef* rows, int64_t begin, int64_t end,
               int64_t value_dim, int64_t queries, const float* weights, float* states) {
  if (begin >= end) return;
  const int64_t stride = AttentionStateFloats(value_dim);
  int64_t d = 0;
  for (; d + kValueVecs * kLanes <= value_dim; d += kValueVecs * kLanes) {
    RunBlock<ValueBlock<Rows, kValueVecs>::template Queries, kValueQueries>(
        queries, &format, rows, begin, end, d, weights, states, stride);
  }
  for (; d + kLanes <= value_dim; d += kLanes) {
    RunBlock<ValueBlock<Rows, 1>::template Queries, kValueQueries>(queries, &format, rows, begin,
                                                                   end, d, weights, states, stride);
  }
  if (d == value_dim) return;
  for (int64_t i = 0; i < queries; ++i) {
    Vec sum = Load(states + i * stride + d);
    for (int64_t j = begin; j < end; ++j) {
      const Vec value = format.ReadPartial(rows[j], d, value_dim - d);
      sum = MulAdd(Set(weights[i * kAttentionChunk + j]), value, sum);
    }
    Store(states + i * stride + d, sum);
  }
}

// Scores of queries [0, queries) at stride kAttentionChunk for one tile of positions.
[[maybe_unused]] inline void ScoreTile(const float* keys, QueryBlock block, int64_t queries,
                                       float scale, float* scores) {
  for (int64_t i = 0; i < queries; i += kScoreQueries) {
    RunBlock<ScoreQueries, kScoreQueries>(queries - i, keys, block, i, scale, scores);
  }
}

// Positions of a chunk that a row may see.
[[maybe_unused]] inline int64_t SeenInChunk(const AttentionArgs& args, const AttentionBlock& block,
                                            int64_t row, int64_t chunk) {
  const int64_t seen = args.positions != nullptr ? args.selected : block.first_position + row + 1;
  return MaxOf(0, MinOf(kAttentionChunk, seen - chunk * kAttentionChunk));
}

template <typename Rows>
void AttentionChunkOf(const Rows& format, const AttentionArgs& args, const AttentionBlock& block,
                      const float* q, int64_t chunk, float* workspace, float* states) {
  const int64_t key_dim = args.key_dim, value_dim = args.value_dim;
  const int64_t queries = block.rows * block.heads, stride = AttentionStateFloats(value_dim);
  const int64_t max_index = AttentionMaxIndex(value_dim);
  const int64_t begin = chunk * kAttentionChunk;
  const int64_t count = SeenInChunk(args, block, block.rows - 1, chunk);
  float* keys = workspace;
  float* scores = workspace + AttentionMaxIndex(key_dim) * kKeyTile;
  RowRef row[kAttentionChunk];

  RowRefs(KeySource(args, block, format.Offset(key_dim)), begin, count, row);
  const QueryBlock query{q + block.first_head * key_dim, block.heads, key_dim,
                         args.heads * key_dim};
  for (int64_t tile = 0; tile < count; tile += kKeyTile) {
    Prefetch(row, MinOf(tile + kKeyTile, count), MinOf(tile + 2 * kKeyTile, count), 0,
             format.Offset(key_dim));
    TransposeKeys(format, row + tile, MinOf(kKeyTile, count - tile), key_dim, keys);
    ScoreTile(keys, query, queries, args.scale, scores + tile);
  }

  const auto limit = [&](int64_t i) { return SeenInChunk(args, block, i / block.heads, chunk); };
  for (int64_t i = 0; i < queries; ++i) {
    float* state = states + i * stride;
    __builtin_memset(state, 0, sizeof(float) * static_cast<size_t>(stride));
    state[max_index] = -__builtin_inff();
    if (limit(i) > 0) {
      Softmax(scores + i * kAttentionChunk, limit(i), state + max_index, state + max_index + 1);
    }
  }

  RowRefs(ValueSource(args, block, format.Offset(value_dim)), begin, count, row);
  for (int64_t i = 0; i < queries; i += kValueQueries) {
    const int64_t block_queries = MinOf(kValueQueries, queries - i);
    const int64_t common = limit(i);  // limits ascend with the row
    AddValues(format, row, 0, common, value_dim, block_queries, scores + i * kAttentionChunk,
              states + i * stride);
    for (int64_t j = i + 1; j < i + block_queries; ++j) {
      AddValues(format, row, common, limit(j), value_dim, 1, scores + j * kAttentionChunk,
                states + j * stride);
    }
  }
}

[[maybe_unused]] void AttentionChunk(const AttentionArgs& args, const AttentionBlock& block,
                                     const float* q, int64_t chunk, float* workspace,
                                     float* states) {
  WithRows(args.format, {args.latent}, [&](const auto& format) {
    AttentionChunkOf(format, args, block, q, chunk, workspace, states);
  });
}

[[maybe_unused]] void ExpandRows(const AttentionArgs& args, int64_t begin, int64_t rows,
                                 int64_t from, int64_t count, float* out) {
  WithRows(args.format, {args.latent}, [&](const auto& format) {
    const RowSource source = KeySource(args, {}, 0);
    for (int64_t i = 0; i < rows; ++i, out += count) {
      RowRef row;
      RowRefs(source, begin + i, 1, &row);
      int64_t d = 0;
      for (; d + kLanes <= count; d += kLanes) Store(out + d, format.Read(row, from + d));
      if (d < count) StorePartial(out + d, format.ReadPartial(row, from + d, count - d), count - d);
    }
  });
}

[[maybe_unused]] void AttentionMerge(int64_t queries, int64_t value_dim, const float* next,
                                     float* states) {
  const int64_t max_index = AttentionMaxIndex(value_dim), stride = AttentionStateFloats(value_dim);
  for (int64_t i = 0; i < queries; ++i, next += stride, states += stride) {
    const float a = states[max_index], b = next[max_index];
    if (next[max_index + 1] == 0.0f && b == -__builtin_inff()) continue;  // saw no position
    const float largest = a > b ? a : b;
    float shifts[kLanes] = {a - largest, b - largest};
    Store(shifts, Exp(Load(shifts)));
    for (int64_t d = 0; d < max_index; d += kLanes) {
      const Vec old = Mul(Load(states + d), Set(shifts[0]));
      Store(states + d, MulAdd(Load(next + d), Set(shifts[1]), old));
    }
    states[max_index] = largest;
    states[max_index + 1] = states[max_index + 1] * shifts[0] + next[max_index + 1] * shifts[1];
  }
}

[[maybe_unused]] void AttentionFinish(const AttentionArgs& args, const AttentionBlock& block,
                                      const float* states, float* out) {
  const int64_t value_dim = args.value_dim;
  const int64_t sum_index = AttentionMaxIndex(value_dim) + 1;
  for (int64_t row = 0; row < block.rows; ++row) {
    for (int64_t i = 0; i < block.heads; ++i, states += AttentionStateFloats(value_dim)) {
      float* target = out + (row * args.heads + block.first_head + i) * value_dim;
      const Vec sum = Set(states[sum_index]), scale = Set(args.value_scale);
      for (int64_t d = 0; d < value_dim; d += kLanes) {
        StorePartial(target + d, Mul(Div(Load(states + d), sum), scale), value_dim - d);
      }
    }
  }
}

// Per position: dots in the order of dimensions, then heads in order.
template <typename Rows>
void IndexScoresOf(const Rows& format, const AttentionArgs& args, const AttentionBlock& block,
                   const float* q, const float* w, int64_t chunk, float* workspace, float* scores,
                   int64_t scores_stride) {
  const int64_t heads = args.heads, dim = args.key_dim;
  const int64_t count = SeenInChunk(args, block, block.rows - 1, chunk);
  float* keys = workspace;
  float* dots = workspace + AttentionMaxIndex(dim) * kKeyTile;
  RowRef row[kAttentionChunk];
  RowRefs(KeySource(args, {}, 0), chunk * kAttentionChunk, count, row);
  for (int64_t tile = 0; tile < count; tile += kKeyTile) {
    const int64_t positions = MinOf(kKeyTile, count - tile);
    TransposeKeys(format, row + tile, positions, dim, keys);
    for (int64_t r = 0; r < block.rows; ++r) {
      ScoreTile(keys, QueryBlock{q + r * heads * dim, heads, dim, heads * dim}, heads, args.scale,
                dots);
      Vec sum[2] = {Zero(), Zero()};
      for (int64_t head = 0; head < heads; ++head) {
        const Vec weight = Set(w[r * heads + head]);
        for (int half = 0; half < 2; ++half) {
          const Vec dot = Load(dots + head * kAttentionChunk + half * kLanes);
          sum[half] = MulAdd(weight, Max(dot, Zero()), sum[half]);
        }
      }
      float* out = scores + r * scores_stride + tile;
      StorePartial(out, sum[0], positions);
      StorePartial(out + kLanes, sum[1], positions - kLanes);
    }
  }
}

[[maybe_unused]] void IndexScores(const AttentionArgs& args, const AttentionBlock& block,
                                  const float* q, const float* w, int64_t chunk, float* workspace,
                                  float* scores, int64_t scores_stride) {
  const auto score = [&](const auto& format) {
    IndexScoresOf(format, args, block, q, w, chunk, workspace, scores, scores_stride);
  };
  switch (args.format) {
    case KvFormat::kF32:
      return score(F32Rows(RowShape()));
    case KvFormat::kBf16:
      return score(Bf16Rows(RowShape()));
    default:
      return score(ScaledRows(RowShape()));
  }
}

}  // namespace
}  // namespace tern
