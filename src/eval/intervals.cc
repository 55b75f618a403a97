#include "eval/intervals.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace tern {

Interval Hull(const Interval& a, const Interval& b) {
  return {std::min(a.low, b.low), std::max(a.high, b.high)};
}

Interval WilsonInterval(int64_t successes, int64_t n) {
  TERN_CHECK(n > 0 && successes >= 0 && successes <= n);
  const double count = static_cast<double>(n), share = static_cast<double>(successes) / count;
  const double z2 = kNormal975 * kNormal975, scale = 1 + z2 / count;
  const double middle = (share + z2 / (2 * count)) / scale;
  const double half =
      kNormal975 / scale * std::sqrt(share * (1 - share) / count + z2 / (4 * count * count));
  return {successes == 0 ? 0 : std::max(0.0, middle - half),
          successes == n ? 1 : std::min(1.0, middle + half)};
}

Interval PairedScoreInterval(int64_t gained, int64_t lost, int64_t n) {
  TERN_CHECK(n > 0 && gained >= 0 && lost >= 0 && gained + lost <= n);
  const double b = static_cast<double>(gained), c = static_cast<double>(lost);
  const double count = static_cast<double>(n);
  // The score statistic for a difference of d; it falls as d grows.
  const auto score = [&](double d) {
    const double p = 2 * count, q = (2 * count - b + c) * d - b - c, r = -c * d * (1 - d);
    const double lost_share = (std::sqrt(std::max(q * q - 4 * p * r, 0.0)) - q) / (2 * p);
    const double variance = count * (2 * lost_share + d * (1 - d));
    const double distance = b - c - count * d;
    if (variance <= 0) return distance == 0 ? 0.0 : std::copysign(HUGE_VAL, distance);
    return distance / std::sqrt(variance);
  };
  const auto solve = [&](double target, double low, double high) {
    for (int i = 0; i < 100; ++i) {
      const double middle = (low + high) / 2;
      (score(middle) > target ? low : high) = middle;
    }
    return (low + high) / 2;
  };
  const double estimate = (b - c) / count;
  return {solve(kNormal975, -1, estimate), solve(-kNormal975, estimate, 1)};
}

double McNemarExact(int64_t gained, int64_t lost) {
  const int64_t n = gained + lost, fewer = std::min(gained, lost);
  if (n == 0) return 1;
  const auto log_choose = [n](int64_t k) {
    return std::lgamma(static_cast<double>(n) + 1) - std::lgamma(static_cast<double>(k) + 1) -
           std::lgamma(static_cast<double>(n - k) + 1);
  };
  double tail = 0;
  for (int64_t k = 0; k <= fewer; ++k) {
    tail += std::exp(log_choose(k) - static_cast<double>(n) * std::log(2.0));
  }
  return std::min(1.0, 2 * tail);
}

double Student975(int64_t degrees) {
  TERN_CHECK(degrees >= 3);
  const double z = kNormal975, z2 = z * z, v = static_cast<double>(degrees);
  const double g1 = z * (z2 + 1) / 4, g2 = z * ((5 * z2 + 16) * z2 + 3) / 96;
  const double g3 = z * (((3 * z2 + 19) * z2 + 17) * z2 - 15) / 384;
  const double g4 = z * ((((79 * z2 + 776) * z2 + 1482) * z2 - 1920) * z2 - 945) / 92160;
  return z + (g1 + (g2 + (g3 + g4 / v) / v) / v) / v;
}

double NormalCdf(double z) { return 0.5 * std::erfc(-z / std::sqrt(2.0)); }

double DetectableDifference(const Interval& interval) {
  return (interval.high - interval.low) / (2 * kNormal975) * (kNormal975 + kNormal80);
}

}  // namespace tern
