#include "engine/logit_math.h"

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "base/env.h"

namespace tern {
namespace {

// The compiler's own vectors, of a level's registers: from wider ones it makes code that goes
// through memory. cmake/tern.cmake forbids fused products here: all levels round alike.
template <size_t kBytes>
struct VectorsOf {
  static constexpr size_t kLanes = kBytes / sizeof(float);
  using Floats [[gnu::vector_size(kBytes)]] = float;
  using Ints [[gnu::vector_size(kBytes)]] = int32_t;
  using Doubles [[gnu::vector_size(kBytes)]] = double;
  using HalfFloats [[gnu::vector_size(kBytes / 2)]] = float;
};

#define TERN_INLINE __attribute__((always_inline)) static inline

// Every pass is one inlined function, so that each level's copy is compiled for that level.
template <typename V>
struct Survey {
  using Floats = typename V::Floats;
  using Ints = typename V::Ints;
  TERN_INLINE void Run(const float* logits, size_t n, LogitSurvey* survey) {
    constexpr float kLowest = -3.402823466e+38f;
    // Results side by side: their latencies overlap.
    constexpr size_t kResults = 4;
    Floats largest[kResults];
    Ints infinite[kResults] = {};
    for (Floats& x : largest) x = Floats{} + kLowest;
    size_t i = 0;
    for (; i + kResults * V::kLanes <= n; i += kResults * V::kLanes) {
      for (size_t at = 0; at < kResults; ++at) {
        Floats x;
        std::memcpy(&x, logits + i + at * V::kLanes, sizeof(x));
        largest[at] = x > largest[at] ? x : largest[at];
        infinite[at] |= (reinterpret_cast<Ints>(x) & 0x7FFFFFFF) > 0x7F7FFFFF;
      }
    }
    *survey = {.finite = true, .largest = kLowest};
    for (; i < n; ++i) {
      survey->finite &= (std::bit_cast<uint32_t>(logits[i]) & 0x7FFFFFFF) <= 0x7F7FFFFF;
      survey->largest = std::max(survey->largest, logits[i]);
    }
    for (size_t at = 0; at < kResults; ++at) {
      for (size_t lane = 0; lane < V::kLanes; ++lane) {
        survey->finite &= infinite[at][lane] == 0;
        survey->largest = std::max(survey->largest, largest[at][lane]);
      }
    }
  }
};

template <typename V>
struct Equal {
  // GCC 12 compares wider vectors for equality number by number.
  using Narrow = VectorsOf<std::min<size_t>(V::kLanes * sizeof(float), 32)>;
  using Floats = typename Narrow::Floats;
  using Ints = typename Narrow::Ints;
  TERN_INLINE void Run(const float* logits, size_t n, float x, size_t* found) {
    constexpr size_t kBlock = 128;
    size_t i = 0;
    for (; i + kBlock <= n; i += kBlock) {
      Ints equal = {};
      for (size_t at = 0; at < kBlock; at += Narrow::kLanes) {
        Floats numbers;
        std::memcpy(&numbers, logits + i + at, sizeof(numbers));
        equal |= numbers == x;
      }
      int32_t any = 0;
      for (size_t lane = 0; lane < Narrow::kLanes; ++lane) any |= equal[lane];
      if (any != 0) break;
    }
    while (i < n && logits[i] != x) ++i;
    *found = i;
  }
};

// Of eight lanes, whatever a register has, so that all levels add in one order.
template <typename V>
struct Sum {
  TERN_INLINE double Block(const float* weights, size_t n) {
    using Doubles = typename V::Doubles;
    constexpr size_t kLanes = 8, kEach = V::kLanes / 2;
    Doubles sum[kLanes / kEach] = {};
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      for (size_t part = 0; part < kLanes / kEach; ++part) {
        typename V::HalfFloats x;
        std::memcpy(&x, weights + i + part * kEach, sizeof(x));
        sum[part] += __builtin_convertvector(x, Doubles);
      }
    }
    double lanes[kLanes];
    std::memcpy(lanes, sum, sizeof(lanes));
    for (; i < n; ++i) lanes[0] += double{weights[i]};
    return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
           ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
  }
  TERN_INLINE void Run(const float* weights, size_t n, double* block_sums, double* total) {
    *total = 0;
    for (size_t begin = 0; begin < n; begin += kWeightBlock) {
      *total += *block_sums++ = Block(weights + begin, std::min(kWeightBlock, n - begin));
    }
  }
};

template <typename V>
struct Weights {
  using Floats = typename V::Floats;
  using Ints = typename V::Ints;
  // exp(x) for -87 <= x <= 0: 2^n exp(r) with n = round(x / ln 2), ln 2 in two parts (Cody and
  // Waite), exp(r) = 1 + r + r^2 p(r) with p as in kernels/cpu/vec_math.h.
  TERN_INLINE void Lanes(const float* logits, float largest, float scale, float* weights) {
    Floats x;
    std::memcpy(&x, logits, sizeof(x));
    x = (x - largest) * scale;
    const Ints kept = x > -87.0f;
    x = kept ? x : Floats{} - 87.0f;
    const Floats shifted = x * 0x1.715476p+0f + 0x1.8p23f;  // n in the low bits
    const Floats n = shifted - 0x1.8p23f;
    const Floats r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
    Floats p = Floats{} + 0x1.68a466p-10f;
    p = p * r + 0x1.123c0ep-7f;
    p = p * r + 0x1.555b1ep-5f;
    p = p * r + 0x1.55548ep-3f;
    p = p * r + 0x1.fffff8p-2f;
    const Floats y = r * r * p + r + 1.0f;
    const Ints bits = reinterpret_cast<Ints>(y) + (reinterpret_cast<Ints>(shifted) << 23);
    const Ints result = bits & kept;
    std::memcpy(weights, &result, sizeof(result));
  }
  TERN_INLINE void Run(const float* logits, size_t n, float largest, float scale, float* weights,
                       double* block_sums, double* total) {
    *total = 0;
    for (size_t begin = 0; begin < n; begin += kWeightBlock) {
      const size_t end = std::min(begin + kWeightBlock, n);
      size_t i = begin;
      for (; i + V::kLanes <= end; i += V::kLanes) Lanes(logits + i, largest, scale, weights + i);
      if (i < end) {
        float rest[V::kLanes] = {}, last[V::kLanes];
        std::copy(logits + i, logits + end, rest);
        Lanes(rest, largest, scale, last);
        std::copy(last, last + (end - i), weights + i);
      }
      *total += *block_sums++ = Sum<V>::Block(weights + begin, end - begin);
    }
  }
};

template <typename V>
struct Drop {
  TERN_INLINE void Run(float* weights, size_t n, float least) {
    size_t i = 0;
    for (; i + V::kLanes <= n; i += V::kLanes) {
      typename V::Floats x;
      std::memcpy(&x, weights + i, sizeof(x));
      const typename V::Floats kept = x >= least ? x : typename V::Floats{};
      std::memcpy(weights + i, &kept, sizeof(kept));
    }
    for (; i < n; ++i) weights[i] = weights[i] >= least ? weights[i] : 0.0f;
  }
};

template <template <typename> typename Pass, typename... Args>
__attribute__((target("avx2"))) void RunAvx2(Args... args) {
  Pass<VectorsOf<32>>::Run(args...);
}
template <template <typename> typename Pass, typename... Args>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))) void RunAvx512(Args... args) {
  Pass<VectorsOf<64>>::Run(args...);
}

std::atomic<LogitLevel> level{LogitLevelFor(EnvIsa())};

template <template <typename> typename Pass, typename... Args>
void Run(Args... args) {
  switch (level.load(std::memory_order_relaxed)) {
    case LogitLevel::kAvx512:
      return RunAvx512<Pass>(args...);
    case LogitLevel::kAvx2:
      return RunAvx2<Pass>(args...);
    case LogitLevel::kBaseline:
      return Pass<VectorsOf<16>>::Run(args...);
  }
}

// KeepWeights of whole registers; return where the rest begins. A store's last lanes, which are not
// kept, fall on weights that have been read.
__attribute__((target("avx512f,popcnt"))) size_t KeepAvx512(std::span<float> weights, float least,
                                                            int32_t* indices, size_t* kept) {
  __m512i index = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  size_t i = 0;
  for (; i + 16 <= weights.size(); i += 16) {
    const __m512 x = _mm512_loadu_ps(weights.data() + i);
    const __mmask16 mask = _mm512_cmp_ps_mask(x, _mm512_set1_ps(least), _CMP_GE_OQ);
    // Not stores of kept lanes alone: those take a hundred cycles on Zen 4.
    _mm512_storeu_ps(weights.data() + *kept, _mm512_maskz_compress_ps(mask, x));
    _mm512_storeu_si512(indices + *kept, _mm512_maskz_compress_epi32(mask, index));
    *kept += static_cast<size_t>(std::popcount(mask));
    index = _mm512_add_epi32(index, _mm512_set1_epi32(16));
  }
  return i;
}

// Of each mask of eight lanes: its lanes, packed to the front.
constexpr auto kPackedLanes = [] {
  std::array<std::array<uint8_t, 8>, 256> lanes{};
  for (size_t mask = 0; mask < 256; ++mask) {
    size_t kept = 0;
    for (uint8_t lane = 0; lane < 8; ++lane) {
      if ((mask >> lane & 1) != 0) lanes[mask][kept++] = lane;
    }
  }
  return lanes;
}();

__attribute__((target("avx2,popcnt"))) size_t KeepAvx2(std::span<float> weights, float least,
                                                       int32_t* indices, size_t* kept) {
  size_t i = 0;
  for (; i + 8 <= weights.size(); i += 8) {
    const __m256 x = _mm256_loadu_ps(weights.data() + i);
    const auto mask = static_cast<uint32_t>(
        _mm256_movemask_ps(_mm256_cmp_ps(x, _mm256_set1_ps(least), _CMP_GE_OQ)));
    const __m256i lanes = _mm256_cvtepu8_epi32(
        _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kPackedLanes[mask].data())));
    _mm256_storeu_ps(weights.data() + *kept, _mm256_permutevar8x32_ps(x, lanes));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(indices + *kept),
                        _mm256_add_epi32(lanes, _mm256_set1_epi32(static_cast<int32_t>(i))));
    *kept += static_cast<size_t>(std::popcount(mask));
  }
  return i;
}

// size(w) of every weight, into its bucket. Neighbours add to tables of their own: one of a like
// size would wait for the other's sum.
template <typename Size>
void FillBuckets(std::span<const float> weights, double* buckets, Size&& size) {
  constexpr size_t kTables = 4;
  double tables[kTables - 1][kWeightBuckets] = {};
  std::fill_n(buckets, kWeightBuckets, 0.0);
  size_t i = 0;
  for (; i + kTables <= weights.size(); i += kTables) {
    buckets[BucketOf(weights[i])] += size(weights[i]);
    for (size_t t = 1; t < kTables; ++t) {
      tables[t - 1][BucketOf(weights[i + t])] += size(weights[i + t]);
    }
  }
  for (; i < weights.size(); ++i) buckets[BucketOf(weights[i])] += size(weights[i]);
  for (const auto& table : tables) {
    for (size_t bucket = 0; bucket < kWeightBuckets; ++bucket) buckets[bucket] += table[bucket];
  }
}

}  // namespace

LogitLevel BestLogitLevel() {
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (avx512) return LogitLevel::kAvx512;
  return __builtin_cpu_supports("avx2") ? LogitLevel::kAvx2 : LogitLevel::kBaseline;
}

LogitLevel LogitLevelFor(std::optional<std::string_view> isa) {
  const LogitLevel best = BestLogitLevel();
  if (!isa || *isa == "avx512") return best;
  return *isa == "avx2" ? std::min(best, LogitLevel::kAvx2) : LogitLevel::kBaseline;
}

LogitLevel SetLogitLevelForTest(LogitLevel tested) { return level.exchange(tested); }

LogitSurvey SurveyLogits(std::span<const float> logits) {
  LogitSurvey survey;
  Run<Survey>(logits.data(), logits.size(), &survey);
  return survey;
}

size_t FirstEqual(std::span<const float> logits, float x) {
  size_t found = 0;
  Run<Equal>(logits.data(), logits.size(), x, &found);
  return found;
}

double SoftmaxWeights(std::span<const float> logits, float largest, double scale, float* weights,
                      double* block_sums) {
  // Beyond float's range a scale only tells equal from unequal: this one does too.
  const auto factor = static_cast<float>(std::min(scale, 1e37));
  double total = 0;
  Run<Weights>(logits.data(), logits.size(), largest, factor, weights, block_sums, &total);
  return total;
}

double SumWeights(std::span<const float> weights, double* block_sums) {
  double total = 0;
  Run<Sum>(weights.data(), weights.size(), block_sums, &total);
  return total;
}

size_t KeepWeights(std::span<float> weights, float least, int32_t* indices) {
  size_t i = 0, kept = 0;
  switch (level.load(std::memory_order_relaxed)) {
    case LogitLevel::kAvx512:
      i = KeepAvx512(weights, least, indices, &kept);
      break;
    case LogitLevel::kAvx2:
      i = KeepAvx2(weights, least, indices, &kept);
      break;
    case LogitLevel::kBaseline:
      break;
  }
  for (; i < weights.size(); ++i) {
    // Without a branch: which ones stay can't be foretold.
    const float weight = weights[i];
    weights[kept] = weight;
    indices[kept] = static_cast<int32_t>(i);
    kept += weight >= least ? 1 : 0;
  }
  return kept;
}

void DropWeights(std::span<float> weights, float least) {
  Run<Drop>(weights.data(), weights.size(), least);
}

void SumBuckets(std::span<const float> weights, double* buckets) {
  FillBuckets(weights, buckets, [](float weight) { return double{weight}; });
}

void CountBuckets(std::span<const float> weights, double* buckets) {
  FillBuckets(weights, buckets, [](float) { return 1.0; });
}

}  // namespace tern
