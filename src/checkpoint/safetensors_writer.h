// Safetensors files to write: the header and the place of every tensor, known before the first byte
// of data, so that data can be written in any order. Layout as in safetensors.h.
// Thread: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "tensor/tensor.h"

namespace tern {

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kBF16;
  Shape shape;

  // Errors: kInvalidArgument naming the tensor: its size overflows.
  Result<uint64_t> bytes() const;
};

struct SafetensorsLayout {
  std::string header;             // the 8-byte length and the JSON, padded to a multiple of 8
  std::vector<uint64_t> offsets;  // of each entry's data from the file's start, as given
  uint64_t file_bytes = 0;
};

// Data lies by falling element size, then by name, as the reference implementation writes it: every
// tensor is aligned to its type. Errors: kInvalidArgument (overflow, a name twice, a header above
// the format's 100 MB).
Result<SafetensorsLayout> LayOutSafetensors(std::span<const SafetensorsEntry> entries);

// The text of a model.safetensors.index.json. `weight_map`: (tensor, file), in any order.
std::string SafetensorsIndexJson(std::vector<std::pair<std::string, std::string>> weight_map,
                                 uint64_t total_bytes);

}  // namespace tern
