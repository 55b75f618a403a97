// QuantizationConfig: what a config.json's `quantization_config` says about the weights. The
// tensors decide (models/stored_weight.h); a config that contradicts them is an error.
// Formats: docs/formats/checkpoint.md. Thread: values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "checkpoint/module_pattern.h"

namespace tern {

struct QuantizationConfig {
  enum class Method {
    kNone,
    kFp8Block,   // quant_method "fp8" with weight_block_size
    kInt4Group,  // quant_method "compressed-tensors", format "pack-quantized", 4-bit groups
  };
  Method method = Method::kNone;
  int64_t block_rows = 128, block_columns = 128;  // kFp8Block
  int64_t group = 32;                             // kInt4Group
  bool symmetric = true;                          // kInt4Group
  std::vector<ModulePattern> ignore;              // modules that are not quantized
  bool fp8_kv_cache = false;                      // kv_cache_scheme: 8-bit float, one static scale

  // Whether `module` ("model.layers.0.mlp.gate_proj") is listed as not quantized.
  bool Ignores(std::string_view module) const;
};

// "none", "fp8", "int4": for people.
std::string_view QuantizationMethodName(QuantizationConfig::Method method);

// `where` names the object in errors. Errors: kInvalidArgument for mistyped or impossible fields;
// kUnimplemented for another method, block, group or bit width, naming it.
Result<QuantizationConfig> ParseQuantizationConfig(const Json& json, const std::string& where);

}  // namespace tern
