// Gptq: rounds a weight matrix to INT4 so that the layer's outputs change least on the inputs that
// calibration saw. Columns are rounded one after the other, and each error is made up for by the
// columns that are still to come. Formulas: GPTQ (arXiv 2210.17323), in the form of LDLQ (QuIP,
// arXiv 2307.13304, section 3 and theorem 6: the same numbers without an inverse).
// Owner: whoever quantizes. Thread: Factor and Quantize use the Ops from the calling thread;
// results don't depend on its number of threads.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "kernels/ops.h"
#include "quant/hessian.h"

namespace tern {

// Which column is rounded when, and when a group's scale is chosen.
enum class GptqOrder {
  kNatural,        // left to right; a scale when its group comes up, for the weights as made up
  kNaturalStatic,  // left to right; scales before all
  kActivation,     // columns with large inputs first; scales before all, groups stay in place
};

struct GptqOptions {
  double damping = 0.01;  // added to the diagonal, in units of its mean
  GptqOrder order = GptqOrder::kActivation;
  bool diagonal_importance = false;
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

  // Rows are independent of each other, so a matrix may come in pieces.
  // weights: [rows, columns]; codes: [rows, columns] in [-8, 7]; scales: BF16
  // [rows, columns / group]. REQUIRES: finite weights; `group` divides columns and 128.
  // Errors: kResourceExhausted.
  Status Quantize(const float* weights, int64_t rows, int64_t group, int8_t* codes,
                  uint16_t* scales, const Ops& ops) const;

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
  GptqOptions options_;
  std::vector<int32_t> order_;     // [columns]: the column of each step
  std::vector<float> importance_;  // [columns]: cost of a unit error, in units of the mean
  std::vector<Block> blocks_;
};

}  // namespace tern
