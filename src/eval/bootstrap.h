// Bootstrap: intervals at 95 % of means and quantiles by drawing again what was measured. Drawn are
// whole blocks (a task item, a window of text), never single tokens, since tokens of one text go
// together. Seeded: the same data give the same interval on every machine.
// Thread: pure functions.
//
// Limits are percentiles of the resampled values, moved outwards for small numbers of blocks
// ("expanded percentile interval", Hesterberg, The American Statistician 69, 2015, section 5.3):
// the 2.5 % become Phi(-sqrt(n / (n - 1)) * t(97.5 %, n - 1)).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "eval/intervals.h"

namespace tern {

struct BootstrapOptions {
  int64_t resamples = 10'000;
  uint64_t seed = 1;
};

// The fewest blocks that an interval is computed from.
inline constexpr int64_t kMinBlocks = 4;

// Part of a sum and what it is divided by: losses and tokens of a window, a task item and 1.
struct Block {
  double sum = 0, weight = 0;
};

// Sum of all sums / sum of all weights. REQUIRES: a weight over 0.
double RatioOf(std::span<const Block> blocks);
// Its interval. REQUIRES: at least kMinBlocks blocks, each of a weight over 0.
Interval BootstrapRatio(std::span<const Block> blocks, const BootstrapOptions& options = {});

// Sorted value number ceil(percent / 100 * n), counted from 1. REQUIRES: values not empty.
double QuantileOf(std::vector<double> values, int64_t percent);
// Intervals of several quantiles: `block_of[i]` is the block of values[i], in [0, blocks).
// REQUIRES: at least kMinBlocks blocks, none empty.
std::vector<Interval> BootstrapQuantiles(std::span<const double> values,
                                         std::span<const int32_t> block_of, int64_t blocks,
                                         std::span<const int64_t> percents,
                                         const BootstrapOptions& options = {});

}  // namespace tern
