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

namespace tern {

// Rotary embedding. models/rope.h turns it into frequencies and says which types it can.
struct RopeConfig {
  std::string type =
      "default";  // "default", "linear", "llama3", "yarn", ... as spelled in the file
  double theta = 10000.0;
  double factor = 1.0;                           // linear, llama3
  double low_freq_factor = 1.0;                  // llama3
  double high_freq_factor = 4.0;                 // llama3
  int64_t original_max_position_embeddings = 0;  // llama3
};

struct ModelConfig {
  std::string source;        // the file that it was read from, for errors
  std::string architecture;  // "LlamaForCausalLM"
  std::string model_type;    // "llama"
  std::string torch_dtype;   // "bfloat16"; empty when the file does not say
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
  RopeConfig rope;

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
// mistyped fields, sizes outside [1, 2^31), heads that don't divide, no architecture.
Result<ModelConfig> ParseModelConfig(const Json& json, const std::string& where);
// config.json at `path`.
Result<ModelConfig> LoadModelConfig(const std::string& path);

// From `<arch>.*` keys. tie_word_embeddings is true when the file has no output.weight.
// Errors: kInvalidArgument naming the key; kUnimplemented for an architecture that has no Hugging
// Face twin here, and for mixtures of experts.
Result<ModelConfig> ModelConfigFromGguf(const Gguf& gguf);

Result<GenerationConfig> ParseGenerationConfig(const Json& json, const std::string& where);

}  // namespace tern
