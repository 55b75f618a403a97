"""What `tern inspect` prints about published models, as JSON and as a table.

usage: inspect_contract.py TERN
"""
import json, subprocess, sys

TERN = sys.argv[1]
GIB = 1 << 30


def run(*options):
    done = subprocess.run([TERN, "inspect", *options], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def report(*options):
    code, out, err = run(*options, "--json")
    assert code == 0 and err == "", (options, err)
    return json.loads(out)


def near(value, expected):
    assert abs(value / expected - 1) < 0.005, (value, expected)


def check_published(name, gib, *options):
    got = report(f"tests/data/configs/{name}", "--tp", "8", *options)
    near(got["total"]["gib"], gib)
    near(got["total"]["bytes_per_rank"] / GIB, gib / 8)
    assert sum(t["bytes"] for t in got["tensors"]) == got["total"]["bytes"]
    assert sum(t["parameters"] for t in got["tensors"]) == got["total"]["parameters"]
    code, table, _ = run(f"tests/data/configs/{name}", "--tp", "8", *options)
    total = next(line for line in table.splitlines() if line.split()[:1] == ["total"])
    assert code == 0 and str(got["total"]["bytes"]) in total, total
    assert str(got["replicated_bytes"]) in table.splitlines()[-1], table
    return got


fp8 = check_published("glm-5.2-fp8.json", 703.72)
assert fp8["total"]["bytes"] == 755617140416 and fp8["total"]["count"] == 118629, fp8["total"]
near(fp8["next_token"]["gib"], 9.34)
experts = next(t for t in fp8["tensors"] if t["kind"] == "expert")
near(experts["parameters"], (724.776 + 9.664) * 1e9)
check_published("glm-5.2.json", 419.94, "--recipe", "kimi")
check_published("glm-5.2.json", 703.72, "--recipe", "fp8")
check_published("kimi-k2.6.json", 554.27)

# A checkpoint counts the same parameters as its config, in its own formats. (The config of kimi-k25-int4 announces a next-token layer that its
# files don't have.)
for name in ("kimi-k25-int4", "glm5-dsa-fp8-sharded-mtp"):
    files, config = report(f"tests/data/golden/{name}"), report(f"tests/data/golden/{name}", "--recipe", "config")
    main = lambda r: r["total"]["parameters"] - r["next_token"]["parameters"]
    other = sum(t["parameters"] for t in files["tensors"] if t["kind"] == "other")
    assert main(files) - other == main(config), (name, files, config)
    assert files["format"] == "safetensors" and config["format"] == "config"
    formats = lambda r: {(t["kind"], t["format"]) for t in r["tensors"] if t["kind"] not in ("other", "next_token")}
    assert formats(files) - {("indexer", "FP8 128x128")} <= formats(config), (formats(files), formats(config))

code, out, err = run("tests/data/golden/kimi-k2/model.safetensors", "--recipe", "bf16")
assert code == 2 and out == "" and "--recipe" in err, err
code, out, err = run("tests/data/configs/glm-5.2.json", "--recipe", "int3")
assert code == 2 and "--recipe" in err, err
print("inspect: contract holds")
