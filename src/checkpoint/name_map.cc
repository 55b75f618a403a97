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
    {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"}, {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"}, {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
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
  return fmt::format("model.layers.{}.{}{}", layer, pair->hf, parameter);
}

}  // namespace tern
