// A checkpoint's tensors against what an architecture asks for, before any of them is packed: a
// file that does not belong to its config is told in seconds, not after minutes of loading, and
// never by wrong answers. Lives during loading, on one thread.
#pragma once

#include <span>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "models/tensor_list.h"

namespace tern {

// Checks that
// * every tensor of `specs` is there, in its shape and a format that quantization_config allows;
//   those of next-token-prediction layers may be missing;
// * a quantization_config that says fp8 has at least one FP8 weight;
// * the layers hold no weight or bias that `specs` leaves out (a bias, a norm or an expert that the
//   config denies), but for indexers of layers that share one;
// * layers past num_hidden_layers are next-token-prediction layers.
// Errors: FindWeight's and Checkpoint::Require's; kInvalidArgument naming file and tensor.
Status CheckTensors(const Checkpoint& files, std::span<const TensorSpec> specs);

}  // namespace tern
