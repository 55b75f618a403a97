#include "tensor/dtype.h"

namespace tern {

const DTypeInfo& InfoOf(DType dtype) {
  static constexpr DTypeInfo kInfo[] = {
      {"F32", 1, 4},    {"F16", 1, 2},    {"BF16", 1, 2},   {"F8_E4M3", 1, 1},  {"I64", 1, 8},
      {"I32", 1, 4},    {"I16", 1, 2},    {"I8", 1, 1},     {"U8", 1, 1},       {"BOOL", 1, 1},
      {"Q4_0", 32, 18}, {"Q4_1", 32, 20}, {"Q8_0", 32, 34}, {"Q4_K", 256, 144}, {"Q6_K", 256, 210},
  };
  return kInfo[static_cast<int>(dtype)];
}

std::optional<uint64_t> StorageBytes(DType dtype, uint64_t elements) {
  const DTypeInfo& info = InfoOf(dtype);
  const auto block = static_cast<uint64_t>(info.block_elements);
  if (elements % block != 0) return std::nullopt;
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(elements / block, static_cast<uint64_t>(info.block_bytes), &bytes)) {
    return std::nullopt;
  }
  return bytes;
}

}  // namespace tern
