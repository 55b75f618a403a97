// Any bytes as config.json and generation_config.json: read or refused; then the tensor list.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/json.h"
#include "checkpoint/model_config.h"
#include "models/registry.h"
#include "models/rope.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto json = tern::ParseJson({reinterpret_cast<const char*>(data), size});
  if (!json.ok()) return 0;
  (void)tern::ParseGenerationConfig(*json, "fuzz").ok();
  const auto config = tern::ParseModelConfig(*json, "fuzz");
  if (!config.ok()) return 0;
  (void)tern::TensorList(*config).ok();
  (void)tern::RotaryEmbedding::Make(config->rope, 64, {}, "fuzz").ok();
  return 0;
}
