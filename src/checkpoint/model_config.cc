#include "checkpoint/model_config.h"

#include <fmt/format.h>

#include <cmath>

namespace tern {
namespace {

constexpr int64_t kMaxSize = (int64_t{1} << 31) - 1;

Status Bad(const std::string& where, const std::string& what) {
  return InvalidArgument(fmt::format("{}: {}", where, what));
}

bool Has(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && !found->is_null();
}

// Reads fields of one object. The first error stays and is returned by status(): a list of reads
// stays a list of lines.
class FieldReader {
 public:
  FieldReader(const Json& json, const std::string& where) : json_(json), where_(where) {}

  void Size(const char* key, int64_t* field) {
    if (!Has(json_, key)) return Fail(Bad(where_, fmt::format("{} is missing", key)));
    OptionalSize(key, field);
  }
  void OptionalSize(const char* key, int64_t* field) {
    if (!Take(JsonInt(json_, key, *field, where_), field) || !Has(json_, key)) return;
    if (*field < 1 || *field > kMaxSize) {
      Fail(Bad(where_, fmt::format("{} is {}, not in [1, {}]", key, *field, kMaxSize)));
    }
  }
  void OptionalSize(const char* key, std::optional<int64_t>* field) {
    if (!Has(json_, key)) return;
    OptionalSize(key, &field->emplace(0));
  }
  void Double(const char* key, double* field) {
    Take(JsonDouble(json_, key, *field, where_), field);
  }
  void Double(const char* key, std::optional<double>* field) {
    if (Has(json_, key)) Double(key, &field->emplace(0));
  }
  void PositiveDouble(const char* key, double* field) {
    Double(key, field);
    if (status_.ok() && !(std::isfinite(*field) && *field > 0)) {
      Fail(Bad(where_, fmt::format("{} is {}, not a positive number", key, *field)));
    }
  }
  void Int(const char* key, std::optional<int64_t>* field) {
    if (Has(json_, key)) Take(JsonInt(json_, key, 0, where_), &field->emplace(0));
  }
  void Bool(const char* key, bool* field) { Take(JsonBool(json_, key, *field, where_), field); }
  void Bool(const char* key, std::optional<bool>* field) {
    if (Has(json_, key)) Bool(key, &field->emplace(false));
  }
  void String(const char* key, std::string* field) {
    Take(JsonString(json_, key, *field, where_), field);
  }
  // One id or a list of ids.
  void TokenIds(const char* key, std::vector<int32_t>* ids) {
    if (!Has(json_, key)) return;
    const Json& value = json_[key];
    const Json list = value.is_array() ? value : Json::array({value});
    for (const Json& id : list) {
      if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > kMaxSize) {
        return Fail(Bad(where_, fmt::format("{} must be a token id or a list of them", key)));
      }
      ids->push_back(id.get<int32_t>());
    }
  }

  const Status& status() const { return status_; }

 private:
  void Fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  template <typename T>
  bool Take(Result<T> result, T* field) {
    if (result.ok()) {
      *field = std::move(result).value();
    } else {
      Fail(result.status());
    }
    return result.ok();
  }

  const Json& json_;
  const std::string where_;
  Status status_;
};

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
  TERN_RETURN_IF_ERROR(fields.status());
  return rope;
}

// What must hold whatever file the config came from.
Status CheckConsistent(const ModelConfig& config) {
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    return Bad(config.source, fmt::format("{} attention heads cannot share {} key-value heads",
                                          config.num_attention_heads, config.num_key_value_heads));
  }
  if (!config.head_dim && config.hidden_size % config.num_attention_heads != 0) {
    return Bad(config.source,
               fmt::format("head_dim is missing and hidden_size {} is no multiple of {} heads",
                           config.hidden_size, config.num_attention_heads));
  }
  return OkStatus();
}

}  // namespace

Result<ModelConfig> ParseModelConfig(const Json& file, const std::string& where) {
  if (!file.is_object()) return Bad(where, "not a JSON object");
  ModelConfig config;
  config.source = where;
  if (!Has(file, "architectures") || !file["architectures"].is_array() ||
      file["architectures"].empty() || !file["architectures"][0].is_string()) {
    return Bad(where, "architectures must be a list that names the model's class");
  }
  config.architecture = file["architectures"][0].get<std::string>();
  // Multimodal wrappers keep the language model's fields one level down.
  const Json& json = Has(file, "text_config") ? file["text_config"] : file;
  if (!json.is_object()) return Bad(where, "text_config must be an object");

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
  fields.TokenIds("eos_token_id", &config.eos_token_ids);
  std::vector<int32_t> bos;
  fields.TokenIds("bos_token_id", &bos);
  TERN_RETURN_IF_ERROR(fields.status());
  if (!bos.empty()) config.bos_token_id = bos.front();
  TERN_ASSIGN_OR_RETURN(config.rope, ParseRope(json, where));
  TERN_RETURN_IF_ERROR(CheckConsistent(config));
  return config;
}

Result<ModelConfig> LoadModelConfig(const std::string& path) {
  TERN_ASSIGN_OR_RETURN(const Json json, ParseJsonFile(path));
  return ParseModelConfig(json, path);
}

namespace {

// The class of Hugging Face that a `general.architecture` of llama.cpp stands for.
struct GgufArchitecture {
  const char* gguf;
  const char* architecture;
  bool qkv_bias;  // has biases without saying so in metadata
};
constexpr GgufArchitecture kGgufArchitectures[] = {
    {"llama", "LlamaForCausalLM", false},
    {"qwen2", "Qwen2ForCausalLM", true},
    {"qwen3", "Qwen3ForCausalLM", false},
};

Result<int64_t> GgufSize(const Gguf& gguf, const std::string& key,
                         std::optional<int64_t> fallback) {
  TERN_ASSIGN_OR_RETURN(std::optional<int64_t> value, gguf.Int(key));
  if (!value) value = fallback;
  if (!value) return Bad(gguf.path(), fmt::format("{} is missing", key));
  if (*value < 1 || *value > kMaxSize) {
    return Bad(gguf.path(), fmt::format("{} is {}, not in [1, {}]", key, *value, kMaxSize));
  }
  return *value;
}

Result<double> GgufPositive(const Gguf& gguf, const std::string& key, double fallback) {
  TERN_ASSIGN_OR_RETURN(const std::optional<double> value, gguf.Float(key));
  if (!value) return fallback;
  if (!std::isfinite(*value) || *value <= 0) {
    return Bad(gguf.path(), fmt::format("{} is {}, not a positive number", key, *value));
  }
  return *value;
}

Result<RopeConfig> RopeFromGguf(const Gguf& gguf, const std::string& arch) {
  RopeConfig rope;
  TERN_ASSIGN_OR_RETURN(rope.theta, GgufPositive(gguf, arch + ".rope.freq_base", rope.theta));
  TERN_ASSIGN_OR_RETURN(const auto type, gguf.String(arch + ".rope.scaling.type"));
  if (type && *type != "none") rope.type = *type;
  // Older files carry the factor of linear scaling alone.
  TERN_ASSIGN_OR_RETURN(const double linear, GgufPositive(gguf, arch + ".rope.scale_linear", 1.0));
  TERN_ASSIGN_OR_RETURN(rope.factor, GgufPositive(gguf, arch + ".rope.scaling.factor", linear));
  if (!type && rope.factor != 1.0) rope.type = "linear";
  return rope;
}

}  // namespace

Result<ModelConfig> ModelConfigFromGguf(const Gguf& gguf) {
  TERN_ASSIGN_OR_RETURN(const auto name, gguf.String("general.architecture"));
  if (!name) return Bad(gguf.path(), "general.architecture is missing");
  const GgufArchitecture* known = nullptr;
  for (const GgufArchitecture& candidate : kGgufArchitectures) {
    if (*name == candidate.gguf) known = &candidate;
  }
  if (known == nullptr) {
    return Unimplemented(
        fmt::format("{}: general.architecture '{}' is not supported (llama, qwen2 "
                    "and qwen3 are)",
                    gguf.path(), *name));
  }
  const std::string arch(*name);
  TERN_ASSIGN_OR_RETURN(const auto experts, gguf.Int(arch + ".expert_count"));
  if (experts.value_or(0) > 0) {
    return Unimplemented(
        fmt::format("{}: {}.expert_count is {}: mixtures of experts are not supported in GGUF",
                    gguf.path(), arch, *experts));
  }

  ModelConfig config;
  config.source = gguf.path();
  config.architecture = known->architecture;
  config.model_type = arch;
  config.attention_bias = known->qkv_bias;
  const auto size = [&](const char* key, std::optional<int64_t> fallback = std::nullopt) {
    return GgufSize(gguf, arch + "." + key, fallback);
  };
  TERN_ASSIGN_OR_RETURN(config.hidden_size, size("embedding_length"));
  TERN_ASSIGN_OR_RETURN(config.intermediate_size, size("feed_forward_length"));
  TERN_ASSIGN_OR_RETURN(config.num_hidden_layers, size("block_count"));
  TERN_ASSIGN_OR_RETURN(config.max_position_embeddings, size("context_length"));
  TERN_ASSIGN_OR_RETURN(config.num_attention_heads, size("attention.head_count"));
  TERN_ASSIGN_OR_RETURN(config.num_key_value_heads,
                        size("attention.head_count_kv", config.num_attention_heads));
  TERN_RETURN_IF_ERROR(CheckConsistent(config));
  TERN_ASSIGN_OR_RETURN(
      const int64_t head_dim,
      size("attention.key_length",
           std::max<int64_t>(1, config.hidden_size / config.num_attention_heads)));
  config.head_dim = head_dim;
  for (const char* key : {"attention.value_length", "rope.dimension_count"}) {
    TERN_ASSIGN_OR_RETURN(const int64_t dim, size(key, head_dim));
    if (dim != head_dim) {
      return Unimplemented(fmt::format("{}: {}.{} is {} where heads have {} dimensions",
                                       gguf.path(), arch, key, dim, head_dim));
    }
  }
  TERN_ASSIGN_OR_RETURN(config.rms_norm_eps,
                        GgufPositive(gguf, arch + ".attention.layer_norm_rms_epsilon", 1e-6));
  TERN_ASSIGN_OR_RETURN(config.rope, RopeFromGguf(gguf, arch));

  const GgufTensor* embedding = nullptr;
  config.tie_word_embeddings = true;
  for (const GgufTensor& tensor : gguf.tensors()) {
    if (tensor.name == "token_embd.weight") embedding = &tensor;
    if (tensor.name == "output.weight") config.tie_word_embeddings = false;
  }
  if (embedding == nullptr || embedding->view.shape.rank() != 2) {
    return Bad(gguf.path(), "tensor 'token_embd.weight' is missing or no matrix");
  }
  config.vocab_size = embedding->view.shape[0];
  if (config.vocab_size > kMaxSize) return Bad(gguf.path(), "'token_embd.weight' is too large");

  const auto token_id = [&](const char* key) -> Result<std::optional<int32_t>> {
    TERN_ASSIGN_OR_RETURN(const auto id, gguf.Int(key));
    if (!id) return std::optional<int32_t>();
    if (*id < 0 || *id >= config.vocab_size) {
      return Bad(gguf.path(),
                 fmt::format("{} {} is outside the vocabulary of {}", key, *id, config.vocab_size));
    }
    return std::optional(static_cast<int32_t>(*id));
  };
  TERN_ASSIGN_OR_RETURN(config.bos_token_id, token_id("tokenizer.ggml.bos_token_id"));
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"}) {
    TERN_ASSIGN_OR_RETURN(const auto id, token_id(key));
    if (id && (config.eos_token_ids.empty() || config.eos_token_ids.front() != *id)) {
      config.eos_token_ids.push_back(*id);
    }
  }
  return config;
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
