// Attention of one row, all KV heads together, over one chunk of positions: memory gives whole rows
// at twice the rate of one head's parts of them, so tiles of positions are the outer loop, and the
// next tile is asked for line by line while the heads work on this one. Each query's products and
// sums are those of avx512/attention_bf16.h in the same order.
// See kernels/cpu/isa_common.h for the rules of this file; vec.h of the level comes first.
#pragma once

#include "kernels/cpu/avx512/attention_bf16.h"

namespace tern {
namespace {

// The rows of the n-th KV head behind the one that `rows` are of.
inline void RowsOfHead(const RowRef* rows, int64_t count, int64_t n, int64_t head_bytes,
                       RowRef* head) {
  for (int64_t i = 0; i < count; ++i) {
    head[i] = {rows[i].numbers + n * head_bytes, rows[i].scales + n};
  }
}

template <typename Loads>
void AttentionRowBf16(const Loads& format, const AttentionArgs& args, const AttentionBlock& block,
                      const float* q, int64_t chunk, float* workspace, float* states) {
  const int64_t key_dim = args.key_dim, value_dim = args.value_dim;
  const int64_t group = args.heads / args.kv_heads;
  const int64_t begin = chunk * kAttentionChunk;
  const int64_t count = SeenInChunk(args, block, 0, chunk);
  auto* keys = reinterpret_cast<uint32_t*>(workspace);
  float* scores = workspace + AttentionMaxIndex(key_dim) * kKeyTile;
  auto* rounded = reinterpret_cast<uint16_t*>(scores + args.heads * kAttentionChunk);
  const int64_t q_stride = AttentionMaxIndex(key_dim);
  RowRef key[kAttentionChunk], value[kAttentionChunk], head[kKeyTile];
  RowRefs(KeySource(args, block, 0), begin, count, key);
  RowRefs(ValueSource(args, block, 0), begin, count, value);
  RoundQueries(QueryBlock{q, args.heads, key_dim, args.heads * key_dim}, args.heads, key_dim,
               rounded);

  if (args.scales_row_bytes > 0) {
    for (int64_t i = 0; i < count; i += 8) __builtin_prefetch(key[i].scales, 0, 2);
  }
  LinesAhead(key, MinOf(kKeyTile, count), args.k_row_bytes).Rest();
  const RowScales<Loads> scales(key, count, 2 * args.kv_heads);
  for (int64_t tile = 0; tile < count; tile += kKeyTile) {
    const int64_t positions = MinOf(kKeyTile, count - tile), next = tile + kKeyTile;
    LinesAhead ahead = next < count
                           ? LinesAhead(key + next, MinOf(kKeyTile, count - next), args.k_row_bytes)
                           : LinesAhead(value, MinOf(kKeyTile, count), args.v_row_bytes);
    for (int64_t n = 0; n < args.kv_heads; ++n) {
      RowsOfHead(key + tile, positions, n, format.Offset(key_dim), head);
      float* head_scores = scores + n * group * kAttentionChunk + tile;
      ScoreRows(format, head, positions, key_dim, group, rounded + n * group * q_stride, q_stride,
                args.scale, keys, head_scores, ahead);
      scales.ScaleScores(n, tile, group, head_scores);
    }
    ahead.Rest();
  }

  uint16_t* weights = WeightsOfScores(
      args.heads, value_dim, [&](int64_t) { return count; }, scores, states);
  for (int64_t n = 0; n < args.kv_heads; ++n) {
    scales.ScaleWeights(args.kv_heads + n, count, group, weights + n * group * 2 * kAttentionChunk);
  }

  const int64_t after = args.goes_on ? MinOf(kKeyTile, SeenInChunk(args, block, 0, chunk + 1)) : 0;
  RowRefs(KeySource(args, block, 0), begin + kAttentionChunk, after, key);
  for (int64_t tile = 0; tile < count; tile += kKeyTile) {
    const int64_t positions = MinOf(kKeyTile, count - tile), next = tile + kKeyTile;
    LinesAhead ahead =
        next < count ? LinesAhead(value + next, MinOf(kKeyTile, count - next), args.v_row_bytes)
                     : LinesAhead(key, after, args.k_row_bytes);
    for (int64_t n = 0; n < args.kv_heads; ++n) {
      RowsOfHead(value + tile, positions, n, format.Offset(value_dim), head);
      for (int64_t i = n * group; i < (n + 1) * group; i += kPairQueries) {
        AddValuePairs(format, head, 0, positions, value_dim,
                      MinOf(kPairQueries, (n + 1) * group - i),
                      weights + i * 2 * kAttentionChunk + tile,
                      states + i * AttentionStateFloats(value_dim), ahead);
      }
    }
    ahead.Rest();
  }
}

// IsaTable::attention_row.
void AttentionRow512(const AttentionArgs& args, const AttentionBlock& block, const float* q,
                     int64_t chunk, float* workspace, float* states) {
  const auto attend = [&](const auto& format) {
    AttentionRowBf16(format, args, block, q, chunk, workspace, states);
  };
  const RowShape shape{args.latent};
  switch (args.format) {
    case KvFormat::kBf16:
      return attend(Bf16Loads(shape));
    case KvFormat::kFp8E4m3:
      return attend(E4m3Loads(shape));
    case KvFormat::kFp8Tiled:
      return attend(RowScaledLoads(shape));
    default:
      __builtin_trap();  // attention.cc gives it no others
  }
}

}  // namespace
}  // namespace tern
