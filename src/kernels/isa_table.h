// IsaTable: one instruction-set level's kernels, as plain functions. Each runs on the calling
// thread over the range it is given; threads, memory and argument checks are the drivers' affair
// (the .cc files of this folder). The ref level (kernels/ref) is the specification of every
// entry. Thread: tables are constants; entries may run at the same time on disjoint outputs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kv_slab.h"

namespace tern {

// Attention cuts a sequence at absolute multiples of this many positions (DESIGN section 5, iii).
inline constexpr int64_t kAttentionChunk = 256;

// INT8 activations: a group of 32 without a number beyond this is zero.
inline constexpr float kLeastActivation = 1e-30f;

// out[r, n] = sum_k x[r, k] * weight[n, k] (+ bias[n]).
struct MatMulArgs {
  int format = 0;                     // PackFormat of kernels/cpu/layout.h
  const std::byte* weight = nullptr;  // packed panels
  int64_t n = 0, k = 0;
  const float* x = nullptr;  // [rows, k], rows x_stride apart
  int64_t x_stride = 0;
  // Set when the level has bf16_activations and the format is not kPackF32: x rounded to BF16
  // [rows, x_bf16_stride], zero from k to the next multiple of 4, and its sums over each 32 columns
  // [rows, ceil(k / 32)].
  const uint16_t* x_bf16 = nullptr;
  int64_t x_bf16_stride = 0;
  const float* x_sums = nullptr;
  // Set instead where activations are INT8 (4-bit formats only): x as integers
  // [rows, x_int8_stride], each eight columns in the order 0 4 1 5 2 6 3 7, and for each 32 columns
  // [rows, k / 32] a scale, x_sums of what it was rounded to, and -8 times the integers' sum.
  const int8_t* x_int8 = nullptr;
  int64_t x_int8_stride = 0;
  const float* x_scales = nullptr;
  const int32_t* x_offsets = nullptr;
  const float* bias = nullptr;  // [n] or null
  float* out = nullptr;         // [rows, n], rows out_stride apart
  int64_t out_stride = 0;
};

// One layer of one sequence as attention reads it. Grouped-query attention has a K and a V row per
// position, each of kv_heads heads. Latent attention (absorbed) has one row, shared by all heads,
// whose first value_dim numbers are also the value.
struct AttentionArgs {
  KvFormat format = KvFormat::kBf16;
  std::byte* const* pages = nullptr;  // position p lies in pages[p / page_tokens]
  int64_t page_tokens = 0;
  int64_t k_offset_bytes = 0, v_offset_bytes = 0;         // of a page's first K and V row
  int64_t k_row_bytes = 0, v_row_bytes = 0;               // of all heads together
  int64_t scales_offset_bytes = 0, scales_row_bytes = 0;  // KvRowLayout's scales
  int64_t kv_heads = 0;  // grouped-query: scales of V heads follow those of K heads
  int64_t latent = 0;    // latent rows: numbers from here on are the rope part; else 0
  int64_t heads = 0;     // of a row of q and out
  int64_t key_dim = 0, value_dim = 0;  // per head
  float scale = 1.0f;                  // of q.k before the softmax, times the keys' scale per layer
  float value_scale = 1.0f;            // of the output: the values' scale per layer
  // Whether a level with BF16 products may round queries and softmax weights to BF16 where rows
  // are.
  bool bf16_products = false;
  // Sparse attention: the positions to attend, ascending; null: all.
  const int32_t* positions = nullptr;
  int64_t selected = 0;
  // Whether the caller goes on with the next chunk: its first rows may be asked for.
  bool goes_on = false;
};

// The queries of a call: heads [first_head, first_head + heads), which share KV head kv_head, of
// `rows` consecutive rows, the first at first_position. Query number i is row i / heads, head
// first_head + i % heads. REQUIRES: one row where positions are selected.
struct AttentionBlock {
  int64_t first_position = 0, rows = 0;
  int64_t first_head = 0, heads = 0, kv_head = 0;
};

// Softmax state of one query over some positions: the weighted sum of values [value_dim], then at
// AttentionMaxIndex the largest score, then the sum of exp(score - largest). A query without
// positions has largest = -inf and sum = 0.
inline constexpr int64_t AttentionMaxIndex(int64_t value_dim) { return (value_dim + 15) / 16 * 16; }
inline constexpr int64_t AttentionStateFloats(int64_t value_dim) {
  return AttentionMaxIndex(value_dim) + 16;
}
// The most heads that attention_row takes.
inline constexpr int64_t kAttentionRowHeads = 32;
// Workspace of attention_chunk, attention_row and index_scores: a tile of keys, each query's
// scores, queries rounded to BF16, and a chunk of keys or values (at most as long) expanded to
// BF16.
inline constexpr int64_t AttentionWorkspaceFloats(int64_t queries, int64_t key_dim) {
  const int64_t row = AttentionMaxIndex(key_dim);
  const int64_t floats =
      row * 32 + queries * kAttentionChunk + queries * row / 2 + kAttentionChunk * row / 2;
  return (floats + 15) / 16 * 16;  // whole cache lines: each worker's begins with one
}

// What `tern bench` measures as limits; not used by models. Loops over registers run `rounds`
// rounds, one or more, and return the operations done, two for each product. Null where the level
// has no such products.
struct PeakLoops {
  double (*f32)(int64_t rounds);
  double (*bf16)(int64_t rounds);
  double (*int8)(int64_t rounds);
  // Reads `bytes`, a multiple of 256, once; returns a sum that means nothing.
  int64_t (*read)(const std::byte* data, int64_t bytes);
};

struct IsaTable {
  const char* name;
  bool bf16_activations;

  // Outputs of weight panels [panel_begin, panel_end) for rows [row_begin, row_end).
  void (*matmul)(const MatMulArgs& args, int64_t panel_begin, int64_t panel_end, int64_t row_begin,
                 int64_t row_end);
  // One row of MatMulArgs::x_bf16 (`padded` numbers, zero from k on) and x_sums.
  void (*round_row)(const float* x, int64_t k, int64_t padded, uint16_t* out, float* sums);
  // One row of MatMulArgs::x_int8, x_scales, x_sums and x_offsets: scale = max |x| / 127, integers
  // round(x / scale); NaN as the scale where a number is not finite. REQUIRES: k % 32 == 0.
  void (*quantize_row)(const float* x, int64_t k, int8_t* out, float* scales, float* sums,
                       int32_t* offsets);
  // out = e4m3 of x / divisor: the bits of E4m3FromFloat. x is BF16.
  void (*to_e4m3)(const uint16_t* x, int64_t n, float divisor, uint8_t* out);
  // Round to nearest even; the bits of Bf16FromFloat.
  void (*to_bf16)(const float* x, int64_t n, uint16_t* out);

  void (*rms_norm)(const float* x, int64_t rows, int64_t columns, const float* weight, float eps,
                   float* y);
  void (*layer_norm)(const float* x, int64_t rows, int64_t columns, const float* weight,
                     const float* bias, float eps, float* y);
  void (*rope)(float* x, int64_t rows, int64_t heads, int64_t head_dim, int64_t rotary_dims,
               bool interleaved, const float* cos, const float* sin);
  void (*silu_mul)(const float* gate, const float* up, int64_t n, float* out);
  void (*add)(float* x, const float* y, int64_t n);

  // Numbers [from, from + count) of K rows of one KV head at positions [begin, begin + rows), as
  // float32 without the scale per layer.
  void (*expand_rows)(const AttentionArgs& args, int64_t begin, int64_t rows, int64_t from,
                      int64_t count, float* out);
  // States of the block's queries over chunk number `chunk`: the positions (or the entries of
  // args.positions) [256 * chunk, 256 * (chunk + 1)) that each row may see.
  // q: the block's first row of [rows, args.heads, key_dim].
  void (*attention_chunk)(const AttentionArgs& args, const AttentionBlock& block, const float* q,
                          int64_t chunk, float* workspace, float* states);
  // attention_chunk of a block of one row and all heads of several KV heads, the states of one head
  // after another's; the same bits. BF16 and FP8 rows of positions that are not selected, and
  // bf16_products. Null where a level has none.
  void (*attention_row)(const AttentionArgs& args, const AttentionBlock& block, const float* q,
                        int64_t chunk, float* workspace, float* states);
  // Folds the states of the next chunk into those of all chunks before it.
  void (*attention_merge)(int64_t queries, int64_t value_dim, const float* next, float* states);
  // out = weighted values / sum. out: the block's first row of [rows, args.heads, value_dim].
  void (*attention_finish)(const AttentionArgs& args, const AttentionBlock& block,
                           const float* states, float* out);
  // scores[r * scores_stride + p] = sum_h w[r, h] * relu(q[r, h] . k[p] * scale) for positions p of
  // chunk number `chunk` that the block's last row may see, the first at scores[0]; K rows are the
  // indexer's keys (FP8 formats: with a float32 scale each). q: [rows, heads, key_dim], w: [rows,
  // heads], all heads of the block's rows.
  void (*index_scores)(const AttentionArgs& args, const AttentionBlock& block, const float* q,
                       const float* w, int64_t chunk, float* workspace, float* scores,
                       int64_t scores_stride);

  // The largest number, -inf when there is none; NaN loses.
  float (*largest)(const float* x, int64_t n);
  // The lowest index of a number equal to the largest; 0 when there is none.
  int64_t (*arg_max)(const float* x, int64_t n);
  // sum(exp(x - largest)).
  double (*sum_exp)(const float* x, int64_t n, float largest);

  PeakLoops peak;
};

// Each level writes its entries over those of the level below (ref/table.cc, cpu/*/table.cc).
// REQUIRES: the machine runs the level.
void FillRefTable(IsaTable* table);
void FillGenericTable(IsaTable* table);
void FillAvx2Table(IsaTable* table);
void FillAvx512Table(IsaTable* table);

}  // namespace tern
