#!/usr/bin/env python3
"""TERN_ISA forces a kernel level: the named level is the one that runs, its logits match PyTorch's, and a name that
can't be obeyed is an error.

usage: forced_isa.py TERN
"""
import json, os, pathlib, subprocess, sys

TERN = sys.argv[1]
GOLDEN = pathlib.Path(__file__).resolve().parent / "data/golden"


def run(isa, *args):
    env = {**os.environ, "TERN_ISA": isa}
    return subprocess.run([TERN, *args], env=env, capture_output=True, text=True)


failed = 0


def expect(what, condition, detail=""):
    global failed
    print("ok  " if condition else "FAIL", what, detail)
    failed += not condition


best = run("", "--isa").stdout
levels = best.split(": ")[1].rstrip(")\n").split(", ")
expect("the best level is the default", best.split()[0] == levels[0], best.strip())
expect("every machine runs these", {"ref", "generic"} <= set(levels))
for level in levels:
    expect(f"{level} runs when named", run(level, "--isa").stdout.split()[0] == level)
    for model in ("llama", "llama-rope3-tied", "qwen3"):
        folder = GOLDEN / model
        result = run(level, "parity", "--model", folder, "--golden", folder / "golden.safetensors", "--precision", "reference", "--greedy")
        report = json.loads(result.stdout) if result.returncode == 0 else {}
        expect(f"{level}: logits of {model}", report.get("max_abs_diff", 1) <= 2e-3 and report.get("greedy_equal") == report.get("greedy_checked"), result.stdout.strip())
for name in ("mmx", "AVX2", "avx2 ", *({"avx2", "avx512"} - set(levels))):
    result = run(name, "--isa")
    expect(f"'{name}' is refused, listing what could run", result.returncode == 1 and levels[0] in result.stderr, result.stderr.strip())
sys.exit(1 if failed else 0)
