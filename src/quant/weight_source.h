// WeightSource: a matrix of a checkpoint as rows of float32, whatever it is stored as: a float or
// GGUF block type, FP8 blocks, GGUF's permuted rotary rows, GGUF's two halves of kv_b_proj.
// Owner: the plan. Thread: immutable; a RowBlock belongs to one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "kernels/weight_view.h"
#include "models/stored_weight.h"
#include "quant/input_files.h"

namespace tern {

// Rows as they were read, and what they need to become floats.
struct RowBlock {
  int64_t first = 0, count = 0;
  std::vector<std::byte> bytes;
  std::vector<float> values;  // where rows can't be made from `bytes` one at a time
};

class WeightSource {
 public:
  WeightSource() = default;
  // A matrix, or a vector as one row. REQUIRES: not kInt4Group.
  static WeightSource Stored(const StoredWeight& weight);
  static WeightSource Vector(const CheckpointTensor& tensor);
  // Rows (or, of a vector, elements) stored for interleaved rotary pairs, put back into Hugging
  // Face's order (Checkpoint::rotary_rows_interleaved).
  WeightSource Deinterleaved(int64_t head_dim) const;
  // kv_b_proj [heads * (nope + value), latent] of k_b_proj [heads * latent, nope] and v_b_proj
  // [heads * value, latent].
  static WeightSource JoinedHalves(const StoredWeight& keys, const StoredWeight& values,
                                   int64_t heads);

  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  // Blocks begin at multiples of it.
  int64_t granularity() const { return granularity_; }
  uint64_t stored_bytes() const { return stored_bytes_; }
  const CheckpointTensor& tensor() const { return *data_; }

  // Reads rows [first, first + count). Errors: InputFiles::Read's.
  // REQUIRES: `first` is a multiple of granularity(), and so is the end unless it is rows().
  Status Load(const InputFiles& files, int64_t first, int64_t count, RowBlock* block) const;
  // Row first + i as columns() floats.
  void Row(const RowBlock& block, int64_t i, float* out) const;

 private:
  Status LoadJoined(const InputFiles& files, RowBlock* block) const;

  WeightView view_;  // of the whole matrix; `data` bytes are not touched
  const CheckpointTensor* data_ = nullptr;
  const CheckpointTensor* second_ = nullptr;  // v_b_proj
  WeightView second_view_;
  int64_t rows_ = 0, columns_ = 0, granularity_ = 1;
  int64_t row_bytes_ = 0;
  int64_t rotary_head_ = 0;  // 0: rows are in order
  int64_t heads_ = 0;        // JoinedHalves
  uint64_t stored_bytes_ = 0;
  std::vector<float> scales_;  // kFp8Block: copied, they are few
};

}  // namespace tern
