#!/usr/bin/env python3
"""A BF16 DeepSeek-V3 checkpoint of any size, without torch: the same 64 MiB of numbers over and over.

usage: make_checkpoint.py OUT --layers N [--hidden 2048 --inner 1024 --experts 32] [--shard-layers 1]
"""
import argparse
import json
import os
import random
import struct

CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "torch_dtype": "bfloat16", "hidden_act": "silu",
    "attention_bias": False, "vocab_size": 1024, "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 128,
    "kv_lora_rank": 128, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64, "num_experts_per_tok": 2,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
    "routed_scaling_factor": 2.0, "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "max_position_embeddings": 4096,
    "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
}


def numbers(count, seed=1):
    """`count` BF16 numbers: random mantissas, exponents about as in a normal distribution of deviation 0.02."""
    rng = random.Random(seed)
    exponents = [0x3C] * 34 + [0x3B] * 46 + [0x3A] * 30 + [0x39] * 12 + [0x38] * 6
    table = bytes((exponents[i % 128] | (0x80 if i >= 128 else 0)) for i in range(256))
    out = bytearray(2 * count)
    out[0::2] = rng.randbytes(count)
    out[1::2] = rng.randbytes(count).translate(table)
    return bytes(out)


def tensors(c, layer):
    """(name, shape) of one layer."""
    d, h = c["hidden_size"], c["num_attention_heads"]
    p = f"model.layers.{layer}."
    a = p + "self_attn."
    yield p + "input_layernorm.weight", (d,)
    yield p + "post_attention_layernorm.weight", (d,)
    yield a + "q_a_proj.weight", (c["q_lora_rank"], d)
    yield a + "q_a_layernorm.weight", (c["q_lora_rank"],)
    yield a + "q_b_proj.weight", (h * (c["qk_nope_head_dim"] + c["qk_rope_head_dim"]), c["q_lora_rank"])
    yield a + "kv_a_proj_with_mqa.weight", (c["kv_lora_rank"] + c["qk_rope_head_dim"], d)
    yield a + "kv_a_layernorm.weight", (c["kv_lora_rank"],)
    yield a + "kv_b_proj.weight", (h * (c["qk_nope_head_dim"] + c["v_head_dim"]), c["kv_lora_rank"])
    yield a + "o_proj.weight", (d, h * c["v_head_dim"])
    if layer < c["first_k_dense_replace"]:
        mlps = [("", c["intermediate_size"])]
    else:
        yield p + "mlp.gate.weight", (c["n_routed_experts"], d)
        yield p + "mlp.gate.e_score_correction_bias", (c["n_routed_experts"],)
        mlps = [(f"experts.{e}.", c["moe_intermediate_size"]) for e in range(c["n_routed_experts"])]
        mlps.append(("shared_experts.", c["moe_intermediate_size"]))
    for name, inner in mlps:
        yield p + f"mlp.{name}gate_proj.weight", (inner, d)
        yield p + f"mlp.{name}up_proj.weight", (inner, d)
        yield p + f"mlp.{name}down_proj.weight", (d, inner)


def write_shard(path, items, pool):
    header, at = {}, 0
    for name, shape in items:
        size = 1
        for n in shape:
            size *= n
        f32 = name.endswith("correction_bias")
        end = at + size * (4 if f32 else 2)
        header[name] = {"dtype": "F32" if f32 else "BF16", "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name, entry in header.items():
            left = entry["data_offsets"][1] - entry["data_offsets"][0]
            if entry["dtype"] == "F32":
                f.write(bytes(left))
                continue
            start = random.Random(name).randrange(0, len(pool) // 2, 2)
            while left > 0:
                piece = pool[start:start + left]
                f.write(piece)
                left -= len(piece)
                start = 0
    return list(header), at


def make(out, layers, hidden=2048, inner=1024, experts=32, shard_layers=1, pool_numbers=32 << 20):
    c = {**CONFIG, "hidden_size": hidden, "intermediate_size": 2 * inner, "moe_intermediate_size": inner,
         "n_routed_experts": experts, "num_hidden_layers": layers}
    os.makedirs(out, exist_ok=True)
    pool = numbers(pool_numbers)
    groups = [[("model.embed_tokens.weight", (c["vocab_size"], hidden)), ("model.norm.weight", (hidden,)),
               ("lm_head.weight", (c["vocab_size"], hidden))]]
    for first in range(0, layers, shard_layers):
        groups.append([t for i in range(first, min(layers, first + shard_layers)) for t in tensors(c, i)])
    weight_map, total = {}, 0
    for i, group in enumerate(groups):
        name = f"model-{i + 1:05}-of-{len(groups):05}.safetensors"
        names, size = write_shard(os.path.join(out, name), group, pool)
        weight_map.update({n: name for n in names})
        total += size
    json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, open(out + "/model.safetensors.index.json", "w"))
    json.dump(c, open(out + "/config.json", "w"), indent=1)
    with open(out + "/LICENSE", "w") as f:
        f.write("made up\n")
    return total


if __name__ == "__main__":
    a = argparse.ArgumentParser()
    a.add_argument("out")
    a.add_argument("--layers", type=int, required=True)
    a.add_argument("--hidden", type=int, default=2048)
    a.add_argument("--inner", type=int, default=1024)
    a.add_argument("--experts", type=int, default=32)
    a.add_argument("--shard-layers", type=int, default=1)
    a = a.parse_args()
    print(make(a.out, a.layers, a.hidden, a.inner, a.experts, a.shard_layers), "bytes")
