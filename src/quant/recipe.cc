#include "quant/recipe.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace tern {
namespace {

constexpr std::string_view kWeightSuffix = ".weight";

// Kimi's published entries, which name what stays BF16 beside the head.
constexpr const char* kKimiIgnored[] = {
    "re:.*self_attn.*",
    "re:.*shared_experts.*",
    "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
};

bool MatchesAny(const std::vector<ModulePattern>& patterns, const std::string& module,
                const std::string& prefix) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const ModulePattern& pattern) {
    return pattern.Matches(module) || (!prefix.empty() && pattern.Matches(prefix + module));
  });
}

bool RecipeSelects(const QuantSelection& selection, const TensorSpec& spec) {
  return selection.recipe == QuantRecipe::kAllLinear || spec.kind == TensorKind::kExpert;
}

ModulePattern PatternOf(const std::string& entry) {
  Result<ModulePattern> pattern = ModulePattern::Make(entry);
  TERN_CHECK(pattern.ok());
  return std::move(pattern).value();
}

Status CheckPatterns(const std::vector<ModulePattern>& patterns, const char* flag,
                     std::span<const TensorSpec> specs, const std::string& prefix) {
  for (const ModulePattern& pattern : patterns) {
    const bool used = std::any_of(specs.begin(), specs.end(), [&](const TensorSpec& spec) {
      return IsQuantizable(spec) &&
             MatchesAny({pattern}, std::string(ModuleOfWeight(spec.name)), prefix);
    });
    if (!used) {
      return InvalidArgument(fmt::format(
          "{}: '{}' matches no linear layer of the model (a name such as "
          "'model.layers.0.mlp.up_proj', or 're:' and an expression that matches from its start; "
          "routers, weights_proj, norms and embeddings are never quantized)",
          flag, pattern.text()));
    }
  }
  return OkStatus();
}

// Entries of `ignore`: `candidates` that match nothing quantized, and by name what is left.
std::vector<std::string> Ignored(const QuantSelection& selection, std::span<const TensorSpec> specs,
                                 const std::string& prefix,
                                 std::span<const std::string> candidates) {
  std::vector<std::string> entries;
  std::vector<ModulePattern> patterns;
  for (const std::string& candidate : candidates) {
    const ModulePattern pattern = PatternOf(candidate);
    bool hits_kept = false, hits_quantized = false;
    for (const TensorSpec& spec : specs) {
      if (!IsQuantizable(spec)) continue;
      if (!MatchesAny({pattern}, std::string(ModuleOfWeight(spec.name)), prefix)) continue;
      (Selects(selection, spec, prefix) ? hits_quantized : hits_kept) = true;
    }
    if (hits_quantized || (!hits_kept && !candidate.starts_with("re:"))) continue;
    entries.push_back(candidate);
    patterns.push_back(pattern);
  }
  for (const TensorSpec& spec : specs) {
    const std::string module(ModuleOfWeight(spec.name));
    if (!IsLinear(spec) || module.empty() || Selects(selection, spec, prefix)) continue;
    if (!MatchesAny(patterns, module, prefix)) entries.push_back(prefix + module);
  }
  return entries;
}

Json Int4Config(const QuantSelection& selection, const std::vector<std::string>& ignore,
                bool fp8_kv) {
  Json weights = Json::object();
  weights["actorder"] = nullptr;
  weights["block_structure"] = nullptr;
  weights["dynamic"] = false;
  weights["group_size"] = selection.group;
  weights["num_bits"] = 4;
  weights["observer"] = "minmax";
  weights["observer_kwargs"] = Json::object();
  weights["strategy"] = "group";
  weights["symmetric"] = true;
  weights["type"] = "int";
  Json group = Json::object();
  group["input_activations"] = nullptr;
  group["output_activations"] = nullptr;
  group["targets"] = Json::array({"Linear"});
  group["weights"] = std::move(weights);
  Json config = Json::object();
  config["config_groups"]["group_0"] = std::move(group);
  config["format"] = "pack-quantized";
  config["ignore"] = ignore;
  config["kv_cache_scheme"] = nullptr;
  if (fp8_kv) {
    config["kv_cache_scheme"] = {{"dynamic", false},
                                 {"num_bits", 8},
                                 {"strategy", "tensor"},
                                 {"symmetric", true},
                                 {"type", "float"}};
  }
  config["quant_method"] = "compressed-tensors";
  config["quantization_status"] = "compressed";
  return config;
}

}  // namespace

std::string_view ModuleOfWeight(std::string_view tensor) {
  return tensor.ends_with(kWeightSuffix) ? tensor.substr(0, tensor.size() - kWeightSuffix.size())
                                         : std::string_view();
}

bool IsQuantizable(const TensorSpec& spec) {
  const std::string_view module = ModuleOfWeight(spec.name);
  return IsLinear(spec) && !module.empty() && !module.ends_with(".weights_proj");
}

bool Selects(const QuantSelection& selection, const TensorSpec& spec, const std::string& prefix) {
  if (!IsQuantizable(spec)) return false;
  const std::string module(ModuleOfWeight(spec.name));
  if (MatchesAny(selection.exclude, module, prefix)) return false;
  return RecipeSelects(selection, spec) || MatchesAny(selection.include, module, prefix);
}

Status CheckSelection(const QuantSelection& selection, std::span<const TensorSpec> specs,
                      const std::string& prefix) {
  TERN_RETURN_IF_ERROR(CheckPatterns(selection.include, "--include", specs, prefix));
  TERN_RETURN_IF_ERROR(CheckPatterns(selection.exclude, "--exclude", specs, prefix));
  const bool any = std::any_of(specs.begin(), specs.end(), [&](const TensorSpec& spec) {
    return Selects(selection, spec, prefix);
  });
  if (any) return OkStatus();
  return InvalidArgument(
      selection.recipe == QuantRecipe::kKimi
          ? "--recipe kimi quantizes routed experts, and the model has none that are not excluded: "
            "--recipe all-linear takes every linear layer"
          : "every linear layer is excluded: there is nothing to quantize");
}

Json QuantizationConfigJson(const QuantSelection& selection, std::span<const TensorSpec> specs,
                            const std::string& prefix, bool fp8_kv) {
  std::vector<std::string> candidates;
  if (selection.format == QuantFormat::kInt4) {
    candidates.push_back(prefix + "lm_head");
    if (selection.recipe == QuantRecipe::kKimi) {
      candidates.insert(candidates.end(), std::begin(kKimiIgnored), std::end(kKimiIgnored));
    } else {
      // The router is a linear layer to some programs.
      candidates.push_back("re:.*mlp\\.gate$");
    }
    // The other towers of a multimodal model.
    if (!prefix.empty()) {
      candidates.insert(candidates.end(), {"re:vision_tower.*", "re:mm_projector.*"});
    }
    return Int4Config(selection, Ignored(selection, specs, prefix, candidates), fp8_kv);
  }
  Json config = Json::object();
  config["activation_scheme"] = "dynamic";
  config["fmt"] = "e4m3";
  config["quant_method"] = "fp8";
  config["weight_block_size"] = Json::array({128, 128});
  const std::vector<std::string> kept = Ignored(selection, specs, prefix, candidates);
  if (!kept.empty()) config["modules_to_not_convert"] = kept;
  return config;
}

}  // namespace tern
