// The indexer's scores of one chunk of positions with BF16 dot products: queries are rounded to
// BF16; keys are BF16 as stored, or e4m3 codes, which are exact in BF16. The roles of attention's
// tiles are exchanged: a row's heads are lanes, and keys are read where they lie, so that none is
// transposed for the one row of a decoding sequence. Dots add pairs of dimensions in order; relu,
// weights and the sum over heads are float32: heads 16 apart in order, then halves of the sixteen
// lanes, of eight, of four and of two. The scale and a key's own, both positive, multiply that sum.
// So the order is the position's own. See kernels/cpu/isa_common.h for the rules of this file;
// vec.h of the level comes first.
#pragma once

#include "kernels/cpu/avx512/attention_bf16.h"

namespace tern {
namespace {

// sums[key][16] += weight * relu(dot) of a tile of 32 heads, those 16 apart in one lane.
template <int kKeys>
struct HeadSums {
  static void Run(const uint32_t* queries, int64_t dim, const RowRef* keys, Vec low, Vec high,
                  float* sums) {
    __m512 dots[kKeys][2];
    PairDots<kKeys>(
        queries, dim, [=](int i) { return reinterpret_cast<const uint16_t*>(keys[i].numbers); },
        dots);
    for (int i = 0; i < kKeys; ++i) {
      const Vec sum = MulAdd(low, Max({dots[i][0]}, Zero()), Load(sums + i * kLanes));
      Store(sums + i * kLanes, MulAdd(high, Max({dots[i][1]}, Zero()), sum));
    }
  }
};

// Sums of the lanes of sixteen rows.
inline Vec SumsOfLanes(const float* rows) {
  Vec lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = Load(rows + i * kLanes);
  Transpose(lanes);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] = Add(lanes[i], lanes[i + half]);
  }
  return lanes[0];
}

void IndexScoresBf16(const AttentionArgs& args, const AttentionBlock& block, const float* q,
                     const float* w, int64_t chunk, float* workspace, float* scores,
                     int64_t scores_stride) {
  const int64_t heads = args.heads, dim = args.key_dim;
  const int64_t count = SeenInChunk(args, block, block.rows - 1, chunk);
  // Expanded keys, then tiles of a row's queries, which take no more than AttentionWorkspaceFloats
  // has for a tile of keys and for rounded queries.
  auto* expanded = reinterpret_cast<uint16_t*>(workspace);
  auto* queries =
      reinterpret_cast<uint32_t*>(workspace + kAttentionChunk * AttentionMaxIndex(dim) / 2);
  const int64_t tile_words = AttentionMaxIndex(dim) / 2 * kKeyTile;

  RowRef key[kAttentionChunk];
  RowRefs(KeySource(args, {}, 0), chunk * kAttentionChunk, count, key);
  float scales[kAttentionChunk];
  for (float& scale : scales) scale = args.scale;
  // The next chunk's keys are asked for while the first row works on this one's.
  RowRef next[kAttentionChunk];
  const int64_t next_count = SeenInChunk(args, block, block.rows - 1, chunk + 1);
  RowRefs(KeySource(args, {}, 0), (chunk + 1) * kAttentionChunk, next_count, next);
  LinesAhead ahead(next, next_count, args.k_row_bytes);
  const int64_t lines = kLanes * ((args.k_row_bytes + 63) / 64);
  if (args.format != KvFormat::kBf16) {
    for (int64_t i = 0; i < count; ++i) scales[i] *= ScaledRows::Scale(key[i]);
    ExpandToBf16(E4m3Latents(RowShape()), key, count, 0, dim, expanded, key);
  }

  for (int64_t r = 0; r < block.rows; ++r) {
    for (int64_t head = 0; head < heads; head += kKeyTile) {
      RowRef query[kKeyTile];
      const int64_t n = MinOf(kKeyTile, heads - head);
      for (int64_t i = 0; i < n; ++i) {
        query[i].numbers = reinterpret_cast<const std::byte*>(q + (r * heads + head + i) * dim);
      }
      NothingAhead nothing;
      TransposeKeyPairs(RoundedLoads(), query, n, dim, queries + head / kKeyTile * tile_words,
                        nothing);
    }
    for (int64_t p = 0; p < count; p += kLanes) {
      const int64_t positions = MinOf(kLanes, count - p);
      if (r == 0) {
        for (int64_t step = 0; step < lines; ++step) ahead.Step();
      }
      alignas(64) float sums[kLanes * kLanes] = {};
      for (int64_t head = 0; head < heads; head += kKeyTile) {
        const float* weights = w + r * heads + head;
        const Vec low = LoadPartial(weights, heads - head);
        const Vec high = LoadPartial(weights + kLanes, heads - head - kLanes);
        for (int64_t i = 0; i < positions; i += kPairQueries) {
          RunBlock<HeadSums, kPairQueries>(positions - i, queries + head / kKeyTile * tile_words,
                                           dim, key + p + i, low, high, sums + i * kLanes);
        }
      }
      StorePartial(scores + r * scores_stride + p, Mul(SumsOfLanes(sums), Load(scales + p)),
                   positions);
    }
  }
}

void IndexScores512(const AttentionArgs& args, const AttentionBlock& block, const float* q,
                    const float* w, int64_t chunk, float* workspace, float* scores,
                    int64_t scores_stride) {
  // Stored keys are read in pairs.
  if (args.format == KvFormat::kF32 || args.key_dim % 2 != 0) {
    return IndexScores(args, block, q, w, chunk, workspace, scores, scores_stride);
  }
  IndexScoresBf16(args, block, q, w, chunk, workspace, scores, scores_stride);
}

}  // namespace
}  // namespace tern
