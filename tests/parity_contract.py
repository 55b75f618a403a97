"""The numbers and exit codes of `tern parity`, against reference files whose differences are known.

usage: parity_contract.py TERN

Reference precision agrees with tests/data/golden/llama within 4e-5, so a copy of its golden file in
which chosen logits are moved by known amounts has known differences, quantiles and divergences.
"""
import json
import math
import os
import struct
import subprocess
import sys
import tempfile

TERN = sys.argv[1]
MODEL = "tests/data/golden/llama"
NOISE = 4e-5  # of the model itself


def load(path):
    data = open(path, "rb").read()
    size = struct.unpack_from("<Q", data)[0]
    tensors = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + x for x in entry["data_offsets"])
        code = {"I32": "i", "F32": "f"}[entry["dtype"]]
        values = list(struct.unpack_from(f"<{(end - begin) // 4}{code}", data, begin))
        tensors[name] = (entry["dtype"], entry["shape"], values)
    return tensors


def save(path, tensors):
    header, body = {}, b""
    for name, (dtype, shape, values) in tensors.items():
        raw = struct.pack(f"<{len(values)}{ {'I32': 'i', 'F32': 'f'}[dtype] }", *values)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    text = json.dumps(header).encode()
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + body)


def run(golden, *options, model=MODEL):
    done = subprocess.run([TERN, "parity", "--model", model, "--golden", golden, *options],
                          capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def report(golden, *options):
    code, out, err = run(golden, "--precision", "reference", *options)
    assert code == 0, (code, err)
    assert out.count("\n") == 1 and err == "", (out, err)
    return json.loads(out)


def near(value, expected, tolerance):
    assert abs(value - expected) <= tolerance, (value, expected)


def softmax(row):
    top = max(row)
    exps = [math.exp(x - top) for x in row]
    total = sum(exps)
    return [x / total for x in exps]


def kl(p_row, q_row):
    p, q = softmax(p_row), softmax(q_row)
    return sum(a * math.log(a / b) for a, b in zip(p, q))


def check_numbers(folder):
    golden = load(f"{MODEL}/golden.safetensors")
    length, vocab = golden["logits"][1]
    logits = golden["logits"][2]
    deltas, kls, flips = [], [], 0
    for t in range(length):
        row = logits[t * vocab:(t + 1) * vocab]
        delta = 0.01 * t if t % 2 else -0.01 * t  # position 0 stays; 0.01 is over 2e-3
        moved = list(row)
        top = row.index(max(row))
        moved[top] += delta
        if t >= length - 4:  # another token becomes the reference's first choice
            other = (top + 1) % vocab
            moved[other] = moved[top] + 5
            delta = moved[other] - row[other]
        flips += moved.index(max(moved)) != top
        deltas.append(abs(delta))
        kls.append(kl(moved, row))
        logits[t * vocab:(t + 1) * vocab] = moved
    path = f"{folder}/moved.safetensors"
    save(path, golden)
    got = report(path)
    quantile = lambda values, q: sorted(values)[math.ceil(q * len(values)) - 1]
    assert got["positions"] == length
    near(got["max_abs_diff"], max(deltas), NOISE)
    near(got["median_abs_diff"], quantile(deltas, 0.5), NOISE)
    near(got["p99_abs_diff"], quantile(deltas, 0.99), NOISE)
    assert got["positions_over"] == length - 1, got
    near(got["mean_kl"], sum(kls) / length, 1e-4)
    near(got["p99_kl"], quantile(kls, 0.99), 1e-3)
    near(got["top1_agreement"], (length - flips) / length, 1e-12)
    assert got["greedy_checked"] is got["greedy_equal"] is got["first_mismatch_margin"] is None, got


def check_greedy(folder):
    golden = load(f"{MODEL}/golden.safetensors")
    got = report(f"{MODEL}/golden.safetensors", "--greedy")
    steps = len(golden["greedy"][2])
    assert (got["greedy_checked"], got["greedy_equal"], got["first_mismatch_margin"]) == (steps, steps, None)
    golden["greedy"][2][5] = (golden["greedy"][2][5] + 1) % golden["logits"][1][1]
    golden["margin"][2][5] = 0.125
    save(f"{folder}/greedy.safetensors", golden)
    got = report(f"{folder}/greedy.safetensors", "--greedy")
    assert (got["greedy_checked"], got["greedy_equal"], got["first_mismatch_margin"]) == (6, 5, 0.125), got


def check_nothing_changes():
    golden = f"{MODEL}/golden.safetensors"
    expected = run(golden, "--precision", "reference", "--greedy")
    for options in (["--chunk", "1"], ["--chunk", "7"], ["--page-size", "16"], ["--decode-from", "0"],
                    ["--decode-from", "20", "--chunk", "3"], ["--threads", "1"], ["--kv-cache-dtype", "f32"]):
        assert run(golden, "--precision", "reference", "--greedy", *options) == expected, options


def check_exit_codes(folder):
    golden = load(f"{MODEL}/golden.safetensors")
    good = f"{MODEL}/golden.safetensors"

    def expect(code, what, path, *options, **kwargs):
        got, out, err = run(path, *options, **kwargs)
        assert got == code and out == "" and what in err and err.count("\n") == 1, (got, out, err)

    def broken(name, **tensors):
        path = f"{folder}/{name}.safetensors"
        save(path, {**golden, **tensors})
        return path

    dtype, shape, values = golden["logits"]
    expect(1, "not finite", broken("nan", logits=(dtype, shape, [math.nan] + values[1:])))
    expect(1, "vocabulary", broken("vocab", logits=(dtype, [shape[0], 128], values[:shape[0] * 128])))
    expect(1, "nothing to compare", broken("empty", logits=(dtype, [0, shape[1]], []), prompt=("I32", [0], [])))
    expect(1, "outside the vocabulary", broken("token", prompt=("I32", [shape[0]], [999] * shape[0])))
    expect(1, "'margin' must be F32", broken("dtype", margin=("I32", [16], [0] * 16)))
    expect(1, "fp8_ds_mla", good, "--kv-cache-dtype", "fp8_ds_mla")
    expect(1, "No such file", f"{folder}/absent")
    expect(1, "No such file", good, model=f"{folder}/absent")
    expect(2, "--precision", good, "--precision", "half")
    expect(2, "--chunk", good, "--chunk", "0")
    done = subprocess.run([TERN, "parity", "--model", MODEL], capture_output=True, text=True)
    assert done.returncode == 2 and "--golden is required" in done.stderr


with tempfile.TemporaryDirectory() as scratch:
    check_numbers(scratch)
    check_greedy(scratch)
    check_nothing_changes()
    check_exit_codes(scratch)
print("parity: contract holds")
