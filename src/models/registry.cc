#include "models/registry.h"

#include <fmt/format.h>

#include <utility>

#include "models/deepseek_v3.h"
#include "models/glm4_moe.h"
#include "models/glm_moe_dsa.h"
#include "models/llama.h"

namespace tern {
namespace {

struct Architecture {
  const char* name;
  Result<std::unique_ptr<Model>> (*load)(std::unique_ptr<Checkpoint>, Ops&, const LoadOptions&);
  Result<std::vector<TensorSpec>> (*tensor_list)(const ModelConfig&);
};

constexpr Architecture kArchitectures[] = {
    {"LlamaForCausalLM", LoadLlama, LlamaTensorList},
    {"Qwen2ForCausalLM", LoadLlama, LlamaTensorList},
    {"Qwen3ForCausalLM", LoadLlama, LlamaTensorList},
    {"DeepseekV3ForCausalLM", LoadDeepseekV3, DeepseekV3TensorList},
    {"KimiK25ForConditionalGeneration", LoadDeepseekV3, DeepseekV3TensorList},
    {"Glm4MoeLiteForCausalLM", LoadDeepseekV3, DeepseekV3TensorList},
    {"GlmMoeDsaForCausalLM", LoadGlmMoeDsa, GlmMoeDsaTensorList},
    {"DeepseekV32ForCausalLM", LoadGlmMoeDsa, GlmMoeDsaTensorList},
    {"Glm4MoeForCausalLM", LoadGlm4Moe, Glm4MoeTensorList},
};

Result<const Architecture*> FindArchitecture(const ModelConfig& config) {
  std::string known;
  for (const Architecture& architecture : kArchitectures) {
    if (config.architecture == architecture.name) return &architecture;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", architecture.name);
  }
  return Unimplemented(fmt::format("{}: unknown architecture '{}' (known: {})", config.source,
                                   config.architecture, known));
}

}  // namespace

Result<std::unique_ptr<Model>> LoadModel(const std::string& path, Ops& ops,
                                         const LoadOptions& options) {
  TERN_ASSIGN_OR_RETURN(auto checkpoint, Checkpoint::Open(path));
  TERN_ASSIGN_OR_RETURN(const Architecture* architecture, FindArchitecture(checkpoint->config()));
  return architecture->load(std::move(checkpoint), ops, options);
}

Result<std::vector<TensorSpec>> TensorList(const ModelConfig& config) {
  TERN_ASSIGN_OR_RETURN(const Architecture* architecture, FindArchitecture(config));
  return architecture->tensor_list(config);
}

}  // namespace tern
