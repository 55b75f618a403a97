// What a packed weight is and what multiplies it, for reports. Thread: pure functions.
#pragma once

#include <string>

#include "kernels/ops.h"

namespace tern {

// "BF16", "Q4_0", "FP8 128x128", "INT4 g32".
std::string FormatNameOf(const PackedMatrix& weight);

// The numbers that the products of a weight are made of.
enum class Arithmetic { kF32, kBf16, kInt8 };
Arithmetic ArithmeticOf(const Ops& ops, const PackedMatrix& weight);
// Whether the level multiplies BF16 numbers.
bool HasBf16Products(const Ops& ops);

// What activations are rounded to before they meet 4-bit weights: "INT8 g32", "BF16", "FP32".
const char* ActivationNameOf(const Ops& ops);

}  // namespace tern
