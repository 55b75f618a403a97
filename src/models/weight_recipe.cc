#include "models/weight_recipe.h"

#include <fmt/format.h>

#include <utility>

namespace tern {
namespace {

using Method = QuantizationConfig::Method;

constexpr std::string_view kWeightSuffix = ".weight";
constexpr float kDeviation = 0.02f;  // of made-up weights: the usual initializer_range

DType FloatTypeOf(const TensorSpec& spec, const ModelConfig& config) {
  if (spec.name.ends_with("e_score_correction_bias")) return DType::kF32;
  if (config.torch_dtype == "float32") return DType::kF32;
  if (config.torch_dtype == "float16") return DType::kF16;
  return DType::kBF16;
}

// Which format a linear layer's weight takes.
Method MethodOf(const TensorSpec& spec, const ModelConfig& config, WeightRecipe recipe) {
  if (!IsLinear(spec) || !spec.name.ends_with(kWeightSuffix)) return Method::kNone;
  const std::string module = spec.name.substr(0, spec.name.size() - kWeightSuffix.size());
  const bool kept_by_all = module.ends_with(".weights_proj");
  const bool kept_by_fp8 =
      spec.kind == TensorKind::kHead || kept_by_all || module.ends_with(".eh_proj");
  const QuantizationConfig& quantization = config.quantization;
  switch (recipe) {
    case WeightRecipe::kBf16:
      return Method::kNone;
    case WeightRecipe::kFp8:
      return kept_by_fp8 ? Method::kNone : Method::kFp8Block;
    case WeightRecipe::kInt4:
      return spec.kind == TensorKind::kExpert ? Method::kInt4Group : Method::kNone;
    case WeightRecipe::kInt4Linear:
      return kept_by_all ? Method::kNone : Method::kInt4Group;
    case WeightRecipe::kFp8Linear:
      return kept_by_all ? Method::kNone : Method::kFp8Block;
    case WeightRecipe::kConfig:
      break;
  }
  const bool ignored = quantization.Ignores(module) ||
                       quantization.Ignores(config.tensor_prefix + module) ||
                       (quantization.method == Method::kFp8Block && kept_by_fp8);
  return ignored ? Method::kNone : quantization.method;
}

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

Result<WeightRecipe> WeightRecipeNamed(const std::string& name) {
  if (name == "config") return WeightRecipe::kConfig;
  if (name == "bf16") return WeightRecipe::kBf16;
  if (name == "fp8") return WeightRecipe::kFp8;
  if (name == "fp8-linear") return WeightRecipe::kFp8Linear;
  if (name == "int4" || name == "kimi") return WeightRecipe::kInt4;
  if (name == "int4-linear") return WeightRecipe::kInt4Linear;
  return InvalidArgument(fmt::format(
      "'{}' is no weight recipe (config, bf16, fp8, fp8-linear, int4, kimi and int4-linear are)",
      name));
}

Result<RecipeWeight> StoredAs(const TensorSpec& spec, const ModelConfig& config,
                              WeightRecipe recipe) {
  RecipeWeight weight;
  const Method method = MethodOf(spec, config, recipe);
  const QuantizationConfig& q = config.quantization;
  const bool norm = spec.kind == TensorKind::kNorm && spec.name.ends_with(kWeightSuffix);
  if (method == Method::kNone) {
    const DType dtype = FloatTypeOf(spec, config);
    weight.format = InfoOf(dtype).name;
    weight.tensors.push_back({spec.name, dtype, spec.shape, norm ? 0.0f : kDeviation, {}});
  } else if (method == Method::kFp8Block) {
    const Shape blocks{CeilDiv(spec.shape[0], q.block_rows),
                       CeilDiv(spec.shape[1], q.block_columns)};
    weight.format = fmt::format("FP8 {}x{}", q.block_rows, q.block_columns);
    weight.tensors.push_back({spec.name, DType::kF8E4M3, spec.shape, 1.0f, {}});
    weight.tensors.push_back({spec.name + "_scale_inv", DType::kF32, blocks, kDeviation, {}});
  } else {
    const bool from_config = recipe == WeightRecipe::kConfig;
    const int64_t group = from_config ? q.group : 32;
    const int64_t rows = spec.shape[0], columns = spec.shape[1];
    if (columns % group != 0) {
      return InvalidArgument(
          fmt::format("{}: '{}' has {} input features, no multiple of a group "
                      "of {}",
                      config.source, spec.name, columns, group));
    }
    weight.format = fmt::format("INT4 g{}", group);
    weight.tensors.push_back({spec.name + "_packed", DType::kI32, Shape{rows, columns / 8}});
    // A nibble's deviation is about 4.6.
    weight.tensors.push_back(
        {spec.name + "_scale", DType::kBF16, Shape{rows, columns / group}, kDeviation / 4.6f, {}});
    weight.tensors.push_back(
        {.name = spec.name + "_shape",
         .dtype = DType::kI32,
         .shape = Shape{2},
         .values = {static_cast<int32_t>(rows), static_cast<int32_t>(columns)}});
    if (from_config && !q.symmetric) {
      weight.tensors.push_back(
          {spec.name + "_zero_point", DType::kI32, Shape{CeilDiv(rows, 8), columns / group}});
    }
  }
  for (const DummyTensor& tensor : weight.tensors) {
    const auto elements = tensor.shape.elements();
    const auto bytes =
        elements ? StorageBytes(tensor.dtype, static_cast<uint64_t>(*elements)) : std::nullopt;
    if (!bytes || __builtin_add_overflow(weight.bytes, *bytes, &weight.bytes)) {
      return InvalidArgument(
          fmt::format("{}: the size of {} overflows", config.source, tensor.name));
    }
  }
  return weight;
}

std::string WeightOf(const std::string& stored_name) {
  const size_t at = stored_name.rfind(kWeightSuffix);
  if (at == std::string::npos) return stored_name;
  const std::string_view suffix = std::string_view(stored_name).substr(at + kWeightSuffix.size());
  for (const char* known : {"_packed", "_scale", "_shape", "_zero_point", "_g_idx", "_scale_inv"}) {
    if (suffix == known) return stored_name.substr(0, at + kWeightSuffix.size());
  }
  return stored_name;
}

}  // namespace tern
