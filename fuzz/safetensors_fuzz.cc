// Any bytes as a .safetensors file, and as its index: parsed or refused, views inside the file.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/check.h"
#include "checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = std::as_bytes(std::span(data, size));
  const auto tensors = tern::ParseSafetensors(file, "fuzz");
  if (tensors.ok()) {
    for (const auto& tensor : *tensors) {
      const auto bytes = tensor.view.bytes;
      TERN_CHECK(bytes.data() >= file.data() &&
                 bytes.data() + bytes.size() <= file.data() + file.size());
      TERN_CHECK(tensor.view.shape.elements().has_value());
    }
  }
  (void)tern::ParseSafetensorsIndex({reinterpret_cast<const char*>(data), size}, "fuzz").ok();
  return 0;
}
