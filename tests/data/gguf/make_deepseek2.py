"""GGUF twins of a DeepseekV3 checkpoint, as llama.cpp's converter lays them out.

usage: make_deepseek2.py FOLDER OUT.gguf f32|q8_0|q4_0 [joined]

kv_b_proj is split into attn_k_b (by head, transposed) and attn_v_b, or stays attn_kv_b with `joined`. Experts of a layer are one tensor.
Needs gguf (0.19), safetensors, torch. Tests use the committed outputs' logits through tests/data/golden of the same folder.
"""
import json, sys

import gguf, numpy as np, torch
from safetensors.torch import load_file

folder, out, kind = sys.argv[1:4]
joined = "joined" in sys.argv[4:]
c = json.load(open(folder + "/config.json"))
sd = {k: v.float().numpy() for k, v in load_file(folder + "/model.safetensors").items()}
rope = c.get("rope_parameters") or {**(c.get("rope_scaling") or {}), "rope_theta": c["rope_theta"]}
rope_type = rope.get("rope_type", rope.get("type", "default"))
L, H, E = c["num_hidden_layers"], c["num_attention_heads"], c["n_routed_experts"]
nope, rd, vd, lat = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"], c["kv_lora_rank"]
w = gguf.GGUFWriter(out, "deepseek2")
w.add_block_count(L); w.add_context_length(c["max_position_embeddings"]); w.add_embedding_length(c["hidden_size"])
w.add_feed_forward_length(c["intermediate_size"]); w.add_head_count(H); w.add_head_count_kv(1)
w.add_rope_freq_base(rope["rope_theta"]); w.add_layer_norm_rms_eps(c["rms_norm_eps"]); w.add_vocab_size(c["vocab_size"])
w.add_leading_dense_block_count(c["first_k_dense_replace"]); w.add_q_lora_rank(c["q_lora_rank"]); w.add_kv_lora_rank(lat)
w.add_key_length(lat + rd); w.add_value_length(lat); w.add_key_length_mla(nope + rd); w.add_value_length_mla(vd)
w.add_expert_feed_forward_length(c["moe_intermediate_size"]); w.add_expert_count(E); w.add_expert_used_count(c["num_experts_per_tok"])
w.add_expert_shared_count(c["n_shared_experts"]); w.add_expert_weights_scale(c["routed_scaling_factor"]); w.add_expert_weights_norm(c["norm_topk_prob"])
w.add_expert_group_count(c["n_group"]); w.add_expert_group_used_count(c["topk_group"])
w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID); w.add_rope_dimension_count(rd); w.add_tokenizer_model("no_vocab")
if rope_type == "yarn":
    w.add_rope_scaling_type(gguf.RopeScalingType.YARN); w.add_rope_scaling_factor(rope["factor"])
    w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"]); w.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
    w.add_rope_scaling_yarn_beta_fast(rope["beta_fast"]); w.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
QT = {"q8_0": gguf.GGMLQuantizationType.Q8_0, "q4_0": gguf.GGMLQuantizationType.Q4_0}


def put(name, a):
    a = np.ascontiguousarray(a, np.float32)
    if kind == "f32" or a.ndim < 2 or a.shape[-1] % 32 or "ffn_gate_inp" in name: w.add_tensor(name, a)
    else: w.add_tensor(name, gguf.quants.quantize(a, QT[kind]), raw_dtype=QT[kind])


put("token_embd.weight", sd["model.embed_tokens.weight"]); put("output_norm.weight", sd["model.norm.weight"]); put("output.weight", sd["lm_head.weight"])
for i in range(L):
    p, b = f"model.layers.{i}.", f"blk.{i}."
    a = p + "self_attn."
    put(b + "attn_norm.weight", sd[p + "input_layernorm.weight"]); put(b + "ffn_norm.weight", sd[p + "post_attention_layernorm.weight"])
    for g, h in (("attn_q_a", "q_a_proj"), ("attn_q_a_norm", "q_a_layernorm"), ("attn_q_b", "q_b_proj"), ("attn_kv_a_mqa", "kv_a_proj_with_mqa"),
                 ("attn_kv_a_norm", "kv_a_layernorm"), ("attn_output", "o_proj")): put(f"{b}{g}.weight", sd[f"{a}{h}.weight"])
    kv = sd[a + "kv_b_proj.weight"]
    if joined: put(b + "attn_kv_b.weight", kv)
    else:
        k, v = np.split(kv.reshape(H, nope + vd, lat), [nope], 1)
        put(b + "attn_k_b.weight", k.transpose(0, 2, 1)); put(b + "attn_v_b.weight", v)
    m = p + "mlp."
    if i < c["first_k_dense_replace"]:
        for x in ("gate", "up", "down"): put(f"{b}ffn_{x}.weight", sd[f"{m}{x}_proj.weight"])
        continue
    put(b + "ffn_gate_inp.weight", sd[m + "gate.weight"]); put(b + "exp_probs_b.bias", sd[m + "gate.e_score_correction_bias"])
    for x in ("gate", "up", "down"):
        put(f"{b}ffn_{x}_exps.weight", np.stack([sd[f"{m}experts.{e}.{x}_proj.weight"] for e in range(E)]))
        put(f"{b}ffn_{x}_shexp.weight", sd[f"{m}shared_experts.{x}_proj.weight"])
w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()
