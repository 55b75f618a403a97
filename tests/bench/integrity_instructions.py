#!/usr/bin/env python3
"""Instructions of KV integrity, counted by callgrind, as a share of the least that a step of MODEL takes.

usage: integrity_instructions.py TERN MODEL [--shape LAYERS,KV_HEADS,HEAD_DIM] [--counters VERIFIED,SWEPT] [--batch 32]
                                 [--prefix-tokens 2048] [--answer-tokens 64] [--steps 64] [--json FILE]      needs: valgrind

valgrind computes fused multiply-adds in software, a microsecond or more each: no model of any use runs under it. So:
* what integrity executes is counted in `tern bench integrity` with made-up models that have MODEL's KV rows (--shape, by
  default SmolLM2's) and else next to nothing, at the kernels of level generic. Integrity's code is the same at every level
  and depends on pages and rows alone: one layer is counted as asked for, and what each further layer adds, which does not
  depend on the context, at a prefix of one page.
* what a step takes at least is MODEL's products, counted by `tern bench model` at the same batch and the mean context, over
  those of the level's widest instruction. Loads, norms, the sampler and all else that a real step executes are left out:
  real shares are smaller. Integrity's own count is that of AVX2 hashing, more than AVX-512's.
Two figures of each mode: by functions, what integrity's functions and all that they call execute; and against off, the
difference of whole steps. The engines of all modes compute the same tokens, so nothing else differs in them.
What depends on time is apart, for time goes otherwise under valgrind: verifying a page that is shared, and the sweep. Both are
instructions per row that is hashed times the rows of full pages, as many a step as --counters says (pages reused and swept
that `tern bench integrity` prints of MODEL). The choice
of a page to sweep, which costs the same however many there are, is left out.
"""
import argparse, collections, json, os, pathlib, re, subprocess, sys, tempfile

STEP, STATS = "tern::EngineCore::Step()", "tern::EngineCore::Stats() const"
GUARD, CACHE, SEALS = "tern::IntegrityGuard::", "tern::KvCache::", "tern::SealTable::"
# Integrity's work by when it is done: the functions that are entered, and from where.
PARTS = {
    "before the pass": [(STEP, GUARD + "BeforePass")],
    "after the pass": [(STEP, GUARD + "AfterPass")],
    "pages shared": [("tern::RadixCache::", CACHE + "MatchVerifier::Judge"), (CACHE + "MatchPrefix", "tern::Hash64")],
    "pages tagged": [("tern::PagePool::", "tern::PagePool::Retag")],
    "requests ended": [("tern::EngineCore::", GUARD + "NoteFinished")],
}
VERIFY = [(CACHE + "MatchVerifier::Judge", SEALS + "Matches"), (CACHE + "VerifySeal", SEALS + "Matches")]
SWEEP = [(STEP, GUARD + "AfterStep")]
ROWS, HASHES = [("", "tern::SealRows")], [("tern::SealRows", "tern::Hash64"), ("tern::RowHash", "tern::Hash64")]
MODES = ("off", "tags", "sealed")
PAGE_TOKENS = 64  # --page-size's default
OWN_TOKENS = 32
MORE_LAYERS = 2
ALL, ROW = "all", "a row"
# Operations, two a product, of the widest instruction. AVX2 has no BF16 products: they are float32's.
PER_INSTRUCTION = {"avx512": {"int8": 128, "bf16": 64, "f32": 32}, "avx2": {"int8": 64, "bf16": 16, "f32": 16}}


class Profile:
    """One dump of callgrind: calls and inclusive instructions of each pair of caller and callee."""

    def __init__(self, path):
        self.calls, self.cost, self.self_cost = collections.Counter(), collections.Counter(), collections.Counter()
        names, caller, callee, count = {}, None, None, None

        def name(text):
            number, _, rest = text.partition(" ")
            return names.setdefault(number, rest)

        for line in path.read_text().splitlines():
            if line.startswith("fn="): caller = name(line[3:])
            elif line.startswith("cfn="): callee = name(line[4:])
            elif line.startswith("calls="): count = int(line[6:].split()[0])
            elif re.match(r"[+*0-9-]", line):
                cost = int(line.split()[1]) if " " in line else 0
                if count is None:
                    self.self_cost[caller] += cost
                else:
                    self.calls[caller, callee] += count
                    self.cost[caller, callee] += cost
                    count = None

    def sum(self, counts, pairs):
        return sum(n for (caller, callee), n in counts.items() if any(caller.startswith(a) and callee.startswith(b) for a, b in pairs))

    def steps(self):
        return sum(n for (_, callee), n in self.calls.items() if callee.startswith(STEP))

    def total(self):
        return sum(self.self_cost.values())


def run(command, isa=None):
    env = {**os.environ, **({"TERN_ISA": isa} if isa else {})}
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        done = subprocess.run([*command, "--json", out.name], env=env, capture_output=True, text=True)
        if done.returncode != 0: sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
        return json.load(open(out.name))


def count(args, prefix_tokens, layers, kv_heads, head_dim):
    """Counts of one slice, by mode, each in a run of its own, of a model that has such rows and little else."""
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": layers,
              "num_attention_heads": kv_heads, "num_key_value_heads": kv_heads, "head_dim": head_dim, "vocab_size": 256,
              "max_position_embeddings": 1 << 16, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": True, "hidden_act": "silu"}
    with tempfile.TemporaryDirectory() as folder:
        base = pathlib.Path(folder)
        (base / "config.json").write_text(json.dumps(config))
        def count_of(mode):
            # Stats() is called before and after the slice, and nowhere else: the second dump is the slice's.
            run(["valgrind", "--tool=callgrind", f"--callgrind-out-file={base}/{mode}", "--collect-atstart=no", "--dump-line=no",
                 f"--toggle-collect={STEP}", f"--dump-before={STATS}", args.tern, "bench", "integrity", "--mode", mode, "--model-path", folder,
                 "--load-format", "dummy", "--threads", "1", "--batch", str(args.batch), "--prefix-tokens", str(prefix_tokens), "--own-tokens",
                 str(OWN_TOKENS), "--answer-tokens", str(args.answer_tokens), "--slices", "1", "--slice-steps", str(args.steps)], "generic")
            return figures(Profile(base / f"{mode}.2"))

        return {mode: count_of(mode) for mode in MODES}


def figures(profile):
    """Instructions a step: of all without what depends on time, of each part, and of one row that is hashed."""
    cost = lambda pairs: profile.sum(profile.cost, pairs) / profile.steps()
    parts = {part: cost(pairs) for part, pairs in PARTS.items()}
    parts["pages shared"] -= cost(VERIFY)
    hashes = profile.sum(profile.calls, HASHES)
    return {**parts, ALL: profile.total() / profile.steps() - cost(SWEEP) - cost(VERIFY),
            ROW: profile.sum(profile.cost, ROWS) / hashes if hashes else 0}


def least_step(args):
    """The least instructions of a step of MODEL at each level, by its products; what was counted."""
    context = args.prefix_tokens // 2 + OWN_TOKENS + args.answer_tokens // 2
    got = run([args.tern, "bench", "model", "--model-path", args.model, "--prefill", "", "--decode", f"{args.batch}@{context}", "--decode-tokens", "2",
               "--repetitions", "1", "--activation-dtype", "int8"])["results"][0]
    counted = {name: got[f"{name}_ops"] / got["tokens"] for name in ("int8", "bf16", "f32")}
    counted["int8"] *= 1 + OWN_TOKENS / args.answer_tokens  # the rows of new prompts: products of weights, at that
    text = f"{args.batch} at {context} and {OWN_TOKENS / args.answer_tokens * args.batch:g} rows of prompts: " + ", ".join(
        f"{operations / 1e9:.2f} G {name}" for name, operations in counted.items()) + " operations"
    return {level: sum(counted[name] / wide[name] for name in wide) for level, wide in PER_INSTRUCTION.items()}, text


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tern")
    parser.add_argument("model")
    parser.add_argument("--shape", default="30,3,64")
    parser.add_argument("--counters", default="0.5,0.5")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--prefix-tokens", type=int, default=2048)
    parser.add_argument("--answer-tokens", type=int, default=64)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--json")
    args = parser.parse_args()
    layers, kv_heads, head_dim = map(int, args.shape.split(","))

    least, how = least_step(args)
    print(f"a step of {how}, at least " + " or ".join(f"{n:,.0f} instructions of {level}" for level, n in least.items()), flush=True)
    counted = [count(args, prefix, n, kv_heads, head_dim) for prefix, n in ((args.prefix_tokens, 1), (PAGE_TOKENS, 1), (PAGE_TOKENS, 1 + MORE_LAYERS))]
    report(args, least, counted, layers)


def report(args, least, counted, layers):
    verified, swept = map(float, args.counters.split(","))
    results = {}
    for mode in MODES:
        one, few, more = (c[mode] for c in counted)
        at = {k: one[k] + (more[k] - few[k]) * (layers - 1) / MORE_LAYERS for k in one if k != ROW}
        result = {part: at[part] for part in PARTS}
        if mode == "sealed":
            if not one[ROW]: sys.exit("no row was hashed: has a function been renamed?")
            page = one[ROW] * PAGE_TOKENS * layers
            result.update({"verified pages": page * verified, "swept pages": page * swept})
        by_functions = sum(result.values())
        against_off = at[ALL] - results["off"][ALL] + sum(result[k] for k in result if k not in PARTS) if results else 0
        results[mode] = {**result, ALL: at[ALL], "by functions": by_functions, "against off": against_off}
        shares = lambda n: f"{n:,.0f} (" + ", ".join(f"{n / step:.3%} of {level}" for level, step in least.items()) + ")"
        print(f"{mode}: by functions {shares(by_functions)}, against off {shares(against_off)}")
        for part, cost in result.items(): print(f"  {part:<16} {cost:>10,.0f}")
    for part in PARTS:
        if not any(r[part] for r in results.values()): sys.exit(f"no call belongs to '{part}': has a function been renamed?")
    if args.json: pathlib.Path(args.json).write_text(json.dumps({"least_step": least, "results": results}, indent=1))


if __name__ == "__main__": main()
