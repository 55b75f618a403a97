#include "checkpoint/quantization_config.h"

#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/field_reader.h"

namespace tern {
namespace {

using config::Bad;
using config::FieldReader;
using config::Has;

constexpr size_t kMaxIgnored = 100'000;

Status NotSupported(const std::string& where, const std::string& what) {
  return Unimplemented(fmt::format("{}: {}", where, what));
}

Result<std::vector<ModulePattern>> ParseIgnored(const Json& json, const char* key,
                                                const std::string& where) {
  std::vector<std::string> entries;
  FieldReader fields(json, where);
  fields.Strings(key, &entries);
  TERN_RETURN_IF_ERROR(fields.status());
  if (entries.size() > kMaxIgnored) {
    return Bad(where, fmt::format("{} has {} entries", key, entries.size()));
  }
  std::vector<ModulePattern> patterns;
  for (const std::string& entry : entries) {
    Result<ModulePattern> pattern = ModulePattern::Make(entry);
    if (!pattern.ok()) return pattern.status().WithContext(fmt::format("{}: {}", where, key));
    patterns.push_back(std::move(pattern).value());
  }
  return patterns;
}

Result<QuantizationConfig> ParseFp8(const Json& json, const std::string& where) {
  QuantizationConfig config{.method = QuantizationConfig::Method::kFp8Block};
  std::string format = "e4m3";
  FieldReader fields(json, where);
  fields.String("fmt", &format);
  TERN_RETURN_IF_ERROR(fields.status());
  if (format != "e4m3" && format != "float8_e4m3fn") {
    return NotSupported(where, fmt::format("fmt '{}' is not supported (e4m3 is)", format));
  }
  if (!Has(json, "weight_block_size")) {
    return NotSupported(where, "fp8 without weight_block_size is not supported ([128, 128] is)");
  }
  if (json["weight_block_size"] != Json::array({128, 128})) {
    const std::string text = DumpJson(json["weight_block_size"]);
    return NotSupported(where, fmt::format("weight_block_size {} is not supported ([128, 128] is)",
                                           text.size() <= 40 ? text : "of this kind"));
  }
  TERN_ASSIGN_OR_RETURN(config.ignore, ParseIgnored(json, "modules_to_not_convert", where));
  return config;
}

// The `weights` of a group: 4-bit integers in groups along the input features.
Status ParseWeights(const Json& json, const std::string& where, QuantizationConfig* config) {
  std::optional<int64_t> bits, group;
  std::string type, strategy, order;
  bool dynamic = false;
  FieldReader fields(json, where);
  fields.Int("num_bits", &bits);
  fields.Int("group_size", &group);
  fields.String("type", &type);
  fields.String("strategy", &strategy);
  fields.Bool("symmetric", &config->symmetric);
  fields.Bool("dynamic", &dynamic);
  if (Has(json, "actorder") && json["actorder"].is_string()) fields.String("actorder", &order);
  TERN_RETURN_IF_ERROR(fields.status());
  if (bits != 4 || type != "int" || strategy != "group" || dynamic) {
    return NotSupported(
        where, fmt::format("{}-bit '{}' weights by '{}' are not supported (static 4-bit int by "
                           "group are)",
                           bits.value_or(0), type, strategy));
  }
  if (group != 32 && group != 64 && group != 128) {
    return NotSupported(where, fmt::format("group_size {} is not supported (32, 64 and 128 are)",
                                           group.value_or(0)));
  }
  if (order == "group" || order == "dynamic") {
    return NotSupported(where, fmt::format("actorder '{}' is not supported", order));
  }
  config->group = *group;
  return OkStatus();
}

Result<bool> IsFp8KvCache(const Json& json, const std::string& where) {
  if (!Has(json, "kv_cache_scheme")) return false;
  const Json& scheme = json["kv_cache_scheme"];
  if (!scheme.is_object()) return Bad(where, "kv_cache_scheme must be an object");
  std::optional<int64_t> bits;
  std::string type;
  FieldReader fields(scheme, where + ": kv_cache_scheme");
  fields.Int("num_bits", &bits);
  fields.String("type", &type);
  TERN_RETURN_IF_ERROR(fields.status());
  return bits == 8 && type == "float";
}

// Formats and transforms that would change what the packed integers mean.
Status CheckNoOtherCompression(const Json& json, const std::string& where) {
  if (Has(json, "sparsity_config")) {
    const Json& sparsity = json["sparsity_config"];
    std::string format = "dense";
    if (!sparsity.is_object()) return Bad(where, "sparsity_config must be an object");
    FieldReader fields(sparsity, where + ": sparsity_config");
    fields.String("format", &format);
    TERN_RETURN_IF_ERROR(fields.status());
    if (format != "dense") {
      return NotSupported(where,
                          fmt::format("sparsity_config '{}' is not supported (dense is)", format));
    }
  }
  if (Has(json, "transform_config") && !json["transform_config"].empty()) {
    return NotSupported(where, "transform_config is not supported");
  }
  return OkStatus();
}

Result<QuantizationConfig> ParseCompressedTensors(const Json& json, const std::string& where) {
  QuantizationConfig config{.method = QuantizationConfig::Method::kInt4Group};
  std::string format;
  FieldReader fields(json, where);
  fields.String("format", &format);
  TERN_RETURN_IF_ERROR(fields.status());
  if (format != "pack-quantized") {
    return NotSupported(where,
                        fmt::format("format '{}' is not supported (pack-quantized is)", format));
  }
  const Json groups = json.value("config_groups", Json());
  if (!groups.is_object() || groups.empty()) {
    return Bad(where, "config_groups must be an object with one group");
  }
  if (groups.size() > 1) {
    return NotSupported(where,
                        fmt::format("{} config_groups are not supported (one is)", groups.size()));
  }
  const std::string& name = groups.begin().key();
  const std::string group_where =
      fmt::format("{}: {}", where, config::IsPlainText(name) ? name : "the config group");
  const Json& group = groups.begin().value();
  if (!group.is_object() || !Has(group, "weights") || !group["weights"].is_object()) {
    return Bad(group_where, "weights must be an object");
  }
  std::vector<std::string> targets;
  FieldReader group_fields(group, group_where);
  group_fields.Strings("targets", &targets);
  TERN_RETURN_IF_ERROR(group_fields.status());
  if (targets != std::vector<std::string>{"Linear"}) {
    return NotSupported(group_where, "targets other than [\"Linear\"] are not supported");
  }
  for (const char* activations : {"input_activations", "output_activations"}) {
    if (!Has(group, activations)) continue;
    return NotSupported(group_where, fmt::format("quantized {} are not supported", activations));
  }
  TERN_RETURN_IF_ERROR(CheckNoOtherCompression(json, where));
  TERN_RETURN_IF_ERROR(ParseWeights(group["weights"], group_where + ": weights", &config));
  TERN_ASSIGN_OR_RETURN(config.ignore, ParseIgnored(json, "ignore", where));
  TERN_ASSIGN_OR_RETURN(config.fp8_kv_cache, IsFp8KvCache(json, where));
  return config;
}

}  // namespace

bool QuantizationConfig::Ignores(std::string_view module) const {
  return std::any_of(ignore.begin(), ignore.end(),
                     [&](const ModulePattern& pattern) { return pattern.Matches(module); });
}

std::string_view QuantizationMethodName(QuantizationConfig::Method method) {
  switch (method) {
    case QuantizationConfig::Method::kNone:
      return "none";
    case QuantizationConfig::Method::kFp8Block:
      return "fp8";
    case QuantizationConfig::Method::kInt4Group:
      return "int4";
  }
  return "unknown";
}

Result<QuantizationConfig> ParseQuantizationConfig(const Json& json, const std::string& where) {
  if (!json.is_object()) return Bad(where, "must be an object");
  std::string method;
  FieldReader fields(json, where);
  fields.String("quant_method", &method);
  TERN_RETURN_IF_ERROR(fields.status());
  if (method == "fp8") return ParseFp8(json, where);
  if (method == "compressed-tensors") return ParseCompressedTensors(json, where);
  return NotSupported(where, fmt::format("quant_method '{}' is not supported (fp8 and "
                                         "compressed-tensors are)",
                                         method));
}

}  // namespace tern
