#!/usr/bin/env python3
"""Decode speed that `tern plan` expects of this machine against `tern bench model`, by turns.

usage: plan_speed.py TERN MODEL [--recipe NAME] [--threads N] [--kv bf16,fp8_e4m3] [--points 1@0,1@4096,8@512,8@4096]

A plan before and one after each measurement: their mean counts. Exit code 1 when one point is off by more than 15 %.
For a config.json, --recipe says which made-up weights both have (int4-linear).
"""
import argparse, json, subprocess, sys

parser = argparse.ArgumentParser()
parser.add_argument("tern")
parser.add_argument("model")
parser.add_argument("--recipe", default="")
parser.add_argument("--threads", default="0")
parser.add_argument("--kv", default="bf16,fp8_e4m3")
parser.add_argument("--points", default="1@0,1@4096,8@512,8@4096")
parser.add_argument("--activation-dtype", default="int8")
parser.add_argument("--limit", type=float, default=0.15)
args = parser.parse_args()
STEPS = 32  # of a measurement; a plan is asked for their middle
points = [tuple(map(int, point.split("@"))) for point in args.points.split(",")]
common = ["--threads", args.threads, "--activation-dtype", args.activation_dtype]


def run(command, *options):
    return json.loads(subprocess.run([args.tern, *command.split(), *options, *common], capture_output=True, text=True, check=True).stdout)


def plan(kv, batch, context):
    got = run("plan", args.model, *(["--recipe", args.recipe] if args.recipe else []), "--kv-cache-dtype", kv, "--batch", str(batch),
              "--context-length", str(context + STEPS // 2), "--prompt-tokens", "16", "--max-total-tokens", "40960", "--json")
    return got["decode"][-1]["tokens_per_s"]


far = 0
for kv in args.kv.split(","):
    before = [plan(kv, *point) for point in points]
    dummy = ["--load-format", "dummy", "--dummy-recipe", args.recipe] if args.recipe else []
    measured = run("bench model", "--model-path", args.model, *dummy, "--kv-cache-dtype", kv, "--prefill", "", "--decode", args.points,
                   "--decode-tokens", str(STEPS), "--json", "-")["results"]
    for (batch, context), first, result in zip(points, before, measured):
        expected = (first + plan(kv, batch, context)) / 2
        ratio = expected / result["tokens_per_s"]
        far += abs(ratio - 1) > args.limit
        print(f"{kv} {batch}@{context}: plan {expected:.1f}, measured {result['tokens_per_s']:.1f} tokens/s, ratio {ratio:.3f}", flush=True)
sys.exit(1 if far else 0)
