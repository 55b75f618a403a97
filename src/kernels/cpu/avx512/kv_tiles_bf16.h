// Tiles of KV rows for BF16 dot products: keys as pairs of dimensions, values as pairs of
// positions. Here rows of formats that are read 32 words at a time; kv_tiles_e4m3.h has those of
// e4m3 codes. See kernels/cpu/isa_common.h for the rules of this file; vec.h of the level comes
// first.
#pragma once

#include "kernels/cpu/attention.h"
#include "kernels/cpu/avx512/matmul_bf16.h"

namespace tern {
namespace {

// Queries whose sums fit in registers: of scores, of values.
constexpr int kPairQueries = 8, kValuePairQueries = 12;

// Lanes of a register of 32 numbers of which n are left.
inline __mmask32 FirstOf32(int64_t n) {
  return n >= 32 ? ~__mmask32{0} : static_cast<__mmask32>((uint32_t{1} << MaxOf(n, 0)) - 1);
}

// Thirty-two numbers of a row as BF16: the first n, then zeros.
struct Bf16Loads : Bf16Rows {
  using Bf16Rows::Bf16Rows;
  __m512i Load32(RowRef row, int64_t d, int64_t n) const {
    return _mm512_maskz_loadu_epi16(FirstOf32(n), row.numbers + d * 2);
  }
};

// Rows of float32 numbers, rounded as they are read. Subnormal ones become zero, which products
// take them for.
struct RoundedLoads {
  __m512i Load32(RowRef row, int64_t d, int64_t n) const {
    const auto* numbers = At<float>(row.numbers, d * 4);
    const __mmask32 left = FirstOf32(n);
    return (__m512i)_mm512_cvtne2ps_pbh(
        _mm512_maskz_loadu_ps(static_cast<__mmask16>(left >> 16), numbers + kLanes),
        _mm512_maskz_loadu_ps(static_cast<__mmask16>(left), numbers));
  }
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

// Words of sixteen transposed rows, [d / 2][16] pairs of dimensions.
inline int64_t SixteenWords(int64_t dim) { return AttentionMaxIndex(dim) / 2 * kLanes; }

// Up to 32 rows transposed: [half][d / 2][16] pairs of dimensions; absent numbers are zero, in all
// sixteens up to `most` rows.
template <WordFormat Loads, typename Ahead>
void TransposeKeyPairs(const Loads& format, const RowRef* rows, int64_t count, int64_t key_dim,
                       uint32_t* keys, Ahead& lines_ahead, int64_t most = kKeyTile) {
  const int64_t sixteen = SixteenWords(key_dim);
  Ahead ahead = lines_ahead;
  for (int64_t d = 0; d < key_dim; d += 2 * kLanes) {
    for (int64_t half = 0; half < most; half += kLanes) {
      for (int64_t i = 0; i < kLanes; ++i) ahead.Step();
      const auto load = [&](RowRef row) {
        return _mm512_castsi512_ps(format.Load32(row, d, key_dim - d));
      };
      Vec tile[kLanes];
      if (half + kLanes <= count) {
        // Unrolled late, this loop would keep `tile` in memory.
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) tile[i].v = load(rows[half + i]);
      } else {
        for (int64_t i = 0; i < kLanes; ++i) {
          tile[i].v = half + i < count ? load(rows[half + i]) : _mm512_setzero_ps();
        }
      }
      Transpose(tile);
      uint32_t* pairs = keys + (half == 0 ? 0 : sixteen) + d / 2 * kLanes;
      for (int64_t i = 0; i < MinOf(kLanes, (key_dim - d + 1) / 2); ++i) {
        _mm512_storeu_ps(pairs + i * kLanes, tile[i].v);
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
      // Unrolled late, these loops would keep `sum` in memory.
#pragma GCC unroll 12
      for (int i = 0; i < kQueries; ++i) {
        sum[i][0] = _mm512_loadu_ps(states + i * state_stride + d);
        sum[i][1] =
            second ? _mm512_loadu_ps(states + i * state_stride + d + kLanes) : _mm512_setzero_ps();
      }
      Ahead ahead = *lines_ahead;
      for (int64_t j = begin; j < end; j += 2) {
        if constexpr (!Ahead::kAsks) {
          if (j + kValuesAhead + 1 < end) {
            __builtin_prefetch(rows[j + kValuesAhead].numbers + format->Offset(d));
            __builtin_prefetch(rows[j + kValuesAhead + 1].numbers + format->Offset(d));
          }
        }
        ahead.Step();
        ahead.Step();
        const __m512i a = format->Load32(rows[j], d, n);
        const __m512i b = j + 1 < end ? format->Load32(rows[j + 1], d, n) : _mm512_setzero_si512();
        const auto low = (__m512bh)_mm512_permutex2var_epi16(a, order0, b);
        const auto high = (__m512bh)_mm512_permutex2var_epi16(a, order1, b);
#pragma GCC unroll 12
        for (int i = 0; i < kQueries; ++i) {
          const uint16_t* pair = weights + i * 2 * kAttentionChunk + j;
          sum[i][0] = Dot(sum[i][0], low, pair);
          sum[i][1] = Dot(sum[i][1], high, pair);
        }
      }
      *lines_ahead = ahead;
#pragma GCC unroll 12
      for (int i = 0; i < kQueries; ++i) {
        _mm512_storeu_ps(states + i * state_stride + d, sum[i][0]);
        if (second) _mm512_storeu_ps(states + i * state_stride + d + kLanes, sum[i][1]);
      }
    }
  };
};

// Several blocks of queries take turns, so that they find values in the first-level cache; rows
// that are asked for on the way have one block. REQUIRES: at most kPairQueries queries there.
template <WordFormat Loads, typename Ahead>
void AddValuePairs(const Loads& format, const RowRef* rows, int64_t begin, int64_t end,
                   int64_t value_dim, int64_t queries, const uint16_t* weights, float* states,
                   Ahead& ahead) {
  if (begin >= end) return;
  constexpr int kMost = Ahead::kAsks ? kPairQueries : kValuePairQueries;
  const int64_t stride = AttentionStateFloats(value_dim);
  const auto add = [&](int64_t d, int64_t first, int64_t count) {
    RunBlock<ValuePairs<Loads, Ahead>::template Queries, kMost>(
        count, &format, rows, begin, end, d, value_dim - d, d + kLanes < value_dim,
        weights + first * 2 * kAttentionChunk, states + first * stride, stride, &ahead);
  };
  // Blocks of about one size: small ones wait for their sums.
  int64_t block = queries;
  if (queries > kMost) {
    const int64_t blocks = (queries + kMost - 1) / kMost;
    block = (queries + blocks - 1) / blocks;
  }
  for (int64_t d = 0; d < value_dim; d += 2 * kLanes) {
    if constexpr (Ahead::kAsks) {
      add(d, 0, queries);
    } else {
      for (int64_t i = 0; i < queries; i += block) add(d, i, MinOf(block, queries - i));
    }
  }
}

}  // namespace
}  // namespace tern
