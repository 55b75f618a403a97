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
#include "kernels/weight_view.h"
#include "tensor/tensor.h"

namespace tern {

class MatMulObserver;
struct IsaTable;

// What a pass is made of besides matrix products, as an observer hears of it.
enum class Operation {
  kNorm,
  kRope,
  kActivation,
  kAdd,
  kKvWrite,
  kAttention,
  kIndexer,
  kRouting,  // experts: choosing them, gathering their rows, adding their results
  kCopy,     // parts of rows, to where an operation wants them
};

// kReference: float32 on dequantized weights. kProduction: weights as stored, activations rounded
// to BF16 where the level has BF16 products (float32 sums).
enum class Precision { kReference, kProduction };

// What production precision multiplies 4-bit weights by. kFloat: what the level rounds other
// activations to, if it does. kInt8: integers with a scale for each 32 columns, max |x| / 127:
// about twice as fast where arithmetic is the bound, for an error that docs/accuracy.md measures.
enum class Activations { kFloat, kInt8 };

// A weight matrix [rows = out features, columns = in features], laid out for one level's kernels
// (layouts: kernels/cpu/layout.h). Made only by Ops::Pack; opaque to everybody else. Never
// written again, so models of one process may hold the same one, on whatever threads.
class PackedMatrix {
 public:
  PackedMatrix() = default;
  PackedMatrix(PackedMatrix&&) = default;
  PackedMatrix& operator=(PackedMatrix&&) = default;
  // The same bytes, held once more: nothing is copied.
  PackedMatrix Share() const { return *this; }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  uint64_t size_bytes() const { return data_ == nullptr ? 0 : data_->size_bytes(); }
  bool empty() const { return rows_ == 0; }
  // Whether shape, format and every packed byte are alike.
  bool SameAs(const PackedMatrix& other) const;
  // The same as long as the matrix lives, also when it is moved; null when it is empty.
  const void* identity() const { return data_ == nullptr ? nullptr : data_->data(); }

 private:
  friend class Ops;
  friend struct PackedAccess;  // kernels-internal
  PackedMatrix(const PackedMatrix&) = default;
  int64_t rows_ = 0, columns_ = 0;
  int format_ = 0;  // PackFormat of kernels/cpu/layout.h
  std::shared_ptr<const Buffer> data_;
};

// One product of a group that shares its input: out[r, n] = sum_k x[r, k] * weight[n, k] (+
// bias[n]).
struct MatMulTarget {
  const PackedMatrix* weight;
  float* out;                   // [rows, weight->rows()]
  const float* bias = nullptr;  // [weight->rows()]
};

// Rotary embedding, applied to the first `rotary_dims` of each head.
enum class RopeStyle { kHalfSplit, kInterleaved };

struct GqaShape {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 1.0f;  // of q.k before the softmax
};

// Multi-head latent attention (docs/architecture of DeepSeek-V2/V3). A cached row is
// [latent | rope]: the normed latent, then one rotated key shared by all heads.
struct MlaShape {
  int64_t heads = 0, latent = 0, rope = 0;  // row: latent + rope numbers
  int64_t nope = 0, value = 0;              // per head: key part without rotation, value
  float scale = 1.0f;                       // of q.k before the softmax
};

// The cached positions that one row attends, ascending, where attention is sparse (DSA).
struct RowSelection {
  const int32_t* positions = nullptr;
  int64_t count = 0;  // 0 with null positions: all up to the row's own
};

// The DSA indexer: I(t, s) = sum_h w[t, h] * relu(q[t, h] . k[s] * scale).
struct IndexerShape {
  int64_t heads = 0, dim = 0, top_k = 0;
  float scale = 1.0f;  // dim^-0.5
};

// One product of a batch in which every member has an input of its own (experts, heads):
// out[r, n] = sum_k x[r, k] * weight[n, k], rows at the given strides (in floats).
struct MatMulGroup {
  const PackedMatrix* weight = nullptr;
  const float* x = nullptr;
  int64_t x_stride = 0, rows = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
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
  // Which activations products of weights packed for production take from now on.
  void set_activations(Activations activations) { activations_ = activations; }
  Activations activations() const { return activations_; }
  ThreadPool& pool() const { return pool_; }

  // Packs a [rows, columns] tensor of any float or GGUF block type. columns must be a multiple of
  // the type's block. Errors: kInvalidArgument (shape), kResourceExhausted (memory).
  Result<PackedMatrix> Pack(const TensorView& weight, Precision precision) const;
  // Rounds nothing: row `index` of an unpacked [n, columns] tensor as float32 (embedding lookup).
  // REQUIRES: 0 <= index < n.
  void DequantizeRow(const TensorView& tensor, int64_t index, float* out) const;

  // As Pack and DequantizeRow above, for weights stored with scales. FP8 and INT4 stay in their
  // format in production (resident <= 1.12x of the checkpoint's bytes). Errors: kInvalidArgument
  // (types, shapes and sizes that weight_view.h does not allow; a scale that is not finite, an FP8
  // weight that is NaN), kResourceExhausted.
  Result<PackedMatrix> Pack(const WeightView& weight, Precision precision) const;
  void DequantizeRow(const WeightView& weight, int64_t index, float* out) const;

  // Every group has its own input; one parallel region. Groups with 0 rows are skipped.
  void MatMul(std::span<const MatMulGroup> groups) const;

  // All targets share x [rows, columns]; one parallel region.
  void MatMul(const float* x, int64_t rows, std::span<const MatMulTarget> targets) const;

  // From now on `observer` sees the inputs of all products (kernels/matmul_observer.h); null:
  // nobody does. It must outlive its use.
  void SetObserver(MatMulObserver* observer) { observer_ = observer; }
  // Shows x [rows, weight.columns()] to the observer. For a weight that attention multiplies with
  // rows of its own choice (kv_b), which are not shown.
  void ShowAttentionInput(const PackedMatrix& weight, const float* x, int64_t rows) const;
  // Tells the observer that `operation` begins: for work that models do themselves.
  void Begin(Operation operation) const;

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
  // Row i of a run attends positions [0, first_position + i], read from the pages as stored. Levels
  // with BF16 products round queries and softmax weights to BF16, but over kF32 rows.
  // q, out: [rows, heads, head_dim].
  void GqaAttention(const GqaShape& shape, const KvSlab& slab, std::span<const KvRun> runs,
                    const float* q, float* out) const;

  // LayerNorm with weight and bias, per row of `columns` (the indexer's k_norm). x may equal y.
  void LayerNorm(const float* x, int64_t rows, int64_t columns, const float* weight,
                 const float* bias, float eps, float* y) const;

  // latent: [rows, latent], rope: [rows, rope]. As GqaWrite.
  void MlaWrite(const MlaShape& shape, const KvSlab& slab, std::span<const KvRun> runs,
                const float* latent, const float* rope) const;
  // In both forms, levels with BF16 products round queries, expanded keys and values and softmax
  // weights to BF16 where the rows are BF16.
  // Absorbed form. q: [rows, heads, latent + rope] (q_nope times W_UK, then the rotated part);
  // out: [rows, heads, latent]. `selections`: empty, or one per row of the batch; a row with a
  // selection attends those positions, cut at every 256 of them.
  void MlaDecodeAttention(const MlaShape& shape, const KvSlab& slab, std::span<const KvRun> runs,
                          const float* q, std::span<const RowSelection> selections,
                          float* out) const;
  // Expanded form: keys and values of each 256 cached positions are expanded by kv_b
  // [heads * (nope + value), latent] as they are needed. q: [rows, heads, nope + rope];
  // out: [rows, heads, value]. Rows of `runs` only; dense. Memory: 256 expanded positions, and the
  // softmax states of as many rows as fit 64 MiB.
  void MlaPrefillAttention(const MlaShape& shape, const KvSlab& slab, std::span<const KvRun> runs,
                           const PackedMatrix& kv_b, const float* q, float* out) const;
  // Bytes that it keeps after runs of up to `rows` rows: for memory plans.
  uint64_t MlaPrefillBytes(const MlaShape& shape, int64_t rows) const;

  // In place on x [rows, dim]: the orthonormal Hadamard transform (Sylvester's order) of each
  // successive piece as long as the largest power of two that divides dim. FP8 indexer keys and
  // their queries are rotated so: dot products stay, outliers spread over the piece.
  void Hadamard(float* x, int64_t rows, int64_t dim) const;

  // k: [rows, dim]. Writes indexer keys as GqaWrite does, into the layer's index slab
  // (PageFormat::index_slab).
  void IndexerWrite(const IndexerShape& shape, const KvSlab& slab, std::span<const KvRun> runs,
                    const float* k) const;
  // For each row with more than top_k positions: the top_k positions of I, ascending, into
  // positions [rows, top_k] (lowest index wins a tie), and selections[row]; other rows get an
  // empty selection. q: [rows, heads, dim], w: [rows, heads].
  void IndexerSelect(const IndexerShape& shape, const KvSlab& slab, std::span<const KvRun> runs,
                     const float* q, const float* w, int32_t* positions,
                     RowSelection* selections) const;
  // Bytes that it keeps after runs of up to `rows` rows that see up to `positions` positions.
  uint64_t IndexerSelectBytes(const IndexerShape& shape, int64_t rows, int64_t positions) const;

  // Index of the largest of n numbers; the lowest index wins a tie, -0.0 equals 0.0, NaN loses.
  int64_t ArgMax(const float* x, int64_t n) const;
  // log(sum(exp(x))), computed against the maximum.
  float LogSumExp(const float* x, int64_t n) const;

 private:
  Ops(const IsaTable& table, ThreadPool& pool);
  void ShowInput(const PackedMatrix& weight, const float* x, int64_t rows) const;
  // MatMul that nobody sees.
  void Multiply(const float* x, int64_t rows, std::span<const MatMulTarget> targets) const;

  const IsaTable& table_;
  ThreadPool& pool_;
  Activations activations_ = Activations::kFloat;
  MatMulObserver* observer_ = nullptr;
  struct Scratch;
  std::unique_ptr<Scratch> scratch_;
};

}  // namespace tern
