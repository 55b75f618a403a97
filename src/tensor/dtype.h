// DType: how numbers are stored, in checkpoints and in memory. Block formats (GGUF) hold
// `block_elements` numbers in `block_bytes`. Thread: constants and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace tern {

enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kF8E4M3,  // e4m3fn: no infinity, largest finite 448
  kI64,
  kI32,
  kI16,
  kI8,
  kU8,
  kBool,
  // GGUF blocks; layouts in docs/formats/gguf.md.
  kQ4_0,
  kQ4_1,
  kQ8_0,
  kQ4_K,
  kQ6_K,
};

struct DTypeInfo {
  std::string_view name;   // "BF16": the safetensors or GGUF spelling
  int64_t block_elements;  // 1 for plain types
  int64_t block_bytes;
};

const DTypeInfo& InfoOf(DType dtype);

// Bytes of `elements` numbers, or nullopt on overflow or when a block would be cut.
std::optional<uint64_t> StorageBytes(DType dtype, uint64_t elements);

}  // namespace tern
