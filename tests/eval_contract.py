"""Figures, files and errors of `tern eval` on the trained model, against transformers' run of it.

usage: eval_contract.py TERN
"""
import json, os, re, shutil, struct, subprocess, sys, tempfile, time

TERN = sys.argv[1]
MODEL = "tests/data/tiny/model"
TEXT = "tests/data/tiny/perplexity_dev.txt"
TASKS = "tests/data/tiny/tasks_dev.jsonl"
REFERENCE = json.load(open("tests/data/tiny/reference.json"))
OTHER = "tests/data/golden/llama"  # another vocabulary
folder = tempfile.TemporaryDirectory()


def path(name): return os.path.join(folder.name, name)


def run(*options, code=0):
    done = subprocess.run([TERN, "eval", *options], capture_output=True, text=True)
    assert done.returncode == code, (options, done.returncode, done.stdout, done.stderr)
    return done.stdout, done.stderr


def write(name, text, mode="w"):
    with open(path(name), mode) as file: file.write(text)
    return path(name)


def fails(*options, says, code=1):
    _, err = run(*options, code=code)
    last = err.strip().splitlines()[-1]
    assert last.startswith("tern eval: ") and all(s in last for s in ([says] if isinstance(says, str) else says)), err


# Accuracy and perplexity are those of transformers, in float32. tasks_dev has ids whose greedy answers hang on margins below
# what float32 can hold; none of them is near enough to change a count.
base = path("base.json")
out, err = run("--model-path", MODEL, "--precision", "reference", "--perplexity", TEXT, "--tasks", TASKS, "--json", base,
               "--plot", path("base.svg"))
result = json.load(open(base))
assert result["complete"] and not os.path.exists(base + ".partial")
kinds = result["tasks"]["kinds"]
assert {k: round(v["accuracy"], 4) for k, v in kinds.items()} == REFERENCE["accuracy"], kinds
perplexity = result["perplexity"]
assert perplexity["tokens"] == REFERENCE["perplexity"]["tokens"] and perplexity["bos"] == "[BOS]", perplexity["tokens"]
assert abs(perplexity["value"] / REFERENCE["perplexity"]["value"] - 1) < 1e-4, perplexity["value"]
low, high = perplexity["interval"]
assert low < perplexity["value"] < high
assert "accuracy add, %" in out and "93.0" in out, out
svg = open(path("base.svg")).read()
assert svg.startswith("<svg") and "<script" not in svg and "Task accuracy" in svg

# As served, against that: the same items one by one, KL from the reference's logits in the same pass.
out, err = run("--model-path", MODEL, "--perplexity", TEXT, "--kl-against", MODEL, "--kl-precision", "reference",
               "--tasks", TASKS, "--baseline", base, "--json", path("production.json"))
result = json.load(open(path("production.json")))
comparison = result["comparison"]
assert comparison["verdict"] == "undecided", comparison["why"]  # 200 items of add can't show 1 point
assert [k for k, v in comparison["kinds"].items() if v["counts"]] == ["add"], comparison["kinds"]
assert comparison["counted"]["items"] == 200 and comparison["all"]["items"] == 1500
assert 0 < result["kl"]["mean"]["value"] < 1e-3 and result["kl"]["median"]["value"] < 1e-4, result["kl"]["mean"]
assert result["kl"]["mean"]["interval"][0] > 0 and result["kl"]["top1_agreement"]["value"] > 0.99
assert abs(result["kl"]["perplexity"]["value"] / REFERENCE["perplexity"]["value"] - 1) < 1e-4
assert "smallest difference that this could have seen: " in out and out.strip().splitlines()[-1].startswith("verdict: undecided"), out

# A model against itself is the same everywhere; kinds that say nothing give no verdict.
easy = write("easy.jsonl", "".join(l for l in open(TASKS) if json.loads(l)["task"] in ("count", "think")))
short = write("short.txt", open(TEXT).read()[:20000])
one = path("one.json")
run("--model-path", MODEL, "--tasks", easy, "--perplexity", short, "--json", one)
out, _ = run("--model-path", MODEL, "--tasks", easy, "--perplexity", short, "--kl-against", MODEL, "--baseline", one,
             "--json", path("two.json"))
two = json.load(open(path("two.json")))
assert two["comparison"]["verdict"] == "no verdict" and "no task kind counts" in two["comparison"]["why"]
assert two["comparison"]["same_answers"] == 300 and two["comparison"]["perplexity"]["ratio"] == 1
assert two["kl"]["max"]["value"] == 0 and two["kl"]["top1_agreement"]["value"] == 1
assert two["perplexity"]["blocks"] == json.load(open(one))["perplexity"]["blocks"]

# The generator repeats itself exactly and makes no item twice; what it declares is what tasks_dev declares.
made = [subprocess.run([sys.executable, "tests/tasks/make_tasks.py", "--items", "3000", "--kinds", "tool*0.2,add,first,count"],
                       capture_output=True, text=True, check=True).stdout for _ in range(2)]
assert made[0] == made[1]
items = [json.loads(line) for line in made[0].splitlines()]
assert len({json.dumps([i["messages"], i.get("tools")]) for i in items}) == len(items) == 3000
declared = lambda items: {json.dumps(t) for i in items for t in i.get("tools", [])}
assert declared(items) == declared(map(json.loads, open(TASKS))), declared(items)
sums = [i for i in items if i["task"] == "add"]
assert 600 < len(sums) <= 672, len(sums)  # all that there are: 21 * 21 sums and 231 differences

# Two engines: of a model with one form for all rows, and one row format, a hand-off changes nothing.
bytewise = shutil.copytree(OTHER, path("bytewise"))  # with a tokenizer whose tokens are the bytes
tokenizer = json.load(open(MODEL + "/tokenizer.json"))
letters = sorted(token for token in tokenizer["model"]["vocab"] if len(token) == 1)
assert len(letters) == 256
tokenizer["model"].update(vocab={letter: i for i, letter in enumerate(letters)}, merges=[])
tokenizer["added_tokens"] = []
json.dump(tokenizer, open(bytewise + "/tokenizer.json", "w"))
one_engine, two_engines = path("one_engine.json"), path("two_engines.json")
bytewise_run = ("--model-path", bytewise, "--perplexity", short, "--window", "64", "--kv-cache-dtype", "bf16")
run(*bytewise_run, "--json", one_engine)
run(*bytewise_run, "--json", two_engines, "--disaggregation-mode", "local")
assert json.load(open(two_engines))["perplexity"]["blocks"] == json.load(open(one_engine))["perplexity"]["blocks"]
settings = json.load(open(two_engines))["settings"]  # as serve: the weights are held once
assert settings["prefill_shared_weight_bytes"] == settings["prefill_weight_bytes"] > 0, settings
# Of one window, the first half is prefill's alone; the rest is neither's alone.
fp8 = path("fp8")
subprocess.run([TERN, "quantize", "--model-path", MODEL, "--output", fp8, "--format", "fp8", "--recipe", "all-linear"],
               check=True, capture_output=True)
window = write("window.txt", open(TEXT).read()[:900])
pair = ("--model-path", MODEL, "--disaggregation-mode", "local", "--prefill-model-path", fp8, "--kv-cache-dtype", "fp8_ds_mla")
blocks = []
for options in (("--model-path", fp8), ("--model-path", MODEL), pair):
    run(*options, "--perplexity", window, "--json", path("window.json"))
    blocks.append(json.load(open(path("window.json")))["perplexity"]["blocks"])
settings = json.load(open(path("window.json")))["settings"]
assert (settings["prefill_model"], settings["prefill_kv_cache_dtype"]) == (fp8, "bf16") and settings["kv_cache_dtype"] == "fp8_ds_mla"
assert 0 < settings["prefill_shared_weight_bytes"] < settings["prefill_weight_bytes"], settings  # what is not FP8
tokens = sum(weight for _, weight in blocks[2])
assert 64 <= tokens <= 511, tokens
size = blocks[2][0][1]
own = int((tokens + 1) // 2 // size)  # whole blocks of the prompt
assert own >= 2 and blocks[2][:own] == blocks[0][:own] != blocks[1][:own]
assert all(blocks[2][i] not in (blocks[0][i], blocks[1][i]) for i in range(own + 1, len(blocks[2])))
fails(*pair[:2], *pair[4:], "--tasks", TASKS, says="needs --disaggregation-mode local", code=2)
fails("--url", "http://127.0.0.1:1", "--disaggregation-mode", "local", "--tasks", TASKS, says="no --url", code=2)
fails("--model-path", MODEL, "--disaggregation-mode", "local", "--prefill-model-path", bytewise, "--perplexity", window,
      says="is not the model of --model-path")

# A server: the same answers; one that goes away; what was answered is not asked again.
def serve(*options):
    server = subprocess.Popen([TERN, "serve", *(options or ("--model-path", MODEL)), "--port", "0"], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)
    for line in server.stderr:
        found = re.search(r"listening on (http://\S+)", line)
        if found: return server, found.group(1)
    raise AssertionError("the server did not start")


mixed = write("mixed.jsonl", "".join(l for i, l in enumerate(open(TASKS)) if i % 5 == 0 and json.loads(l)["task"] != "recall90"))
offline = path("offline.json")
run("--model-path", MODEL, "--tasks", mixed, "--json", offline)
run(*pair, "--tasks", mixed, "--json", path("pair.json"))
server, url = serve(*pair)
try:
    run("--url", url, "--tasks", mixed, "--json", path("pair_online.json"), "--baseline", path("pair.json"))
    together = json.load(open(path("pair_online.json")))
    plain = [l for l in open(mixed) if json.loads(l)["task"] not in ("think", "tool")]  # a server takes these apart
    assert together["comparison"]["same_answers"] == len(plain), together["comparison"]
    assert together["comparison"]["all"]["gained"] == together["comparison"]["all"]["lost"] == 0
finally:
    server.kill()
    server.wait()
server, url = serve()
try:
    out, _ = run("--url", url, "--tasks", mixed, "--json", path("online.json"), "--baseline", offline)
    online = json.load(open(path("online.json")))
    assert online["tasks"]["kinds"] == json.load(open(offline))["tasks"]["kinds"], online["tasks"]["kinds"]
    short_prompts = [l for l in open(TASKS) if json.loads(l)["task"] not in ("recall30", "recall90")]
    many, wanted = write("many.jsonl", "".join(short_prompts)), len(short_prompts)
    kept = path("kept.json")
    client = subprocess.Popen([TERN, "eval", "--url", url, "--tasks", many, "--json", kept, "--tries", "1"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if os.path.exists(kept + ".partial") and open(kept + ".partial").read().count("\n") > 100: break
        time.sleep(0.01)
finally:
    server.kill()
    server.wait()
out, err = client.communicate(timeout=60)
assert client.returncode == 1 and not os.path.exists(kept), err
assert "go on with --resume" in err and url in err and "tasks_dev" not in err and "many.jsonl: line " in err, err
assert out.startswith("not complete: "), out
there = open(kept + ".partial").read().count("\n") - 1
assert 100 <= there < wanted, there
fails("--url", url, "--tasks", many, "--json", kept, says="--resume")
fails("--url", url, "--tasks", many, "--json", kept, "--resume", "--max-new-tokens", "32", says="another run")
fails("--url", url, "--tasks", many, "--json", kept, "--resume", "--tries", "1", says=["Connection refused", f"{there} of {wanted}"])
server, url = serve()  # at another port
try:
    out, err = run("--url", url, "--tasks", many, "--json", kept, "--resume")
finally:
    server.kill()
    server.wait()
assert f"{there} of {wanted} answers are there already" in err and not os.path.exists(kept + ".partial"), err
assert json.load(open(kept))["tasks"]["answered"] == wanted - there
expected = {k: v for k, v in result["tasks"]["kinds"].items() if k not in ("recall30", "recall90")}
assert json.load(open(kept))["tasks"]["kinds"] == expected
# The same for a run in this process that is killed.
killed = path("killed.json")
client = subprocess.Popen([TERN, "eval", "--model-path", MODEL, "--tasks", many, "--json", killed], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE)
while not (os.path.exists(killed + ".partial") and open(killed + ".partial").read().count("\n") > 100): time.sleep(0.01)
client.kill()
client.communicate()
out, err = run("--model-path", MODEL, "--tasks", many, "--json", killed, "--resume")
assert "answers are there already" in err and not os.path.exists(killed + ".partial"), err
assert json.load(open(killed))["tasks"]["kinds"] == expected

# What can't be done says why, in one sentence.
fails(says="nothing to do", code=2)
fails("--tasks", easy, says="--model-path and --url", code=2)
fails("--url", "http://127.0.0.1:1", "--perplexity", TEXT, says="servers give no logits", code=2)
fails("--model-path", MODEL, "--tasks", easy, "--kl-against", MODEL, says="--kl-against", code=2)
fails("--model-path", MODEL, "--perplexity", TEXT, "--window", "1", says="--window", code=2)
fails("--url", "http://127.0.0.1:1", "--tasks", easy, "--tries", "1", says=["127.0.0.1:1", "refused"])
fails("--url", "nonsense", "--tasks", easy, says="nonsense")
fails("--model-path", MODEL, "--perplexity", write("empty.txt", ""), says="empty.txt is empty")
fails("--model-path", MODEL, "--perplexity", write("few.txt", "In the beginning"), says=["few.txt", "too short"])
fails("--model-path", MODEL, "--perplexity", path("none.txt"), says="none.txt")
fails("--model-path", MODEL, "--perplexity", TEXT, "--window", "5000", says=["5000", "context"])
fails("--model-path", MODEL, "--perplexity", TEXT, "--bos", "two tokens", says="--bos")
fails("--model-path", MODEL, "--perplexity", TEXT, "--kl-against", OTHER, says="tokenizer")
fails("--model-path", MODEL, "--tasks", write("bad.jsonl", open(easy).readline() + "{\"id\": 1\n"), says="bad.jsonl: line 2")
fails("--model-path", MODEL, "--tasks", write("lacks.jsonl", "{\"id\": 1}\n"), says="lacks.jsonl: line 1: messages is missing")
long_item = {"messages": [{"role": "user", "content": "word " * 5000}], "expect": "x"}
fails("--model-path", MODEL, "--tasks", write("long.jsonl", open(easy).readline() + json.dumps(long_item) + "\n"),
      says="long.jsonl: line 2")
fails("--model-path", MODEL, "--tasks", easy, "--baseline", base, says=["base.json", "other items"])
fails("--model-path", MODEL, "--perplexity", short, "--baseline", base, says=["base.json", "another text"])
fails("--model-path", MODEL, "--tasks", easy, "--baseline", write("not.json", "{}"), says="no result of tern eval")
fails("--model-path", MODEL, "--tasks", easy, "--json", path("no/where.json"), says="no folder")
fails("--model-path", MODEL, "--tasks", easy, "--limit", "5", "--plot", "/dev/full", says="No space left")
fails("--model-path", MODEL, "--tasks", easy, "--limit", "5", "--json", "/dev/full", says="No space left")

# A weight that is no number: an error, not an average over what is left.
broken = path("broken")
shutil.copytree(MODEL, broken)
weights = bytearray(open(MODEL + "/model.safetensors", "rb").read())
size = struct.unpack_from("<Q", weights)[0]
at = 8 + size + json.loads(weights[8:8 + size])["lm_head.weight"]["data_offsets"][0]
weights[at:at + 2] = b"\xc0\x7f"
write("broken/model.safetensors", weights, "wb")
fails("--model-path", broken, "--perplexity", short, says=["broken", "token 0 of window 0", "not finite"])
fails("--model-path", broken, "--tasks", easy, says=["easy.jsonl: line ", "finite"])
print("eval contract holds")
