#include "quant/gptq.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "quant/int4.h"
#include "tensor/number.h"

namespace tern {
namespace {

constexpr int64_t kBlock = 128;  // steps of a block; every group size divides it
constexpr int64_t kLanes = 16;   // rows that are rounded side by side
constexpr int64_t kMaxErrorBytes = int64_t{64} << 20;  // of the rows in one piece of work
constexpr int kTries = 6;                              // with ten times the damping each
// Adding it rounds a float of magnitude below 2^22 to an integer, ties to even.
constexpr float kRounder = 0x1.8p23f;

Status NoMemory(int64_t columns) {
  return ResourceExhausted(
      fmt::format("no memory to factor the second moments of {} features", columns));
}

Result<PackedMatrix> PackFloats(const Ops& ops, const std::vector<float>& values, int64_t rows,
                                int64_t columns) {
  return ops.Pack(TensorView{.dtype = DType::kF32,
                             .shape = Shape{rows, columns},
                             .bytes = std::as_bytes(std::span(values))},
                  Precision::kReference);
}

// Rows and columns of the symmetric m [n, n] in another order: new position p holds old from[p].
void Permute(float* m, int64_t n, const std::vector<int32_t>& from, ThreadPool& pool) {
  // Rows cycle by cycle, so that one row of memory is enough.
  std::vector<bool> placed(static_cast<size_t>(n));
  std::vector<float> first(static_cast<size_t>(n));
  const size_t row_bytes = static_cast<size_t>(n) * sizeof(float);
  for (int64_t start = 0; start < n; ++start) {
    if (placed[static_cast<size_t>(start)]) continue;
    std::memcpy(first.data(), m + start * n, row_bytes);
    int64_t to = start;
    while (true) {
      placed[static_cast<size_t>(to)] = true;
      const int64_t source = from[static_cast<size_t>(to)];
      if (source == start) break;
      std::memcpy(m + to * n, m + source * n, row_bytes);
      to = source;
    }
    std::memcpy(m + to * n, first.data(), row_bytes);
  }
  pool.ParallelFor((n + 15) / 16, [&](int64_t chunk, int) {
    std::vector<float> row(static_cast<size_t>(n));
    for (int64_t i = chunk * 16; i < std::min(n, chunk * 16 + 16); ++i) {
      std::memcpy(row.data(), m + i * n, row_bytes);
      for (int64_t j = 0; j < n; ++j) {
        m[i * n + j] = row[static_cast<size_t>(from[static_cast<size_t>(j)])];
      }
    }
  });
}

// L of block = L L^T, and L's inverse, in double: block, l and inverse are [w, w], the lower
// triangles count. False where a pivot is below `least`.
bool FactorBlock(const std::vector<double>& block, int64_t w, double least, std::vector<double>& l,
                 std::vector<double>& inverse) {
  l.assign(static_cast<size_t>(w * w), 0.0);
  inverse.assign(static_cast<size_t>(w * w), 0.0);
  const auto at = [w](auto& m, int64_t i, int64_t j) -> auto& {
    return m[static_cast<size_t>(i * w + j)];
  };
  for (int64_t i = 0; i < w; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      double sum = at(block, i, j);
      for (int64_t t = 0; t < j; ++t) sum -= at(l, i, t) * at(l, j, t);
      if (i != j) {
        at(l, i, j) = sum / at(l, j, j);
      } else if (sum >= least) {  // not so for NaN either
        at(l, i, i) = std::sqrt(sum);
      } else {
        return false;
      }
    }
    for (int64_t j = 0; j <= i; ++j) {
      double sum = i == j ? 1.0 : 0.0;
      for (int64_t t = j; t < i; ++t) sum -= at(l, i, t) * at(inverse, t, j);
      at(inverse, i, j) = sum / at(l, i, i);
    }
  }
  return true;
}

// m [n, n]: the lower triangle becomes L of m = L L^T; the upper one, without the diagonal, stays.
// False where a pivot is below `least`.
Result<bool> Cholesky(float* m, int64_t n, double least, const Ops& ops) {
  std::vector<double> block, l, inverse;
  std::vector<float> pivot_rows, product, inverse_floats;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t w = std::min(kBlock, n - begin), height = n - begin;
    product.resize(static_cast<size_t>(height * w));
    float* const rows = m + begin * n;
    const auto for_rows = [&](auto&& fn) {
      ops.pool().ParallelFor((height + 31) / 32, [&](int64_t chunk, int) {
        for (int64_t i = chunk * 32; i < std::min(height, chunk * 32 + 32); ++i) {
          fn(rows + i * n + begin, product.data() + i * w, i);
        }
      });
    };
    if (begin > 0) {
      // What the columns before have explained already.
      pivot_rows.resize(static_cast<size_t>(w * begin));
      for (int64_t i = 0; i < w; ++i) {
        std::copy_n(rows + i * n, begin, pivot_rows.data() + i * begin);
      }
      TERN_ASSIGN_OR_RETURN(const PackedMatrix pivots, PackFloats(ops, pivot_rows, w, begin));
      const MatMulGroup explained[] = {{&pivots, rows, n, height, product.data(), w}};
      ops.MatMul(explained);
      for_rows([&](float* to, const float* from, int64_t i) {
        const int64_t count = std::min(w, i + 1);  // the upper triangle stays
        for (int64_t j = 0; j < count; ++j) to[j] -= from[j];
      });
    }
    block.resize(static_cast<size_t>(w * w));
    for (int64_t i = 0; i < w; ++i) {
      for (int64_t j = 0; j <= i; ++j) {
        block[static_cast<size_t>(i * w + j)] = rows[i * n + begin + j];
      }
    }
    if (!FactorBlock(block, w, least, l, inverse)) return false;
    for (int64_t i = 0; i < w; ++i) {
      for (int64_t j = 0; j <= i; ++j) {
        rows[i * n + begin + j] = static_cast<float>(l[static_cast<size_t>(i * w + j)]);
      }
    }
    if (height == w) continue;
    // The rows below, times the inverse's transpose.
    inverse_floats.assign(inverse.begin(), inverse.end());
    TERN_ASSIGN_OR_RETURN(const PackedMatrix solver, PackFloats(ops, inverse_floats, w, w));
    const MatMulGroup solve[] = {
        {&solver, rows + w * n + begin, n, height - w, product.data() + w * w, w}};
    ops.MatMul(solve);
    for_rows([&](float* to, const float* from, int64_t i) {
      if (i >= w) std::copy_n(from, w, to);
    });
  }
  return true;
}

}  // namespace

uint64_t Gptq::Bytes(int64_t columns) {
  return static_cast<uint64_t>(columns) * sizeof(float) *
         static_cast<uint64_t>(columns / 2 + 2 * kBlock);
}

Result<Gptq> Gptq::Factor(Hessian hessian, const GptqOptions& options, const Ops& ops) {
  Gptq result;
  const int64_t n = result.columns_ = hessian.columns;
  float* const m = hessian.values.as<float>();
  std::vector<float> diagonal(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) diagonal[static_cast<size_t>(i)] = m[i * n + i];
  const double mean =
      std::accumulate(diagonal.begin(), diagonal.end(), 0.0) / static_cast<double>(n);
  if (!std::isfinite(mean)) return InvalidArgument("the second moments are not finite");
  if (!(mean > 0)) return FailedPrecondition("all inputs were zero");

  result.order_.resize(static_cast<size_t>(n));
  std::iota(result.order_.begin(), result.order_.end(), 0);
  std::stable_sort(result.order_.begin(), result.order_.end(), [&](int32_t a, int32_t b) {
    return diagonal[static_cast<size_t>(a)] > diagonal[static_cast<size_t>(b)];
  });
  // Position p holds the column of step n - 1 - p: what is rounded last is factored first.
  const std::vector<int32_t> reversed(result.order_.rbegin(), result.order_.rend());
  Permute(m, n, reversed, ops.pool());
  for (int64_t p = 0; p < n; ++p) {
    diagonal[static_cast<size_t>(p)] = m[p * n + p];
  }
  result.damping_ = options.damping;
  for (int tries = 0;; ++tries, result.damping_ *= 10) {
    // The smallest eigenvalue, so every pivot, is at least what is added to the diagonal; a pivot
    // far below has been lost to rounding.
    const double added = result.damping_ * mean;
    for (int64_t p = 0; p < n; ++p) {
      m[p * n + p] = static_cast<float>(diagonal[static_cast<size_t>(p)] + added);
    }
    TERN_ASSIGN_OR_RETURN(const bool factored, Cholesky(m, n, added / 4, ops));
    if (factored) break;
    if (tries == kTries) return InvalidArgument("the second moments are not finite");
    ops.pool().ParallelFor(n, [&](int64_t i, int) {
      for (int64_t j = 0; j < i; ++j) m[i * n + j] = m[j * n + i];
    });
  }
  result.importance_.resize(static_cast<size_t>(n));
  for (int64_t p = 0; p < n; ++p) {
    result.importance_[static_cast<size_t>(reversed[static_cast<size_t>(p)])] = static_cast<float>(
        (diagonal[static_cast<size_t>(p)] / mean + result.damping_) / (1 + result.damping_));
  }
  TERN_RETURN_IF_ERROR(result.TakeFactor(m, ops));
  return result;
}

Status Gptq::TakeFactor(const float* factor, const Ops& ops) {
  const int64_t n = columns_;
  std::vector<float> earlier;
  for (int64_t first = 0; first < n; first += kBlock) {
    const int64_t steps = std::min(kBlock, n - first), width = first + steps;
    // Row s of `earlier`: what an error of an earlier step s2 adds to the weight of step s. It is
    // row n-1-s2 of the factor at column n-1-s, in units of that column's pivot.
    earlier.assign(static_cast<size_t>(steps * width), 0.0f);
    ops.pool().ParallelFor(steps, [&](int64_t i, int) {
      const int64_t p = n - 1 - (first + i);
      const float pivot = factor[p * n + p];
      for (int64_t s2 = 0; s2 < first + i; ++s2) {
        earlier[static_cast<size_t>(i * width + s2)] = factor[(n - 1 - s2) * n + p] / pivot;
      }
    });
    Block& block = blocks_.emplace_back();
    block.first = first;
    block.steps = steps;
    block.within.resize(static_cast<size_t>(steps * steps));
    std::vector<float> before(static_cast<size_t>(steps * first));
    for (int64_t i = 0; i < steps; ++i) {
      std::copy_n(earlier.data() + i * width, first, before.data() + i * first);
      std::copy_n(earlier.data() + i * width + first, steps, block.within.data() + i * steps);
    }
    if (first == 0) continue;
    TERN_ASSIGN_OR_RETURN(block.earlier, PackFloats(ops, before, steps, first));
  }
  return OkStatus();
}

// Up to kLanes rows of a block.
struct Gptq::Tile {
  const Block* block;
  int64_t rows, group;
  const float* weights;    // [rows, columns]
  const float* feedback;   // [rows, steps]; null in the first block
  float* errors;           // [rows, columns], by step: weight minus what it was rounded to
  const uint16_t* scales;  // [rows, columns / group]
  int8_t* codes;           // [rows, columns]
};

void Gptq::RoundTile(const Tile& tile) const {
  const Block& block = *tile.block;
  const int64_t groups = columns_ / tile.group;
  // By step, the rows side by side; lanes without a row stay zero.
  float weight[kBlock][kLanes] = {}, error[kBlock][kLanes];
  float target[kBlock][kLanes];  // the weight with what earlier blocks add
  for (int64_t r = 0; r < tile.rows; ++r) {
    for (int64_t i = 0; i < block.steps; ++i) {
      const int64_t column = order_[static_cast<size_t>(block.first + i)];
      weight[i][r] = tile.weights[r * columns_ + column];
    }
  }
  std::memcpy(target, weight, sizeof(target));
  if (tile.feedback != nullptr) {
    for (int64_t r = 0; r < tile.rows; ++r) {
      for (int64_t i = 0; i < block.steps; ++i) {
        target[i][r] += tile.feedback[r * block.steps + i];
      }
    }
  }
  float scale[kLanes], code[kLanes];
  std::fill_n(scale, kLanes, 1.0f);
  for (int64_t i = 0; i < block.steps; ++i) {
    const int64_t column = order_[static_cast<size_t>(block.first + i)];
    const int64_t group = column / tile.group;
    for (int64_t r = 0; r < tile.rows; ++r) {
      scale[r] = FloatFromBf16(tile.scales[r * groups + group]);
    }
    float* const sum = target[i];
    const float* const factors = block.within.data() + i * block.steps;
    for (int64_t j = 0; j < i; ++j) {
      for (int64_t r = 0; r < kLanes; ++r) sum[r] += error[j][r] * factors[j];
    }
    for (int64_t r = 0; r < kLanes; ++r) {
      const float steps = std::min(std::max(sum[r] / scale[r], float{kInt4Min}), float{kInt4Max});
      code[r] = (steps + kRounder) - kRounder;
      error[i][r] = weight[i][r] - code[r] * scale[r];
    }
    for (int64_t r = 0; r < tile.rows; ++r) {
      tile.codes[r * columns_ + column] = static_cast<int8_t>(code[r]);
    }
  }
  for (int64_t r = 0; r < tile.rows; ++r) {
    for (int64_t i = 0; i < block.steps; ++i) {
      tile.errors[r * columns_ + block.first + i] = error[i][r];
    }
  }
}

Status Gptq::Quantize(const float* weights, int64_t rows, int64_t group, int8_t* codes,
                      uint16_t* scales, const Ops& ops) const {
  ChooseScales(weights, rows, group, scales, ops);
  return Round(weights, rows, group, scales, codes, ops);
}

void Gptq::ChooseScales(const float* weights, int64_t rows, int64_t group, uint16_t* scales,
                        const Ops& ops) const {
  TERN_CHECK(group > 0 && columns_ % group == 0);
  const int64_t groups = columns_ / group;
  ops.pool().ParallelFor(rows, [&](int64_t row, int) {
    for (int64_t g = 0; g < groups; ++g) {
      scales[row * groups + g] = Int4Scale(weights + row * columns_ + g * group, group,
                                           ScaleMethod::kSearch, importance_.data() + g * group);
    }
  });
}

Status Gptq::Round(const float* weights, int64_t rows, int64_t group, const uint16_t* scales,
                   int8_t* codes, const Ops& ops) const {
  TERN_CHECK(group > 0 && kBlock % group == 0 && columns_ % group == 0);
  const int64_t piece =
      std::min(rows, std::max(kMaxErrorBytes / (columns_ * int64_t{sizeof(float)}), kLanes));
  Buffer errors(static_cast<size_t>(piece * columns_) * sizeof(float));
  if (rows > 0 && errors.data() == nullptr) return NoMemory(columns_);
  std::vector<float> feedback(static_cast<size_t>(piece * kBlock));
  for (int64_t begin = 0; begin < rows; begin += piece) {
    const int64_t count = std::min(piece, rows - begin);
    for (const Block& block : blocks_) {
      if (block.first > 0) {
        const MatMulGroup made_up[] = {
            {&block.earlier, errors.as<float>(), columns_, count, feedback.data(), block.steps}};
        ops.MatMul(made_up);
      }
      ops.pool().ParallelFor((count + kLanes - 1) / kLanes, [&](int64_t tile, int) {
        const int64_t r = tile * kLanes, row = begin + r;
        RoundTile({.block = &block,
                   .rows = std::min(kLanes, count - r),
                   .group = group,
                   .weights = weights + row * columns_,
                   .feedback = block.first > 0 ? feedback.data() + r * block.steps : nullptr,
                   .errors = errors.as<float>() + r * columns_,
                   .scales = scales + row * (columns_ / group),
                   .codes = codes + row * columns_});
      });
    }
  }
  return OkStatus();
}

}  // namespace tern
