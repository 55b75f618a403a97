#include "checkpoint/gguf_hf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <string>
#include <vector>

#include "base/check.h"

namespace tern {
namespace {

const char* ModelTypeOf(const ModelConfig& config) {
  // GGUF's name of the architecture is the config's model_type.
  return config.model_type == "deepseek2" ? "deepseek_v3" : config.model_type.c_str();
}

// Llama 3's divisors of the rotary frequencies: 1 for short waves, `factor` for long ones, and a
// smooth change between (transformers' _compute_llama3_parameters).
double Llama3Divisor(double frequency, const RopeConfig& rope) {
  const double original = static_cast<double>(rope.original_max_position_embeddings);
  const double wave = 2 * std::numbers::pi / frequency;
  if (wave < original / rope.high_freq_factor) return 1;
  if (wave > original / rope.low_freq_factor) return rope.factor;
  const double smooth =
      (original / wave - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return 1 / ((1 - smooth) / rope.factor + smooth);
}

// The llama3 parameters that give rope_freqs.weight. The converter stores the divisors alone, so
// the original context is searched among powers of two.
Result<RopeConfig> Llama3RopeOf(const CheckpointTensor& tensor, const ModelConfig& config) {
  const int64_t count = tensor.view.shape.elements().value_or(0);
  const int64_t head_dim =
      config.head_dim.value_or(config.hidden_size / config.num_attention_heads);
  std::vector<float> divisors(static_cast<size_t>(count));
  if (tensor.view.dtype == DType::kF32 && count == head_dim / 2) {
    std::memcpy(divisors.data(), tensor.view.bytes.data(), tensor.view.bytes.size());
    RopeConfig rope = config.rope;
    rope.type = "llama3";
    rope.factor = *std::max_element(divisors.begin(), divisors.end());
    for (int64_t original = 256; original <= int64_t{1} << 24; original *= 2) {
      rope.original_max_position_embeddings = original;
      bool same = true;
      for (int64_t i = 0; i < count; ++i) {
        const double frequency =
            std::pow(rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
        const double wanted = Llama3Divisor(frequency, rope);
        same = same && std::fabs(divisors[static_cast<size_t>(i)] - wanted) <= 1e-3 * wanted;
      }
      if (same) return rope;
    }
  }
  return Unimplemented(
      fmt::format("{}: tensor '{}' divides rotary frequencies as no rope type of Hugging Face does",
                  tensor.path(), tensor.stored_name));
}

// GGUF holds floats: the shortest decimal that gives the same one, 1e-05 and not 9.999999747e-06.
double Shortest(double value) {
  const auto narrow = static_cast<float>(value);
  return static_cast<double>(narrow) == value ? std::stod(fmt::format("{}", narrow)) : value;
}

// The reader multiplies a stored tenth by ten, in double.
double RoundedMscale(double mscale) {
  return std::stod(fmt::format("{}", static_cast<float>(mscale)));
}

Json RopeScaling(const RopeConfig& rope) {
  if (rope.type == "default") return nullptr;
  Json json = Json::object();
  json["rope_type"] = rope.type;
  json["type"] = rope.type;
  json["factor"] = Shortest(rope.factor);
  if (rope.type == "llama3") {
    json["low_freq_factor"] = rope.low_freq_factor;
    json["high_freq_factor"] = rope.high_freq_factor;
  }
  if (rope.type == "llama3" || rope.type == "yarn") {
    json["original_max_position_embeddings"] = rope.original_max_position_embeddings;
  }
  if (rope.type == "yarn") {
    json["beta_fast"] = Shortest(rope.beta_fast);
    json["beta_slow"] = Shortest(rope.beta_slow);
    // Cosines are not scaled: both are alike.
    if (rope.mscale_all_dim) {
      json["mscale"] = json["mscale_all_dim"] = RoundedMscale(*rope.mscale_all_dim);
    }
  }
  return json;
}

void AddMla(const MlaConfig& mla, Json* json) {
  (*json)["q_lora_rank"] = mla.q_lora_rank ? Json(*mla.q_lora_rank) : Json();
  (*json)["kv_lora_rank"] = mla.kv_lora_rank;
  (*json)["qk_nope_head_dim"] = mla.qk_nope_head_dim;
  (*json)["qk_rope_head_dim"] = mla.qk_rope_head_dim;
  (*json)["v_head_dim"] = mla.v_head_dim;
  (*json)["rope_interleave"] = true;
}

void AddMoe(const MoeConfig& moe, Json* json) {
  const auto dense = std::find(moe.sparse_layers.begin(), moe.sparse_layers.end(), true);
  (*json)["first_k_dense_replace"] = dense - moe.sparse_layers.begin();
  (*json)["moe_layer_freq"] = 1;
  (*json)["moe_intermediate_size"] = moe.moe_intermediate_size;
  (*json)["n_routed_experts"] = moe.n_routed_experts;
  (*json)["num_experts_per_tok"] = moe.num_experts_per_tok;
  (*json)["n_shared_experts"] = moe.n_shared_experts;
  (*json)["n_group"] = moe.n_group;
  (*json)["topk_group"] = moe.topk_group;
  (*json)["norm_topk_prob"] = moe.norm_topk_prob;
  (*json)["routed_scaling_factor"] = Shortest(moe.routed_scaling_factor);
  (*json)["scoring_func"] = "sigmoid";
  (*json)["topk_method"] = "noaux_tc";
  (*json)["num_nextn_predict_layers"] = 0;
}

Json EosIds(const std::vector<int32_t>& ids) {
  if (ids.empty()) return nullptr;
  return ids.size() == 1 ? Json(ids.front()) : Json(ids);
}

}  // namespace

Result<Json> HfConfigOfGguf(const Checkpoint& checkpoint) {
  TERN_CHECK(checkpoint.format() == CheckpointFormat::kGguf);
  const ModelConfig& config = checkpoint.config();
  RopeConfig rope = config.rope;
  if (const CheckpointTensor* divisors = checkpoint.Find("rope_freqs.weight")) {
    TERN_ASSIGN_OR_RETURN(rope, Llama3RopeOf(*divisors, config));
  }
  Json json = Json::object();
  json["architectures"] = Json::array({config.architecture});
  json["model_type"] = ModelTypeOf(config);
  json["torch_dtype"] = "bfloat16";
  json["attention_bias"] = config.attention_bias && config.model_type != "qwen2";
  json["bos_token_id"] = config.bos_token_id ? Json(*config.bos_token_id) : Json();
  json["eos_token_id"] = EosIds(config.eos_token_ids);
  json["hidden_act"] = config.hidden_act;
  json["vocab_size"] = config.vocab_size;
  json["hidden_size"] = config.hidden_size;
  json["intermediate_size"] = config.intermediate_size;
  json["num_hidden_layers"] = config.num_hidden_layers;
  json["num_attention_heads"] = config.num_attention_heads;
  json["num_key_value_heads"] = config.num_key_value_heads;
  if (config.mla) {
    AddMla(*config.mla, &json);
  } else {
    json["head_dim"] = config.head_dim.value_or(config.hidden_size / config.num_attention_heads);
    json["mlp_bias"] = config.mlp_bias;
  }
  if (config.moe) AddMoe(*config.moe, &json);
  json["max_position_embeddings"] = config.max_position_embeddings;
  json["rms_norm_eps"] = Shortest(config.rms_norm_eps);
  json["rope_theta"] = Shortest(rope.theta);
  json["rope_scaling"] = RopeScaling(rope);
  json["tie_word_embeddings"] = config.tie_word_embeddings;
  return json;
}

Json HfGenerationConfigOfGguf(const Checkpoint& checkpoint) {
  Json json = Json::object();
  if (checkpoint.config().bos_token_id) json["bos_token_id"] = *checkpoint.config().bos_token_id;
  json["eos_token_id"] = EosIds(checkpoint.eos_token_ids());
  return json;
}

}  // namespace tern
