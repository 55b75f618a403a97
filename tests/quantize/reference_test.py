"""What `tern quantize` writes, loaded by transformers with compressed-tensors: logits equal tern's.

usage: reference_test.py TERN        (scripts/test_reference.sh runs it)

transformers computes in float32, tern in reference precision (float32 on dequantized weights), so what is left is the
order of sums: 2e-3, the bound of `tern parity`. Two things of transformers 5.24 are not exact, and are shown and put right:
- it multiplies the codes of routed experts by their scales in BF16, so each such weight is rounded: the loaded numbers must
  be BF16(code * scale) exactly, and are replaced by code * scale;
- its FP8 loader takes edge blocks of fewer than 128 rows or columns for whole ones: FP8 is compared on weights that this
  file dequantizes.
"""
import json
import os
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file

TERN = os.path.abspath(sys.argv[1])
GOLDEN = "tests/data/golden/"
LIMIT = 2e-3
torch.set_grad_enabled(False)


def quantize(model, out, *options):
    subprocess.run([TERN, "quantize", "--model-path", model, "--output", out, *options], check=True, capture_output=True)
    return {k: v for f in sorted(os.listdir(out)) if f.endswith(".safetensors") for k, v in load_file(f"{out}/{f}").items()}


def int4(tensors, name):
    """code * scale in float32."""
    words, scale = tensors[name + "_packed"], tensors[name + "_scale"].float()
    codes = torch.stack([(words >> 4 * j) & 15 for j in range(8)], -1).view(words.shape[0], -1).float() - 8
    return (codes.view(*scale.shape, -1) * scale[..., None]).view(codes.shape)


def fp8(tensors, name):
    w, s = tensors[name].float(), tensors[name + "_scale_inv"]
    return w * s.repeat_interleave(128, 0)[: w.shape[0]].repeat_interleave(128, 1)[:, : w.shape[1]]


def logits(model, vocab):
    ids = torch.randint(3, min(vocab, 2000), (1, 48), generator=torch.Generator().manual_seed(1))
    return ids[0], model(input_ids=ids, use_cache=False).logits[0].float()


def parity(folder, ids, want, root, precision="reference"):
    path = root + "/reference.safetensors"
    save_file(dict(prompt=ids.to(torch.int32), logits=want.contiguous(), greedy=torch.zeros(0, dtype=torch.int32), margin=torch.zeros(0)), path)
    done = subprocess.run([TERN, "parity", "--model", folder, "--golden", path, "--precision", precision], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def exact_experts(model, tensors):
    """Checks the experts that transformers made of codes and scales, and puts the exact products in their place."""
    count = 0
    for i, layer in enumerate(model.model.layers):
        experts = getattr(layer.mlp, "experts", None)
        if experts is None:
            continue
        experts.float()  # they are BF16 even in a float32 model
        for e in range(experts.down_proj.shape[0]):
            p = f"model.layers.{i}.mlp.experts.{e}."
            if p + "down_proj.weight_packed" not in tensors:
                continue
            both = torch.cat([int4(tensors, p + "gate_proj.weight"), int4(tensors, p + "up_proj.weight")])
            for loaded, exact in ((experts.gate_up_proj[e], both), (experts.down_proj[e], int4(tensors, p + "down_proj.weight"))):
                assert torch.equal(loaded.float(), exact.bfloat16().float()), p
                loaded.copy_(exact)
                count += 1
    return count


def check_int4(root, model, *options):
    out = f"{root}/{os.path.basename(model)}-{len(os.listdir(root))}"
    tensors = quantize(model, out, *options)
    loaded, info = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, output_loading_info=True)
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        # Scales and shapes of weights that were unpacked while loading are left over.
        odd = [k for k in info[key] if not str(k).endswith(("weight_scale", "weight_shape", "weight_packed"))]
        assert not odd, (key, odd)
    ids, as_loaded = logits(loaded, loaded.config.vocab_size)
    experts = exact_experts(loaded, tensors)
    ids, exact = logits(loaded, loaded.config.vocab_size)
    first, second = parity(out, ids, as_loaded, root), parity(out, ids, exact, root)
    served = parity(out, ids, exact, root, "production")
    print(f"{os.path.basename(model)} {' '.join(options)}: {experts} expert matrices rounded to BF16 by transformers; largest difference of a logit "
          f"{first['max_abs_diff']:.2g} as loaded, {second['max_abs_diff']:.2g} with exact products; as served KL {served['mean_kl']:.2g}")
    assert second["positions_over"] == 0, second
    if experts == 0:
        assert first["positions_over"] == 0, first


def check_fp8(root, model, *options):
    out = f"{root}/{os.path.basename(model)}-{len(os.listdir(root))}"
    tensors = quantize(model, out, "--format", "fp8", *options)
    plain = {k: fp8(tensors, k) if k + "_scale_inv" in tensors else v for k, v in tensors.items() if not k.endswith("_scale_inv")}
    folder = out + "-plain"
    os.makedirs(folder)
    save_file(plain, folder + "/model.safetensors", metadata={"format": "pt"})
    config = json.load(open(out + "/config.json"))
    del config["quantization_config"]
    json.dump(config, open(folder + "/config.json", "w"))
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids, want = logits(loaded, loaded.config.vocab_size)
    got = parity(out, ids, want, root)
    try:
        own = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
        own = f"differs by {(logits(own, own.config.vocab_size)[1] - want).abs().max():.2g}"
    except Exception as error:  # whatever it is, it is told
        own = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:120]}"
    print(f"{os.path.basename(model)} fp8 {' '.join(options)}: largest difference of a logit {got['max_abs_diff']:.2g}; transformers' own loader: {own}")
    assert got["positions_over"] == 0, got


with tempfile.TemporaryDirectory() as root:
    for method in ("rtn", "search"):
        check_int4(root, GOLDEN + "llama", "--method", method)
    check_int4(root, GOLDEN + "llama", "--group", "64")
    check_int4(root, GOLDEN + "llama-rope3-tied")
    check_int4(root, GOLDEN + "qwen3")
    for recipe in ("kimi", "all-linear"):
        check_int4(root, "tests/data/tiny/model", "--recipe", recipe)
        check_int4(root, GOLDEN + "kimi-k2", "--recipe", recipe)
    check_fp8(root, "tests/data/tiny/model", "--recipe", "all-linear")
    check_fp8(root, GOLDEN + "deepseek-v3-groups", "--recipe", "kimi")
