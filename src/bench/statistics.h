// Medians, quantiles and intervals of repeated measurements. Thread: pure functions.
#pragma once

#include <cstdint>
#include <vector>

namespace tern {

// The middle value, or the mean of the two middle ones. REQUIRES: values not empty.
double MedianOf(std::vector<double> values);
// Sorted value number ceil(percent / 100 * n), counted from 1. REQUIRES: values not empty.
double PercentileOf(std::vector<double> values, double percent);

// An interval around a median.
struct MedianInterval {
  double low = 0, high = 0;
  double coverage = 0;  // probability that it holds the true median
};

// The narrowest pair of order statistics, as far from either end, that holds the median of whatever
// law the values follow with at least 95 %; the smallest and the largest value where they are too
// few for that (n < 6). Coverage of the k-th and (n + 1 - k)-th: 1 - 2 P(Binomial(n, 1/2) < k).
// REQUIRES: values not empty.
MedianInterval MedianIntervalOf(std::vector<double> values);

}  // namespace tern
