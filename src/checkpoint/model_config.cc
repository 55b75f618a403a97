#include "checkpoint/model_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "checkpoint/field_reader.h"

namespace tern {
namespace {

using config::Bad;
using config::FieldReader;
using config::Has;

// `rope_parameters` {rope_theta, rope_type, ...}, or `rope_theta` beside `rope_scaling` {type or
// rope_type, ...}. The newer spelling wins where a file has both.
Result<RopeConfig> ParseRope(const Json& json, const std::string& where) {
  RopeConfig rope;
  FieldReader top(json, where);
  top.PositiveDouble("rope_theta", &rope.theta);
  TERN_RETURN_IF_ERROR(top.status());

  const char* key = Has(json, "rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (!Has(json, key)) return rope;
  const Json& object = json[key];
  if (!object.is_object()) return Bad(where, fmt::format("{} must be an object", key));
  FieldReader fields(object, fmt::format("{}: {}", where, key));
  fields.String("type", &rope.type);
  fields.String("rope_type", &rope.type);
  fields.PositiveDouble("rope_theta", &rope.theta);
  fields.PositiveDouble("factor", &rope.factor);
  fields.PositiveDouble("low_freq_factor", &rope.low_freq_factor);
  fields.PositiveDouble("high_freq_factor", &rope.high_freq_factor);
  fields.OptionalSize("original_max_position_embeddings", &rope.original_max_position_embeddings);
  fields.PositiveDouble("beta_fast", &rope.beta_fast);
  fields.PositiveDouble("beta_slow", &rope.beta_slow);
  fields.Double("mscale", &rope.mscale);
  fields.Double("mscale_all_dim", &rope.mscale_all_dim);
  fields.Double("attention_factor", &rope.attention_factor);
  TERN_RETURN_IF_ERROR(fields.status());
  // What a kind of scaling can't do without has no default that would be right.
  const bool llama3 = rope.type == "llama3";
  if (llama3 || rope.type == "yarn" || rope.type == "linear") {
    for (const char* needed : {"factor", "low_freq_factor", "high_freq_factor"}) {
      if (Has(object, needed) || (!llama3 && std::string_view(needed) != "factor")) continue;
      return Bad(where, fmt::format("{} of type {} has no {}", key, rope.type, needed));
    }
  }
  return rope;
}

// Beside the other fields, or among rope_parameters.
Result<double> PartialRotaryFactor(const Json& json, const ModelConfig& config) {
  const std::string& where = config.source;
  double factor = 1.0;
  FieldReader top(json, where);
  top.PositiveDouble("partial_rotary_factor", &factor);
  TERN_RETURN_IF_ERROR(top.status());
  if (Has(json, "rope_parameters")) {
    FieldReader inner(json["rope_parameters"], where + ": rope_parameters");
    inner.PositiveDouble("partial_rotary_factor", &factor);
    TERN_RETURN_IF_ERROR(inner.status());
  }
  // This class rotates half of a head unless it is told; others all of it.
  if (config.architecture == "Glm4MoeForCausalLM" && !Has(json, "partial_rotary_factor") &&
      !(Has(json, "rope_parameters") && Has(json["rope_parameters"], "partial_rotary_factor"))) {
    return Bad(where, "partial_rotary_factor is missing");
  }
  if (factor > 1) return Bad(where, fmt::format("partial_rotary_factor {} is above 1", factor));
  return factor;
}

// Model types that share tensor names or fields with supported ones and compute something else.
struct CloseRelative {
  const char* model_type;
  const char* difference;
};
constexpr CloseRelative kCloseRelatives[] = {
    {"glm5_next", "it mixes linear attention and latent attention without rotation"},
    {"deepseek_v2", "its router is a softmax"},
    {"deepseek_v4", "its attention compresses positions"},
    {"kimi_linear", "it mixes linear attention and latent attention"},
    {"glm4", "its layers have norms after attention and MLP"},
};

Status CheckSupported(const Json& json, const std::string& architecture, const std::string& where) {
  std::string type;
  FieldReader fields(json, where);
  fields.String("model_type", &type);
  TERN_RETURN_IF_ERROR(fields.status());
  for (const CloseRelative& relative : kCloseRelatives) {
    if (type != relative.model_type) continue;
    return Unimplemented(fmt::format("{}: model_type '{}' ({}) is not supported: {}", where, type,
                                     architecture, relative.difference));
  }
  return OkStatus();
}

Result<MlaConfig> ParseMla(const Json& json, const std::string& where) {
  MlaConfig mla;
  FieldReader fields(json, where);
  fields.OptionalSize("q_lora_rank", &mla.q_lora_rank);
  fields.Size("kv_lora_rank", &mla.kv_lora_rank);
  fields.Size("qk_nope_head_dim", &mla.qk_nope_head_dim);
  fields.Size("qk_rope_head_dim", &mla.qk_rope_head_dim);
  fields.Size("v_head_dim", &mla.v_head_dim);
  fields.Bool("rope_interleave", &mla.rope_interleave);
  TERN_RETURN_IF_ERROR(fields.status());
  return mla;
}

// Layers that a list names `yes` where it may only say `yes` or `no`. The list may go on over the
// next-token-prediction layers.
Result<std::vector<bool>> LayersNamed(const Json& json, const char* key, const char* yes,
                                      const char* no, int64_t layers, const std::string& where) {
  std::vector<std::string> names;
  FieldReader fields(json, where);
  fields.Strings(key, &names);
  TERN_RETURN_IF_ERROR(fields.status());
  if (static_cast<int64_t>(names.size()) < layers) {
    return Bad(where, fmt::format("{} names {} layers of {}", key, names.size(), layers));
  }
  std::vector<bool> flags;
  for (int64_t i = 0; i < layers; ++i) {
    const std::string& name = names[static_cast<size_t>(i)];
    if (name != yes && name != no) {
      return Bad(where, fmt::format("{}[{}] is '{}', neither {} nor {}", key, i, name, yes, no));
    }
    flags.push_back(name == yes);
  }
  return flags;
}

// `mlp_layer_types`, or else `first_k_dense_replace` dense layers and sparse ones after them.
Result<std::vector<bool>> SparseLayers(const Json& json, int64_t layers, const std::string& where) {
  if (Has(json, "mlp_layer_types")) {
    return LayersNamed(json, "mlp_layer_types", "sparse", "dense", layers, where);
  }
  if (!Has(json, "first_k_dense_replace")) {
    return Bad(where, "first_k_dense_replace or mlp_layer_types is missing");
  }
  TERN_ASSIGN_OR_RETURN(const int64_t dense, JsonInt(json, "first_k_dense_replace", 0, where));
  TERN_ASSIGN_OR_RETURN(const int64_t freq, JsonInt(json, "moe_layer_freq", 1, where));
  if (dense < 0) return Bad(where, fmt::format("first_k_dense_replace is {}", dense));
  if (freq != 1) {
    return Unimplemented(fmt::format("{}: moe_layer_freq {} is not supported (1 is)", where, freq));
  }
  std::vector<bool> sparse(static_cast<size_t>(layers), true);
  std::fill_n(sparse.begin(), std::min(dense, layers), false);
  return sparse;
}

// Implementations disagree on what these are when a file does not say.
Status CheckMoeFields(const Json& json, const ModelConfig& config) {
  std::vector<const char*> needed = {"routed_scaling_factor", "rms_norm_eps"};
  // GLM's default is one group, DeepSeek's is not.
  if (config.architecture.starts_with("Deepseek") || config.architecture.starts_with("Kimi")) {
    needed.insert(needed.end(), {"n_group", "topk_group"});
  }
  if (Has(json, "n_group") && json["n_group"] != 1) needed.push_back("topk_group");
  for (const char* key : needed) {
    if (!Has(json, key)) return Bad(config.source, fmt::format("{} is missing", key));
  }
  return OkStatus();
}

Result<MoeConfig> ParseMoe(const Json& json, const ModelConfig& config) {
  const std::string& where = config.source;
  TERN_RETURN_IF_ERROR(CheckMoeFields(json, config));
  MoeConfig moe;
  std::string method = "noaux_tc", scoring = "sigmoid";
  FieldReader fields(json, where);
  fields.Size("n_routed_experts", &moe.n_routed_experts);
  fields.Size("num_experts_per_tok", &moe.num_experts_per_tok);
  fields.Size("moe_intermediate_size", &moe.moe_intermediate_size);
  std::optional<int64_t> shared;
  fields.Int("n_shared_experts", &shared);
  fields.OptionalSize("n_group", &moe.n_group);
  fields.OptionalSize("topk_group", &moe.topk_group);
  fields.Bool("norm_topk_prob", &moe.norm_topk_prob);
  fields.PositiveDouble("routed_scaling_factor", &moe.routed_scaling_factor);
  fields.String("topk_method", &method);
  fields.String("scoring_func", &scoring);
  TERN_RETURN_IF_ERROR(fields.status());
  moe.n_shared_experts = shared.value_or(moe.n_shared_experts);
  if (moe.n_shared_experts < 0 || moe.n_shared_experts > 1024) {
    return Bad(where, fmt::format("n_shared_experts is {}", moe.n_shared_experts));
  }
  if (method != "noaux_tc" || scoring != "sigmoid") {
    return Unimplemented(
        fmt::format("{}: a router with topk_method '{}' and scoring_func '{}' is not supported "
                    "(noaux_tc with sigmoid is)",
                    where, method, scoring));
  }
  TERN_RETURN_IF_ERROR(CheckMoe(moe, where));
  TERN_ASSIGN_OR_RETURN(moe.sparse_layers, SparseLayers(json, config.num_hidden_layers, where));
  return moe;
}

// `indexer_types`; or `index_topk_pattern` ("FSSF"); or a full layer every `index_topk_freq`, where
// all up to `index_skip_topk_offset` are full too.
Result<std::vector<bool>> FullLayers(const Json& json, int64_t layers, const std::string& where) {
  if (Has(json, "indexer_types")) {
    return LayersNamed(json, "indexer_types", "full", "shared", layers, where);
  }
  TERN_ASSIGN_OR_RETURN(const std::string pattern,
                        JsonString(json, "index_topk_pattern", "", where));
  TERN_ASSIGN_OR_RETURN(const int64_t freq, JsonInt(json, "index_topk_freq", 1, where));
  TERN_ASSIGN_OR_RETURN(const int64_t offset, JsonInt(json, "index_skip_topk_offset", 2, where));
  if (freq < 1 || freq > config::kMaxSize || offset < 0 || offset > config::kMaxSize) {
    return Bad(where, fmt::format("index_topk_freq {} or index_skip_topk_offset {} is out of range",
                                  freq, offset));
  }
  if (!pattern.empty() && (static_cast<int64_t>(pattern.size()) < layers ||
                           pattern.find_first_not_of("FS") != std::string::npos)) {
    return Bad(where, fmt::format("index_topk_pattern must be {} letters F or S", layers));
  }
  std::vector<bool> full;
  for (int64_t i = 0; i < layers; ++i) {
    full.push_back(pattern.empty() ? std::max<int64_t>(i - offset + 1, 0) % freq == 0
                                   : pattern[static_cast<size_t>(i)] == 'F');
  }
  return full;
}

Result<DsaConfig> ParseDsa(const Json& json, const ModelConfig& config) {
  const std::string& where = config.source;
  DsaConfig dsa;
  // DeepSeek-V3.2 rotates the indexer's halves, GLM its pairs.
  dsa.rope_interleave =
      config.model_type != "deepseek_v32" && config.architecture != "DeepseekV32ForCausalLM";
  FieldReader fields(json, where);
  fields.Size("index_topk", &dsa.index_topk);
  fields.Size("index_head_dim", &dsa.index_head_dim);
  fields.Size("index_n_heads", &dsa.index_n_heads);
  fields.Bool("indexer_rope_interleave", &dsa.rope_interleave);
  TERN_RETURN_IF_ERROR(fields.status());
  TERN_ASSIGN_OR_RETURN(dsa.full_layers, FullLayers(json, config.num_hidden_layers, where));
  if (!dsa.full_layers.front()) return Bad(where, "the first layer shares an indexer with none");
  if (!config.mla || !config.mla->q_lora_rank) {
    return Bad(where, "index_topk without kv_lora_rank and q_lora_rank: an indexer needs both");
  }
  if (dsa.index_head_dim < config.mla->qk_rope_head_dim) {
    return Bad(where, fmt::format("index_head_dim {} is smaller than qk_rope_head_dim {}",
                                  dsa.index_head_dim, config.mla->qk_rope_head_dim));
  }
  return dsa;
}

// The parts that only some architectures have.
Status ParseParts(const Json& file, const Json& json, ModelConfig& config) {
  const std::string& where = config.source;
  // Bounds every list of layers. Far above any published model.
  constexpr int64_t kMaxLayers = 4096;
  if (config.num_hidden_layers > kMaxLayers &&
      (Has(json, "n_routed_experts") || Has(json, "index_topk"))) {
    return Bad(where, fmt::format("num_hidden_layers {} is absurd", config.num_hidden_layers));
  }
  if (Has(json, "kv_lora_rank")) {
    TERN_ASSIGN_OR_RETURN(config.mla, ParseMla(json, where));
  }
  if (Has(json, "n_routed_experts")) {
    TERN_ASSIGN_OR_RETURN(config.moe, ParseMoe(json, config));
  }
  if (Has(json, "index_topk")) {
    TERN_ASSIGN_OR_RETURN(config.dsa, ParseDsa(json, config));
  }
  const Json& quantized = Has(file, "quantization_config") ? file : json;
  if (Has(quantized, "quantization_config")) {
    TERN_ASSIGN_OR_RETURN(
        config.quantization,
        ParseQuantizationConfig(quantized["quantization_config"], where + ": quantization_config"));
  }
  return OkStatus();
}

}  // namespace

Status CheckMoe(const MoeConfig& moe, const std::string& where) {
  if (moe.num_experts_per_tok > moe.n_routed_experts) {
    return Bad(where, fmt::format("num_experts_per_tok is {}, there are {} routed experts",
                                  moe.num_experts_per_tok, moe.n_routed_experts));
  }
  if (moe.topk_group > moe.n_group || moe.n_routed_experts % moe.n_group != 0) {
    return Bad(where, fmt::format("{} experts cannot be chosen from {} of {} groups",
                                  moe.n_routed_experts, moe.topk_group, moe.n_group));
  }
  const int64_t group = moe.n_routed_experts / moe.n_group;
  if (moe.n_group > 1 && (group < 2 || moe.topk_group * group < moe.num_experts_per_tok)) {
    return Bad(where, fmt::format("{} groups of {} experts are too small to choose {}",
                                  moe.topk_group, group, moe.num_experts_per_tok));
  }
  return OkStatus();
}

// What must hold whatever file the config came from.
Status CheckConsistent(const ModelConfig& config) {
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    return Bad(config.source, fmt::format("{} attention heads cannot share {} key-value heads",
                                          config.num_attention_heads, config.num_key_value_heads));
  }
  if (!config.head_dim && !config.mla && config.hidden_size % config.num_attention_heads != 0) {
    return Bad(config.source,
               fmt::format("head_dim is missing and hidden_size {} is no multiple of {} heads",
                           config.hidden_size, config.num_attention_heads));
  }
  return OkStatus();
}

Result<ModelConfig> ParseModelConfig(const Json& file, const std::string& where) {
  if (!file.is_object()) return Bad(where, "not a JSON object");
  ModelConfig config;
  config.source = where;
  if (!Has(file, "architectures") || !file["architectures"].is_array() ||
      file["architectures"].empty() || !file["architectures"][0].is_string()) {
    return Bad(where, "architectures must be a list that names the model's class");
  }
  config.architecture = file["architectures"][0].get<std::string>();
  if (!config::IsPlainText(config.architecture)) {
    return Bad(where, "architectures[0] is no plain text of at most 256 bytes");
  }
  // Multimodal wrappers keep the language model's fields one level down.
  const Json& json = Has(file, "text_config") ? file["text_config"] : file;
  if (!json.is_object()) return Bad(where, "text_config must be an object");
  if (Has(file, "text_config")) config.tensor_prefix = "language_model.";
  TERN_RETURN_IF_ERROR(CheckSupported(file, config.architecture, where));
  TERN_RETURN_IF_ERROR(CheckSupported(json, config.architecture, where));

  FieldReader fields(json, where);
  fields.String("model_type", &config.model_type);
  fields.String("torch_dtype", &config.torch_dtype);
  fields.String("dtype", &config.torch_dtype);
  fields.String("hidden_act", &config.hidden_act);
  fields.Size("vocab_size", &config.vocab_size);
  fields.Size("hidden_size", &config.hidden_size);
  fields.Size("intermediate_size", &config.intermediate_size);
  fields.Size("num_hidden_layers", &config.num_hidden_layers);
  fields.Size("num_attention_heads", &config.num_attention_heads);
  config.num_key_value_heads = config.num_attention_heads;
  fields.OptionalSize("num_key_value_heads", &config.num_key_value_heads);
  fields.OptionalSize("head_dim", &config.head_dim);
  fields.Size("max_position_embeddings", &config.max_position_embeddings);
  fields.PositiveDouble("rms_norm_eps", &config.rms_norm_eps);
  fields.Bool("tie_word_embeddings", &config.tie_word_embeddings);
  fields.Bool("attention_bias", &config.attention_bias);
  fields.Bool("mlp_bias", &config.mlp_bias);
  fields.Bool("use_sliding_window", &config.use_sliding_window);
  fields.Bool("use_qk_norm", &config.use_qk_norm);
  std::optional<int64_t> next_token_layers;
  fields.Int("num_nextn_predict_layers", &next_token_layers);
  fields.TokenIds("eos_token_id", &config.eos_token_ids);
  std::vector<int32_t> bos;
  fields.TokenIds("bos_token_id", &bos);
  TERN_RETURN_IF_ERROR(fields.status());
  if (!bos.empty()) config.bos_token_id = bos.front();
  config.num_nextn_predict_layers = next_token_layers.value_or(0);
  if (config.num_nextn_predict_layers < 0 || config.num_nextn_predict_layers > 64) {
    return Bad(where,
               fmt::format("num_nextn_predict_layers is {}", config.num_nextn_predict_layers));
  }
  TERN_ASSIGN_OR_RETURN(config.rope, ParseRope(json, where));
  TERN_ASSIGN_OR_RETURN(config.partial_rotary_factor, PartialRotaryFactor(json, config));
  TERN_RETURN_IF_ERROR(ParseParts(file, json, config));
  TERN_RETURN_IF_ERROR(CheckConsistent(config));
  return config;
}

Result<ModelConfig> LoadModelConfig(const std::string& path) {
  TERN_ASSIGN_OR_RETURN(const Json json, ParseJsonFile(path));
  return ParseModelConfig(json, path);
}

Result<GenerationConfig> ParseGenerationConfig(const Json& json, const std::string& where) {
  if (!json.is_object()) return Bad(where, "not a JSON object");
  GenerationConfig config;
  FieldReader fields(json, where);
  fields.TokenIds("eos_token_id", &config.eos_token_ids);
  fields.Bool("do_sample", &config.do_sample);
  fields.Double("temperature", &config.temperature);
  fields.Double("top_p", &config.top_p);
  fields.Double("min_p", &config.min_p);
  fields.Double("repetition_penalty", &config.repetition_penalty);
  fields.Int("top_k", &config.top_k);
  fields.Int("max_new_tokens", &config.max_new_tokens);
  TERN_RETURN_IF_ERROR(fields.status());
  return config;
}

}  // namespace tern
