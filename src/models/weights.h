// WeightLoader: takes tensors out of a checkpoint in the form that a model computes with, checking
// shapes and releasing the mapped bytes as it goes. Lives during loading only, on one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "kernels/ops.h"
#include "models/registry.h"

namespace tern {

class WeightLoader {
 public:
  WeightLoader(const Checkpoint& checkpoint, Ops& ops, const LoadOptions& options);

  // A [rows, columns] matrix, packed.
  Result<PackedMatrix> Matrix(const std::string& name, int64_t rows, int64_t columns);
  // The same of q_proj or k_proj. Rows stored for interleaved rotary pairs are put back into
  // Hugging Face's order, so that KV rows are alike whatever file a model came from.
  Result<PackedMatrix> RotaryMatrix(const std::string& name, int64_t heads, int64_t head_dim,
                                    int64_t columns);
  // A [rows, columns] matrix whose rows are looked up, as it lies in the mapped file.
  Result<TensorView> LookupTable(const std::string& name, int64_t rows, int64_t columns);
  // A [size] vector as float32.
  Result<std::vector<float>> Vector(const std::string& name, int64_t size);
  // A [heads * head_dim] bias that goes with RotaryMatrix.
  Result<std::vector<float>> RotaryVector(const std::string& name, int64_t heads, int64_t head_dim);

  // Bytes of everything packed or copied so far.
  uint64_t resident_bytes() const { return resident_bytes_; }

 private:
  // Checkpoint::Require, and the tensor is of a float or block type.
  Result<const CheckpointTensor*> RequireWeight(const std::string& name, const Shape& shape);
  Result<PackedMatrix> Pack(const CheckpointTensor& tensor, const TensorView& view);

  const Checkpoint& checkpoint_;
  Ops& ops_;
  const LoadOptions& options_;
  uint64_t total_bytes_ = 0, done_bytes_ = 0, resident_bytes_ = 0;
};

}  // namespace tern
