"""What `tern quantize` writes, against checkpoints that torch and compressed-tensors made, and how it fails.

usage: contract.py TERN
"""
import json
import math
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from raw_safetensors import bf16_values, fp8_values, load, load_file, save  # noqa: E402  (the file beside this one)

TERN = os.path.abspath(sys.argv[1])
GOLDEN = "tests/data/golden/"
EXPERT = "model.layers.1.mlp.experts.0.down_proj.weight"
PUBLISHED = ["re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"]


def run(model, out, *options, **popen):
    done = subprocess.run([TERN, "quantize", "--model-path", model, "--output", out, *options], capture_output=True, text=True, **popen)
    return done.returncode, done.stdout, done.stderr


def quantize(model, out, *options):
    code, stdout, stderr = run(model, out, *options)
    assert code == 0, (options, stderr)
    assert not [f for f in os.listdir(out) if f.startswith(".") or f.endswith(".part")], os.listdir(out)
    return load(out), json.load(open(out + "/config.json"))


def refused(model, out, *options, code=1, says=(), **popen):
    got, stdout, stderr = run(model, out, *options, **popen)
    lines = [line for line in stderr.strip().split("\n") if line.startswith("tern quantize: ")]
    assert got == code and len(lines) == 1, (got, stderr)
    for text in says:
        assert text in lines[0], (text, lines[0])
    assert not os.path.exists(out + "/config.json") or model.rstrip("/") == out.rstrip("/"), out
    return lines[0]


def parity(model, golden, precision="reference"):
    done = subprocess.run([TERN, "parity", "--model", model, "--golden", golden, "--precision", precision], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class Folder:
    """Names below a temporary folder."""

    def __init__(self, root):
        self.root, self.count = root, 0

    def __call__(self, name="out"):
        self.count += 1
        return f"{self.root}/{name}{self.count}"


def test_reference_bytes(new):
    for name in ("kimi-k2", "kimi-k2-wide", "glm52-dsa-shared"):
        tensors, config = quantize(GOLDEN + name, new(), "--method", "rtn")
        assert tensors == load(GOLDEN + name + "-int4"), name
        assert config == json.load(open(GOLDEN + name + "-int4/config.json")), name
    out = new()
    tensors, config = quantize(GOLDEN + "deepseek-v3-groups", out, "--format", "fp8", "--recipe", "all-linear", "--exclude", "lm_head")
    assert tensors == load(GOLDEN + "deepseek-v3-groups-fp8")
    assert config["quantization_config"].pop("modules_to_not_convert") == ["lm_head"]
    assert config == json.load(open(GOLDEN + "deepseek-v3-groups-fp8/config.json"))
    assert parity(out, GOLDEN + "deepseek-v3-groups-fp8/golden.safetensors")["positions_over"] == 0


def test_shards(new):
    whole, _ = quantize(GOLDEN + "kimi-k2", new())
    out = new()
    parts, _ = quantize(GOLDEN + "kimi-k2", out, "--shard-size", "200KB")
    assert parts == whole
    index = json.load(open(out + "/model.safetensors.index.json"))
    assert index["metadata"]["total_size"] == sum(len(raw) for _, _, raw in whole.values())
    files = sorted(set(index["weight_map"].values()))
    assert files == [f"model-{i + 1:05}-of-{len(files):05}.safetensors" for i in range(len(files))] and len(files) > 3
    assert set(index["weight_map"]) == set(whole)
    for name, file in index["weight_map"].items():
        assert name in load_file(f"{out}/{file}"), name
    for file in files:
        tensors = load_file(f"{out}/{file}")
        assert sum(len(raw) for _, _, raw in tensors.values()) <= 200_000, file
    report = json.load(open(out + "/quantize_report.json"))
    assert report["shards"] == len(files) and [k["kind"] for k in report["kinds"]] == ["expert"]
    assert open(out + "/quantize_report.svg").read().startswith("<svg")


def dequantized(tensors, name):
    """Values of an INT4 weight."""
    words, scales = tensors[name + "_packed"], bf16_values(tensors[name + "_scale"][2])
    rows, columns = words[1][0], words[1][1] * 8
    assert struct.unpack("<2q", tensors[name + "_shape"][2]) == (rows, columns)
    group = rows * columns // len(scales)
    values = []
    for i, word in enumerate(struct.unpack(f"<{len(words[2]) // 4}I", words[2])):
        values += [((word >> 4 * j & 15) - 8) * scales[(i * 8 + j) // group] for j in range(8)]
    return values


def relative_rms(values, exact):
    return math.sqrt(sum((a - b) ** 2 for a, b in zip(values, exact)) / sum(b * b for b in exact))


def test_methods_groups_and_report(new):
    exact = bf16_values(load(GOLDEN + "kimi-k2-wide")[EXPERT][2])
    errors = {}
    for method in ("rtn", "search"):
        out = new()
        tensors, _ = quantize(GOLDEN + "kimi-k2-wide", out, "--method", method)
        errors[method] = relative_rms(dequantized(tensors, EXPERT), exact)
        report = json.load(open(out + "/quantize_report.json"))
        worst = {w["name"]: w["relative_rms_error"] for w in report["worst"]}
        if EXPERT in worst:
            assert abs(worst[EXPERT] - errors[method]) < 1e-4
        assert report["kinds"][0]["methods"] == {method: report["kinds"][0]["weights"]}
        assert max(worst.values()) >= report["kinds"][0]["relative_rms_error"]
    assert errors["search"] < 0.97 * errors["rtn"], errors
    # 192, 128, 128: groups of 64 everywhere in Llama. Chance would agree on one token in 256.
    exact, errors = bf16_values(load(GOLDEN + "llama")["model.layers.0.mlp.down_proj.weight"][2]), {}
    for group in ("32", "64"):
        out = new()
        tensors, config = quantize(GOLDEN + "llama", out, "--group", group)
        assert config["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"] == int(group)
        assert tensors["model.layers.0.mlp.down_proj.weight_scale"][1] == [128, 192 // int(group)]
        errors[group] = relative_rms(dequantized(tensors, "model.layers.0.mlp.down_proj.weight"), exact)
        assert parity(out, GOLDEN + "llama/golden.safetensors")["top1_agreement"] > 0.5
    assert errors["32"] < errors["64"] < 0.13, errors


def test_recipes(new):
    plain = load(GOLDEN + "glm5-dsa")
    tensors, config = quantize(GOLDEN + "glm5-dsa", new(), "--recipe", "all-linear")
    for kept in ("model.embed_tokens.weight", "model.layers.1.mlp.gate.weight", "model.layers.0.self_attn.indexer.weights_proj.weight",
                 "model.layers.0.self_attn.indexer.k_norm.weight", "model.norm.weight"):
        assert tensors[kept] == plain[kept], kept
    for taken in ("lm_head", "model.layers.0.self_attn.indexer.wq_b", "model.layers.0.self_attn.kv_b_proj", "model.layers.0.mlp.up_proj"):
        assert taken + ".weight_packed" in tensors and taken + ".weight" not in tensors, taken
    ignore = config["quantization_config"]["ignore"]
    assert "re:.*mlp\\.gate$" in ignore and "model.layers.0.self_attn.indexer.weights_proj" in ignore and "lm_head" not in ignore

    # What is included or excluded shows in the list, and a pattern that would name it wrongly goes.
    tensors, config = quantize(GOLDEN + "kimi-k2", new(), "--include", "re:.*shared_experts.*", "--exclude", "model.layers.1.mlp.experts.3.up_proj")
    assert "model.layers.1.mlp.shared_experts.up_proj.weight_packed" in tensors
    assert "model.layers.1.mlp.experts.3.up_proj.weight" in tensors
    ignore = config["quantization_config"]["ignore"]
    assert "re:.*shared_experts.*" not in ignore and "model.layers.1.mlp.experts.3.up_proj" in ignore and "lm_head" in ignore

    # A tied head becomes its own tensor; the embedding stays.
    plain = load(GOLDEN + "llama-rope3-tied")
    tensors, config = quantize(GOLDEN + "llama-rope3-tied", new(), "--recipe", "all-linear")
    assert config["tie_word_embeddings"] is False and tensors["model.embed_tokens.weight"] == plain["model.embed_tokens.weight"]
    error = relative_rms(dequantized(tensors, "lm_head.weight"), bf16_values(plain["model.embed_tokens.weight"][2]))
    assert 0 < error < 0.12, error
    tensors, config = quantize(GOLDEN + "llama-rope3-tied", new(), "--recipe", "all-linear", "--exclude", "lm_head")
    assert config["tie_word_embeddings"] is True and not [n for n in tensors if "lm_head" in n]


def test_fp8_in(new):
    source = load(GOLDEN + "glm5-dsa-fp8-sharded-mtp")
    out = new()
    tensors, config = quantize(GOLDEN + "glm5-dsa-fp8-sharded-mtp", out)
    assert config["quantization_config"]["quant_method"] == "compressed-tensors"
    assert not [n for n, (dtype, _, _) in tensors.items() if dtype == "F8_E4M3" or n.endswith("_scale_inv")]
    # Attention becomes BF16: the stored numbers, rounded.
    name = "model.layers.0.self_attn.o_proj.weight"
    rows, columns = source[name][1]
    exact = fp8_values(source[name][2], source[name + "_scale_inv"][2], rows, columns)
    assert tensors[name][0] == "BF16" and relative_rms(bf16_values(tensors[name][2]), exact) < 2.0 ** -8
    # Experts of the next-token layer as those of the others; what only it has stays.
    last = json.load(open(GOLDEN + "glm5-dsa-fp8-sharded-mtp/config.json"))["num_hidden_layers"]
    assert f"model.layers.{last}.mlp.experts.0.up_proj.weight_packed" in tensors
    eh = f"model.layers.{last}.eh_proj"
    assert tensors[eh + ".weight"] == source[eh + ".weight"] and eh in config["quantization_config"]["ignore"]
    assert parity(out, GOLDEN + "glm5-dsa-fp8/golden.safetensors")["top1_agreement"] > 0.5
    # FP8 again: what is FP8 already is copied.
    tensors, _ = quantize(GOLDEN + "deepseek-v3-groups-fp8", new(), "--format", "fp8")
    source = load(GOLDEN + "deepseek-v3-groups-fp8")
    assert tensors[EXPERT] == source[EXPERT] and tensors[EXPERT + "_scale_inv"] == source[EXPERT + "_scale_inv"]
    assert tensors["model.layers.0.self_attn.o_proj.weight"][0] == "BF16"


def wrapped(folder):
    """kimi-k2 in the wrapper of Kimi K2.5, in BF16."""
    os.makedirs(folder)
    tensors = {"language_model." + n: v for n, v in load(GOLDEN + "kimi-k2").items()}
    tensors["vision_tower.patch_embed.proj.weight"] = ("BF16", [8, 3, 2, 2], bytes(range(96)) * 2)
    tensors["mm_projector.proj.0.weight"] = ("BF16", [8, 8], bytes(128))
    save(folder + "/model.safetensors", tensors)
    config = {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25",
              "text_config": {**json.load(open(GOLDEN + "kimi-k2/config.json")), "model_type": "kimi_k2"}, "vision_config": {"hidden_size": 8}}
    json.dump(config, open(folder + "/config.json", "w"))
    for name in ("tokenizer_config.json", "LICENSE", "modeling_kimi.py"):
        open(f"{folder}/{name}", "w").write(name)
    os.makedirs(folder + "/docs")
    open(folder + "/docs/note.txt", "w").write("note")
    os.makedirs(folder + "/.git")
    open(folder + "/.git/x", "w").write("x")
    open(folder + "/pytorch_model.bin", "w").write("weights")
    return tensors


def test_wrapper_and_side_files(new):
    folder, out = new("in"), new()
    source = wrapped(folder)
    tensors, config = quantize(folder, out, "--method", "rtn")
    twin = load(GOLDEN + "kimi-k25-int4")
    for name, (dtype, shape, raw) in twin.items():
        if name.startswith("language_model.") and not name.endswith("_shape"):
            assert tensors[name] == (dtype, shape, raw), name
    for name in source:
        if not name.startswith("language_model."):
            assert tensors[name] == source[name], name
    for part in (config, config["text_config"]):
        assert part["quantization_config"]["ignore"][:4] == ["language_model.lm_head", *PUBLISHED]
        assert part["quantization_config"]["format"] == "pack-quantized"
    assert parity(out, GOLDEN + "kimi-k25-int4/golden.safetensors")["positions_over"] == 0
    for name in ("tokenizer_config.json", "LICENSE", "modeling_kimi.py", "docs/note.txt"):
        assert open(f"{out}/{name}").read() == open(f"{folder}/{name}").read()
    assert sorted(os.listdir(out)) == ["LICENSE", "config.json", "docs", "model.safetensors", "modeling_kimi.py", "quantize_report.json",
                                       "quantize_report.svg", "tokenizer_config.json"]
    report = json.load(open(out + "/quantize_report.json"))
    assert report["carried_unknown_tensors"] == ["mm_projector.proj.0.weight", "vision_tower.patch_embed.proj.weight"]


def test_gguf(new):
    """Every tensor of the exported model against the BF16 model that the file was made from."""
    plain, plain_config = load(GOLDEN + "deepseek-v3-groups"), json.load(open(GOLDEN + "deepseek-v3-groups/config.json"))
    for file, limit in (("deepseek2", 0.01), ("deepseek2_joined", 0.12)):
        out = new()
        tensors, config = quantize(f"tests/data/gguf/{file}.gguf", out, "--exclude", "re:model.layers.(1|2.mlp.experts.[1-9]).*")
        assert set(tensors) - {n for n in tensors if "_packed" in n or "_scale" in n or "_shape" in n} <= set(plain)
        for name, (dtype, shape, raw) in plain.items():
            if name + "_packed" in tensors:
                error = relative_rms(dequantized(tensors, name), bf16_values(raw))
                assert error < 0.17, (name, error)  # Q4_0, then INT4
                continue
            assert tensors[name][:2] == (dtype, shape), (name, tensors[name][:2])
            if dtype == "F32":
                assert tensors[name] == plain[name], name
                continue
            error = relative_rms(bf16_values(tensors[name][2]), bf16_values(raw))
            assert error < (0.12 if ".experts." in name else limit), (name, error)
        for key in ("hidden_size", "q_lora_rank", "kv_lora_rank", "n_routed_experts", "n_group", "topk_group", "routed_scaling_factor",
                    "norm_topk_prob", "first_k_dense_replace", "rms_norm_eps", "max_position_embeddings", "architectures", "vocab_size"):
            assert config[key] == plain_config[key], key
        for key in ("factor", "beta_fast", "mscale_all_dim", "original_max_position_embeddings"):
            assert config["rope_scaling"][key] == plain_config["rope_parameters"][key], key


def gguf_with_tokenizer(path, **flags):
    """deepseek2.gguf with a byte-level tokenizer: printable ASCII, a BOS (94) and an EOS (95)."""
    def string(text):
        return struct.pack("<Q", len(text.encode())) + text.encode()

    def pair(key, kind, value):
        return string("tokenizer.ggml." + key) + struct.pack("<I", kind) + value
    tokens = [chr(c) for c in range(33, 127)] + ["<s>", "</s>"]
    pairs = [pair("model", 8, string("gpt2")), pair("pre", 8, string("gpt-2")),
             pair("tokens", 9, struct.pack("<IQ", 8, len(tokens)) + b"".join(map(string, tokens))),
             pair("token_type", 9, struct.pack("<IQ96i", 5, len(tokens), *[1] * 94, 3, 3)),
             pair("bos_token_id", 4, struct.pack("<I", 94)), pair("eos_token_id", 4, struct.pack("<I", 95)),
             *[pair(key, 7, struct.pack("<B", value)) for key, value in flags.items()]]
    data = open("tests/data/gguf/deepseek2.gguf", "rb").read()
    none = pair("model", 8, string("no_vocab"))
    count, = struct.unpack_from("<Q", data, 16)
    grown = sum(map(len, pairs)) + len(pair("filler", 8, string(""))) - len(none)
    pairs.append(pair("filler", 8, string("x" * (-grown % 32))))  # tensors stay aligned
    assert data.count(none) == 1
    data = data[:16] + struct.pack("<Q", count + len(pairs) - 1) + data[24:].replace(none, b"".join(pairs))
    open(path, "wb").write(data)
    return path


def test_gguf_says_by_flags_what_texts_get(new):
    def special(token):
        return {"SpecialToken": {"id": token, "type_id": 0}}

    def text(name):
        return {"Sequence": {"id": name, "type_id": 0}}
    bos, eos = special("<s>"), special("</s>")
    for flags, before, after, ids in (({}, [], [], [0]), ({"add_bos_token": True}, [bos], [], [94, 0]),
                                      ({"add_bos_token": True, "add_eos_token": True}, [bos], [eos], [94, 0, 95]),
                                      ({"add_bos_token": False}, [], [], [0])):
        out = new()
        quantize(gguf_with_tokenizer(new("in") + ".gguf", **flags), out, "--method", "rtn")
        post = json.load(open(out + "/tokenizer.json"))["post_processor"]
        if before or after:
            assert post["type"] == "TemplateProcessing", (flags, post)
            assert post["single"] == [*before, text("A"), *after], (flags, post)
            assert post["pair"] == [*before, text("A"), text("B"), *after], (flags, post)
            named = {"<s>": 94, "</s>": 95} if after else {"<s>": 94}
            assert post["special_tokens"] == {t: {"id": t, "ids": [i], "tokens": [t]} for t, i in named.items()}, (flags, post)
        else:
            assert post is None, (flags, post)
        done = subprocess.run([TERN, "tokenize", "--tokenizer", out, "--add-special-tokens"], input='"!"\n', capture_output=True,
                              text=True)
        assert done.returncode == 0 and json.loads(done.stdout) == ids, (flags, done)


def edited(new, edit, model="kimi-k2"):
    folder = new("in")
    shutil.copytree(GOLDEN + model, folder)
    tensors = load(folder)
    edit(tensors)
    save(folder + "/model.safetensors", tensors)
    return folder


def test_bad_input(new):
    out = new()
    refused(GOLDEN + "kimi-k2-int4", out, says=["kimi-k2-int4/model.safetensors", "weight_packed", "INT4 already"])
    refused(GOLDEN + "llama", out, "--recipe", "kimi", says=["--recipe kimi", "all-linear"])
    refused(GOLDEN + "kimi-k2", out, "--group", "64", says=["down_proj", "32 input features", "--group 64", "--exclude"])
    refused(GOLDEN + "kimi-k2", out, "--include", "model.layers.9.mlp.up_proj", says=["--include", "model.layers.9.mlp.up_proj", "matches no"])
    refused(GOLDEN + "kimi-k2", out, "--include", "re:.*mlp.gate$", says=["--include", "never quantized"])
    refused(GOLDEN + "kimi-k2", out, "--exclude", "re:.*", says=["that are not excluded"])
    refused(GOLDEN + "kimi-k2", out, "--exclude", "re:(", code=2, says=["--exclude"])
    refused(GOLDEN + "kimi-k2", out, "--format", "fp8", "--method", "rtn", code=2, says=["--method"])
    refused(GOLDEN + "kimi-k2", out, "--method", "calibrated", code=2, says=["--calibration"])
    refused(GOLDEN + "kimi-k2", out, "--calibration", "x", code=2, says=["--method calibrated"])
    refused(GOLDEN + "kimi-k2", out, "--shard-size", "12XB", code=2, says=["--shard-size", "12XB"])
    refused("no/such", out, says=["no/such"])
    assert not os.path.exists(out)

    def poke(name, at, raw):
        def edit(tensors):
            dtype, shape, data = tensors[name]
            tensors[name] = (dtype, shape, data[:at] + raw + data[at + len(raw):])
        return edit

    for raw, says in ((b"\xc0\x7f", "NaN"), (b"\x80\xff", "infinity")):
        folder = edited(new, poke(EXPERT, 2 * (32 * 5 + 7), raw))
        refused(folder, new(), says=[folder, EXPERT, says, "[5, 7]"])
        # Also in what is copied.
        folder = edited(new, poke("model.embed_tokens.weight", 2 * 9, raw))
        refused(folder, new(), says=[folder, "model.embed_tokens.weight", "NaN or infinity at element 9"])

    # Notes of an unfinished run that someone has edited.
    folder, whole, target = edited(new, poke(EXPERT, 0, b"\xc0\x7f")), new(), new()
    quantize(GOLDEN + "kimi-k2", whole)
    refused(folder, target, says=["NaN"])
    shutil.copy(whole + "/model.safetensors", target)
    with open(target + "/.tern-quantize", "a") as state:
        state.write('{"file": "model.safetensors", "notes": {"errors": [["a", 1, 1, 1, 1]]}}\n')
    refused(folder, target, says=[target, "notes of model.safetensors do not fit"])

    def drop(tensors):
        del tensors[EXPERT]
    folder = edited(new, drop)
    refused(folder, new(), says=[folder, EXPERT, "missing"])

    def extra(tensors):
        tensors["model.layers.1.odd.weight"] = ("BF16", [2, 2], bytes(8))
    folder, target = edited(new, extra), new()
    code, _, stderr = run(folder, target)
    assert code == 0 and "model.layers.1.odd.weight" in stderr, stderr
    assert load(target)["model.layers.1.odd.weight"] == ("BF16", [2, 2], bytes(8))

    # A download that stopped: a shard is short, or not there.
    folder = new("in")
    shutil.copytree(GOLDEN + "glm5-dsa-fp8-sharded-mtp", folder)
    shard = folder + "/model-00002-of-00003.safetensors"
    os.truncate(shard, os.path.getsize(shard) - 100)
    refused(folder, new(), says=[shard])
    os.remove(shard)
    refused(folder, new(), says=[shard])


def test_places(new):
    folder = new("in")
    shutil.copytree(GOLDEN + "kimi-k2", folder)
    before = sorted(os.listdir(folder))
    refused(folder, folder, says=["--output", "input's folder"])
    refused(folder, folder + "/quantized", says=["--output", "inside the input's folder"])
    assert sorted(os.listdir(folder)) == before
    other = new()
    os.makedirs(other)
    open(other + "/mine.txt", "w").close()
    refused(folder, other, says=[other, "not empty", "mine.txt"])
    assert os.listdir(other) == ["mine.txt"]
    refused(folder, other + "/mine.txt/x", says=["mine.txt/x"])
    refused(folder, new() + "/a/b", says=["cannot make the folder"])
    refused(folder, "/proc/tern", says=["/proc/tern"])

    # No room for a file: nothing half-written stays, and the next run goes on.
    out = new()

    def small_files():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
    line = refused(folder, out, "--shard-size", "50KB", "--exclude", "re:.*experts.0.*", preexec_fn=small_files)
    assert "model-" in line and "too large" in line, line
    assert not [f for f in os.listdir(out) if f.endswith(".part")]
    tensors, _ = quantize(folder, out, "--shard-size", "50KB", "--exclude", "re:.*experts.0.*")
    assert tensors == quantize(folder, new(), "--shard-size", "50KB", "--exclude", "re:.*experts.0.*")[0]
    # Once complete, the same command has nothing to do; another one is refused.
    times = {f: os.stat(f"{out}/{f}").st_mtime_ns for f in os.listdir(out)}
    code, _, stderr = run(folder, out, "--shard-size", "50KB", "--exclude", "re:.*experts.0.*")
    assert code == 0 and "complete already" in stderr
    assert times == {f: os.stat(f"{out}/{f}").st_mtime_ns for f in os.listdir(out)}
    code, _, stderr = run(folder, out)
    assert code == 1 and "not empty" in stderr, stderr


def main():
    tests = [value for name, value in globals().items() if name.startswith("test_")]
    for test in tests:
        with tempfile.TemporaryDirectory() as root:
            test(Folder(root))
        print("ok", test.__name__)


main()
