// QuantError: how far quantized weights are from the numbers that they stand for.
// Thread: values and pure functions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace tern {

struct QuantError {
  double error = 0;   // sum of squared differences
  double weight = 0;  // sum of squared weights
  float largest = 0;  // difference
  int64_t count = 0;

  void Add(const QuantError& other) {
    error += other.error;
    weight += other.weight;
    largest = std::max(largest, other.largest);
    count += other.count;
  }
  // Root mean square of the differences over that of the weights; 0 for weights that are all zero.
  double RelativeRms() const { return weight > 0 ? std::sqrt(error / weight) : 0; }
};

// Adds code[i] * scale against weights[i]. Sums in eight lanes, in a fixed order.
template <typename Value>
void AddQuantError(const float* weights, int64_t count, Value&& value, QuantError* sums) {
  constexpr int kLanes = 8;
  float error[kLanes] = {}, weight[kLanes] = {}, largest[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      const float w = weights[i + l], e = w - value(i + l);
      error[l] += e * e;
      weight[l] += w * w;
      largest[l] = std::max(largest[l], std::fabs(e));
    }
  }
  for (; i < count; ++i) {
    const float w = weights[i], e = w - value(i);
    error[0] += e * e;
    weight[0] += w * w;
    largest[0] = std::max(largest[0], std::fabs(e));
  }
  for (int l = 0; l < kLanes; ++l) {
    sums->error += error[l];
    sums->weight += weight[l];
    sums->largest = std::max(sums->largest, largest[l]);
  }
  sums->count += count;
}

}  // namespace tern
