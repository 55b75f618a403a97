#include "checkpoint/name_map.h"

#include <fmt/format.h>

#include <algorithm>

namespace tern {
namespace {

struct Pair {
  std::string_view gguf, hf;
};

constexpr Pair kTop[] = {
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
};

constexpr Pair kLayer[] = {
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    // deepseek2. attn_k_b and attn_v_b are halves of kv_b_proj, by head: W_UK transposed, and W_UV.
    {"attn_q_a", "self_attn.q_a_proj"},
    {"attn_q_a_norm", "self_attn.q_a_layernorm"},
    {"attn_q_b", "self_attn.q_b_proj"},
    {"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"},
    {"attn_kv_a_norm", "self_attn.kv_a_layernorm"},
    {"attn_kv_b", "self_attn.kv_b_proj"},
    {"attn_k_b", "self_attn.k_b_proj"},
    {"attn_v_b", "self_attn.v_b_proj"},
    {"ffn_gate_inp", "mlp.gate"},
    {"exp_probs_b", "mlp.gate.e_score_correction"},
    {"ffn_gate_shexp", "mlp.shared_experts.gate_proj"},
    {"ffn_up_shexp", "mlp.shared_experts.up_proj"},
    {"ffn_down_shexp", "mlp.shared_experts.down_proj"},
    // One tensor for all experts: Checkpoint cuts it at the star.
    {"ffn_gate_exps", "mlp.experts.*.gate_proj"},
    {"ffn_up_exps", "mlp.experts.*.up_proj"},
    {"ffn_down_exps", "mlp.experts.*.down_proj"},
};

template <size_t n>
const Pair* Find(const Pair (&pairs)[n], std::string_view gguf) {
  const Pair* found = std::find_if(pairs, pairs + n, [&](const Pair& p) { return p.gguf == gguf; });
  return found == pairs + n ? nullptr : found;
}

}  // namespace

std::string HfNameFromGguf(std::string_view name) {
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return std::string(name);
  const std::string_view module = name.substr(0, dot), parameter = name.substr(dot);
  if (const Pair* pair = Find(kTop, module)) return fmt::format("{}{}", pair->hf, parameter);

  constexpr std::string_view kBlock = "blk.";
  if (!module.starts_with(kBlock)) return std::string(name);
  const size_t end = module.find('.', kBlock.size());
  if (end == std::string_view::npos) return std::string(name);
  const std::string_view layer = module.substr(kBlock.size(), end - kBlock.size());
  const Pair* pair = Find(kLayer, module.substr(end + 1));
  if (pair == nullptr) return std::string(name);
  // "exp_probs_b.bias" is the parameter e_score_correction_bias.
  if (pair->hf.ends_with("e_score_correction") && parameter == ".bias") {
    return fmt::format("model.layers.{}.{}_bias", layer, pair->hf);
  }
  return fmt::format("model.layers.{}.{}{}", layer, pair->hf, parameter);
}

}  // namespace tern
