#!/usr/bin/env python3
"""How far SmolLM2's Q4_0 file is from the Q4_1 file's values, as tern computes it with INT8 activations and as
llama.cpp does: KL divergence over the same text in windows of 512 tokens, to float32 products of Q4_1's values.
llama.cpp counts the second half of each window, tern all of it; so each program's figure is also given over what
it finds for Q4_0's values in float32, which leaves what its own rounding adds.
usage: tests/bench/peer_kl.py TERN    (needs scripts/peers.sh --models)"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PEERS = ROOT / ".cache/peers"
BIN = PEERS / "native/bin"
Q4_1 = ROOT / ".cache/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
Q4_0 = PEERS / "SmolLM2-135M-Instruct.Q4_0.gguf"
TEXT = ROOT / "tests/data/smollm2/docs_text.txt"


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{command[0]} failed:\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}")
    return done.stdout + done.stderr


def tern(program, directory, *options):
    result = directory / "tern.json"
    run(program, "eval", "--model-path", Q4_0, "--perplexity", TEXT, "--window", 512, "--kl-against", Q4_1,
        "--kl-precision", "reference", "--kl-activation-dtype", "auto", "--json", result, *options)
    return json.loads(result.read_text())["kl"]["mean"]["value"]


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        values = {}
        for kind, path in (("q4_1", Q4_1), ("q4_0", Q4_0)):
            values[kind] = directory / f"{kind}.f32.gguf"
            run(BIN / "llama-quantize", "--allow-requantize", path, values[kind], "F32")
        base = directory / "q4_1.logits"
        text = ("-f", TEXT, "-c", 512, "-t", 2, "--kl-divergence-base", base)
        run(BIN / "llama-perplexity", "-m", values["q4_1"], *text)

        def peer(path):
            out = run(BIN / "llama-perplexity", "-m", path, *text, "--kl-divergence")
            found = re.search(r"Mean +KLD: +([\d.eE+-]+)", out)
            return float(found.group(1)) if found else sys.exit("no mean KLD in:\n" + out[-1500:])

        rows = [("llama.cpp", peer(values["q4_0"]), peer(Q4_0)),
                ("tern", tern(program, directory, "--precision", "reference"),
                 tern(program, directory, "--activation-dtype", "int8"))]
    print("program    KL of Q4_0's values  as it serves them  ratio")
    for row_name, exact, served in rows:
        print(f"{row_name:9}  {exact:19.5f}  {served:17.5f}  {served / exact:5.3f}")


if __name__ == "__main__":
    main()
