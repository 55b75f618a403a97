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
    {"deepseek2", "DeepseekV3ForCausalLM", false},
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
  if (type && !config::IsPlainText(*type)) {
    return Bad(gguf.path(), fmt::format("{}.rope.scaling.type is no plain text", arch));
  }
  if (type && *type != "none") rope.type = *type;
  // Older files carry the factor of linear scaling alone.
  TERN_ASSIGN_OR_RETURN(const double linear, GgufPositive(gguf, arch + ".rope.scale_linear", 1.0));
  TERN_ASSIGN_OR_RETURN(rope.factor, GgufPositive(gguf, arch + ".rope.scaling.factor", linear));
  if (!type && rope.factor != 1.0) rope.type = "linear";
  if (rope.type != "yarn") return rope;
  TERN_ASSIGN_OR_RETURN(
      rope.original_max_position_embeddings,
      GgufSize(gguf, arch + ".rope.scaling.original_context_length", std::nullopt));
  const std::string yarn = arch + ".rope.scaling.yarn_";
  TERN_ASSIGN_OR_RETURN(rope.beta_fast, GgufPositive(gguf, yarn + "beta_fast", rope.beta_fast));
  TERN_ASSIGN_OR_RETURN(rope.beta_slow, GgufPositive(gguf, yarn + "beta_slow", rope.beta_slow));
  // The converter stores 0.1 * mscale_all_dim; cosines are not scaled then.
  TERN_ASSIGN_OR_RETURN(const auto log_multiplier, gguf.Float(yarn + "log_multiplier"));
  if (log_multiplier) {
    rope.mscale_all_dim = *log_multiplier * 10;
    rope.attention_factor = 1.0;
  }
  return rope;
}

bool HasTensor(const Gguf& gguf, std::string_view name) {
  return std::any_of(gguf.tensors().begin(), gguf.tensors().end(),
                     [&](const GgufTensor& tensor) { return tensor.name == name; });
}

// Heads of grouped-query attention, all of one length.
Status ReadHeads(const Gguf& gguf, const std::string& arch, ModelConfig& config) {
  const auto size = [&](const char* key, std::optional<int64_t> fallback) {
    return GgufSize(gguf, arch + "." + key, fallback);
  };
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
  return OkStatus();
}

// The keys of deepseek2: latent attention and experts behind a sigmoid router.
Status ReadDeepseek2(const Gguf& gguf, ModelConfig& config) {
  const auto size = [&](const char* key, std::optional<int64_t> fallback = std::nullopt) {
    return GgufSize(gguf, std::string("deepseek2.") + key, fallback);
  };
  MlaConfig mla;
  TERN_ASSIGN_OR_RETURN(const auto q_lora, gguf.Int("deepseek2.attention.q_lora_rank"));
  if (q_lora.value_or(0) > 0) {
    TERN_ASSIGN_OR_RETURN(mla.q_lora_rank, size("attention.q_lora_rank"));
  }
  TERN_ASSIGN_OR_RETURN(mla.kv_lora_rank, size("attention.kv_lora_rank"));
  TERN_ASSIGN_OR_RETURN(mla.qk_rope_head_dim, size("rope.dimension_count"));
  // Files made before the absorbed form have the lengths of heads in the plain keys.
  TERN_ASSIGN_OR_RETURN(const int64_t plain_key, size("attention.key_length"));
  TERN_ASSIGN_OR_RETURN(const int64_t key_length, size("attention.key_length_mla", plain_key));
  TERN_ASSIGN_OR_RETURN(const int64_t plain_value, size("attention.value_length"));
  TERN_ASSIGN_OR_RETURN(mla.v_head_dim, size("attention.value_length_mla", plain_value));
  if (key_length <= mla.qk_rope_head_dim) {
    return Bad(gguf.path(), fmt::format("heads of {} dimensions cannot rotate {}", key_length,
                                        mla.qk_rope_head_dim));
  }
  mla.qk_nope_head_dim = key_length - mla.qk_rope_head_dim;
  mla.split_kv_b = HasTensor(gguf, "blk.0.attn_k_b.weight");
  config.mla = mla;

  MoeConfig moe;
  TERN_ASSIGN_OR_RETURN(moe.n_routed_experts, size("expert_count"));
  TERN_ASSIGN_OR_RETURN(moe.num_experts_per_tok, size("expert_used_count"));
  TERN_ASSIGN_OR_RETURN(moe.moe_intermediate_size, size("expert_feed_forward_length"));
  TERN_ASSIGN_OR_RETURN(moe.n_shared_experts, size("expert_shared_count", 1));
  TERN_ASSIGN_OR_RETURN(moe.n_group, size("expert_group_count", 1));
  TERN_ASSIGN_OR_RETURN(moe.topk_group, size("expert_group_used_count", 1));
  TERN_ASSIGN_OR_RETURN(moe.routed_scaling_factor,
                        GgufPositive(gguf, "deepseek2.expert_weights_scale", 1.0));
  TERN_ASSIGN_OR_RETURN(const auto norm, gguf.Bool("deepseek2.expert_weights_norm"));
  moe.norm_topk_prob = norm.value_or(false);
  TERN_ASSIGN_OR_RETURN(const auto gating, gguf.Int("deepseek2.expert_gating_func"));
  constexpr int64_t kSigmoid = 2;
  if (gating.value_or(1) != kSigmoid) {
    return Unimplemented(
        fmt::format("{}: deepseek2.expert_gating_func {} is not supported (2, "
                    "sigmoid, is)",
                    gguf.path(), gating.value_or(1)));
  }
  TERN_ASSIGN_OR_RETURN(const auto dense, gguf.Int("deepseek2.leading_dense_block_count"));
  if (config.num_hidden_layers > 4096 || dense.value_or(0) < 0) {
    return Bad(gguf.path(), "deepseek2.block_count or leading_dense_block_count is absurd");
  }
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    moe.sparse_layers.push_back(i >= dense.value_or(0));
  }
  TERN_RETURN_IF_ERROR(CheckMoe(moe, gguf.path()));
  config.moe = std::move(moe);
  return OkStatus();
}

}  // namespace

Result<ModelConfig> ModelConfigFromGguf(const Gguf& gguf) {
  TERN_ASSIGN_OR_RETURN(const auto name, gguf.String("general.architecture"));
  if (!name) return Bad(gguf.path(), "general.architecture is missing");
  if (!config::IsPlainText(*name)) {
    return Bad(gguf.path(), "general.architecture is no plain text");
  }
  const GgufArchitecture* known = nullptr;
  for (const GgufArchitecture& candidate : kGgufArchitectures) {
    if (*name == candidate.gguf) known = &candidate;
  }
  if (known == nullptr) {
    return Unimplemented(
        fmt::format("{}: general.architecture '{}' is not supported (llama, qwen2, "
                    "qwen3 and deepseek2 are)",
                    gguf.path(), *name));
  }
  const std::string arch(*name);
  TERN_ASSIGN_OR_RETURN(const auto experts, gguf.Int(arch + ".expert_count"));
  const bool deepseek2 = arch == "deepseek2";
  if (experts.value_or(0) > 0 && !deepseek2) {
    return Unimplemented(
        fmt::format("{}: {}.expert_count is {}: its mixture of experts is not supported in GGUF",
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
  if (deepseek2) {
    config.num_key_value_heads = config.num_attention_heads;  // the key says 1: one latent row
    TERN_RETURN_IF_ERROR(ReadDeepseek2(gguf, config));
  } else {
    TERN_RETURN_IF_ERROR(ReadHeads(gguf, arch, config));
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
