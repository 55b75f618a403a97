#include "bench/statistics.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace tern {

double MedianOf(std::vector<double> values) {
  TERN_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

double PercentileOf(std::vector<double> values, double percent) {
  TERN_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const auto n = static_cast<double>(values.size());
  const auto rank = static_cast<int64_t>(std::ceil(percent / 100 * n));
  return values[static_cast<size_t>(std::clamp<int64_t>(rank, 1, static_cast<int64_t>(n)) - 1)];
}

MedianInterval MedianIntervalOf(std::vector<double> values) {
  TERN_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  // below = P(Binomial(n, 1/2) < k), term = P(Binomial(n, 1/2) = k).
  double below = std::exp2(-static_cast<double>(n)), term = below;
  size_t k = 1;
  while (2 * (k + 1) <= n) {
    term *= static_cast<double>(n - k + 1) / static_cast<double>(k);
    if (1 - 2 * (below + term) < 0.95) break;
    below += term;
    ++k;
  }
  const double coverage = n == 1 ? 0 : 1 - 2 * below;
  return {values[k - 1], values[n - k], coverage};
}

}  // namespace tern
