"""`tern parity` over every folder of tests/data/golden and every setting that must not matter.

usage: parity_grid.py TERN [ISA]

Reference precision: max_abs_diff <= 2e-3 and greedy equality up to the first margin under 0.005, for chunks of 1, 7, 64 and the whole,
decode from 0, from half and not at all, pages of 16 and 64 tokens. Production precision: median KL at most 2e-3, which its mean over positions
cannot show, so models/parity_test.cc checks that.
"""
import json, os, pathlib, struct, subprocess, sys

TERN = sys.argv[1]
ENV = dict(os.environ, TERN_ISA=sys.argv[2]) if len(sys.argv) > 2 else None
ROOT = pathlib.Path("tests/data/golden")


def prompt_length(path):
    data = path.read_bytes()
    header = json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])
    return header["prompt"]["shape"][0]


def settings(length):
    for page in (16, 64):
        for chunk in (1, 7, 64, length): yield page, chunk, length
        for decode_from in (0, length // 2): yield page, 64, decode_from


if ENV and subprocess.run([TERN, "--isa"], env=ENV, capture_output=True).returncode != 0:
    print("skipped: this machine cannot run", sys.argv[2])
    sys.exit(77)
failures = runs = 0
for folder in sorted(p for p in ROOT.iterdir() if p.is_dir()):
    golden = folder / "golden.safetensors"
    for page, chunk, decode_from in settings(prompt_length(golden)):
        command = [TERN, "parity", "--model", folder, "--golden", golden, "--precision", "reference", "--greedy", "--page-size", str(page),
                   "--chunk", str(chunk), "--decode-from", str(decode_from)]
        done = subprocess.run(command, capture_output=True, text=True, env=ENV)
        runs += 1
        report = json.loads(done.stdout) if done.returncode == 0 else {}
        margin = report.get("first_mismatch_margin")
        if done.returncode == 0 and report["max_abs_diff"] <= 2e-3 and (margin is None or margin < 0.005): continue
        failures += 1
        print(folder.name, "page", page, "chunk", chunk, "decode from", decode_from, done.stderr.strip() or report)
print(f"{runs} runs, {failures} failures")
sys.exit(1 if failures or runs == 0 else 0)
