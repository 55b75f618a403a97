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

struct GptqOptions {
  double damping = 0.01;         // added to the diagonal, in units of its mean
  bool activation_order = true;  // columns with large inputs first; groups stay where they are
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

  // Rows are independent of each other, so a matrix may come in pieces.
  // weights: [rows, columns]; codes: [rows, columns] in [-8, 7]; scales: BF16 [rows,
  // columns / group]. REQUIRES: finite weights, `group` divides columns.
  // Errors: kResourceExhausted.
  Status Quantize(const float* weights, int64_t rows, int64_t group, int8_t* codes,
                  uint16_t* scales, const Ops& ops) const;

 private:
  int64_t columns_ = 0;
};

}  // namespace tern
