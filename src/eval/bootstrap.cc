#include "eval/bootstrap.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "base/rng.h"

namespace tern {
namespace {

// The limits among the resampled values of a figure measured on n blocks.
Interval Limits(std::vector<double> values, int64_t n) {
  const double blocks = static_cast<double>(n);
  const double tail = NormalCdf(-std::sqrt(blocks / (blocks - 1)) * Student975(n - 1));
  const auto count = static_cast<double>(values.size());
  const auto below = static_cast<int64_t>(std::floor(tail * (count + 1)));
  const int64_t last = static_cast<int64_t>(values.size()) - 1;
  const int64_t low = std::clamp<int64_t>(below - 1, 0, last), high = last - low;
  std::nth_element(values.begin(), values.begin() + low, values.end());
  const double low_value = values[static_cast<size_t>(low)];
  std::nth_element(values.begin(), values.begin() + high, values.end());
  return {low_value, values[static_cast<size_t>(high)]};
}

}  // namespace

double RatioOf(std::span<const Block> blocks) {
  double sum = 0, weight = 0;
  for (const Block& block : blocks) {
    sum += block.sum;
    weight += block.weight;
  }
  TERN_CHECK(weight > 0);
  return sum / weight;
}

Interval BootstrapRatio(std::span<const Block> blocks, const BootstrapOptions& options) {
  const auto n = static_cast<int64_t>(blocks.size());
  TERN_CHECK(n >= kMinBlocks && options.resamples > 0);
  Rng rng(options.seed);
  std::vector<double> ratios(static_cast<size_t>(options.resamples));
  for (double& ratio : ratios) {
    double sum = 0, weight = 0;
    for (int64_t i = 0; i < n; ++i) {
      const Block& block = blocks[rng.Below(static_cast<uint64_t>(n))];
      sum += block.sum;
      weight += block.weight;
    }
    ratio = sum / weight;
  }
  return Limits(std::move(ratios), n);
}

double QuantileOf(std::vector<double> values, int64_t percent) {
  TERN_CHECK(!values.empty() && percent >= 0 && percent <= 100);
  const auto n = static_cast<int64_t>(values.size());
  const auto at = std::max<int64_t>((percent * n + 99) / 100 - 1, 0);
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<size_t>(at)];
}

std::vector<Interval> BootstrapQuantiles(std::span<const double> values,
                                         std::span<const int32_t> block_of, int64_t blocks,
                                         std::span<const int64_t> percents,
                                         const BootstrapOptions& options) {
  TERN_CHECK(blocks >= kMinBlocks && values.size() == block_of.size() && options.resamples > 0);
  TERN_CHECK(std::is_sorted(percents.begin(), percents.end()));
  std::vector<int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return values[static_cast<size_t>(a)] < values[static_cast<size_t>(b)];
  });
  std::vector<int32_t> sorted_block;  // of the values in ascending order
  std::vector<int64_t> size_of(static_cast<size_t>(blocks), 0);
  for (const int32_t i : order) {
    sorted_block.push_back(block_of[static_cast<size_t>(i)]);
    ++size_of[static_cast<size_t>(sorted_block.back())];
  }
  Rng rng(options.seed);
  std::vector<std::vector<double>> found(percents.size());
  std::vector<int32_t> times(static_cast<size_t>(blocks));
  for (int64_t r = 0; r < options.resamples; ++r) {
    std::fill(times.begin(), times.end(), 0);
    int64_t total = 0;
    for (int64_t i = 0; i < blocks; ++i) {
      const uint64_t drawn = rng.Below(static_cast<uint64_t>(blocks));
      ++times[drawn];
      total += size_of[drawn];
    }
    // One walk in ascending order finds all quantiles of the resample.
    int64_t seen = 0;
    size_t at = 0;
    for (size_t q = 0; q < percents.size(); ++q) {
      const int64_t wanted = std::max<int64_t>((percents[q] * total + 99) / 100, 1);
      while (seen < wanted) seen += times[static_cast<size_t>(sorted_block[at++])];
      found[q].push_back(values[static_cast<size_t>(order[at - 1])]);
    }
  }
  std::vector<Interval> intervals;
  for (auto& one : found) intervals.push_back(Limits(std::move(one), blocks));
  return intervals;
}

}  // namespace tern
