#!/usr/bin/env python3
"""The GGUF twin (architecture deepseek2) of tests/data/configs/bench-moe-6l.json, random weights.

usage: make_gguf.py OUT q4_0|iq4_nl|q8_0        needs: pip install gguf numpy

For runs of llama.cpp beside `tern bench model --load-format dummy --dummy-recipe int4-linear`:
every linear layer and the embedding in the type, norms, routers and biases in float32. Scales are
such that nothing overflows, and half of them are negative: weights of Q4_0 are -0.5 scales on
average, and with one sign all rows get so much in common that they choose the same experts.
"""
import json
import pathlib
import sys

import gguf
import numpy as np

TYPES = {  # type, bytes of a block of 32, scale, the file's type
    "q4_0": (gguf.GGMLQuantizationType.Q4_0, 18, 0.004, gguf.LlamaFileType.MOSTLY_Q4_0),
    "iq4_nl": (gguf.GGMLQuantizationType.IQ4_NL, 18, 0.0003, gguf.LlamaFileType.MOSTLY_IQ4_NL),
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, 34, 0.0003, gguf.LlamaFileType.MOSTLY_Q8_0),
}
CONFIG = pathlib.Path(__file__).resolve().parent.parent / "data/configs/bench-moe-6l.json"


def main():
    if len(sys.argv) != 3 or sys.argv[2] not in TYPES:
        sys.exit(__doc__)
    out, (kind, block_bytes, scale, file_type) = sys.argv[1], TYPES[sys.argv[2]]
    c = json.loads(CONFIG.read_text())
    hidden, heads, vocab = c["hidden_size"], c["num_attention_heads"], c["vocab_size"]
    latent, q_rank = c["kv_lora_rank"], c["q_lora_rank"]
    nope, rope, value = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    experts, width = c["n_routed_experts"], c["moe_intermediate_size"]
    shared, dense = c["n_shared_experts"] * width, c["intermediate_size"]

    w = gguf.GGUFWriter(out, "deepseek2")
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(hidden)
    w.add_feed_forward_length(dense)
    w.add_head_count(heads)
    w.add_head_count_kv(1)
    w.add_rope_freq_base(c["rope_theta"])
    w.add_rope_dimension_count(rope)
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_vocab_size(vocab)
    w.add_leading_dense_block_count(c["first_k_dense_replace"])
    w.add_q_lora_rank(q_rank)
    w.add_kv_lora_rank(latent)
    w.add_key_length(latent + rope)
    w.add_value_length(latent)
    w.add_key_length_mla(nope + rope)
    w.add_value_length_mla(value)
    w.add_expert_feed_forward_length(width)
    w.add_expert_count(experts)
    w.add_expert_used_count(c["num_experts_per_tok"])
    w.add_expert_shared_count(c["n_shared_experts"])
    w.add_expert_weights_scale(c["routed_scaling_factor"])
    w.add_expert_weights_norm(c["norm_topk_prob"])
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    w.add_tokenizer_model("no_vocab")
    w.add_file_type(file_type)

    rng = np.random.default_rng(0)

    def matrix(name, *shape):
        blocks = int(np.prod(shape)) // 32
        some = rng.integers(0, 256, (min(blocks, 1 << 15), block_bytes), dtype=np.uint8)
        scales = np.where(rng.integers(0, 2, len(some)) == 1, scale, -scale).astype(np.float16)
        some[:, 0:2] = scales.view(np.uint8).reshape(-1, 2)
        data = np.tile(some, (-(-blocks // len(some)), 1))[:blocks]
        data = np.ascontiguousarray(data.reshape(*shape[:-1], shape[-1] // 32 * block_bytes))
        w.add_tensor(name, data, raw_shape=data.shape, raw_dtype=kind)

    def floats(name, *shape):
        norm = "norm" in name
        data = np.ones(shape) if norm else rng.standard_normal(shape) * 0.02
        w.add_tensor(name, data.astype(np.float32))

    matrix("token_embd.weight", vocab, hidden)
    floats("output_norm.weight", hidden)
    matrix("output.weight", vocab, hidden)
    for layer in range(c["num_hidden_layers"]):
        b = f"blk.{layer}."
        floats(b + "attn_norm.weight", hidden)
        floats(b + "ffn_norm.weight", hidden)
        floats(b + "attn_kv_a_norm.weight", latent)
        floats(b + "attn_q_a_norm.weight", q_rank)
        matrix(b + "attn_q_a.weight", q_rank, hidden)
        matrix(b + "attn_q_b.weight", heads * (nope + rope), q_rank)
        matrix(b + "attn_kv_a_mqa.weight", latent + rope, hidden)
        matrix(b + "attn_k_b.weight", heads, latent, nope)
        matrix(b + "attn_v_b.weight", heads, value, latent)
        matrix(b + "attn_output.weight", hidden, heads * value)
        if layer < c["first_k_dense_replace"]:
            matrix(b + "ffn_gate.weight", dense, hidden)
            matrix(b + "ffn_up.weight", dense, hidden)
            matrix(b + "ffn_down.weight", hidden, dense)
            continue
        floats(b + "ffn_gate_inp.weight", experts, hidden)
        floats(b + "exp_probs_b.bias", experts)
        matrix(b + "ffn_gate_exps.weight", experts, width, hidden)
        matrix(b + "ffn_up_exps.weight", experts, width, hidden)
        matrix(b + "ffn_down_exps.weight", experts, hidden, width)
        matrix(b + "ffn_gate_shexp.weight", shared, hidden)
        matrix(b + "ffn_up_shexp.weight", shared, hidden)
        matrix(b + "ffn_down_shexp.weight", hidden, shared)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    main()
