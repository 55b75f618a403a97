// Any bytes as a GGUF file: parsed or refused; then its config and tokenizer.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "checkpoint/gguf.h"
#include "checkpoint/gguf_tokenizer.h"
#include "checkpoint/model_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = std::as_bytes(std::span(data, size));
  const auto gguf = tern::Gguf::Parse(file, "fuzz");
  if (!gguf.ok()) return 0;
  for (const auto& tensor : gguf->tensors()) {
    const auto bytes = tensor.view.bytes;
    TERN_CHECK(bytes.data() >= file.data() &&
               bytes.data() + bytes.size() <= file.data() + file.size());
  }
  (void)tern::ModelConfigFromGguf(*gguf).ok();
  (void)tern::TokenizerFromGguf(*gguf).ok();
  return 0;
}
