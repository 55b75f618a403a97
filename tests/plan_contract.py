"""What `tern plan` says about published deployments, about this machine, and about bad input.

usage: plan_contract.py TERN

Each published figure stands with the assumptions under which the arithmetic gives it.
"""
import json, os, re, subprocess, sys, tempfile

TERN = sys.argv[1]
GIB = 1 << 30
KIMI, GLM, GLM_FP8 = ("tests/data/configs/" + name for name in ("kimi-k2.6.json", "glm-5.2.json", "glm-5.2-fp8.json"))


def run(command, *options):
    done = subprocess.run([TERN, command, *options], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def plan(*options):
    code, out, err = run("plan", *options, "--json")
    # What takes more than two seconds says how far it is.
    assert code == 0 and re.fullmatch(r"((loading .*|measuring kernels): \d+ of \d+ .*\n)*", err), (options, err)
    return json.loads(out)


def within(share, value, expected):
    assert abs(value / expected - 1) <= share, (value, expected)


# K2-Thinking on 8 H200 with vLLM, TP 8: "46.80 GiB available" -> 715,072 tokens. Assumed: K2.6's text model is K2-Thinking's;
# every rank holds all latent rows, so one rank's KV memory says how many tokens there are; BF16 rows of 61 x 576 numbers.
within(0.001, plan(KIMI, "--gpus", "8", "--kv-memory", "46.80GiB")["kv"]["tokens"], 715072)

# Kimi K2.6 on 8 H200 with SGLang: 686k -> 1.37M tokens, 32 -> 64 requests. Assumed: 44.9 GiB of a rank for KV before and after (686,000 x 70,272
# bytes; not published); flat FP8 rows, one scale a layer. A request takes 21,376 tokens on average (not published: 686k / 32, in whole pages).
for layout, bytes_per_token, tokens, requests in (("bf16", 70272, 686e3, 32), ("fp8_e4m3", 35136, 1.37e6, 64)):
    got = plan(KIMI, "--gpus", "8", "--kv-memory", "44.9GiB", "--kv-cache-dtype", layout, "--context-length", "21376")
    assert got["kv"]["bytes_per_token"] == bytes_per_token, got["kv"]
    within(0.005, got["kv"]["tokens"], tokens)
    assert got["concurrent_requests"] == requests, got
    tokens_of = {**(tokens_of if layout != "bf16" else {}), layout: got["kv"]["tokens"]}
assert round(tokens_of["fp8_e4m3"] / tokens_of["bf16"], 3) == 2.000, tokens_of

# GLM-5.2, FP8 -> INT4: 705 -> 421 and, of one of 8 ranks, 88 -> 52. Assumed: "GB" are GiB; FP8 as published; INT4 is Kimi's recipe
# (routed experts in groups of 32, BF16 scales, all else BF16); the next-token layer is in both; a rank holds an eighth.
for options, total, rank in (([GLM_FP8], 705, 88), ([GLM, "--recipe", "kimi"], 421, 52)):
    got = plan(*options, "--gpus", "8", "--gpu-memory", "141GB", "--kv-cache-dtype", "fp8_ds_mla")
    within(0.01, got["checkpoint_bytes"] / GIB, total)
    within(0.01, got["bytes_per_rank"]["weights"] / GIB, rank)
    # As `inspect` counts them.
    inspected = json.loads(run("inspect", *options, "--tp", "8", "--json")[1])
    assert got["bytes_per_rank"]["weights"] == inspected["total"]["bytes_per_rank"]
    assert got["checkpoint_bytes"] == inspected["total"]["bytes"]
    assert got["replicated_bytes"] == inspected["replicated_bytes"]
    assert got["next_token_bytes"] == inspected["next_token"]["bytes"]

# Tokens of a GiB: the rows' bytes and nothing else, but for page headers and padding. FP8 rows of DeepSeek's layout have 656 bytes.
# GLM-4.5-like key-value heads: 2 x heads x dim x 2 bytes, divided by ranks down to one head.
for layout, row in (("bf16", 1152), ("fp8_e4m3", 576), ("fp8_ds_mla", 656)):
    got = plan(KIMI, "--gpus", "8", "--kv-memory", "200GiB", "--kv-cache-dtype", layout)
    assert got["kv"]["bytes_per_token"] == 61 * row
    within(1e-4, got["kv"]["tokens_per_gib"], GIB / (61 * row))
    within(1e-4, got["kv"]["tokens"] / 200, GIB / (61 * row))
got = plan(KIMI, "--gpus", "8", "--kv-memory", "40GiB", "--kv-cache-dtype", "fp8_e4m3", "--kv-bf16-layers", "0,60")
assert got["kv"]["bytes_per_token"] == 59 * 576 + 2 * 1152

# Speed, from numbers worked out here. One request at batch 1 of dense layers reads each weight once; with 8 ranks, an eighth.
grouped = json.load(open("tests/data/golden/llama/config.json"))
heads, kv_heads, layers = (grouped[k] for k in ("num_attention_heads", "num_key_value_heads", "num_hidden_layers"))
dim = grouped.get("head_dim") or grouped["hidden_size"] // heads
one = plan("tests/data/golden/llama/config.json", "--gpus", "1", "--gpu-memory", "1GB", "--bandwidth", "1GB/s", "--flops", "1P",
           "--context-length", "64", "--batch", "1", "--price", "36")
assert one["kv"]["bytes_per_token"] == layers * 2 * kv_heads * dim * 2
step = one["decode"][0]
lookup = 0 if grouped.get("tie_word_embeddings") else grouped["vocab_size"] * grouped["hidden_size"] * 2
width = {"bfloat16": 2, "float32": 4}[grouped.get("torch_dtype") or grouped.get("dtype") or "bfloat16"]
assert step["weight_bytes"] == one["checkpoint_bytes"] - lookup * width // 2, (step, one["checkpoint_bytes"], lookup)
assert step["attention_bytes"] == 64 * one["kv"]["bytes_per_token"], step
assert step["attention_operations"] == 64 * layers * heads * 2 * dim * 2, step
within(1e-9, step["seconds"], (step["weight_bytes"] + step["attention_bytes"]) / 1e9)
within(1e-9, step["cost_per_million_tokens"], 36 / 3600 * step["seconds"] * 1e6)

# MLA: 61 layers of 64 / 8 heads, each with 2 x 512 + 64 products a position; latent rows are not divided by ranks.
fast = ("--gpus", "8", "--kv-memory", "40GiB", "--bandwidth", "4.8TB/s", "--flops", "989T", "--context-length", "1000")
step = plan(KIMI, *fast, "--batch", "1")["decode"][0]
assert step["attention_operations"] == 1000 * 61 * 8 * (2 * 512 + 64) * 2, step
assert step["attention_bytes"] == 1000 * 70272, step
half = plan(KIMI, *fast, "--batch", "1", "--bandwidth-efficiency", "0.5")["decode"][0]
within(1e-9, half["seconds"], 2 * step["seconds"])
# 16 GPUs at TP 8: two replicas, so twice the requests at once.
two = plan(KIMI, "--gpus", "16", "--tp", "8", *fast[2:])
assert two["machine"]["replicas"] == 2 and two["concurrent_requests"] == 2 * plan(KIMI, *fast)["concurrent_requests"]

# Free parameters are printed as such; a picture is written.
with tempfile.TemporaryDirectory() as folder:
    picture = os.path.join(folder, "plan.svg")
    code, out, err = run("plan", KIMI, *fast, "--plot", picture)
    assert code == 0 and err == "" and open(picture).read().startswith("<svg"), err
free = out[out.index("Free parameters:"):]
assert all(f in free for f in ("--kv-memory", "--bandwidth-efficiency", "--arithmetic-efficiency", "--price")), free

# This machine: what `serve` logs that it allocates.
tiny = ("tests/data/tiny/model", "--max-total-tokens", "8192", "--kv-cache-dtype", "fp8_e4m3", "--threads", "1")
host = plan(*tiny, "--bandwidth", "10GB/s", "--flops", "100G")
assert host["machine"]["this_host"] and host["kv"]["tokens"] == 8192
assert 4 << 20 < host["program_bytes"] < 100 << 20, host["program_bytes"]  # code, libraries, tokenizer
devices = plan(tiny[0], "--gpus", "1", "--kv-memory", "1GiB", "--kv-cache-dtype", "fp8_e4m3")
assert devices["program_bytes"] is None
assert devices["kv"]["page_bytes"] == host["kv"]["page_bytes"]
server = subprocess.Popen([TERN, "serve", "--model-path", *tiny, "--port", "0"], stderr=subprocess.PIPE, text=True)
try:
    memory = next(line for line in server.stderr if "memory: weights" in line)
finally:
    server.terminate()
    server.wait(timeout=30)
# All but the memory that was free at that moment.
served = re.search(r"memory: (weights .* = [0-9.]+) of ", memory).group(1)
assert served == host["memory_summary"].split(" of ")[0], (served, host["memory_summary"])

# Without flags, decode's speed is the sum of what this machine's kernels take, each of them at memory's speed at best.
step = plan(*tiny, "--context-length", "64", "--batch", "2")["decode"][-1]
assert step["batch"] == 2 and step["other_seconds"] > 0, step
within(1e-9, step["weight_seconds"] + step["attention_seconds"] + step["other_seconds"], step["seconds"])
within(1e-9, step["tokens_per_s"], 2 / step["seconds"])
step = host["decode"][0]  # flags: two limits alone
assert step["other_seconds"] == 0, step
within(1e-9, step["seconds"], max(step["weight_bytes"] / 10e9, step["weight_operations"] / 100e9) +
       max(step["attention_bytes"] / 10e9, step["attention_operations"] / 100e9))
prompt = host["prefill"][0]
assert prompt["weight_seconds"] > 0 and prompt["attention_seconds"] > 0 and prompt["other_seconds"] == 0, prompt
within(1e-9, prompt["weight_seconds"] + prompt["attention_seconds"], prompt["seconds"])
# --flops alone stands for all kernels: 1M operations a second are less than any memory would allow.
slow = plan(*tiny, "--flops", "1M", "--arithmetic-efficiency", "0.5")
assert slow["machine"]["limits_from"] == "memory measured here; --flops", slow["machine"]
step = slow["decode"][0]
assert step["other_seconds"] == 0 and step["weights_bound_by"] == "arithmetic", step
within(1e-9, step["weight_seconds"], step["weight_operations"] / 0.5e6)
# --bandwidth alone: kernels are measured, and --arithmetic-efficiency counts for them.
slow = plan(*tiny, "--bandwidth", "1TB/s", "--arithmetic-efficiency", "0.001", "--context-length", "64", "--batch", "1")
assert slow["machine"]["limits_from"].startswith("--bandwidth; the rest measured here"), slow["machine"]
step = slow["decode"][0]
assert step["other_seconds"] > 0 and step["weights_bound_by"] == step["attention_bound_by"] == "arithmetic", step

# A GGUF file's own tensors count, as `inspect` counts them.
gguf = "tests/data/gguf/deepseek2.gguf"
got = plan(gguf, "--gpus", "1", "--gpu-memory", "1GB")
assert got["checkpoint_bytes"] <= json.loads(run("inspect", gguf, "--json")[1])["total"]["bytes"] <= os.path.getsize(gguf)
within(0.01, got["checkpoint_bytes"], json.loads(run("inspect", gguf, "--json")[1])["total"]["bytes"])

# One clear error, on standard error, and nothing else.
card = ("--gpus", "8", "--gpu-memory", "141GB")
for code_wanted, word, options in (
    (2, "--recipe", (KIMI, *card, "--recipe", "int3")),
    (2, "--gpu-memory", (KIMI, "--gpus", "8", "--gpu-memory", "0")),
    (2, "--gpu-memory", (KIMI, "--gpus", "8", "--gpu-memory", "1e300GB")),
    (2, "--gpu-memory", (KIMI, "--gpus", "8", "--gpu-memory", "-3GB")),
    (2, "--gpu-memory", (KIMI, "--gpus", "8", "--gpu-memory", "141 apples")),
    (2, "--gpu-memory", (KIMI, "--gpus", "8")),
    (2, "--kv-memory", (KIMI, *card, "--kv-memory", "1GB")),
    (2, "--gpus", (KIMI, "--gpus", "99999999999999999999", "--gpu-memory", "1GB")),
    (2, "--gpus", (KIMI, "--gpus", "0", "--gpu-memory", "1GB")),
    (2, "--gpus", (KIMI, "--tp", "8")),
    (2, "--tp", (KIMI, *card, "--tp", "3")),
    (1, "64 attention heads", (KIMI, "--gpus", "7", "--gpu-memory", "141GB")),
    (2, "--bandwidth", (KIMI, *card, "--bandwidth", "nan")),
    (2, "--flops", (KIMI, *card, "--flops", "inf")),
    (2, "--recipe", (gguf, *card, "--recipe", "bf16")),
    (2, "--price", (KIMI, *card, "--price", "-1")),
    (1, "not enough memory", (KIMI, "--gpus", "8", "--gpu-memory", "60GB")),
    (1, "not enough memory", (KIMI, *card, "--reserve", "500GB")),
    (1, "context_length", (KIMI, *card, "--context-length", "16000000")),
    (1, "--prompt-tokens", (KIMI, *card, "--context-length", "100", "--prompt-tokens", "101")),
    (1, "fp7", (KIMI, *card, "--kv-cache-dtype", "fp7")),
    (1, "layer", (KIMI, *card, "--kv-bf16-layers", "61")),
    (1, "no-such", ("no-such.json", *card)),
):
    code, out, err = run("plan", *options)
    assert code == code_wanted and out == "" and word in err and err.count("\n") == 1, (options, code, out, err)
print("ok")
