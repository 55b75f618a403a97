// Gptq: rounds a weight matrix to INT4 so that the layer's outputs change least on the inputs that
// calibration saw. Columns are rounded one after the other, those with large inputs first, and each
// error is made up for by the columns that are still to come. Groups keep their columns (no g_idx),
// their scales are chosen before all.
// Formulas: GPTQ (arXiv 2210.17323), in the form of LDLQ (QuIP, arXiv 2307.13304, section 3 and
// theorem 6: the same numbers without an inverse).
// Owner: whoever quantizes. Thread: all use the Ops from the calling thread; results don't depend
// on its number of threads.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "kernels/ops.h"
#include "quant/hessian.h"

namespace tern {

struct GptqOptions {
  // Added to the diagonal, in units of its mean. More is worse for inputs like those that were seen
  // and better for others (docs/decisions/007-calibration.md).
  double damping = 0.1;
};

// The factored second moments of one input, for all weights that share it.
class Gptq {
 public:
  // Takes the Hessian apart in place. Errors: kFailedPrecondition (all inputs were zero),
  // kInvalidArgument (numbers that are not finite), kResourceExhausted.
  static Result<Gptq> Factor(Hessian hessian, const GptqOptions& options, const Ops& ops);
  // Bytes of a factored Hessian.
  static uint64_t Bytes(int64_t columns);

  int64_t columns() const { return columns_; }
  // What was added to the diagonal, in units of its mean: more than asked where float32 needed it.
  double damping() const { return damping_; }

  // [columns]: what an error of each weight costs, in units of the mean: the damped diagonal.
  const std::vector<float>& importance() const { return importance_; }

  // ChooseScales and Round. Rows are independent of each other, so a matrix may come in pieces.
  // weights: [rows, columns]; codes: [rows, columns] in [-8, 7]; scales: BF16
  // [rows, columns / group]. REQUIRES: finite weights; `group` divides columns and 128.
  // Errors: kResourceExhausted.
  Status Quantize(const float* weights, int64_t rows, int64_t group, int8_t* codes,
                  uint16_t* scales, const Ops& ops) const;
  // The scales that Int4Scale's search finds with importance().
  void ChooseScales(const float* weights, int64_t rows, int64_t group, uint16_t* scales,
                    const Ops& ops) const;
  // The codes for given scales. REQUIRES: scales above zero. Errors: kResourceExhausted.
  Status Round(const float* weights, int64_t rows, int64_t group, const uint16_t* scales,
               int8_t* codes, const Ops& ops) const;

 private:
  // Consecutive steps: what the errors of earlier steps add to their weights.
  struct Block {
    PackedMatrix earlier;       // [steps, first step]: from the steps before the block
    std::vector<float> within;  // [steps, steps], below the diagonal: from the block's own
    int64_t first = 0, steps = 0;
  };
  struct Tile;

  Gptq() = default;
  Status TakeFactor(const float* factor, const Ops& ops);
  void RoundTile(const Tile& tile) const;

  int64_t columns_ = 0;
  double damping_ = 0;
  std::vector<int32_t> order_;  // [columns]: the column of each step
  std::vector<float> importance_;
  std::vector<Block> blocks_;
};

}  // namespace tern
