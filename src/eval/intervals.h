// Intervals of shares and of differences between paired shares, all at 95 %.
// Thread: pure functions. docs/eval.md says why each of them was chosen.
#pragma once

#include <cstdint>

namespace tern {

inline constexpr double kNormal975 = 1.959963984540054;  // the 97.5 % point of the normal law
inline constexpr double kNormal80 = 0.8416212335729143;  // the 80 % point

struct Interval {
  double low = 0, high = 0;

  bool Within(double from, double to) const { return from <= low && high <= to; }
  friend bool operator==(const Interval& a, const Interval& b) = default;
};

// The smallest interval that holds both.
Interval Hull(const Interval& a, const Interval& b);

// Score interval of a share (Wilson, JASA 22, 1927). REQUIRES: 0 <= successes <= n, n > 0.
Interval WilsonInterval(int64_t successes, int64_t n);

// Score interval of the difference of two shares measured on the same n items (Tango, Statistics
// in Medicine 17, 1998): (gained - lost) / n, where `gained` items are right only in the new run
// and `lost` only in the old one. Wider than 0 also when no item differs: +-z^2 / (n + z^2).
// REQUIRES: gained + lost <= n, n > 0.
Interval PairedScoreInterval(int64_t gained, int64_t lost, int64_t n);

// Exact two-sided McNemar test (binomial with share 1/2 over the items that differ): the
// probability of a split at least as uneven, if neither run were better. 1 when none differ.
double McNemarExact(int64_t gained, int64_t lost);

// The 97.5 % point of Student's t with `degrees` degrees of freedom (Abramowitz and Stegun 26.7.5).
// Within 0.005 from 4 degrees on. REQUIRES: degrees >= 3.
double Student975(int64_t degrees);

// P(Z < z) of the normal law.
double NormalCdf(double z);

// The difference that a run of this precision would have shown with 80 % probability, as an
// interval that excludes 0: (z_97.5 + z_80) * standard error, the latter from the interval's width.
double DetectableDifference(const Interval& interval);

}  // namespace tern
