// Hessian: the second moments X^T X of a linear layer's inputs, which say how much an error of its
// weights costs: |(W - Q) X^T|^2 = trace((W - Q) X^T X (W - Q)^T).
// Thread: one at a time; sums run on the Ops' pool and don't depend on its threads.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "kernels/ops.h"
#include "tensor/tensor.h"

namespace tern {

struct Hessian {
  int64_t columns = 0;
  int64_t rows = 0;  // inputs that were summed
  Buffer values;     // float [columns, columns], symmetric: the sum, not the mean
};

// Sums rows as they come.
class HessianSum {
 public:
  // Errors: kResourceExhausted.
  static Result<HessianSum> Make(int64_t columns);
  // Bytes that an instance takes at most, with what Add needs for a moment.
  static uint64_t Bytes(int64_t columns);

  // x: [rows, columns], `stride` floats apart.
  // Errors: kInvalidArgument (a number that is not finite), kResourceExhausted.
  Status Add(const float* x, int64_t stride, int64_t rows, Ops& ops);
  // The sum so far. REQUIRES: no Add after it.
  Result<Hessian> Finish(Ops& ops);

 private:
  HessianSum() = default;
  Status Flush(Ops& ops);

  Hessian sum_;                 // the lower triangle, in blocks
  std::vector<float> pending_;  // [columns, up to kPendingRows]: inputs as columns, not yet summed
  int64_t pending_rows_ = 0;
};

}  // namespace tern
