"""What `tern bench` prints and writes: JSON, tables, pictures, exit codes.

usage: bench_contract.py TERN
Figures are only checked for being there: nothing here depends on the machine's speed.
"""
import json, pathlib, subprocess, sys, tempfile
import xml.dom.minidom

TERN = sys.argv[1]
MODEL = ("--model-path", "tests/data/configs/bench-moe-6l.json", "--load-format", "dummy")
TINY = ("--model-path", "tests/data/golden/kimi-k2-int4")
LLAMA = ("--model-path", "tests/data/golden/llama")


def run(*args):
    done = subprocess.run([TERN, "bench", *args], capture_output=True, text=True, timeout=110)
    return done.returncode, done.stdout, done.stderr


def usage_error(*args, says):
    code, out, err = run(*args)
    assert code == 2 and out == "" and says in err, (args, code, out, err)


def failure(*args, says):
    code, out, err = run(*args)
    assert code == 1 and out == "" and says in err and err.count("\n") <= 2, (args, code, out, err)


PARTS = ("limits", "model", "kernels", "serve", "compare", "integrity", "step", "kv", "pd")
for part in PARTS:
    code, out, _ = run(part, "--help")
    assert code == 0 and "--json" in out and "--plot" in out, part
code, out, _ = run("--help")
assert code == 0 and all(part in out for part in PARTS)
usage_error(says="Usage")
usage_error("nothing", says="there is no part 'nothing'")

with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    code, out, err = run("limits", "--threads", "1", "--slices", "2", "--json", "-", "--plot", str(folder / "l.svg"))
    assert code == 0 and err == "", err
    limits = json.loads(out)
    assert limits["results"][0]["threads"] == 1 and limits["results"][0]["read_bytes_per_s"]["best"] > 0
    assert {"cpu", "isa", "threads", "load_average"} <= limits["machine"].keys()
    xml.dom.minidom.parse(str(folder / "l.svg"))

    # Every format by its name, in each result.
    code, out, err = run("model", *TINY, "--prefill", "3,20", "--decode", "2@17", "--decode-tokens", "3",
                         "--repetitions", "1", "--activation-dtypes", "auto,int8", "--kv-cache-dtypes", "bf16,fp8_tiled",
                         "--page-size", "8", "--threads", "2", "--json", str(folder / "m.json"),
                         "--plot", str(folder / "m.svg"))
    assert code == 0, err
    assert "decode 2 at 17" in out and "prefill 20" in out, out
    model = json.loads((folder / "m.json").read_text())
    assert len(model["results"]) == 3 * 2 * 2
    for result in model["results"]:
        assert "INT4 g32" in result["weight_format"] and result["threads"] == 2 and result["isa"], result
        assert result["tokens_per_s"] > 0 and 0 < result["limit"]["share"], result
    assert {r["kv_format"] for r in model["results"]} == {"bf16", "fp8_tiled"}
    assert len({r["activation_format"] for r in model["results"]}) == 2
    xml.dom.minidom.parse(str(folder / "m.svg"))
    assert all("operations" not in result for result in model["results"])

    # By operation: parts of a pass, whose counts are the whole's. Experts are chosen by random tokens: bytes differ.
    # Latent attention expands rows in prefill alone; the second model is dense.
    for tiny, experts, written in ((TINY, True, "copy"), (LLAMA, False, "KV write")):
        code, out, err = run("model", *tiny, "--prefill", "30", "--decode", "2@17", "--decode-tokens", "3", "--repetitions",
                             "2", "--chunked-prefill-size", "20", "--page-size", "8", "--operations", "--json",
                             str(folder / "o.json"), "--plot", str(folder / "o.svg"))
        assert code == 0 and "a pass of" in out and "embedding" in out, (out, err)
        for result, passes in zip(json.loads((folder / "o.json").read_text())["results"], (2, 3), strict=True):
            parts = result["operations"]
            names = {p["operation"] for p in parts}
            assert {"attention", "norm", "rope", "activation", "residual", "KV write", written} <= names, names
            assert ("expert routing" in names) == experts and any("product, M" in name for name in names), names
            assert abs(sum(p["share_of_pass"] for p in parts) - 1) < 1e-9
            assert abs(sum(p["ms"] for p in parts) - result["profiled_pass_ms"]) < 1e-6
            assert parts == sorted(parts, key=lambda p: -p["ms"])
            for key in ("f32_ops", "bf16_ops", "int8_ops", "bytes"):
                whole = sum(p[key] or 0 for p in parts) * passes
                assert abs(whole - result[key]) <= (0.2 if experts and key == "bytes" else 1e-9) * result[key], (key, parts)
            for part in parts:
                # Each has a time: the clock tells nanoseconds.
                assert part["ms"] > 0 and (part["limit"] is None) == (part["bytes"] is None), part
                if part["limit"]:
                    least_ms = 1e3 * max(part["limit"]["memory_s"], part["limit"]["arithmetic_s"])
                    assert abs(part["limit"]["share"] * part["ms"] - least_ms) < 1e-6, part
                    assert abs(part["bytes_per_s"] * part["ms"] / 1e3 - part["bytes"]) <= 1e-6 * part["bytes"], part
        svg = (folder / "o.svg").read_text()
        xml.dom.minidom.parseString(svg)
        assert "Roofline: prefill 30" in svg and "Roofline: decode 2 at 17" in svg and "attention, " in svg, svg

    # Shares of a step, for each way to sample; a prompt that comes twice.
    code, out, err = run("step", *TINY, "--batch", "4", "--steps", "6", "--repeated-prompt", "200", "--json", "-",
                         "--plot", str(folder / "s.svg"))
    assert code == 0, err
    step = json.loads(out)
    assert len(step["results"]) == 4 and step["results"][0]["sampling"] == "greedy", step
    for result in step["results"]:
        # Steps of this model may take less than a microsecond beside the pass and the sampler.
        assert 0 < result["sampler_share"] < 1 and 0 <= result["bookkeeping_share"] < 1, result
        assert abs(result["step_ms"] * 1e3 * 6 - result["forward_us"] - result["sample_us"] - result["bookkeeping_us"]) < 1
    assert step["repeated_prompt"]["tokens"] == 200 and step["repeated_prompt"]["share"] < 1, step
    xml.dom.minidom.parse(str(folder / "s.svg"))

    # Eight BF16 requests' memory holds sixteen in fp8_e4m3; both numbers are decoded.
    code, out, err = run("kv", *TINY, "--contexts", "100,300", "--formats", "bf16,fp8_e4m3,fp8_tiled", "--steps", "2",
                         "--turns", "2", "--json", str(folder / "kv.json"), "--plot", str(folder / "kv.svg"))
    assert code == 0 and "fp8_tiled" in out, err
    kv = json.loads((folder / "kv.json").read_text())["results"]
    assert [r["requests_that_fit"] for r in kv if r["kv_format"] == "bf16"] == [8, 8], kv
    assert {r["batch"] for r in kv if r["kv_format"] == "fp8_e4m3"} >= {8}, kv
    assert all(len(r["tokens_per_s_turns"]) == 2 and r["plan_ratio"] > 0 for r in kv), kv
    xml.dom.minidom.parse(str(folder / "kv.svg"))
    failure("kv", *TINY, "--contexts", "4k", says="--contexts '4k'")
    failure("kv", *TINY, "--formats", "bf16", says="two KV formats")
    failure("step", says="--model-path is required")

    code, out, err = run("kernels", "--filter", "matmul/int4/576x576/rows:1", "--min-time", "1", "--json", "-")
    assert code == 0, err
    names = [r["name"] for r in json.loads(out)["results"]]
    assert names == ["matmul/int4/576x576/rows:1", "matmul/int4/576x576/rows:16"], names

    code, out, err = run("compare", "--runs", "6", "--warm-ups", "0", "--figure", r"n=n=(\d+)=>/n", "--json", "-", "--",
                         "sh", "-c", "echo n=30", ":::", "echo", '{"n": 20}')
    assert code == 0, err
    compared = json.loads(out)["results"][0]
    assert compared["ratio"] == 1.5 and compared["ratio_interval"] == [1.5, 1.5], compared
    assert abs(compared["ratio_coverage"] - 0.96875) < 1e-12, compared

    usage_error("compare", "--", "true", ":::", "true", says="--figure")
    usage_error("compare", "--figure", "a", "--", "true", ":::", "true", says="NAME=A=>B")
    usage_error("compare", "--figure", "a=(", "--", "true", ":::", "true", says="regular expression")
    usage_error("compare", "--figure", "a=b", "--", "true", says="two commands")
    # Every mode works the same requests; only those with checks have a share.
    code, out, err = run("integrity", *TINY, "--batch", "4", "--prefix-tokens", "24", "--own-tokens", "5", "--answer-tokens", "8",
                         "--slices", "3", "--slice-steps", "12", "--page-size", "8", "--json", str(folder / "i.json"),
                         "--plot", str(folder / "i.svg"))
    assert code == 0 and "sealed" in out, (out, err)
    modes = {r["mode"]: r for r in json.loads((folder / "i.json").read_text())["results"]}
    assert list(modes) == ["off", "tags", "sealed"]
    assert modes["off"]["sealed_rows_per_step"] == 0 and modes["tags"]["sealed_rows_per_step"] == 0
    assert modes["sealed"]["sealed_rows_per_step"] >= 4 and 0 < modes["sealed"]["share_of_step_time"] < 1
    xml.dom.minidom.parse(str(folder / "i.svg"))
    # Nothing is cached, so nothing is ever evicted.
    code, out, err = run("integrity", *TINY, "--batch", "2", "--prefix-tokens", "8", "--own-tokens", "5", "--answer-tokens", "8",
                         "--slices", "1", "--slice-steps", "4", "--page-size", "8", "--disable-radix-cache")
    assert code == 0 and "sealed" in out, (out, err)
    # One mode alone has nothing to be compared with.
    code, out, err = run("integrity", *TINY, "--mode", "tags", "--batch", "2", "--prefix-tokens", "8", "--own-tokens", "5", "--answer-tokens",
                         "8", "--slices", "1", "--slice-steps", "4", "--page-size", "8", "--json", str(folder / "i.json"),
                         "--plot", str(folder / "i.svg"))
    assert code == 0 and "\ntags" in out and "\nsealed" not in out and "To off" not in out, (out, err)
    alone = json.loads((folder / "i.json").read_text())["results"]
    assert [r["mode"] for r in alone] == ["tags"] and "ratio_to_off" not in alone[0], alone
    xml.dom.minidom.parse(str(folder / "i.svg"))
    usage_error("integrity", "--mode", "nothing", says="is not one of all, off, tags, sealed")
    failure("integrity", says="--model-path is required")

    # Two systems under the same load; pairs of prompts with a hand-off and without.
    code, out, err = run("pd", *TINY, "--threads", "2", "--streams", "2", "--stream-prompt-tokens", "5", "--stream-output-tokens",
                         "9", "--burst", "2", "--burst-prompt-tokens", "40", "--bursts", "2", "--interval", "0.05", "--quiet",
                         "0.05", "--turns", "1", "--transfer-pairs", "2", "--page-size", "8", "--json", str(folder / "p.json"),
                         "--plot", str(folder / "p.svg"))
    assert code == 0 and "apart, 1 + 1 thread" in out and "ratio" in out, (out, err)
    bench = json.loads((folder / "p.json").read_text())
    assert [r["system"] for r in bench["results"]] == ["together, 2 threads", "apart, 1 + 1 thread"], bench
    for result in bench["results"]:
        assert 0 < result["burst_itl_ms"]["p50"] <= result["burst_itl_ms"]["p99"] and result["burst_ttft_ms"]["p50"] > 0, result
        assert result["stream_tokens_per_s"] > 0, result
    assert all(len(each) == 2 for each in bench["transfer"]["ttft_s"]) and bench["transfer"]["ratio"] > 0
    xml.dom.minidom.parse(str(folder / "p.svg"))
    failure("pd", says="--model-path is required")

    usage_error("serve", says="--url")
    failure("compare", "--figure", "a=b", "--", "false", ":::", "true", says="false: exit code 1")
    failure("model", *TINY, "--prefill", "12x", says="12x")
    failure("model", *TINY, "--decode", "8", says="BATCH@CONTEXT")
    failure("model", *TINY, "--prefill", "9999999", says="prefill 9999999")
    failure("model", "--model-path", str(folder), says="config.json")
    failure("model", says="--model-path is required")
    failure("model", *MODEL, "--json", str(folder / "no/m.json"), says="no folder")
    failure("kernels", "--filter", "nonsense", says="no case")
    failure("serve", "--url", "http://127.0.0.1:9", "--requests", "1", "--warm-ups", "0", says="answered no request")
print("ok")
