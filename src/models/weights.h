// WeightLoader: takes tensors out of a checkpoint in the form that a model computes with, checking
// shapes and releasing the mapped bytes as it goes. Lives during loading only, on one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "kernels/ops.h"
#include "models/registry.h"
#include "models/shared_weights.h"
#include "models/stored_weight.h"
#include "models/weight_vector.h"

namespace tern {

class WeightLoader {
 public:
  WeightLoader(std::shared_ptr<const Checkpoint> checkpoint, Ops& ops, const LoadOptions& options);

  const Checkpoint& checkpoint() const { return *checkpoint_; }
  Precision precision() const { return options_.precision; }

  // A [rows, columns] matrix, packed, in the format that it is stored in.
  Result<PackedMatrix> Matrix(const std::string& name, int64_t rows, int64_t columns);
  // The same, multiplied in float32 whatever the precision (routers); NaN and infinity are errors.
  Result<PackedMatrix> Float32Matrix(const std::string& name, int64_t rows, int64_t columns);
  // The values of a [rows, columns] matrix as float32, row by row; nothing becomes resident.
  Result<std::vector<float>> Values(const std::string& name, int64_t rows, int64_t columns);
  // Packs `rows` x `columns` values that were made from stored ones (BF16 in production). `name`
  // says of which weight, and which part.
  Result<PackedMatrix> PackValues(const std::string& name, const float* values, int64_t rows,
                                  int64_t columns);
  // The same of q_proj or k_proj. Rows stored for interleaved rotary pairs are put back into
  // Hugging Face's order, so that KV rows are alike whatever file a model came from.
  Result<PackedMatrix> RotaryMatrix(const std::string& name, int64_t heads, int64_t head_dim,
                                    int64_t columns);
  // Tells LoadOptions::weight_names that `matrix` is the weight `name`. Matrix and RotaryMatrix do
  // it themselves.
  void Name(const PackedMatrix& matrix, const std::string& name);

  Result<LookupTable> Table(const std::string& name, int64_t rows, int64_t columns);
  // A [size] vector as float32; NaN and infinity are errors.
  Result<WeightVector> Vector(const std::string& name, int64_t size);
  // A [heads * head_dim] bias that goes with RotaryMatrix.
  Result<WeightVector> RotaryVector(const std::string& name, int64_t heads, int64_t head_dim);

  // Bytes of everything packed or copied so far; and of these, what another model had already.
  uint64_t resident_bytes() const { return resident_bytes_; }
  uint64_t shared_bytes() const { return shared_bytes_; }

 private:
  // Checkpoint::Require, and the tensor is of a float or block type.
  Result<const CheckpointTensor*> RequireWeight(const std::string& name, const Shape& shape);
  // Packs `view`, which holds what `stored` names, unless a model has it already; `as` says for
  // SharedWeights what becomes of it.
  Result<PackedMatrix> Pack(const std::string& as, const StoredWeight& stored,
                            const WeightView& view, Precision precision);
  // Value i is the stored one at order(i); `as` as for Pack.
  Result<WeightVector> VectorInOrder(const std::string& name, const std::string& as, int64_t size,
                                     const std::function<int64_t(int64_t)>& order);
  void CountDone(uint64_t stored_bytes);

  const std::shared_ptr<const Checkpoint> checkpoint_;
  Ops& ops_;
  const LoadOptions& options_;
  uint64_t total_bytes_ = 0, done_bytes_ = 0, resident_bytes_ = 0, shared_bytes_ = 0;
};

}  // namespace tern
