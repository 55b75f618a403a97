// Any bytes as a quantization_config: read or refused; then matched against module names.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/json.h"
#include "checkpoint/quantization_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto json = tern::ParseJson({reinterpret_cast<const char*>(data), size});
  if (!json.ok()) return 0;
  const auto config = tern::ParseQuantizationConfig(*json, "fuzz");
  if (!config.ok()) return 0;
  for (const char* module : {"", "lm_head", "model.layers.0.mlp.experts.17.gate_proj",
                             "language_model.model.layers.3.self_attn.indexer.wq_b"}) {
    (void)config->Ignores(module);
  }
  return 0;
}
