// Safetensors: the header of one .safetensors file, and the index of a sharded checkpoint.
// Layout: https://github.com/huggingface/safetensors (README, "Format"): an 8-byte little-endian
// header length, a JSON header, then the tensors' bytes without holes.
// Thread: pure functions; the results point into the caller's bytes.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "tensor/tensor.h"

namespace tern {

struct SafetensorsTensor {
  std::string name;
  TensorView view;  // into the parsed bytes
};

// Every tensor of a file, in the order of their bytes. `file` is the whole file and must outlive
// the views; `path` names it in errors.
// Errors: kInvalidArgument, one sentence naming the file and the tensor: a header that is cut, too
// long, no JSON or nested too deeply; unknown dtypes; shapes that overflow or whose bytes disagree
// with data_offsets; offsets past the end; overlaps and holes; a name that occurs twice.
Result<std::vector<SafetensorsTensor>> ParseSafetensors(std::span<const std::byte> file,
                                                        const std::string& path);

// The `weight_map` of a model.safetensors.index.json: (tensor, shard file name), as stored.
// Errors: kInvalidArgument (also for shard names that would leave the checkpoint's folder).
Result<std::vector<std::pair<std::string, std::string>>> ParseSafetensorsIndex(
    std::string_view json, const std::string& path);

}  // namespace tern
