// MachineLimits: how fast this machine reads memory and multiplies, at one instruction-set level
// and number of threads: what every other figure is a share of. Loops: kernels/isa_table.h.
// Thread: the caller's, and the pool's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "kernels/ops.h"
#include "kernels/weight_info.h"
#include "report/svg_chart.h"

namespace tern {

// Of many slices of time, short enough for some to be free of other work, which only takes away:
// the best is the limit. 0: the level has no such instructions.
struct LimitFigure {
  double best = 0, median = 0;
};

// What an operation or a pass does: bytes that memory must bring, operations by what multiplies
// them, two for each product.
struct Work {
  double bytes = 0;
  double f32_ops = 0, bf16_ops = 0, int8_ops = 0;

  void AddOperations(Arithmetic arithmetic, double operations);
  double operations() const { return f32_ops + bf16_ops + int8_ops; }
  Work& operator+=(const Work& other);
  Work& operator*=(double factor);
};

struct MachineLimits {
  std::string isa;
  int threads = 0;
  LimitFigure read;             // bytes per second, of memory that no cache holds
  LimitFigure f32, bf16, int8;  // operations per second, two for each product

  // The least time that memory and arithmetic allow for `work`, each on its own. A level without
  // BF16 or INT8 products does them in float32.
  double MemorySeconds(const Work& work) const;
  double ArithmeticSeconds(const Work& work) const;

  Json ToJson() const;
  // The larger of each figure.
  static MachineLimits Best(const MachineLimits& a, const MachineLimits& b);
};

struct LimitOptions {
  int64_t slices = 100;
  int64_t slice_us = 2'000;
  int64_t read_bytes = int64_t{512} << 20;       // no cache holds them
  int64_t read_slice_bytes = int64_t{64} << 20;  // of these, one part after the other
};

// Errors: kInvalidArgument (a level that this machine can't run), kResourceExhausted (memory).
Result<MachineLimits> MeasureLimits(const std::string& isa, ThreadPool& pool,
                                    const LimitOptions& options);

std::string LimitsTable(const std::vector<MachineLimits>& limits);
SvgPicture LimitsPicture(const std::vector<MachineLimits>& limits, const std::string& note);

}  // namespace tern
