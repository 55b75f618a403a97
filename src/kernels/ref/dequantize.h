// Numbers of a tensor as float32, from the published block layouts (docs/formats/gguf.md), and
// weights of a packed matrix one at a time (kernels/cpu/layout.h). Plain C++: the specification
// that packers and kernels are tested against. Thread: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/weight_view.h"
#include "tensor/dtype.h"

namespace tern {

// Whether DequantizeBlocks takes the type: the float types and GGUF blocks.
bool IsWeightType(DType dtype);

// `elements` numbers that start at a block boundary. REQUIRES: IsWeightType(dtype), `elements` is a
// multiple of the block.
void DequantizeBlocks(DType dtype, const std::byte* bytes, int64_t elements, float* out);

// Row `row` of a weight as float32, each number rounded once. REQUIRES: the tensors have the types
// and shapes that weight_view.h says (Ops::Pack checks them).
void DequantizeWeightRow(const WeightView& weight, int64_t row, float* out);

// Number `index` of a BF16, F16 or F32 tensor, and the zero point of one group: 8 when symmetric.
float ScaleAt(const TensorView& scales, int64_t index);
int ZeroPointAt(const WeightView& weight, int64_t row, int64_t group);

// The 6-bit scale and minimum of sub-block `index` (0..7) from the 12 bytes of a Q4_K block.
void UnpackQ4KScale(const uint8_t* scales, int index, uint8_t* scale, uint8_t* minimum);

// The 6-bit number (0..63) of element `index` (0..255) of a Q6_K block.
uint8_t UnpackQ6K(const uint8_t* block, int index);

// Weight [row, column] of a packed matrix with k columns, in float64: exact for every format but
// Q4_1 and Q4_K, whose sum d * q + m is rounded once.
double PackedWeight(int format, const std::byte* packed, int64_t k, int64_t row, int64_t column);

}  // namespace tern
