// StoredWeight: the tensors of a checkpoint that make up one weight matrix, checked against each
// other and against the quantization config. Layouts: docs/formats/checkpoint.md.
// Lives during loading, on one thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "kernels/weight_view.h"

namespace tern {

struct StoredWeight {
  WeightView view;
  // data, scales, zero points; nullptr where there is none.
  std::array<const CheckpointTensor*, 3> tensors{};

  const CheckpointTensor& data() const { return *tensors[0]; }
  uint64_t stored_bytes() const;
};

// `name`: "model.layers.0.mlp.up_proj.weight", stored as such (a float, a GGUF block type, or FP8
// with `<name>_scale_inv`) or as `<name>_packed`, `<name>_scale`, `<name>_shape`.
// Errors: kInvalidArgument naming file and tensor: missing, stored twice, of another shape or type,
// scales that don't fit, a quantization_config that says otherwise; kUnimplemented for weights
// whose input features are reordered.
Result<StoredWeight> FindWeight(const Checkpoint& checkpoint, const std::string& name, int64_t rows,
                                int64_t columns);

// Errors: kInvalidArgument naming the file and the tensor with a scale that is NaN or infinite.
Status CheckScales(const StoredWeight& weight);

}  // namespace tern
