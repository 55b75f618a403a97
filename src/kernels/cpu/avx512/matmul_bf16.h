// Matrix product with BF16 dot products: x rounded to BF16 once per product, weights exact, sums in
// float32. Quantized integers are exact in BF16, so
//   y = sum over groups g of d_g * (sum_k q_k x_k) + m_g * (sum_k x_k)
// and only x is rounded. A group's inner sum starts at zero and adds pairs in column order; groups
// are added in order. That order is the row's own: tiles of any number of rows give the same bits.
// See kernels/cpu/isa_common.h for the rules of this file; vec.h of the level comes first.
#pragma once

#include "kernels/cpu/avx512/e4m3_bf16.h"
#include "kernels/cpu/matmul_int8.h"

namespace tern {
namespace {

// A pair of columns of 16 rows as BF16.
inline __m512bh LoadPair(const std::byte* p) { return (__m512bh)_mm512_loadu_si512(p); }
inline __m512 Dot(__m512 sum, __m512bh weights, const uint16_t* x_pair) {
  int32_t pair;
  __builtin_memcpy(&pair, x_pair, sizeof(pair));
  return _mm512_dpbf16_ps(sum, weights, (__m512bh)_mm512_set1_epi32(pair));
}

// BF16 of the integers first .. first + 31 for _mm512_permutexvar_epi16. kMask folds the index:
// 15 repeats a table of 16 entries.
inline __m512i Bf16Table(int first, int mask) {
  uint16_t table[32];
  for (int i = 0; i < 32; ++i) {
    const auto value = static_cast<float>((i & mask) + first);
    uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof(bits));
    table[i] = static_cast<uint16_t>(bits >> 16);
  }
  return _mm512_loadu_si512(table);
}

// One struct per format: how a group's weights become BF16 pairs, and its scales.
//   GroupPairs: pairs of the group that begins at a column; kPairs: pairs that one Expand gives, of
//   kPairBytes of quants each; HasMinimum: whether there is an m_g. Groups with one are multiples
//   of 32 columns. Scale and Minimum take the first column of a group.

template <int kColumns>
struct FixedGroup {
  static int64_t GroupPairs(int64_t /*column*/, int64_t /*k*/) { return kColumns / 2; }
};

// The 4-bit formats: q - Scales::kZero from a table.
template <typename Scales>
struct NibbleWeights : Scales {
  static constexpr int kPairs = 4, kPairBytes = 16;
  NibbleWeights() = default;
  explicit NibbleWeights(int format) : Scales(format) {}
  int64_t GroupPairs(int64_t /*column*/, int64_t /*k*/) const { return this->GroupColumns() / 2; }
  // vpermw looks at five index bits: the sixth and later ones need no masking, the fifth folds.
  void Expand(const std::byte* quants, __m512bh pairs[kPairs]) const {
    const __m512i words = _mm512_loadu_si512(quants);
    pairs[0] = (__m512bh)_mm512_permutexvar_epi16(words, table);
    pairs[1] = (__m512bh)_mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4), table);
    pairs[2] = (__m512bh)_mm512_permutexvar_epi16(_mm512_srli_epi16(words, 8), table);
    pairs[3] = (__m512bh)_mm512_permutexvar_epi16(_mm512_srli_epi16(words, 12), table);
  }
  __m512i table = Bf16Table(-Scales::kZero, 15);
};

struct Q8_0Weights : FixedGroup<32> {
  static constexpr int kPairs = 4, kPairBytes = 32;
  static constexpr PanelBlock block = PanelBlockOf(kPackQ8_0);
  static constexpr bool HasMinimum() { return false; }
  void Expand(const std::byte* quants, __m512bh pairs[kPairs]) const {
    for (int i = 0; i < kPairs; ++i, quants += 32) {
      pairs[i] = _mm512_cvtne2ps_pbh(ToFloat(LoadI8(quants + 16)).v, ToFloat(LoadI8(quants)).v);
    }
  }
  static Vec Scale(const std::byte* panel, int64_t column) {
    return LoadF16(panel + ScalesAt(block, column, 32, 32));
  }
  static Vec Minimum(const std::byte*, int64_t) { return Zero(); }
};

struct Q6_KWeights : FixedGroup<16> {
  static constexpr int kPairs = 8, kPairBytes = 24;
  static constexpr PanelBlock block = PanelBlockOf(kPackQ6_K);
  static constexpr bool HasMinimum() { return false; }
  __m512i low = Bf16Table(-32, 31), high = Bf16Table(0, 31);
  // vpermt2w looks at six index bits.
  __m512bh Lookup(__m512i q) const { return (__m512bh)_mm512_permutex2var_epi16(low, q, high); }
  void Expand(const std::byte* quants, __m512bh pairs[kPairs]) const {
    const __m512i w0 = _mm512_loadu_si512(quants), w1 = _mm512_loadu_si512(quants + 64),
                  w2 = _mm512_loadu_si512(quants + 128), two = _mm512_set1_epi16(0x30);
    pairs[0] = Lookup(w0);
    pairs[1] = Lookup(_mm512_srli_epi16(w0, 6));
    pairs[2] = Lookup(w1);
    pairs[3] = Lookup(_mm512_srli_epi16(w1, 6));
    pairs[4] = Lookup(w2);
    pairs[5] = Lookup(_mm512_srli_epi16(w2, 6));
    constexpr int kOrAnd = 0xF8;  // a | (b & c)
    pairs[6] = Lookup(_mm512_ternarylogic_epi32(_mm512_srli_epi16(w0, 12), _mm512_srli_epi16(w2, 8),
                                                two, kOrAnd));
    pairs[7] = Lookup(_mm512_ternarylogic_epi32(_mm512_srli_epi16(w1, 12),
                                                _mm512_srli_epi16(w2, 10), two, kOrAnd));
  }
  static Vec Scale(const std::byte* panel, int64_t column) {
    const Vec d = LoadF16(panel + SuperAt(block, column, 256, 32));
    return Mul(d, ToFloat(LoadI8(panel + ScalesAt(block, column, 16, 16))));
  }
  static Vec Minimum(const std::byte*, int64_t) { return Zero(); }
};

struct Fp8Weights {
  static constexpr int kPairs = 2, kPairBytes = 32;
  static constexpr PanelBlock block = PanelBlockOf(kPackFp8);
  static constexpr bool HasMinimum() { return false; }
  // The last group may be short; x is zero up to its last four columns.
  static int64_t GroupPairs(int64_t column, int64_t k) {
    return MinOf(kFp8Group / 2, (k - column + 3) / 4 * 2);
  }
  void Expand(const std::byte* quants, __m512bh pairs[kPairs]) const {
    const __m512i codes = _mm512_permutexvar_epi64(eighths, _mm512_loadu_si512(quants));
    __m512i words[2];
    expansion.Words(codes, words);
    pairs[0] = (__m512bh)words[0];
    pairs[1] = (__m512bh)words[1];
  }
  static Vec Scale(const std::byte* panel, int64_t column) {
    return Set(*At<float>(panel, ScalesAt(block, column, kFp8Group, 4)));
  }
  static Vec Minimum(const std::byte*, int64_t) { return Zero(); }

  E4m3Expansion expansion;
  __m512i eighths = EighthsForWords();
};

// sums[r][16] of kRows rows and one panel of a quantized format.
template <typename Weights>
struct GroupedTile {
  template <int kRows>
  struct Block {
    static void Run(const Weights* weights, const std::byte* panel, int64_t k, const uint16_t* x,
                    int64_t x_stride, const float* x_sums, int64_t groups, float* sums) {
      constexpr int kBytes = Weights::kPairs * Weights::kPairBytes;
      __m512 sum[kRows];
      for (__m512& lanes : sum) lanes = _mm512_setzero_ps();
      for (int64_t column = 0; column < k;) {
        __m512 part[kRows];
        for (__m512& lanes : part) lanes = _mm512_setzero_ps();
        const int64_t first = column, group_pairs = weights->GroupPairs(column, k);
        AskAheadOfScales(weights->block, panel, first);
        const std::byte* quants = panel + QuantsAt(weights->block, first);
        for (int64_t i = 0; i < group_pairs; i += Weights::kPairs, quants += kBytes) {
          __m512bh pairs[Weights::kPairs];
          AskAhead(quants, kBytes);
          weights->Expand(quants, pairs);
          for (int pair = 0; pair < Weights::kPairs; ++pair, column += 2) {
            for (int r = 0; r < kRows; ++r) {
              part[r] = Dot(part[r], pairs[pair], x + r * x_stride + column);
            }
          }
        }
        const __m512 scale = weights->Scale(panel, first).v;
        for (int r = 0; r < kRows; ++r) sum[r] = _mm512_fmadd_ps(scale, part[r], sum[r]);
        if (!weights->HasMinimum()) continue;
        const __m512 minimum = weights->Minimum(panel, first).v;
        for (int64_t i = first / 32; i * 32 < column; ++i) {
          for (int r = 0; r < kRows; ++r) {
            const __m512 x_sum = _mm512_set1_ps(x_sums[r * groups + i]);
            sum[r] = _mm512_fmadd_ps(minimum, x_sum, sum[r]);
          }
        }
      }
      for (int r = 0; r < kRows; ++r) _mm512_storeu_ps(sums + r * kLanes, sum[r]);
    }
  };
};

template <typename Weights>
void MatMulGrouped(const Weights& weights, const MatMulArgs& args, int64_t panel_begin,
                   int64_t panel_end, int64_t row_begin, int64_t row_end) {
  const int64_t groups = (args.k + 31) / 32;
  ForEachTile<kMatMulRows>(args, panel_begin, panel_end, row_begin, row_end,
                           [&](const std::byte* panel, int64_t row, int64_t rows, float* sums) {
                             RunBlock<GroupedTile<Weights>::template Block, kMatMulRows>(
                                 rows, &weights, panel, args.k,
                                 args.x_bf16 + row * args.x_bf16_stride, args.x_bf16_stride,
                                 args.x_sums + row * groups, groups, sums);
                           });
}

// sums[r][16] of kRows rows and one BF16 panel.
template <int kRows>
struct Bf16Tile {
  static void Run(const std::byte* panel, int64_t k, const uint16_t* x, int64_t x_stride,
                  float* sums) {
    __m512 sum[kRows];
    for (__m512& lanes : sum) lanes = _mm512_setzero_ps();
    for (int64_t column = 0; column < k; column += 2, panel += 64) {
      AskAhead(panel, 64);
      const __m512bh pair = LoadPair(panel);
      for (int r = 0; r < kRows; ++r) sum[r] = Dot(sum[r], pair, x + r * x_stride + column);
    }
    for (int r = 0; r < kRows; ++r) _mm512_storeu_ps(sums + r * kLanes, sum[r]);
  }
};

void MatMulBf16(const MatMulArgs& args, int64_t panel_begin, int64_t panel_end, int64_t row_begin,
                int64_t row_end) {
  ForEachTile<kMatMulRows>(args, panel_begin, panel_end, row_begin, row_end,
                           [&](const std::byte* panel, int64_t row, int64_t rows, float* sums) {
                             RunBlock<Bf16Tile, kMatMulRows>(rows, panel, args.k,
                                                             args.x_bf16 + row * args.x_bf16_stride,
                                                             args.x_bf16_stride, sums);
                           });
}

template <typename Weights>
void MatMulGrouped(const MatMulArgs& args, int64_t panel_begin, int64_t panel_end,
                   int64_t row_begin, int64_t row_end) {
  MatMulGrouped(Weights(), args, panel_begin, panel_end, row_begin, row_end);
}

void MatMul(const MatMulArgs& args, int64_t panel_begin, int64_t panel_end, int64_t row_begin,
            int64_t row_end) {
  if (args.x_int8 != nullptr) {
    return MatMulInt8(args, panel_begin, panel_end, row_begin, row_end);
  }
  if (IsInt4(args.format)) {
    return MatMulGrouped(NibbleWeights<Int4Scales>(args.format), args, panel_begin, panel_end,
                         row_begin, row_end);
  }
  switch (args.format) {
    case kPackF32:
      return MatMulF32(args, panel_begin, panel_end, row_begin, row_end);
    case kPackBf16:
      return MatMulBf16(args, panel_begin, panel_end, row_begin, row_end);
    case kPackQ4_0:
      return MatMulGrouped<NibbleWeights<Q4_0Scales>>(args, panel_begin, panel_end, row_begin,
                                                      row_end);
    case kPackQ4_1:
      return MatMulGrouped<NibbleWeights<Q4_1Scales>>(args, panel_begin, panel_end, row_begin,
                                                      row_end);
    case kPackQ4_K:
      return MatMulGrouped<NibbleWeights<Q4_KScales>>(args, panel_begin, panel_end, row_begin,
                                                      row_end);
    case kPackQ8_0:
      return MatMulGrouped<Q8_0Weights>(args, panel_begin, panel_end, row_begin, row_end);
    case kPackQ6_K:
      return MatMulGrouped<Q6_KWeights>(args, panel_begin, panel_end, row_begin, row_end);
    case kPackFp8:
      return MatMulGrouped<Fp8Weights>(args, panel_begin, panel_end, row_begin, row_end);
  }
}

}  // namespace
}  // namespace tern
