// Any bytes as config.json and generation_config.json: read or refused; then the tensor list and
// what its tensors are stored as.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "checkpoint/model_config.h"
#include "models/registry.h"
#include "models/rope.h"
#include "models/weight_recipe.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto json = tern::ParseJson({reinterpret_cast<const char*>(data), size});
  if (!json.ok()) return 0;
  (void)tern::ParseGenerationConfig(*json, "fuzz").ok();
  const auto config = tern::ParseModelConfig(*json, "fuzz");
  if (!config.ok()) return 0;
  // Small models only: a list has an entry per expert, and counting is not what this looks for.
  const auto specs =
      config->num_hidden_layers > 64
          ? tern::Result<std::vector<tern::TensorSpec>>(tern::InvalidArgument("too many layers"))
          : tern::TensorList(*config);
  for (size_t i = 0; specs.ok() && i < specs->size() && i < 100; ++i) {
    (void)tern::StoredAs((*specs)[i], *config, tern::WeightRecipe::kConfig).ok();
  }
  (void)tern::RotaryEmbedding::Make(config->rope, 64, {}, "fuzz").ok();
  return 0;
}
