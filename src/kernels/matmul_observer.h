// MatMulObserver: sees the input of every matrix product before it is computed, and which other
// operation begins (Ops::SetObserver).
// Thread: called on the one that calls Ops, never from inside a parallel region.
#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace tern {

class MatMulObserver {
 public:
  virtual ~MatMulObserver() = default;
  // x: [rows, weight.columns()], rows `x_stride` floats apart, valid during the call. Products that
  // share an input are shown one after the other. The observer may call Ops itself; those products
  // are shown to it too.
  virtual void OnInput(const PackedMatrix& weight, const float* x, int64_t x_stride,
                       int64_t rows) = 0;
  // As OnInput, of a weight that attention may multiply with rows of its own choice later on.
  virtual void OnAttentionInput(const PackedMatrix& weight, const float* x, int64_t x_stride,
                                int64_t rows) {
    OnInput(weight, x, x_stride, rows);
  }
  // Something that is no product of its own begins. It lasts until the next call of the observer.
  virtual void OnOperation(Operation /*operation*/) {}
};

}  // namespace tern
