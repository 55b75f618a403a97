// SharedWeights: what the models of one process hold once, though each loads a checkpoint: every
// weight of one name whose stored bytes and format are the same in both. WeightLoader asks here
// before it packs one. What it hands out is never written again and lives as long as a model that
// has it; SharedWeights itself is needed while models are loaded, no longer.
// Owner: the command. Thread: that of the loads, one after the other.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "kernels/ops.h"
#include "models/stored_weight.h"
#include "models/weight_vector.h"

namespace tern {

// A [rows, columns] matrix whose rows are looked up, as it lies in a mapped file.
struct LookupTable {
  TensorView view;
  std::shared_ptr<const Checkpoint> files;  // whose mapping it is
};

// REQUIRES: all loads have one precision, and Ops of one level.
class SharedWeights {
 public:
  // A checkpoint that has been opened as `key` (its path and how it is read): one mapping for all,
  // whose bytes need not be compared. Null: nobody has.
  std::shared_ptr<const Checkpoint> FindCheckpoint(const std::string& key) const;
  // Every checkpoint that weights are added of is added before them.
  void AddCheckpoint(const std::string& key, std::shared_ptr<const Checkpoint> checkpoint);

  // Whether `tensor` of `checkpoint` has its name, type and shape in another one: what it takes
  // shows when the bytes are compared.
  bool MayBeShared(const Checkpoint& checkpoint, const CheckpointTensor& tensor) const;
  // Bytes, as stored, of the tensors of `checkpoint` of which that is not so.
  uint64_t OwnBytes(const Checkpoint& checkpoint) const;

  // What an equal weight became. `as`: its name, and what was done to it beyond packing. An empty
  // matrix or vector: there is none.
  PackedMatrix FindMatrix(const std::string& as, const StoredWeight& stored) const;
  void AddMatrix(const std::string& as, const StoredWeight& stored, const PackedMatrix& matrix);
  WeightVector FindVector(const std::string& as, const CheckpointTensor& stored) const;
  void AddVector(const std::string& as, const CheckpointTensor& stored, WeightVector vector);

  // The first of the tables with this one's name and bytes, which may be this one, of `files`.
  LookupTable OneTable(const CheckpointTensor& table,
                       const std::shared_ptr<const Checkpoint>& files);

  // The matrix that was added first of those with its name, shape, format and packed bytes, if
  // there is one: for weights that are computed from stored ones. Adds `matrix` otherwise. Whether
  // it was found.
  bool OneOfComputed(const std::string& as, PackedMatrix* matrix);

 private:
  struct Weight {
    StoredWeight stored;
    PackedMatrix matrix;
    WeightVector vector;
  };
  const Weight* Find(const std::string& as, const StoredWeight& stored) const;

  std::map<std::string, std::shared_ptr<const Checkpoint>> checkpoints_;
  std::map<std::string, std::vector<Weight>> stored_;
  std::map<std::string, std::vector<PackedMatrix>> computed_;
  struct Table {
    const CheckpointTensor* tensor;
    std::shared_ptr<const Checkpoint> files;
  };
  std::map<std::string, std::vector<Table>> tables_;
};

}  // namespace tern
