// ModelConfig of a GGUF file's `<arch>.*` metadata.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "checkpoint/field_reader.h"
#include "checkpoint/model_config.h"

namespace tern {

using config::Bad;
using config::kMaxSize;

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

}  // namespace tern
