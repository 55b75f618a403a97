// Ops: the operations that models are made of, and the only door to kernels.
//
// An Ops binds one instruction-set level (kernels/isa_table.h, chosen once at start) to a thread
// pool. Every result follows the determinism contract (DESIGN section 5): the reduction order of an
// output element depends on neither the number of rows, nor threads, nor page size; attention cuts
// at absolute multiples of 256 positions. So a row's result is bit-equal alone and in any batch.
//
// Activations are row-major float32. Shapes are [rows, columns]; "rows" are tokens of a batch.
// Thread: one caller at a time (the engine thread); inside, chunks run on the pool.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "kernels/kv_slab.h"
#include "tensor/tensor.h"

namespace tern {

struct IsaTable;

// kReference: float32 on dequantized weights. kProduction: weights as stored, activations rounded
// to BF16 where the level has BF16 products (float32 sums).
enum class Precision { kReference, kProduction };

// A weight matrix [rows = out features, columns = in features], laid out for one level's kernels
// (layouts: kernels/cpu/layout.h). Made only by Ops::Pack; opaque to everybody else.
class PackedMatrix {
 public:
  PackedMatrix() = default;
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  uint64_t size_bytes() const { return data_.size_bytes(); }
  bool empty() const { return rows_ == 0; }

 private:
  friend class Ops;
  friend struct PackedAccess;  // kernels-internal
  int64_t rows_ = 0, columns_ = 0;
  int format_ = 0;  // PackFormat of kernels/cpu/layout.h
  Buffer data_;
};

// One product of a group that shares its input: out[r, n] = sum_k x[r, k] * weight[n, k] (+ bias[n]).
struct MatMulTarget {
  const PackedMatrix* weight;
  float* out;              // [rows, weight->rows()]
  const float* bias = nullptr;  // [weight->rows()]
};

// Rotary embedding, applied to the first `rotary_dims` of each head.
enum class RopeStyle { kHalfSplit, kInterleaved };

struct GqaShape {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 1.0f;  // of q.k before the softmax
};

class Ops {
 public:
  // The level named by `isa` ("" = the best that this machine runs). Errors: kInvalidArgument for
  // an unknown name or a level that the machine can't run, listing those it can.
  static Result<std::unique_ptr<Ops>> Create(const std::string& isa, ThreadPool& pool);
  // Levels that this machine can run, best first; "ref" is last.
  static std::vector<std::string> SupportedIsas();
  ~Ops();

  const char* isa() const;
  ThreadPool& pool() const { return pool_; }

  // Packs a [rows, columns] tensor of any float or GGUF block type. columns must be a multiple of
  // the type's block. Errors: kInvalidArgument (shape), kResourceExhausted (memory).
  Result<PackedMatrix> Pack(const TensorView& weight, Precision precision) const;
  // Rounds nothing: row `index` of an unpacked [n, columns] tensor as float32 (embedding lookup).
  // REQUIRES: 0 <= index < n.
  void DequantizeRow(const TensorView& tensor, int64_t index, float* out) const;

  // All targets share x [rows, columns]; one parallel region.
  void MatMul(const float* x, int64_t rows, std::span<const MatMulTarget> targets) const;

  // y = weight * x / sqrt(mean(x^2) + eps), per row of `columns`. x may equal y.
  void RmsNorm(const float* x, int64_t rows, int64_t columns, const float* weight, float eps,
               float* y) const;
  // In place on x [rows, heads, head_dim] with row stride heads*head_dim. cos and sin are
  // [rows, rotary_dims/2] (the caller tabulates them per position; see models/rope.h).
  void Rope(float* x, int64_t rows, int64_t heads, int64_t head_dim, int64_t rotary_dims,
            RopeStyle style, const float* cos, const float* sin) const;
  // out = silu(gate) * up, elementwise, n numbers.
  void SiluMul(const float* gate, const float* up, int64_t n, float* out) const;
  // x += y, n numbers.
  void Add(float* x, const float* y, int64_t n) const;

  // Grouped-query attention. k, v: [rows, kv_heads, head_dim]. Writes the rows of each run into its
  // pages, rounded to BF16 first (kF32: as they are), then to the slab's format.
  void GqaWrite(const GqaShape& shape, const KvSlab& slab, std::span<const KvRun> runs,
                const float* k, const float* v) const;
  // Row i of a run attends positions [0, first_position + i], read from the pages as stored.
  // q, out: [rows, heads, head_dim].
  void GqaAttention(const GqaShape& shape, const KvSlab& slab, std::span<const KvRun> runs,
                    const float* q, float* out) const;

  // Index of the largest of n numbers; the lowest index wins a tie, -0.0 equals 0.0, NaN loses.
  int64_t ArgMax(const float* x, int64_t n) const;
  // log(sum(exp(x))), computed against the maximum.
  float LogSumExp(const float* x, int64_t n) const;

 private:
  Ops(const IsaTable& table, ThreadPool& pool);
  const IsaTable& table_;
  ThreadPool& pool_;
  struct Scratch;
  std::unique_ptr<Scratch> scratch_;
};

}  // namespace tern
