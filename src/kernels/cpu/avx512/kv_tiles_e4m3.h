// Tiles of KV rows of e4m3 codes for BF16 dot products, 64 codes at a time: codes move to where
// their words are wanted first, half as many registers as the words, and become words last. Latent
// rows, whose numbers are keys and values, become BF16 rows once instead.
// See kernels/cpu/isa_common.h for the rules of this file; vec.h of the level comes first.
#pragma once

#include "kernels/cpu/avx512/kv_tiles_bf16.h"

namespace tern {
namespace {

// Queries whose scores are computed straight from codes.
constexpr int kCodeQueries = 4;

// The first n of 64 codes.
inline __mmask64 FirstOf64(int64_t n) {
  return n >= 64 ? ~__mmask64{0} : (__mmask64{1} << MaxOf(n, 0)) - 1;
}
inline __m512i LoadCodes(RowRef row, int64_t d, __mmask64 codes) {
  return _mm512_maskz_loadu_epi8(codes, row.numbers + d);
}

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

// Latent rows, 64 numbers at a time. The scale of a layer is the driver's affair.
struct E4m3Latents : E4m3Rows {
  using E4m3Rows::E4m3Rows;
  // Numbers d .. d + 63 as BF16, the first n of them. REQUIRES: all latents or all of the rope
  // part.
  void Load64(RowRef row, int64_t d, int64_t n, __m512i words[2]) const {
    const __m512i codes = LoadCodes(row, d, FirstOf64(n));
    expansion.Words(_mm512_permutexvar_epi64(eighths, codes), words);
  }
  E4m3Expansion expansion;
  __m512i eighths = EighthsForWords();
};

struct TiledLatents : TiledRows {
  explicit TiledLatents(RowShape shape) : TiledRows(shape), codes(shape) {}
  void Load64(RowRef row, int64_t d, int64_t n, __m512i words[2]) const {
    codes.Load64(row, d, n, words);
    const int exponent = static_cast<int>(row.scales[ScaleIndex(d)]) - 127;
    const __m512i exponents = _mm512_set1_epi16(static_cast<int16_t>(exponent * 128));
    for (int i = 0; i < 2; ++i) words[i] = AddExponents(words[i], exponents);
  }
  E4m3Latents codes;
};

struct DsMlaLatents : DsMlaRows {
  explicit DsMlaLatents(RowShape shape) : DsMlaRows(shape) {
    alignas(64) uint8_t from[64];
    for (int i = 0; i < 64; ++i) {
      from[i] = static_cast<uint8_t>(i / 16 * 4 + i % 8 / 2 + i % 2 * 16 + i % 16 / 8 * 32);
    }
    order = _mm512_load_si512(from);
  }
  void Load64(RowRef row, int64_t d, int64_t n, __m512i words[2]) const {
    if (d >= shape.latent) {
      words[0] = _mm512_maskz_loadu_epi16(FirstOf32(n), Rope(row, d));
      words[1] = _mm512_maskz_loadu_epi16(FirstOf32(n - 32), Rope(row, d + 32));
      return;
    }
    // Numbers 16 apart in one lane, as rounding puts them apart.
    expansion.Words(_mm512_permutexvar_epi8(order, LoadCodes(row, d, FirstOf64(n))), words);
    const __m512 scale = _mm512_set1_ps(Scale(row, d));
    const __m512i high = _mm512_set1_epi32(-0x10000);
    for (int i = 0; i < 2; ++i) {
      const __m512 a = _mm512_castsi512_ps(_mm512_slli_epi32(words[i], 16));
      const __m512 b = _mm512_castsi512_ps(_mm512_and_si512(words[i], high));
      words[i] = (__m512i)_mm512_cvtne2ps_pbh(_mm512_mul_ps(b, scale), _mm512_mul_ps(a, scale));
    }
  }
  E4m3Expansion expansion;
  __m512i order;
};

// The first `numbers` numbers of `count` rows, the first `latent` of them latents, as BF16 rows.
template <typename Loads>
void ExpandToBf16(const Loads& format, const RowRef* row, int64_t count, int64_t latent,
                  int64_t numbers, uint16_t* out, RowRef* expanded) {
  const int64_t stride = AttentionMaxIndex(numbers);
  const Loads registers = format;  // as far as the compiler knows, `out` may overlap `format`
  for (int64_t j = 0; j < count; ++j, out += stride) {
    for (int64_t d = 0, n; d < numbers; d += n) {
      n = MinOf(64, (d < latent ? latent : numbers) - d);
      __m512i words[2];
      registers.Load64(row[j], d, n, words);
      if (n == 64) {
        _mm512_storeu_si512(out + d, words[0]);
        _mm512_storeu_si512(out + d + 32, words[1]);
        continue;
      }
      _mm512_mask_storeu_epi16(out + d, FirstOf32(n), words[0]);
      if (n > 32) _mm512_mask_storeu_epi16(out + d + 32, FirstOf32(n - 32), words[1]);
    }
    expanded[j] = {reinterpret_cast<const std::byte*>(out), nullptr};
  }
}

// Rows of one KV head: names for the functions below.
struct E4m3Loads : E4m3Latents {
  using E4m3Latents::E4m3Latents;
};
// kFp8Tiled rows that have one scale each, a power of two: scores and weights take it.
struct RowScaledLoads : E4m3Loads {
  using E4m3Loads::E4m3Loads;
};

template <typename T>
concept CodeFormat = __is_base_of(E4m3Loads, T);
template <typename T>
concept LatentCodes = !WordFormat<T> && !CodeFormat<T>;

// The scales of a chunk's rows, in columns: of the keys of each head, then of the values of each.
// Other formats have none.
template <typename Loads>
struct RowScales {
  RowScales(const RowRef*, int64_t, int64_t) {}
  static void ScaleScores(int64_t, int64_t, int64_t, float*) {}
  static void ScaleWeights(int64_t, int64_t, int64_t, uint16_t*) {}
};
template <>
struct RowScales<RowScaledLoads> {
  // Rows refer to the scales of one column, or to all of theirs, a multiple of eight bytes.
  RowScales(const RowRef* rows, int64_t count, int64_t columns) {
    for (int64_t column = 0; column < columns; column += 8) {
      uint64_t* eight = eights_[column / 8];
      for (int64_t i = 0; i < count; ++i) {
        if (columns == 1) {
          eight[i] = static_cast<uint64_t>(*rows[i].scales);
        } else {
          __builtin_memcpy(eight + i, rows[i].scales + column, 8);
        }
      }
    }
  }
  // Of the 32 positions from `tile` on.
  void ScaleScores(int64_t column, int64_t tile, int64_t queries, float* scores) const {
    for (int64_t half = 0; half < kKeyTile; half += kLanes) {
      const __m512i bytes = _mm512_cvtepu8_epi32(Sixteen(column, tile + half));
      const __m512 exponents = _mm512_cvtepi32_ps(_mm512_sub_epi32(bytes, _mm512_set1_epi32(127)));
      for (int64_t i = 0; i < queries; ++i) {
        float* score = scores + i * kAttentionChunk + half;
        _mm512_storeu_ps(score, _mm512_scalef_ps(_mm512_loadu_ps(score), exponents));
      }
    }
  }
  // Of the first `count` positions. weights: at stride 2 * kAttentionChunk.
  void ScaleWeights(int64_t column, int64_t count, int64_t queries, uint16_t* weights) const {
    for (int64_t tile = 0; tile < count; tile += kKeyTile) {
      const __m512i bytes = _mm512_cvtepu8_epi16(
          _mm256_set_m128i(Sixteen(column, tile + kLanes), Sixteen(column, tile)));
      const __m512i exponents =
          _mm512_slli_epi16(_mm512_sub_epi16(bytes, _mm512_set1_epi16(127)), 7);
      for (int64_t i = 0; i < queries; ++i) {
        uint16_t* weight = weights + i * 2 * kAttentionChunk + tile;
        _mm512_storeu_si512(weight, AddExponents(_mm512_loadu_si512(weight), exponents));
      }
    }
  }

 private:
  __m128i Sixteen(int64_t column, int64_t position) const {
    const uint64_t* eight = eights_[column / 8] + position;
    const __m512i index = _mm512_castsi128_si512(
        _mm_add_epi8(_mm_setr_epi8(0, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120),
                     _mm_set1_epi8(static_cast<char>(column % 8))));
    return _mm512_castsi512_si128(
        _mm512_permutex2var_epi8(_mm512_load_si512(eight), index, _mm512_load_si512(eight + 8)));
  }
  alignas(64) uint64_t eights_[2 * kAttentionRowHeads / 8][kAttentionChunk];
};

// Sixteen rows of 64 codes, transposed: rows[i] then has four dimensions from 4 i on of sixteen
// positions, of which E4m3Expansion makes pairs: words[0] of the first two, words[1] of the others.
inline void TransposeSixteen(__m512i rows[kLanes]) {
  __m512i t[kLanes];
#pragma GCC unroll 4
  for (int i = 0; i < kLanes; i += 4) {
    const __m512i a = _mm512_unpacklo_epi16(rows[i], rows[i + 1]);
    const __m512i b = _mm512_unpackhi_epi16(rows[i], rows[i + 1]);
    const __m512i c = _mm512_unpacklo_epi16(rows[i + 2], rows[i + 3]);
    const __m512i d = _mm512_unpackhi_epi16(rows[i + 2], rows[i + 3]);
    t[i] = _mm512_unpacklo_epi32(a, c);
    t[i + 1] = _mm512_unpackhi_epi32(a, c);
    t[i + 2] = _mm512_unpacklo_epi32(b, d);
    t[i + 3] = _mm512_unpackhi_epi32(b, d);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i low01 = _mm512_shuffle_i32x4(t[c], t[4 + c], 0x88);
    const __m512i high01 = _mm512_shuffle_i32x4(t[c], t[4 + c], 0xDD);
    const __m512i low23 = _mm512_shuffle_i32x4(t[8 + c], t[12 + c], 0x88);
    const __m512i high23 = _mm512_shuffle_i32x4(t[8 + c], t[12 + c], 0xDD);
    rows[c] = _mm512_shuffle_i32x4(low01, low23, 0x88);
    rows[c + 8] = _mm512_shuffle_i32x4(low01, low23, 0xDD);
    rows[c + 4] = _mm512_shuffle_i32x4(high01, high23, 0x88);
    rows[c + 12] = _mm512_shuffle_i32x4(high01, high23, 0xDD);
  }
}

// Calls store(d, half, codes) for each four dimensions from d on of the positions half .. half + 15
// of up to 32; absent codes are zero.
template <typename Ahead, typename Store>
inline void TransposeCodes(const RowRef* rows, int64_t count, int64_t key_dim, Ahead& lines_ahead,
                           const Store& store) {
  Ahead ahead = lines_ahead;
  for (int64_t d = 0; d < key_dim; d += 64) {
    const __mmask64 codes = FirstOf64(key_dim - d);
    for (int64_t half = 0; half < kKeyTile; half += kLanes) {
      for (int64_t i = 0; i < kLanes; ++i) ahead.Step();
      __m512i tile[kLanes];
      if (half + kLanes <= count) {
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) tile[i] = LoadCodes(rows[half + i], d, codes);
      } else {
        for (int64_t i = 0; i < kLanes; ++i) {
          tile[i] = LoadCodes(rows[MinOf(half + i, count - 1)], d, half + i < count ? codes : 0);
        }
      }
      TransposeSixteen(tile);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        if (4 * i < key_dim - d) store(d + 4 * i, half, tile[i]);
      }
    }
  }
  lines_ahead = ahead;
}

// As TransposeKeyPairs of words.
template <CodeFormat Loads, typename Ahead>
void TransposeKeyPairs(const Loads&, const RowRef* rows, int64_t count, int64_t key_dim,
                       uint32_t* keys, Ahead& ahead) {
  const E4m3Expansion expansion;
  const int64_t sixteen = SixteenWords(key_dim);
  TransposeCodes(rows, count, key_dim, ahead, [&](int64_t d, int64_t half, __m512i codes) {
    __m512i words[2];
    expansion.Words(codes, words);
    uint32_t* pairs = keys + half / kLanes * sixteen + d / 2 * kLanes;
    _mm512_storeu_si512(pairs, words[0]);
    _mm512_storeu_si512(pairs + kLanes, words[1]);
  });
}

// Scores of few queries as ScorePairs has them, of codes[d / 4][32], transposed. Rows of q end in
// zeros up to a multiple of four.
template <int kQueries>
struct ScoreCodes {
  static void Run(const uint32_t* codes, int64_t key_dim, const uint16_t* q, int64_t q_stride,
                  float scale, float* scores) {
    const E4m3Expansion expansion;
    __m512 dots[kQueries][2];
#pragma GCC unroll 4
    for (int i = 0; i < kQueries; ++i) dots[i][0] = dots[i][1] = _mm512_setzero_ps();
    for (int64_t d = 0; d < key_dim; d += 4, codes += kKeyTile) {
      __m512i low[2], high[2];
      expansion.Words(_mm512_loadu_si512(codes), low);
      expansion.Words(_mm512_loadu_si512(codes + kLanes), high);
#pragma GCC unroll 2
      for (int pair = 0; pair < 2; ++pair) {
#pragma GCC unroll 4
        for (int i = 0; i < kQueries; ++i) {
          const uint16_t* x = q + i * q_stride + d + 2 * pair;
          dots[i][0] = Dot(dots[i][0], (__m512bh)low[pair], x);
          dots[i][1] = Dot(dots[i][1], (__m512bh)high[pair], x);
        }
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < kQueries; ++i) {
      Store(scores + i * kAttentionChunk, Mul({dots[i][0]}, Set(scale)));
      Store(scores + i * kAttentionChunk + kLanes, Mul({dots[i][1]}, Set(scale)));
    }
  }
};

// states[query][d .. d + 63] += sum of weights[query][j] * value[j] for j in [begin, end).
// n: numbers of the row from d on. REQUIRES: begin is even.
template <typename Ahead>
struct ValueCodePairs {
  template <int kQueries>
  struct Queries {
    static void Run(const RowRef* rows, int64_t begin, int64_t end, int64_t d, int64_t n,
                    const uint16_t* weights, float* states, int64_t state_stride,
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
void AddValuePairs(const Loads&, const RowRef* rows, int64_t begin, int64_t end, int64_t value_dim,
                   int64_t queries, const uint16_t* weights, float* states, Ahead& ahead) {
  constexpr int kQueries = 4;
  const int64_t stride = AttentionStateFloats(value_dim);
  if (begin >= end) return;
  for (int64_t d = 0; d < value_dim; d += 64) {
    for (int64_t i = 0; i < queries; i += kQueries) {
      RunBlock<ValueCodePairs<Ahead>::template Queries, kQueries>(
          queries - i, rows, begin, end, d, value_dim - d, weights + i * 2 * kAttentionChunk,
          states + i * stride, stride, &ahead);
    }
  }
}

}  // namespace
}  // namespace tern
