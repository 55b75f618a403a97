// Tiles of KV rows for BF16 dot products: keys as pairs of dimensions, values as pairs of
// positions. Here rows of formats that are read 32 words at a time; kv_tiles_e4m3.h has those of
// e4m3 codes. See kernels/cpu/isa_common.h for the rules of this file; vec.h of the level comes
// first.
#pragma once

#include "kernels/cpu/attention.h"
#include "kernels/cpu/avx512/matmul_bf16.h"

namespace tern {
namespace {

constexpr int kPairQueries = 8;

// Lanes of a register of 32 numbers of which n are left.
inline __mmask32 FirstOf32(int64_t n) {
  return n >= 32 ? ~__mmask32{0} : static_cast<__mmask32>((uint32_t{1} << MaxOf(n, 0)) - 1);
}

// Formats that apply no scale to the scores and the weights of whole rows.
struct NoRowScales {
  static void ScaleScores(const RowRef*, int64_t, int64_t, float*) {}
  static void ScaleWeights(const RowRef*, int64_t, int64_t, uint16_t*) {}
};

// Thirty-two numbers of a row as BF16: the first n, then zeros. One struct per format, beside that
// of kv_row_formats.h.
struct Bf16Loads : Bf16Rows, NoRowScales {
  using Bf16Rows::Bf16Rows;
  __m512i Load32(RowRef row, int64_t d, int64_t n) const {
    return _mm512_maskz_loadu_epi16(FirstOf32(n), row.numbers + d * 2);
  }
};

struct DsMlaLoads : DsMlaRows, NoRowScales {
  using DsMlaRows::DsMlaRows;
  __m512i Load32(RowRef row, int64_t d, int64_t n) const {
    if (d >= shape.latent) return _mm512_maskz_loadu_epi16(FirstOf32(n), Rope(row, d));
    const __m256i codes = _mm256_maskz_loadu_epi8(FirstOf32(n), row.numbers + d);
    __m512i words[2];
    expansion.Words(_mm512_permutexvar_epi64(eighths, _mm512_castsi256_si512(codes)), words);
    const __m512 scale = _mm512_set1_ps(Scale(row, d));
    const auto product = [&](__m256i half) {
      return _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16)),
                           scale);
    };
    return (__m512i)_mm512_cvtne2ps_pbh(product(_mm512_extracti64x4_epi64(words[0], 1)),
                                        product(_mm512_castsi512_si256(words[0])));
  }
  E4m3Expansion expansion;
  __m512i eighths = EighthsForWords();
};

// Formats whose rows are read as words.
template <typename T>
concept WordFormat = requires(const T& format, RowRef row) {
  format.Load32(row, 0, 0);
};

// What is asked for while rows are read: Step comes once for each register of a row. Loops work on
// a copy, which stays in registers.
struct NothingAhead {
  static constexpr bool kAsks = false;
  void Step() {}
};
// Cache lines of other rows, in the order of addresses, into the second-level cache: it waits for
// more of them at a time than the first.
class LinesAhead {
 public:
  static constexpr bool kAsks = true;
  LinesAhead(const RowRef* rows, int64_t count, int64_t row_bytes)
      : row_(rows), end_(rows + count), row_bytes_(row_bytes) {}
  void Step() {
    if (row_ == end_) return;
    __builtin_prefetch(row_->numbers + at_, 0, 2);
    at_ += 64;
    if (at_ < row_bytes_) return;
    at_ = 0;
    ++row_;
  }
  void Rest() {
    while (row_ != end_) Step();
  }

 private:
  const RowRef *row_, *end_;
  int64_t row_bytes_, at_ = 0;
};

// keys[d / 2][32] of up to 32 positions, pairs of dimensions; absent numbers are zero.
template <WordFormat Loads, typename Ahead>
void TransposeKeyPairs(const Loads& format, const RowRef* rows, int64_t count, int64_t key_dim,
                       uint32_t* keys, Ahead& lines_ahead) {
  Ahead ahead = lines_ahead;
  for (int64_t d = 0; d < key_dim; d += 2 * kLanes) {
    for (int64_t half = 0; half < kKeyTile; half += kLanes) {
      Vec tile[kLanes];
      for (int64_t i = 0; i < kLanes; ++i) {
        ahead.Step();
        tile[i].v = half + i < count
                        ? _mm512_castsi512_ps(format.Load32(rows[half + i], d, key_dim - d))
                        : _mm512_setzero_ps();
      }
      Transpose(tile);
      for (int64_t i = 0; i < MinOf(kLanes, (key_dim - d + 1) / 2); ++i) {
        _mm512_storeu_ps(keys + (d / 2 + i) * kKeyTile + half, tile[i].v);
      }
    }
  }
  lines_ahead = ahead;
}

// states[query][d .. d + 31] += sum of weights[query][j] * value[j] for j in [begin, end).
// n: numbers of the row from d on. `second`: whether the state has lanes d + 16 .. d + 31.
// REQUIRES: begin is even.
template <WordFormat Loads, typename Ahead>
struct ValuePairs {
  template <int kQueries>
  struct Queries {
    static void Run(const Loads* format, const RowRef* rows, int64_t begin, int64_t end, int64_t d,
                    int64_t n, bool second, const uint16_t* weights, float* states,
                    int64_t state_stride, Ahead* lines_ahead) {
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
      Ahead ahead = *lines_ahead;
      for (int64_t j = begin; j < end; j += 2) {
        if constexpr (!Ahead::kAsks) {
          Prefetch(rows, MinOf(j + kValuesAhead, end), MinOf(j + kValuesAhead + 2, end),
                   format->Offset(d), format->Offset(d + 32) - format->Offset(d));
        }
        ahead.Step();
        ahead.Step();
        const __m512i a = format->Load32(rows[j], d, n);
        const __m512i b = j + 1 < end ? format->Load32(rows[j + 1], d, n) : _mm512_setzero_si512();
        const auto low = (__m512bh)_mm512_permutex2var_epi16(a, order0, b);
        const auto high = (__m512bh)_mm512_permutex2var_epi16(a, order1, b);
        for (int i = 0; i < kQueries; ++i) {
          const uint16_t* pair = weights + i * 2 * kAttentionChunk + j;
          sum[i][0] = Dot(sum[i][0], low, pair);
          sum[i][1] = Dot(sum[i][1], high, pair);
        }
      }
      *lines_ahead = ahead;
      for (int i = 0; i < kQueries; ++i) {
        _mm512_storeu_ps(states + i * state_stride + d, sum[i][0]);
        if (second) _mm512_storeu_ps(states + i * state_stride + d + kLanes, sum[i][1]);
      }
    }
  };
};

template <WordFormat Loads, typename Ahead>
void AddValuePairs(const Loads& format, const RowRef* rows, int64_t begin, int64_t end,
                   int64_t value_dim, int64_t queries, const uint16_t* weights, float* states,
                   Ahead& ahead) {
  if (begin >= end) return;
  for (int64_t d = 0; d < value_dim; d += 2 * kLanes) {
    RunBlock<ValuePairs<Loads, Ahead>::template Queries, kPairQueries>(
        queries, &format, rows, begin, end, d, value_dim - d, d + kLanes < value_dim, weights,
        states, AttentionStateFloats(value_dim), &ahead);
  }
}

// The first value_dim numbers of `count` rows as BF16 rows, for more than one block of queries.
template <WordFormat Loads>
void ExpandToBf16(const Loads& format, const RowRef* row, int64_t count, int64_t value_dim,
                  uint16_t* out, RowRef* expanded) {
  const int64_t stride = AttentionMaxIndex(value_dim);
  for (int64_t j = 0; j < count; ++j, out += stride) {
    for (int64_t d = 0; d < value_dim; d += 32) {
      _mm512_mask_storeu_epi16(out + d, FirstOf32(value_dim - d),
                               format.Load32(row[j], d, value_dim - d));
    }
    expanded[j] = {reinterpret_cast<const std::byte*>(out), nullptr};
  }
}

}  // namespace
}  // namespace tern
