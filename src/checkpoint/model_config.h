// ModelConfig: the architecture of a model as plain numbers, read from config.json (both published
// spellings of rotary embedding) or from GGUF metadata; GenerationConfig: the sampling defaults and
// stop tokens that come with it. Fields of one attention or feed-forward kind only (MLA, MoE)
// belong in an optional struct of their own. Thread: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "checkpoint/gguf.h"
#include "checkpoint/quantization_config.h"

namespace tern {

// Rotary embedding. models/rope.h turns it into frequencies and says which types it can.
struct RopeConfig {
  std::string type =
      "default";  // "default", "linear", "llama3", "yarn", ... as spelled in the file
  double theta = 10000.0;
  double factor = 1.0;                           // linear, llama3, yarn
  double low_freq_factor = 1.0;                  // llama3
  double high_freq_factor = 4.0;                 // llama3
  int64_t original_max_position_embeddings = 0;  // llama3, yarn
  double beta_fast = 32.0, beta_slow = 1.0;      // yarn: rotations in the original context
  std::optional<double> mscale, mscale_all_dim;  // yarn
  std::optional<double> attention_factor;        // yarn: of cos and sin
};

// Multi-head latent attention.
struct MlaConfig {
  std::optional<int64_t> q_lora_rank;  // absent: q_proj is one matrix
  int64_t kv_lora_rank = 0;
  int64_t qk_nope_head_dim = 0, qk_rope_head_dim = 0, v_head_dim = 0;
  bool rope_interleave = true;
  bool split_kv_b = false;  // stored as k_b_proj and v_b_proj (GGUF)
};

// Mixture of experts behind a sigmoid router (DeepSeek-V3's "noaux_tc").
struct MoeConfig {
  int64_t n_routed_experts = 0, num_experts_per_tok = 0, moe_intermediate_size = 0;
  int64_t n_shared_experts = 1;         // 0: none
  int64_t n_group = 1, topk_group = 1;  // experts are chosen from the best topk_group groups
  bool norm_topk_prob = true;
  double routed_scaling_factor = 1.0;
  std::vector<bool> sparse_layers;  // [num_hidden_layers]; the others have a dense MLP
};

// DeepSeek sparse attention: an indexer chooses the positions that a row attends.
struct DsaConfig {
  int64_t index_topk = 0, index_head_dim = 0, index_n_heads = 0;
  bool rope_interleave = true;  // of the indexer
  // [num_hidden_layers]; the others take over the choice of the full layer before them.
  std::vector<bool> full_layers;
};

struct ModelConfig {
  std::string source;         // the file that it was read from, for errors
  std::string tensor_prefix;  // of the language model's tensors in a multimodal checkpoint
  std::string architecture;   // "LlamaForCausalLM"
  std::string model_type;     // "llama"
  std::string torch_dtype;    // "bfloat16"; empty when the file does not say
  std::string hidden_act = "silu";

  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  std::optional<int64_t> head_dim;  // absent: hidden_size / num_attention_heads
  int64_t max_position_embeddings = 0;

  double rms_norm_eps = 1e-6;
  bool tie_word_embeddings = false;
  bool attention_bias = false;
  bool mlp_bias = false;
  bool use_sliding_window = false;
  bool use_qk_norm = false;
  double partial_rotary_factor = 1.0;  // share of a head's dimensions that rotate
  RopeConfig rope;
  std::optional<MlaConfig> mla;
  std::optional<MoeConfig> moe;
  std::optional<DsaConfig> dsa;
  int64_t num_nextn_predict_layers = 0;  // counted by `inspect`, skipped by models
  QuantizationConfig quantization;

  std::optional<int32_t> bos_token_id;
  std::vector<int32_t> eos_token_ids;
};

struct GenerationConfig {
  std::vector<int32_t> eos_token_ids;  // empty: the model config's
  std::optional<bool> do_sample;
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<int64_t> top_k, max_new_tokens;
};

// `where` is the file's path. Errors: kInvalidArgument "<where>.<field> must be ..." for missing or
// mistyped fields, sizes outside [1, 2^31), heads that don't divide, no architecture;
// kUnimplemented for model types that look like supported ones and are not, and for routers and
// quantizations that are not built.
Result<ModelConfig> ParseModelConfig(const Json& json, const std::string& where);
// config.json at `path`.
Result<ModelConfig> LoadModelConfig(const std::string& path);

// What must hold whatever file a config came from.
Status CheckConsistent(const ModelConfig& config);
// Experts and groups from which the router can choose as many as it shall. `where`: the file.
Status CheckMoe(const MoeConfig& moe, const std::string& where);

// From `<arch>.*` keys. tie_word_embeddings is true when the file has no output.weight.
// Errors: kInvalidArgument naming the key; kUnimplemented for an architecture that has no Hugging
// Face twin here, and for mixtures of experts.
Result<ModelConfig> ModelConfigFromGguf(const Gguf& gguf);

Result<GenerationConfig> ParseGenerationConfig(const Json& json, const std::string& where);

}  // namespace tern
