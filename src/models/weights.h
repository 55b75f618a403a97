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
#include "models/stored_weight.h"

namespace tern {

class WeightLoader {
 public:
  WeightLoader(const Checkpoint& checkpoint, Ops& ops, const LoadOptions& options);

  const Checkpoint& checkpoint() const { return checkpoint_; }
  Precision precision() const { return options_.precision; }

  // A [rows, columns] matrix, packed, in the format that it is stored in.
  Result<PackedMatrix> Matrix(const std::string& name, int64_t rows, int64_t columns);
  // The same, multiplied in float32 whatever the precision (routers); NaN and infinity are errors.
  Result<PackedMatrix> Float32Matrix(const std::string& name, int64_t rows, int64_t columns);
  // The values of a [rows, columns] matrix as float32, row by row; nothing becomes resident.
  Result<std::vector<float>> Values(const std::string& name, int64_t rows, int64_t columns);
  // Packs `rows` x `columns` values that were made from stored ones (BF16 in production).
  Result<PackedMatrix> PackValues(const std::string& name, const float* values, int64_t rows,
                                  int64_t columns);
  // The same of q_proj or k_proj. Rows stored for interleaved rotary pairs are put back into
  // Hugging Face's order, so that KV rows are alike whatever file a model came from.
  Result<PackedMatrix> RotaryMatrix(const std::string& name, int64_t heads, int64_t head_dim,
                                    int64_t columns);
  // Tells LoadOptions::weight_names that `matrix` is the weight `name`. Matrix and RotaryMatrix do
  // it themselves.
  void Name(const PackedMatrix& matrix, const std::string& name);

  // A [rows, columns] matrix whose rows are looked up, as it lies in the mapped file.
  Result<TensorView> LookupTable(const std::string& name, int64_t rows, int64_t columns);
  // A [size] vector as float32; NaN and infinity are errors.
  Result<std::vector<float>> Vector(const std::string& name, int64_t size);
  // A [heads * head_dim] bias that goes with RotaryMatrix.
  Result<std::vector<float>> RotaryVector(const std::string& name, int64_t heads, int64_t head_dim);

  // Bytes of everything packed or copied so far.
  uint64_t resident_bytes() const { return resident_bytes_; }

 private:
  // Checkpoint::Require, and the tensor is of a float or block type.
  Result<const CheckpointTensor*> RequireWeight(const std::string& name, const Shape& shape);
  // Packs `view`, which holds what `stored` names.
  Result<PackedMatrix> Pack(const StoredWeight& stored, const WeightView& view,
                            Precision precision);
  void CountDone(uint64_t stored_bytes);

  const Checkpoint& checkpoint_;
  Ops& ops_;
  const LoadOptions& options_;
  uint64_t total_bytes_ = 0, done_bytes_ = 0, resident_bytes_ = 0;
};

}  // namespace tern
