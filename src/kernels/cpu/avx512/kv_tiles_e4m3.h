// Tiles of KV rows of e4m3 codes for BF16 dot products, 64 codes at a time: codes move to where
// their words are wanted first, half as many registers as the words, and become words last.
// See kernels/cpu/isa_common.h for the rules of this file; vec.h of the level comes first.
#pragma once

#include "kernels/cpu/avx512/kv_tiles_bf16.h"

namespace tern {
namespace {

// The first n of 64 codes.
inline __mmask64 FirstOf64(int64_t n) {
  return n >= 64 ? ~__mmask64{0} : (__mmask64{1} << MaxOf(n, 0)) - 1;
}
inline __m512i LoadCodes(RowRef row, int64_t d, __mmask64 codes) {
  return _mm512_maskz_loadu_epi8(codes, row.numbers + d);
}

// The scale of a layer is the driver's affair.
struct E4m3Loads : E4m3Rows, NoRowScales {
  using E4m3Rows::E4m3Rows;
  __m512i RowScales(RowRef, int64_t) const { return _mm512_setzero_si512(); }
  __m512i PairScales(RowRef, RowRef, int64_t) const { return _mm512_setzero_si512(); }
  __m512i LaneScales(const RowRef*, int64_t, int64_t) const { return _mm512_setzero_si512(); }
  static __m512i Scaled(__m512i words, __m512i) { return words; }
};

// Adds multiples of 128, exponents of powers of two, to words other than zero. Results below BF16's
// normal numbers become zero or subnormal, which BF16 products take for zero.
inline __m512i AddExponents(__m512i words, __m512i exponents) {
  const __m512i sign = _mm512_set1_epi16(-0x8000);
  const __m512i magnitude = _mm512_andnot_si512(sign, words);
  const __m512i sum =
      _mm512_maskz_adds_epi16(_mm512_test_epi16_mask(magnitude, magnitude), magnitude, exponents);
  constexpr int kOrAnd = 0xF8;  // a | (b & c)
  return _mm512_ternarylogic_epi32(_mm512_max_epi16(sum, _mm512_setzero_si512()), words, sign,
                                   kOrAnd);
}

// kFp8Tiled rows that have one scale each, a power of two: scores and weights take it, and codes
// are as those of E4m3Loads.
struct RowScaledLoads : E4m3Loads {
  using E4m3Loads::E4m3Loads;
  static void ScaleScores(const RowRef* rows, int64_t count, int64_t queries, float* scores) {
    const Scales scales(rows, count);
    for (int64_t half = 0; half < kKeyTile; half += kLanes) {
      const __m512i bytes = _mm512_cvtepu8_epi32(
          _mm_load_si128(reinterpret_cast<const __m128i*>(scales.bytes + half)));
      const __m512 exponents = _mm512_cvtepi32_ps(_mm512_sub_epi32(bytes, _mm512_set1_epi32(127)));
      for (int64_t i = 0; i < queries; ++i) {
        float* score = scores + i * kAttentionChunk + half;
        _mm512_storeu_ps(score, _mm512_scalef_ps(_mm512_loadu_ps(score), exponents));
      }
    }
  }
  // weights: at stride 2 * kAttentionChunk.
  static void ScaleWeights(const RowRef* rows, int64_t count, int64_t queries, uint16_t* weights) {
    for (int64_t tile = 0; tile < count; tile += kKeyTile) {
      const Scales scales(rows + tile, MinOf(kKeyTile, count - tile));
      const __m512i bytes =
          _mm512_cvtepu8_epi16(_mm256_load_si256(reinterpret_cast<const __m256i*>(scales.bytes)));
      const __m512i exponents =
          _mm512_slli_epi16(_mm512_sub_epi16(bytes, _mm512_set1_epi16(127)), 7);
      for (int64_t i = 0; i < queries; ++i) {
        uint16_t* weight = weights + i * 2 * kAttentionChunk + tile;
        _mm512_storeu_si512(weight, AddExponents(_mm512_loadu_si512(weight), exponents));
      }
    }
  }

 private:
  struct Scales {
    Scales(const RowRef* rows, int64_t count) {
      for (int64_t i = 0; i < count; ++i) bytes[i] = static_cast<uint8_t>(*rows[i].scales);
    }
    alignas(32) uint8_t bytes[kKeyTile] = {};
  };
};

// Latent rows, whose scales are of some of their numbers: words take them.
struct TiledLoads : TiledRows, NoRowScales {
  using TiledRows::TiledRows;
  // Of a row at dimension d, in every word; of two rows, in the low and the high word of each lane;
  // of up to 16 rows, in both words of a lane each.
  __m512i RowScales(RowRef row, int64_t d) const {
    return _mm512_set1_epi16(static_cast<int16_t>(Exponent(row, d)));
  }
  __m512i PairScales(RowRef low, RowRef high, int64_t d) const {
    return _mm512_set1_epi32((Exponent(low, d) & 0xFFFF) | Exponent(high, d) * 0x10000);
  }
  __m512i LaneScales(const RowRef* rows, int64_t count, int64_t d) const {
    alignas(64) int32_t lanes[kLanes] = {};
    for (int64_t i = 0; i < MinOf(count, kLanes); ++i) {
      const int exponent = Exponent(rows[i], d);
      lanes[i] = (exponent & 0xFFFF) | exponent * 0x10000;
    }
    return _mm512_load_si512(lanes);
  }
  static __m512i Scaled(__m512i words, __m512i scales) { return AddExponents(words, scales); }

 private:
  int Exponent(RowRef row, int64_t d) const {
    return (static_cast<int>(row.scales[ScaleIndex(d)]) - 127) * 128;
  }
};

template <typename T>
concept CodeFormat = requires(const T& format, RowRef row) {
  format.PairScales(row, row, 0);
};

// As TransposeKeyPairs of words. REQUIRES: 32 numbers from a multiple of 32 on share a scale.
template <CodeFormat Loads, typename Ahead>
void TransposeKeyPairs(const Loads& format, const RowRef* rows, int64_t count, int64_t key_dim,
                       uint32_t* keys, Ahead& lines_ahead) {
  Ahead ahead = lines_ahead;
  const E4m3Expansion expansion;
  // In each quarter of a register, four positions of four dimensions: first their pairs of
  // dimensions 0 and 1, then those of 2 and 3.
  const __m512i pairs =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
  for (int64_t d = 0; d < key_dim; d += 64) {
    const __mmask64 codes = FirstOf64(key_dim - d);
    for (int64_t half = 0; half < kKeyTile; half += kLanes) {
      Vec tile[kLanes];
      for (int64_t i = 0; i < kLanes; ++i) {
        ahead.Step();
        tile[i].v = half + i < count ? _mm512_castsi512_ps(LoadCodes(rows[half + i], d, codes))
                                     : _mm512_setzero_ps();
      }
      Transpose(tile);
      const int64_t quads = MinOf(kLanes, (key_dim - d + 3) / 4);
      for (int64_t quad = 0; quad < quads; quad += 8) {
        const __m512i scales = format.LaneScales(rows + half, count - half, d + 4 * quad);
        for (int64_t i = quad; i < MinOf(quad + 8, quads); ++i) {
          __m512i words[2];
          expansion.Words(_mm512_shuffle_epi8(_mm512_castps_si512(tile[i].v), pairs), words);
          uint32_t* out = keys + (d / 2 + 2 * i) * kKeyTile + half;
          _mm512_storeu_si512(out, Loads::Scaled(words[0], scales));
          _mm512_storeu_si512(out + kKeyTile, Loads::Scaled(words[1], scales));
        }
      }
    }
  }
  lines_ahead = ahead;
}

// states[query][d .. d + 63] += sum of weights[query][j] * value[j] for j in [begin, end).
// n: numbers of the row from d on. REQUIRES: begin is even.
template <CodeFormat Loads, typename Ahead>
struct ValueCodePairs {
  template <int kQueries>
  struct Queries {
    static void Run(const Loads* format, const RowRef* rows, int64_t begin, int64_t end, int64_t d,
                    int64_t n, const uint16_t* weights, float* states, int64_t state_stride,
                    Ahead* lines_ahead) {
      const E4m3Expansion expansion;
      // Codes of two rows side by side, so that words[v] has those of dimensions 16 v ... of 32.
      alignas(64) uint8_t order[64];
      for (int i = 0; i < 64; ++i) {
        order[i] = static_cast<uint8_t>(i / 16 * 4 + i % 8 / 2 + i % 16 / 8 * 16 + i % 2 * 64);
      }
      const __m512i first = _mm512_load_si512(order);
      const __m512i second = _mm512_add_epi8(first, _mm512_set1_epi8(32));
      const __mmask64 codes = FirstOf64(n);
      const auto lanes = [n](int v) { return static_cast<__mmask16>(n > v * kLanes ? 0xFFFF : 0); };
      __m512 sum[kQueries][4];
      // Unrolled late, these loops would keep `sum` in memory.
#pragma GCC unroll 4
      for (int i = 0; i < kQueries; ++i) {
#pragma GCC unroll 4
        for (int v = 0; v < 4; ++v) {
          sum[i][v] = _mm512_maskz_loadu_ps(lanes(v), states + i * state_stride + d + v * kLanes);
        }
      }
      Ahead ahead = *lines_ahead;
      for (int64_t j = begin; j < end; j += 2) {
        if constexpr (!Ahead::kAsks) {
          Prefetch(rows, MinOf(j + kValuesAhead, end), MinOf(j + kValuesAhead + 2, end), d, 64);
        }
        ahead.Step();
        ahead.Step();
        const bool both = j + 1 < end;
        const RowRef low = rows[j], high = rows[both ? j + 1 : j];
        const __m512i a = LoadCodes(low, d, codes), b = LoadCodes(high, d, both ? codes : 0);
        __m512i words[4];
        expansion.Words(_mm512_permutex2var_epi8(a, first, b), words);
        expansion.Words(_mm512_permutex2var_epi8(a, second, b), words + 2);
        for (int v = 0; v < 4; ++v) {
          words[v] = Loads::Scaled(words[v], format->PairScales(low, high, d + v / 2 * 32));
        }
        for (int i = 0; i < kQueries; ++i) {
          const uint16_t* pair = weights + i * 2 * kAttentionChunk + j;
          for (int v = 0; v < 4; ++v) sum[i][v] = Dot(sum[i][v], (__m512bh)words[v], pair);
        }
      }
      *lines_ahead = ahead;
#pragma GCC unroll 4
      for (int i = 0; i < kQueries; ++i) {
#pragma GCC unroll 4
        for (int v = 0; v < 4; ++v) {
          _mm512_mask_storeu_ps(states + i * state_stride + d + v * kLanes, lanes(v), sum[i][v]);
        }
      }
    }
  };
};

template <CodeFormat Loads, typename Ahead>
void AddValuePairs(const Loads& format, const RowRef* rows, int64_t begin, int64_t end,
                   int64_t value_dim, int64_t queries, const uint16_t* weights, float* states,
                   Ahead& ahead) {
  constexpr int kQueries = 4;
  const int64_t stride = AttentionStateFloats(value_dim);
  if (begin >= end) return;
  for (int64_t d = 0; d < value_dim; d += 64) {
    for (int64_t i = 0; i < queries; i += kQueries) {
      RunBlock<ValueCodePairs<Loads, Ahead>::template Queries, kQueries>(
          queries - i, &format, rows, begin, end, d, value_dim - d,
          weights + i * 2 * kAttentionChunk, states + i * stride, stride, &ahead);
    }
  }
}

template <CodeFormat Loads>
void ExpandToBf16(const Loads& format, const RowRef* row, int64_t count, int64_t value_dim,
                  uint16_t* out, RowRef* expanded) {
  const E4m3Expansion expansion;
  const __m512i eighths = EighthsForWords();
  const int64_t stride = AttentionMaxIndex(value_dim);
  for (int64_t j = 0; j < count; ++j, out += stride) {
    for (int64_t d = 0; d < value_dim; d += 64) {
      const __m512i codes = LoadCodes(row[j], d, FirstOf64(value_dim - d));
      __m512i words[2];
      expansion.Words(_mm512_permutexvar_epi64(eighths, codes), words);
      for (int64_t v = 0; v < 2 && d + v * 32 < value_dim; ++v) {
        const __m512i scaled = Loads::Scaled(words[v], format.RowScales(row[j], d + v * 32));
        _mm512_mask_storeu_epi16(out + d + v * 32, FirstOf32(value_dim - d - v * 32), scaled);
      }
    }
    expanded[j] = {reinterpret_cast<const std::byte*>(out), nullptr};
  }
}

}  // namespace
}  // namespace tern
