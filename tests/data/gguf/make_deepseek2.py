"""GGUF twins of a DeepseekV3 checkpoint, as llama.cpp's converter lays them out.

usage: make_deepseek2.py FOLDER OUT.gguf f32|q8_0|q4_0|mixed [joined] [golden]

kv_b_proj is split into attn_k_b (by head, transposed) and attn_v_b, or stays attn_kv_b with `joined`. Experts of a layer are one tensor. `mixed`:
Q4_0 experts, the rest Q8_0. `golden`: OUT.golden.safetensors with the logits of transformers (float32) on the dequantized weights.
Needs gguf (0.19), safetensors, torch, and for golden transformers (5.24). The committed files:
make_deepseek2.py tests/data/golden/deepseek-v3-groups tests/data/gguf/deepseek2.gguf mixed golden
make_deepseek2.py tests/data/golden/deepseek-v3-groups tests/data/gguf/deepseek2_joined.gguf q4_0 joined golden
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
    """Returns the values that a reader of the file sees."""
    a = np.ascontiguousarray(a, np.float32)
    if kind == "f32" or a.ndim < 2 or a.shape[-1] % 32 or "ffn_gate_inp" in name:
        w.add_tensor(name, a)
        return a
    t = QT[("q4_0" if "_exps" in name else "q8_0") if kind == "mixed" else kind]
    q = gguf.quants.quantize(a, t)
    w.add_tensor(name, q, raw_dtype=t)
    return gguf.quants.dequantize(q, t)


def keep(name, key): sd[key] = put(name, sd[key])


keep("token_embd.weight", "model.embed_tokens.weight"); keep("output_norm.weight", "model.norm.weight"); keep("output.weight", "lm_head.weight")
for i in range(L):
    p, b = f"model.layers.{i}.", f"blk.{i}."
    a = p + "self_attn."
    keep(b + "attn_norm.weight", p + "input_layernorm.weight"); keep(b + "ffn_norm.weight", p + "post_attention_layernorm.weight")
    for g, h in (("attn_q_a", "q_a_proj"), ("attn_q_a_norm", "q_a_layernorm"), ("attn_q_b", "q_b_proj"), ("attn_kv_a_mqa", "kv_a_proj_with_mqa"),
                 ("attn_kv_a_norm", "kv_a_layernorm"), ("attn_output", "o_proj")): keep(f"{b}{g}.weight", f"{a}{h}.weight")
    kv = sd[a + "kv_b_proj.weight"]
    if joined: keep(b + "attn_kv_b.weight", a + "kv_b_proj.weight")
    else:
        k, v = np.split(kv.reshape(H, nope + vd, lat), [nope], 1)
        k = put(b + "attn_k_b.weight", k.transpose(0, 2, 1)).transpose(0, 2, 1); v = put(b + "attn_v_b.weight", v)
        sd[a + "kv_b_proj.weight"] = np.concatenate([k, v], 1).reshape(kv.shape)
    m = p + "mlp."
    if i < c["first_k_dense_replace"]:
        for x in ("gate", "up", "down"): keep(f"{b}ffn_{x}.weight", f"{m}{x}_proj.weight")
        continue
    keep(b + "ffn_gate_inp.weight", m + "gate.weight"); keep(b + "exp_probs_b.bias", m + "gate.e_score_correction_bias")
    for x in ("gate", "up", "down"):
        experts = put(f"{b}ffn_{x}_exps.weight", np.stack([sd[f"{m}experts.{e}.{x}_proj.weight"] for e in range(E)]))
        for e in range(E): sd[f"{m}experts.{e}.{x}_proj.weight"] = experts[e]
        keep(f"{b}ffn_{x}_shexp.weight", f"{m}shared_experts.{x}_proj.weight")
w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()

if "golden" in sys.argv[4:]:
    import tempfile

    import transformers
    from safetensors.torch import save_file

    torch.set_grad_enabled(False)
    with tempfile.TemporaryDirectory() as scratch:
        save_file({k: torch.from_numpy(np.ascontiguousarray(v, np.float32)) for k, v in sd.items()}, scratch + "/model.safetensors", metadata={"format": "pt"})
        json.dump({**c, "torch_dtype": "float32", "dtype": "float32"}, open(scratch + "/config.json", "w"))
        model = transformers.AutoModelForCausalLM.from_pretrained(scratch, dtype=torch.float32, attn_implementation="eager").eval()
    prompt = load_file(folder + "/golden.safetensors")["prompt"]
    logits = model(input_ids=prompt[None].long(), use_cache=False).logits[0].float()
    greedy, margin, ids, last = [], [], prompt.tolist(), logits[-1]
    for _ in range(8):
        top = last.topk(2)
        greedy.append(int(top.indices[0])); margin.append(float(top.values[0] - top.values[1])); ids.append(greedy[-1])
        last = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].float()
    save_file(dict(prompt=prompt, logits=logits.contiguous(), greedy=torch.tensor(greedy, dtype=torch.int32), margin=torch.tensor(margin)),
              out.removesuffix(".gguf") + ".golden.safetensors")
