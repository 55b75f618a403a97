"""Reference files with shapes that no published model has, and the quantized ones of this folder once more.

usage: make_odd_golden.py MAKE_GOLDEN.py OUT [--published]

MAKE_GOLDEN.py is the generator of this folder's other files (reference material, not part of this repository); it runs with two changes:
its cases are those below (with --published: its own), and rotary frequencies stay float32. The generator casts a model to BF16 and back
before it computes the reference of a quantized twin; that rounds `inv_freq`, which is no weight, and moves logits by up to 0.1 (and choices
of experts with them). So the golden.safetensors of the seven *-fp8 and *-int4 folders here come from this script, over the same weights.
Needs torch, transformers, safetensors and compressed-tensors (transformers 5.24, torch 2.15).
"""
import json
import os
import shutil
import sys

import torch

generator, out = sys.argv[1:3]
published = "--published" in sys.argv[3:]
sys.argv = [generator, out]
globals_ = {"__name__": "make_golden"}
exec(open(generator).read().rsplit("main()", 1)[0], globals_)

cast = torch.nn.Module.to


def cast_weights_only(module, *args, **kwargs):
    frequencies = {name: buffer.clone() for name, buffer in module.named_buffers() if "inv_freq" in name}
    cast(module, *args, **kwargs)
    for name, frequency in frequencies.items():
        owner, _, buffer = name.rpartition(".")
        setattr(module.get_submodule(owner), buffer, frequency)
    return module


torch.nn.Module.to = cast_weights_only


def odd_cases():
    """Sizes that are no multiple of a vector, a block or a power of two; INT4 groups and FP8 blocks that end early."""
    tf = globals_["tf"]
    common = dict(vocab_size=390, hidden_size=96, intermediate_size=160, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=6,
                  max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=0, tie_word_embeddings=False)
    mla = dict(q_lora_rank=72, kv_lora_rank=96, qk_nope_head_dim=24, qk_rope_head_dim=8, v_head_dim=40)
    moe = dict(n_routed_experts=12, num_experts_per_tok=5, n_shared_experts=1, moe_intermediate_size=32, first_k_dense_replace=1, norm_topk_prob=True)
    yarn = dict(rope_theta=50000.0, rope_type="yarn", factor=4.0, original_max_position_embeddings=32, beta_fast=1.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0)
    yield "odd-kimi", tf.DeepseekV3Config(**common, **mla, **moe, n_group=1, topk_group=1, routed_scaling_factor=2.827, rope_parameters=yarn), 70
    yield "odd-groups", tf.DeepseekV3Config(**common, **mla, **{**moe, "num_experts_per_tok": 4}, n_group=3, topk_group=2, routed_scaling_factor=1.5,
        rope_parameters=dict(rope_theta=10000.0, rope_type="default")), 50
    dsa = dict(index_topk=17, index_head_dim=40, index_n_heads=3, indexer_types=["full", "shared", "full"])
    yield "odd-dsa", tf.GlmMoeDsaConfig(**{**common, "num_hidden_layers": 3}, **mla, **moe, **dsa, n_group=1, topk_group=1, routed_scaling_factor=2.5,
        rope_parameters=dict(rope_theta=1000000.0, rope_type="default")), 60
    # For INT4 in wider groups: input features must be whole groups.
    yield "odd-g64", tf.DeepseekV3Config(**{**common, "hidden_size": 192, "intermediate_size": 192}, q_lora_rank=64, kv_lora_rank=128, qk_nope_head_dim=24,
        qk_rope_head_dim=12, v_head_dim=32, **{**moe, "n_routed_experts": 9, "num_experts_per_tok": 3, "moe_intermediate_size": 64}, n_group=1, topk_group=1,
        routed_scaling_factor=2.827, rope_parameters=yarn), 60
    yield "odd-g128", tf.DeepseekV3Config(**{**common, "hidden_size": 128}, **mla, **{**moe, "n_routed_experts": 7, "num_experts_per_tok": 2,
        "moe_intermediate_size": 128}, n_group=1, topk_group=1, routed_scaling_factor=1.5, rope_parameters=dict(rope_theta=10000.0, rope_type="default")), 50


def odd_quantized(name, base):
    linear = lambda k: k.endswith("_proj.weight") or "proj_with_mqa.weight" in k or k.endswith("wq_b.weight") or k.endswith("wk.weight")
    if base == "odd-dsa": yield name + "-fp8", linear, "fp8"
    if base == "odd-kimi": yield name + "-int4", (lambda k: ".experts." in k), "int4"
    # Every linear layer (rows that end inside a word of zero points among them), and experts alone.
    if base == "odd-g64": yield name + "-int4-asym", linear, dict(group=64, symmetric=False, shape=torch.int64, ignore=["lm_head"])
    if base == "odd-g128": yield name + "-int4", (lambda k: ".experts." in k), dict(group=128, symmetric=True, shape=torch.int32, ignore=ONLY_EXPERTS)


ONLY_EXPERTS = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"]


def compress(weight, group, symmetric, shape):
    """What compressed-tensors stores for a weight (by suffix of its name), and the numbers that it reads back, in float32."""
    from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams
    args = QuantizationArgs(num_bits=4, type="int", symmetric=symmetric, strategy="group", group_size=group)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    groups = weight.reshape(weight.shape[0], -1, group)
    scale, zero = calculate_qparams(groups.amin(-1), groups.amax(-1), args)
    state = dict(weight=weight, weight_scale=scale.to(torch.bfloat16).float(), weight_zero_point=zero)
    stored = PackedQuantizationCompressor.compress(state, scheme)
    values = PackedQuantizationCompressor.decompress(stored, scheme)["weight"]
    assert values.dtype == torch.float32
    stored = {**stored, "weight_scale": stored["weight_scale"].to(torch.bfloat16), "weight_shape": stored["weight_shape"].to(shape)}
    return {k: v.contiguous() for k, v in stored.items()}, values


def write_grouped(model, weights, config, prompt, out, which, scheme):
    """As the generator's write_quantized, for other groups than 32 and for zero points."""
    new, full = {}, dict(model.state_dict())
    for name, value in weights.items():
        if not (which(name) and value.dim() == 2):
            new[name] = value
            continue
        stored, values = compress(value.float(), scheme["group"], scheme["symmetric"], scheme["shape"])
        new.update({name[:-len("weight")] + suffix: tensor for suffix, tensor in stored.items()})
        if ".experts." not in name:
            full[name].copy_(values)
            continue
        block, rest = name.split(".experts.")
        expert, projection, _ = rest.split(".")
        if projection == "down_proj":
            full[block + ".experts.down_proj"][int(expert)].copy_(values)
        else:
            half = full[block + ".experts.gate_up_proj"][int(expert)].chunk(2)[projection == "up_proj"]
            half.copy_(values)
    reference = globals_["reference"](model, prompt)
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    globals_["save_file"](new, out + "/model.safetensors", metadata={"format": "pt"})
    globals_["save_file"](reference, out + "/golden.safetensors")
    group = dict(input_activations=None, output_activations=None, targets=["Linear"], weights=dict(
        actorder=None, block_structure=None, dynamic=False, group_size=scheme["group"], num_bits=4, observer="minmax", observer_kwargs={}, strategy="group",
        symmetric=scheme["symmetric"], type="int"))
    quantization = dict(config_groups=dict(group_0=group), format="pack-quantized", ignore=scheme["ignore"], kv_cache_scheme=None,
        quant_method="compressed-tensors", quantization_status="compressed")
    json.dump({**config, "quantization_config": quantization}, open(out + "/config.json", "w"), indent=2)
    print(out, "margins", [round(x, 2) for x in reference["margin"].tolist()[:6]])


write_of_generator = globals_["write_quantized"]


def write_quantized(*args):
    (write_grouped if isinstance(args[-1], dict) else write_of_generator)(*args)


if not published:
    globals_["cases"], globals_["quantized"], globals_["write_quantized"] = odd_cases, odd_quantized, write_quantized
    globals_["wrap_kimi_k25"] = globals_["shard_with_mtp"] = lambda *args: None
globals_["main"]()
if not published:
    for base in ("odd-g64", "odd-g128"): shutil.rmtree(f"{out}/{base}")  # only their quantized twins are new
