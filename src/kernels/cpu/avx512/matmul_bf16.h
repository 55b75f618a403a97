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
//   GroupPairs: pairs of the group that begins at a column; kPairs: pairs that one Expand gives;
//   kColumnBytes: quants of a column; HasMinimum: whether there is an m_g. Groups with one are
//   multiples of 32 columns.

template <int kColumns>
struct FixedGroup {
  static int64_t GroupPairs(int64_t /*column*/, int64_t /*k*/) { return kColumns / 2; }
};

// The 4-bit formats: q - Scales::kZero from a table.
template <typename Scales>
struct NibbleWeights : Scales {
  static constexpr int kPairs = 4, kColumnBytes = 8;
  NibbleWeights() = default;
  explicit NibbleWeights(int format) : Scales(format) {}
  int64_t GroupPairs(int64_t /*column*/, int64_t /*k*/) const { return this->GroupColumns() / 2; }
  // vpermw looks at five index bits: the sixth and later ones need no masking, the fifth folds.
  void Expand(const Panel& panel, int64_t column, __m512bh pairs[kPairs]) const {
    const __m512i words = _mm512_loadu_si512(panel.quants + column * 8);
    pairs[0] = (__m512bh)_mm512_permutexvar_epi16(words, table);
    pairs[1] = (__m512bh)_mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4), table);
    pairs[2] = (__m512bh)_mm512_permutexvar_epi16(_mm512_srli_epi16(words, 8), table);
    pairs[3] = (__m512bh)_mm512_permutexvar_epi16(_mm512_srli_epi16(words, 12), table);
  }
  __m512i table = Bf16Table(-Scales::kZero, 15);
};

struct Q8_0Weights : FixedGroup<32> {
  static constexpr int kPairs = 4, kColumnBytes = 16;
  static constexpr bool HasMinimum() { return false; }
  void Expand(const Panel& panel, int64_t column, __m512bh pairs[kPairs]) const {
    const std::byte* quants = panel.quants + column * 16;
    for (int i = 0; i < kPairs; ++i, quants += 32) {
      pairs[i] = _mm512_cvtne2ps_pbh(ToFloat(LoadI8(quants + 16)).v, ToFloat(LoadI8(quants)).v);
    }
  }
  static Vec Scale(const Panel& panel, int64_t group) { return LoadF16(panel.scales + group * 32); }
  static Vec Minimum(const Panel&, int64_t) { return Zero(); }
};

struct Q6_KWeights : FixedGroup<16> {
  static constexpr int kPairs = 8, kColumnBytes = 12;
  static constexpr bool HasMinimum() { return false; }
  __m512i low = Bf16Table(-32, 31), high = Bf16Table(0, 31);
  // vpermt2w looks at six index bits.
  __m512bh Lookup(__m512i q) const { return (__m512bh)_mm512_permutex2var_epi16(low, q, high); }
  void Expand(const Panel& panel, int64_t column, __m512bh pairs[kPairs]) const {
    const std::byte* quants = panel.quants + column * 12;
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
  static Vec Scale(const Panel& panel, int64_t group) {
    return Mul(LoadF16(panel.super + group / 16 * 32), ToFloat(LoadI8(panel.scales + group * 16)));
  }
  static Vec Minimum(const Panel&, int64_t) { return Zero(); }
};

struct Fp8Weights {
  static constexpr int kPairs = 2, kColumnBytes = 16;
  static constexpr bool HasMinimum() { return false; }
  // The last group may be short; x is zero up to its last four columns.
  static int64_t GroupPairs(int64_t column, int64_t k) {
    return MinOf(kFp8Group / 2, (k - column + 3) / 4 * 2);
  }
  void Expand(const Panel& panel, int64_t column, __m512bh pairs[kPairs]) const {
    const __m512i codes =
        _mm512_permutexvar_epi64(eighths, _mm512_loadu_si512(panel.quants + column * 16));
    __m512i words[2];
    expansion.Words(codes, words);
    pairs[0] = (__m512bh)words[0];
    pairs[1] = (__m512bh)words[1];
  }
  static Vec Scale(const Panel& panel, int64_t group) {
    return Set(*At<float>(panel.scales, group * 4));
  }
  static Vec Minimum(const Panel&, int64_t) { return Zero(); }

  E4m3Expansion expansion;
  __m512i eighths = EighthsForWords();
};

constexpr int kTileRows = kMatMulRows;

// sums[p][r][16] of kRows rows and kPanels neighbouring panels of a quantized format. Few rows need
// several panels in flight: a group's sum is one chain of dependent dot products.
template <typename Weights, int kPanels>
struct GroupedTile {
  template <int kRows>
  struct Block {
    static void Run(const Weights* weights, const Panel* panels, int64_t k, const uint16_t* x,
                    int64_t x_stride, const float* x_sums, int64_t groups, float* sums) {
      __m512 sum[kPanels][kRows];
      for (auto& row : sum) {
        for (__m512& lanes : row) lanes = _mm512_setzero_ps();
      }
      for (int64_t column = 0, group = 0; column < k; ++group) {
        __m512 part[kPanels][kRows];
        for (auto& row : part) {
          for (__m512& lanes : row) lanes = _mm512_setzero_ps();
        }
        const int64_t first = column, group_pairs = weights->GroupPairs(column, k);
        for (int64_t i = 0; i < group_pairs; i += Weights::kPairs) {
          __m512bh pairs[kPanels][Weights::kPairs];
          for (int n = 0; n < kPanels; ++n) {
            if constexpr (kPanels <= 2) {
              PrefetchQuants<2 * Weights::kPairs * Weights::kColumnBytes>(
                  panels[n].quants + column * Weights::kColumnBytes);
            }
            weights->Expand(panels[n], column, pairs[n]);
          }
          for (int pair = 0; pair < Weights::kPairs; ++pair, column += 2) {
            for (int r = 0; r < kRows; ++r) {
              for (int n = 0; n < kPanels; ++n) {
                part[n][r] = Dot(part[n][r], pairs[n][pair], x + r * x_stride + column);
              }
            }
          }
        }
        for (int n = 0; n < kPanels; ++n) {
          const __m512 scale = weights->Scale(panels[n], group).v;
          for (int r = 0; r < kRows; ++r) sum[n][r] = _mm512_fmadd_ps(scale, part[n][r], sum[n][r]);
          if (!weights->HasMinimum()) continue;
          const __m512 minimum = weights->Minimum(panels[n], group).v;
          for (int64_t i = first / 32; i * 32 < column; ++i) {
            for (int r = 0; r < kRows; ++r) {
              const __m512 x_sum = _mm512_set1_ps(x_sums[r * groups + i]);
              sum[n][r] = _mm512_fmadd_ps(minimum, x_sum, sum[n][r]);
            }
          }
        }
      }
      for (int n = 0; n < kPanels; ++n) {
        for (int r = 0; r < kRows; ++r)
          _mm512_storeu_ps(sums + (n * kRows + r) * kLanes, sum[n][r]);
      }
    }
  };
};

// Rows [row_begin, row_end), at most kMaxRows at a time, of kPanels panels from `n` on.
template <typename Weights, int kPanels, int kMaxRows>
void MatMulGroupedPanels(const Weights& weights, const MatMulArgs& args, int64_t n,
                         int64_t row_begin, int64_t row_end) {
  const PanelLayout layout = PanelLayoutOf(args.format, args.k);
  const int64_t groups = (args.k + 31) / 32;
  Panel panels[kPanels];
  for (int p = 0; p < kPanels; ++p) panels[p] = PanelAt(args, layout, n + p);
  alignas(64) float sums[kPanels * kMaxRows * kLanes];
  const int64_t tile = MinOf(EvenTile(row_end - row_begin, kTileRows), kMaxRows);
  for (int64_t row = row_begin; row < row_end; row += tile) {
    const int64_t rows = MinOf(tile, row_end - row);
    RunBlock<GroupedTile<Weights, kPanels>::template Block, kMaxRows>(
        rows, &weights, static_cast<const Panel*>(panels), args.k,
        args.x_bf16 + row * args.x_bf16_stride, args.x_bf16_stride, args.x_sums + row * groups,
        groups, static_cast<float*>(sums));
    for (int p = 0; p < kPanels; ++p) StoreSums(args, n + p, row, rows, sums + p * rows * kLanes);
  }
}

template <typename Weights>
void MatMulGrouped(const Weights& weights, const MatMulArgs& args, int64_t panel_begin,
                   int64_t panel_end, int64_t row_begin, int64_t row_end) {
  const int64_t rows = row_end - row_begin;
  // Their expanded pairs fill half the registers at most.
  constexpr int kMany = Weights::kPairs < 4 ? 4 : 16 / Weights::kPairs;
  int64_t n = panel_begin;
  if (rows == 1) {
    for (; n + kMany <= panel_end; n += kMany) {
      MatMulGroupedPanels<Weights, kMany, 1>(weights, args, n, row_begin, row_end);
    }
  } else if (rows <= 4) {
    for (; n + 2 <= panel_end; n += 2) {
      MatMulGroupedPanels<Weights, 2, 4>(weights, args, n, row_begin, row_end);
    }
  }
  for (; n < panel_end; ++n) {
    MatMulGroupedPanels<Weights, 1, kTileRows>(weights, args, n, row_begin, row_end);
  }
}

// sums[p][r][16] of kRows rows and kPanels neighbouring BF16 panels.
template <int kPanels>
struct Bf16Tile {
  template <int kRows>
  struct Block {
    static void Run(const std::byte* panels, int64_t panel_stride, int64_t k, const uint16_t* x,
                    int64_t x_stride, float* sums) {
      __m512 sum[kPanels][kRows];
      for (auto& row : sum) {
        for (__m512& lanes : row) lanes = _mm512_setzero_ps();
      }
      for (int64_t column = 0; column < k; column += 2) {
        __m512bh pair[kPanels];
        for (int n = 0; n < kPanels; ++n) {
          PrefetchQuants<64>(panels + n * panel_stride + column * 32);
          pair[n] = LoadPair(panels + n * panel_stride + column * 32);
        }
        for (int r = 0; r < kRows; ++r) {
          for (int n = 0; n < kPanels; ++n) {
            sum[n][r] = Dot(sum[n][r], pair[n], x + r * x_stride + column);
          }
        }
      }
      for (int n = 0; n < kPanels; ++n) {
        for (int r = 0; r < kRows; ++r)
          _mm512_storeu_ps(sums + (n * kRows + r) * kLanes, sum[n][r]);
      }
    }
  };
};

template <int kPanels>
void MatMulBf16Panels(const MatMulArgs& args, int64_t n, int64_t row_begin, int64_t row_end) {
  const int64_t stride = PanelLayoutOf(kPackBf16, args.k).stride;
  alignas(64) float sums[kPanels * kTileRows * kLanes];
  const int64_t tile = EvenTile(row_end - row_begin, kTileRows);
  for (int64_t row = row_begin; row < row_end; row += tile) {
    const int64_t rows = MinOf(tile, row_end - row);
    RunBlock<Bf16Tile<kPanels>::template Block, kTileRows>(
        rows, args.weight + n * stride, stride, args.k, args.x_bf16 + row * args.x_bf16_stride,
        args.x_bf16_stride, static_cast<float*>(sums));
    for (int p = 0; p < kPanels; ++p) StoreSums(args, n + p, row, rows, sums + p * rows * kLanes);
  }
}

void MatMulBf16(const MatMulArgs& args, int64_t panel_begin, int64_t panel_end, int64_t row_begin,
                int64_t row_end) {
  int64_t panel = panel_begin;
  for (; panel + 2 <= panel_end; panel += 2) MatMulBf16Panels<2>(args, panel, row_begin, row_end);
  if (panel < panel_end) MatMulBf16Panels<1>(args, panel, row_begin, row_end);
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
