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

// Adds the differences of `values` from `weights`, both [count], in eight partial sums of floats
// whose order is fixed. Squares of numbers beyond 1.8e19 make them infinite.
void AddQuantError(const float* weights, const float* values, int64_t count, QuantError* sums);

}  // namespace tern
