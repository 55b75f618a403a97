// Operations on made-up operands, for measurements of single kernels. Thread: the caller's, and the
// pool's of `ops`, which outlives each result.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/kernel_bench.h"
#include "bench/kernel_speeds.h"
#include "kernels/ops.h"

namespace tern {

// More than a second-level cache and the part of a third that a machine's share of it is likely to
// be: one row's product over operands that come by turns is bound by memory, as in a model.
inline constexpr int64_t kColdBytes = int64_t{128} << 20;

// Weights of one format and size, at least one.
using ColdWeights = std::shared_ptr<const std::vector<PackedMatrix>>;
// `experts` weights [n, k], or as many more as have `least_bytes`. `format`: "BF16", "Q4_1", any
// DType's name; "FP8 128x128" and "INT4 g32" with the blocks and groups that kernels allow.
// Errors: kInvalidArgument (no such format, sizes that it does not allow), kResourceExhausted.
Result<ColdWeights> MakeWeights(Ops& ops, const std::string& format, int64_t n, int64_t k,
                                int64_t experts, int64_t least_bytes);
// Products of `experts` of `weights` with `rows` rows each, by turns.
KernelRun MakeMatMul(Ops& ops, const ColdWeights& weights, int64_t experts, int64_t rows);
// Attention of the last `rows` rows of each of `sequences` sequences; over as many layers by turns
// as have `least_bytes`. Errors: kResourceExhausted.
Result<KernelRun> MakeGqa(Ops& ops, const GqaShape& shape, KvFormat format, int64_t sequences,
                          int64_t positions, int64_t rows, int64_t least_bytes);
// The same in the absorbed form, of the last row. `selected` > 0: it attends so many positions,
// evenly spread.
Result<KernelRun> MakeMlaDecode(Ops& ops, const MlaShape& shape, KvFormat format, int64_t sequences,
                                int64_t positions, int64_t selected, int64_t least_bytes);

// What a layer does besides products and attention, for one row of each of `rows` sequences: norms,
// rotations, rows written to pages, activations, sums. Errors: kResourceExhausted.
Result<KernelRun> MakeRestOfLayer(Ops& ops, const PlannedLayer& layer, int64_t rows,
                                  int64_t least_bytes);

}  // namespace tern
