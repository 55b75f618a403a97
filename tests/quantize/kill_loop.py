"""kill -9 at random points: whatever the moment, going on gives the bytes of an undisturbed run.

usage: kill_loop.py TERN [--rounds N] [--layers N] [--seed S] [--format int4|fp8]

Every round starts from an empty folder and kills until the work is done. After each kill, a file under its final name
must be whole and right, and config.json may be there only if everything is.
"""
import argparse
import filecmp
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import make_checkpoint  # noqa: E402  (the file beside this one)

p = argparse.ArgumentParser()
p.add_argument("tern")
p.add_argument("--rounds", type=int, default=3)
p.add_argument("--layers", type=int, default=3)
p.add_argument("--seed", type=int, default=1)
p.add_argument("--format", default="int4")
a = p.parse_args()
rng = random.Random(a.seed)


def same(out, want):
    """Names in `out` that are final, all checked against the undisturbed result."""
    names = [os.path.relpath(os.path.join(d, f), out) for d, _, files in os.walk(out) for f in files]
    final = [n for n in names if not n.endswith(".part") and n != ".tern-quantize"]
    for name in final:
        assert filecmp.cmp(f"{out}/{name}", f"{want}/{name}", shallow=False), f"{name} differs"
    return sorted(final)


with tempfile.TemporaryDirectory() as root:
    source, want, out = root + "/in", root + "/want", root + "/out"
    make_checkpoint.make(source, a.layers, hidden=512, inner=256, experts=16, pool_numbers=1 << 20)
    command = [a.tern, "quantize", "--model-path", source, "--format", a.format, "--shard-size", "2MB", "--output"]
    begin = time.monotonic()
    subprocess.run([*command, want], check=True, capture_output=True)
    seconds = time.monotonic() - begin
    complete = same(want, want)
    kills = resumed = 0
    for round_ in range(a.rounds):
        shutil.rmtree(out, ignore_errors=True)
        while True:
            child = subprocess.Popen([*command, out], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            try:
                # Short lives at first, longer ones as needed: each run gets somewhere in the end.
                _, stderr = child.communicate(timeout=rng.uniform(0, seconds * 0.6))
            except subprocess.TimeoutExpired:
                child.kill()
                child.communicate()
                kills += 1
                final = same(out, want) if os.path.isdir(out) else []
                if "config.json" in final:
                    assert final == complete, (final, complete)
                continue
            assert child.returncode == 0, stderr
            resumed += "were there from an earlier run" in stderr
            break
        assert same(out, want) == complete
        assert sorted(os.listdir(out)) == sorted(os.listdir(want)), os.listdir(out)
    print(f"{kills} kills in {a.rounds} rounds, {resumed} rounds went on from finished files: every file the same")
    assert kills > 0

    # Another command, or an input that has changed, does not go on.
    shutil.rmtree(out)
    child = subprocess.Popen([*command, out], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not os.path.exists(out + "/.tern-quantize") and child.poll() is None:
        time.sleep(0.001)
    time.sleep(seconds * 0.3)
    child.kill()
    child.wait()
    if os.path.exists(out + "/.tern-quantize"):
        if a.format == "int4":
            done = subprocess.run([*command, out, "--method", "rtn"], capture_output=True, text=True)
            assert done.returncode == 1 and "belongs to another quantization" in done.stderr and "method" in done.stderr, done.stderr
        shard = next(f for f in sorted(os.listdir(source)) if f.endswith(".safetensors"))
        os.utime(f"{source}/{shard}", (1, 1))
        done = subprocess.run([*command, out], capture_output=True, text=True)
        assert done.returncode == 1 and "belongs to another quantization" in done.stderr and shard in done.stderr, done.stderr
        print("another command and a changed input are refused")
