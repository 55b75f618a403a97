#include "quant/quant_error.h"

#include <cstring>

namespace tern {
namespace {

// One register of any 64-bit machine.
using Lanes = float __attribute__((vector_size(16)));
constexpr int64_t kLanes = 4;

struct Partial {
  Lanes error{}, weight{}, largest{};

  void Add(const float* weights, const float* values) {
    Lanes w, v;
    std::memcpy(&w, weights, sizeof(w));
    std::memcpy(&v, values, sizeof(v));
    const Lanes e = w - v, magnitude = e > -e ? e : -e;
    error += e * e;
    weight += w * w;
    largest = largest > magnitude ? largest : magnitude;
  }
};

}  // namespace

void AddQuantError(const float* weights, const float* values, int64_t count, QuantError* sums) {
  Partial even, odd;
  int64_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
    even.Add(weights + i, values + i);
    odd.Add(weights + i + kLanes, values + i + kLanes);
  }
  for (; i < count; ++i) {
    const float e = weights[i] - values[i];
    even.error[0] += e * e;
    even.weight[0] += weights[i] * weights[i];
    odd.largest[0] = std::max(odd.largest[0], std::fabs(e));
  }
  for (const Partial& partial : {even, odd}) {
    for (int l = 0; l < kLanes; ++l) {
      sums->error += partial.error[l];
      sums->weight += partial.weight[l];
      sums->largest = std::max(sums->largest, partial.largest[l]);
    }
  }
  sums->count += count;
}

}  // namespace tern
