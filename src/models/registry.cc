#include "models/registry.h"

#include <fmt/format.h>

#include <iterator>
#include <utility>

#include "base/file.h"
#include "models/deepseek_v3.h"
#include "models/glm4_moe.h"
#include "models/glm_moe_dsa.h"
#include "models/llama.h"
#include "models/shared_weights.h"

namespace tern {
namespace {

struct Architecture {
  const char* name;
  Result<std::unique_ptr<Model>> (*load)(std::shared_ptr<const Checkpoint>, Ops&,
                                         const LoadOptions&);
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

Result<std::unique_ptr<Checkpoint>> MakeDummy(const std::string& path, WeightRecipe recipe) {
  TERN_ASSIGN_OR_RETURN(ModelConfig config,
                        LoadModelConfig(IsDirectory(path) ? path + "/config.json" : path));
  TERN_ASSIGN_OR_RETURN(const std::vector<TensorSpec> specs, TensorList(config));
  // The recipe decides, whatever the config says of published weights.
  std::vector<DummyTensor> tensors;
  for (const TensorSpec& spec : specs) {
    if (spec.next_token) continue;
    TERN_ASSIGN_OR_RETURN(RecipeWeight weight, StoredAs(spec, config, recipe));
    std::move(weight.tensors.begin(), weight.tensors.end(), std::back_inserter(tensors));
  }
  if (recipe != WeightRecipe::kConfig) config.quantization = {};
  return Checkpoint::Dummy(std::move(config), tensors);
}

Result<std::unique_ptr<Checkpoint>> OpenCheckpoint(const std::string& path,
                                                   const LoadOptions& options) {
  if (options.format == LoadFormat::kDummy) return MakeDummy(path, options.dummy_recipe);
  TERN_ASSIGN_OR_RETURN(auto checkpoint, Checkpoint::Open(path));
  const bool gguf = checkpoint->format() == CheckpointFormat::kGguf;
  if ((options.format == LoadFormat::kGguf && !gguf) ||
      (options.format == LoadFormat::kSafetensors && gguf)) {
    return InvalidArgument(
        fmt::format("{} is no {} checkpoint", path, gguf ? "safetensors" : "GGUF"));
  }
  return checkpoint;
}

// Of several models of one process, one with the same files has its weights in memory already.
Result<std::shared_ptr<const Checkpoint>> OpenOnce(const std::string& path,
                                                   const LoadOptions& options) {
  const std::string key =
      options.format == LoadFormat::kDummy
          ? fmt::format("{} as {}", path, static_cast<int>(options.dummy_recipe))
          : path;
  if (options.shared != nullptr) {
    if (auto opened = options.shared->FindCheckpoint(key)) return opened;
  }
  TERN_ASSIGN_OR_RETURN(std::shared_ptr<const Checkpoint> checkpoint,
                        OpenCheckpoint(path, options));
  // Weights stay in their format, so the files' bytes say what they will take: a model that can't
  // fit is refused before minutes of loading end in the system's out-of-memory killer.
  const uint64_t bytes = options.shared != nullptr ? options.shared->OwnBytes(*checkpoint)
                                                   : checkpoint->tensor_bytes();
  TERN_RETURN_IF_ERROR(CheckFits(checkpoint->path(), bytes, options));
  if (options.shared != nullptr) options.shared->AddCheckpoint(key, checkpoint);
  return checkpoint;
}

}  // namespace

Result<LoadFormat> LoadFormatNamed(const std::string& name) {
  if (name == "auto") return LoadFormat::kAuto;
  if (name == "safetensors") return LoadFormat::kSafetensors;
  if (name == "gguf") return LoadFormat::kGguf;
  if (name == "dummy") return LoadFormat::kDummy;
  return InvalidArgument(
      fmt::format("'{}' is no load format (auto, safetensors, gguf and dummy are)", name));
}

Result<std::unique_ptr<Model>> LoadModel(const std::string& path, Ops& ops,
                                         const LoadOptions& options) {
  TERN_ASSIGN_OR_RETURN(auto checkpoint, OpenOnce(path, options));
  TERN_ASSIGN_OR_RETURN(const Architecture* architecture, FindArchitecture(checkpoint->config()));
  return architecture->load(std::move(checkpoint), ops, options);
}

Status CheckFits(const std::string& what, uint64_t bytes, const LoadOptions& options) {
  const uint64_t available = options.available_memory();
  if (bytes <= available) return OkStatus();
  constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
  return ResourceExhausted(
      fmt::format("{}: weights of {:.1f} GiB do not fit in {:.1f} GiB of memory", what,
                  static_cast<double>(bytes) / kGib, static_cast<double>(available) / kGib));
}

Result<std::vector<TensorSpec>> TensorList(const ModelConfig& config) {
  TERN_ASSIGN_OR_RETURN(const Architecture* architecture, FindArchitecture(config));
  return architecture->tensor_list(config);
}

}  // namespace tern
