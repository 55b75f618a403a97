#include "cmd/model_identity.h"

#include <fmt/format.h>

#include <map>
#include <optional>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf_tokenizer.h"
#include "cmd/load.h"
#include "kernels/ref/dequantize.h"

namespace tern {
namespace {

constexpr uint64_t kMaxTokenizerBytes = uint64_t{256} << 20;

// An absent value is a field of its own, so that it differs from every present one.
template <typename T>
void Optional(ModelIdBuilder& id, const char* name, const std::optional<T>& value) {
  if (value) {
    id.Field(name, *value);
  } else {
    id.Field(name, "absent");
  }
}

void AddRope(ModelIdBuilder& id, const RopeConfig& rope) {
  id.Field("rope.type", rope.type);
  id.Field("rope.theta", rope.theta);
  id.Field("rope.factor", rope.factor);
  id.Field("rope.low_freq_factor", rope.low_freq_factor);
  id.Field("rope.high_freq_factor", rope.high_freq_factor);
  id.Field("rope.original_max_position_embeddings", rope.original_max_position_embeddings);
  id.Field("rope.beta_fast", rope.beta_fast);
  id.Field("rope.beta_slow", rope.beta_slow);
  Optional(id, "rope.mscale", rope.mscale);
  Optional(id, "rope.mscale_all_dim", rope.mscale_all_dim);
  Optional(id, "rope.attention_factor", rope.attention_factor);
}

void AddParts(ModelIdBuilder& id, const ModelConfig& config) {
  if (config.mla) {
    Optional(id, "mla.q_lora_rank", config.mla->q_lora_rank);
    id.Field("mla.kv_lora_rank", config.mla->kv_lora_rank);
    id.Field("mla.qk_nope_head_dim", config.mla->qk_nope_head_dim);
    id.Field("mla.qk_rope_head_dim", config.mla->qk_rope_head_dim);
    id.Field("mla.v_head_dim", config.mla->v_head_dim);
    id.Field("mla.rope_interleave", config.mla->rope_interleave);
  }
  if (config.moe) {
    id.Field("moe.n_routed_experts", config.moe->n_routed_experts);
    id.Field("moe.num_experts_per_tok", config.moe->num_experts_per_tok);
    id.Field("moe.moe_intermediate_size", config.moe->moe_intermediate_size);
    id.Field("moe.n_shared_experts", config.moe->n_shared_experts);
    id.Field("moe.n_group", config.moe->n_group);
    id.Field("moe.topk_group", config.moe->topk_group);
    id.Field("moe.norm_topk_prob", config.moe->norm_topk_prob);
    id.Field("moe.routed_scaling_factor", config.moe->routed_scaling_factor);
    id.Field("moe.sparse_layers", config.moe->sparse_layers);
  }
  if (config.dsa) {
    id.Field("dsa.index_topk", config.dsa->index_topk);
    id.Field("dsa.index_head_dim", config.dsa->index_head_dim);
    id.Field("dsa.index_n_heads", config.dsa->index_n_heads);
    id.Field("dsa.rope_interleave", config.dsa->rope_interleave);
    id.Field("dsa.full_layers", config.dsa->full_layers);
  }
}

void AddConfig(ModelIdBuilder& id, const ModelConfig& config) {
  id.Field("architecture", config.architecture);
  id.Field("model_type", config.model_type);
  id.Field("hidden_act", config.hidden_act);
  id.Field("vocab_size", config.vocab_size);
  id.Field("hidden_size", config.hidden_size);
  id.Field("intermediate_size", config.intermediate_size);
  id.Field("num_hidden_layers", config.num_hidden_layers);
  id.Field("num_attention_heads", config.num_attention_heads);
  id.Field("num_key_value_heads", config.num_key_value_heads);
  Optional(id, "head_dim", config.head_dim);
  id.Field("max_position_embeddings", config.max_position_embeddings);
  id.Field("rms_norm_eps", config.rms_norm_eps);
  id.Field("tie_word_embeddings", config.tie_word_embeddings);
  id.Field("attention_bias", config.attention_bias);
  id.Field("mlp_bias", config.mlp_bias);
  id.Field("use_sliding_window", config.use_sliding_window);
  id.Field("use_qk_norm", config.use_qk_norm);
  id.Field("partial_rotary_factor", config.partial_rotary_factor);
  AddRope(id, config.rope);
  AddParts(id, config);
}

// "left right"; anything else is no merge.
void AddMerge(ModelIdBuilder& id, const std::string& text) {
  const size_t space = text.find(' ');
  if (space != std::string::npos) id.Merge(text.substr(0, space), text.substr(space + 1));
}

// The merges of a tokenizer.json, "left right" or a pair each.
Status AddJsonMerges(ModelIdBuilder& id, const std::string& path) {
  TERN_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, kMaxTokenizerBytes));
  TERN_ASSIGN_OR_RETURN(const Json json, ParseJson(bytes));
  const Json* model = JsonMember(json, "model");
  const Json* merges = model != nullptr ? JsonMember(*model, "merges") : nullptr;
  if (merges == nullptr || !merges->is_array()) return OkStatus();
  for (const Json& merge : *merges) {
    if (merge.is_string()) {
      AddMerge(id, merge.get_ref<const std::string&>());
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      id.Merge(merge[0].get<std::string>(), merge[1].get<std::string>());
    }
  }
  return OkStatus();
}

Status AddMerges(ModelIdBuilder& id, const std::string& path) {
  if (path.ends_with(".gguf")) {
    TERN_ASSIGN_OR_RETURN(const OpenedGguf opened, OpenGgufFile(path));
    TERN_ASSIGN_OR_RETURN(const GgufTokenizer tokenizer, TokenizerFromGguf(opened.gguf));
    for (const std::string& merge : tokenizer.merges) AddMerge(id, merge);
    return OkStatus();
  }
  const std::string json = ModelFolder(path) + "/tokenizer.json";
  // A tiktoken file has none: its ranks are the order of its vocabulary.
  return FileExists(json) ? AddJsonMerges(id, json).WithContext(json) : OkStatus();
}

std::vector<float> ValuesOf(const TensorView& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.shape.elements().value_or(0)));
  DequantizeBlocks(tensor.dtype, tensor.bytes.data(), static_cast<int64_t>(values.size()),
                   values.data());
  return values;
}

}  // namespace

Result<ModelId> ModelIdOf(const std::string& path, const Tokenizer& tokenizer) {
  TERN_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(path));
  ModelIdBuilder id;
  AddConfig(id, checkpoint->config());
  for (TokenId token = 0; token < tokenizer.vocab_size(); ++token) {
    id.Token(tokenizer.TokenBytes(token));
  }
  TERN_RETURN_IF_ERROR(AddMerges(id, path));
  std::map<TokenId, std::string> added;
  for (const std::string& text : tokenizer.AddedTexts()) {
    added[tokenizer.IdOf(text).value_or(-1)] = text;
  }
  for (const auto& [token, text] : added) id.AddedToken(text, token);
  for (const CheckpointTensor& tensor : checkpoint->tensors()) {
    if (!IsWeightType(tensor.view.dtype)) continue;
    if (tensor.name.ends_with("norm.weight")) id.NormWeight(tensor.name, ValuesOf(tensor.view));
    if (tensor.name.ends_with("e_score_correction_bias")) {
      id.ScoreBias(tensor.name, ValuesOf(tensor.view));
    }
  }
  return id.Finish();
}

}  // namespace tern
