// Packing: a checkpoint tensor into the panels of kernels/cpu/layout.h. Thread: the range is the
// caller's; disjoint panel ranges may be packed at the same time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/layout.h"
#include "kernels/ops.h"
#include "tensor/tensor.h"

namespace tern {

// The layout that a tensor type is packed into. kReference: float32 for all. kProduction: GGUF
// blocks as they are, BF16 as it is, F16 and F32 rounded to BF16 (as the activations they meet).
// REQUIRES: IsWeightType(dtype).
PackFormat PackFormatOf(DType dtype, Precision precision);

// Writes panels [panel_begin, panel_end) of a [n, k] tensor into `packed`, the zero-filled bytes of
// the whole matrix. REQUIRES: format = PackFormatOf(weight.dtype, ...).
void PackPanels(const TensorView& weight, PackFormat format, int64_t panel_begin, int64_t panel_end,
                std::byte* packed);

// The layout of a weight stored with scales. kReference: float32. REQUIRES: not kPlain.
PackFormat PackFormatOf(const WeightView& weight, Precision precision);

// As above, for a weight stored with scales. False if a weight is NaN: an error of the checkpoint.
bool PackPanels(const WeightView& weight, PackFormat format, int64_t panel_begin, int64_t panel_end,
                std::byte* packed);

}  // namespace tern
