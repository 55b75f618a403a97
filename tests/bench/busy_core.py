#!/usr/bin/env python3
"""Decoding on all threads while another process keeps one core busy, against one thread alone on a quiet machine, by turns.

usage: busy_core.py TERN MODEL [--decode 1@0] [--rounds N] [--goal X] [more options of `tern bench model`]

Prints tokens a second of both, their ratio in each round, and the median. Exit code 1: the median is below --goal.
"""
import argparse, json, os, statistics, subprocess, sys

parser = argparse.ArgumentParser()
parser.add_argument("tern")
parser.add_argument("model")
parser.add_argument("--decode", default="1@0")
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--goal", type=float, default=0.9)
args, more = parser.parse_known_args()


def tokens_per_s(threads):
    done = subprocess.run([args.tern, "bench", "model", "--model-path", args.model, "--prefill", "", "--decode", args.decode, "--threads",
                           str(threads), "--json", "-", *more], capture_output=True, text=True)
    if done.returncode != 0: sys.exit(f"tern bench model failed:\n{done.stderr}")
    return json.loads(done.stdout)["results"][0]["tokens_per_s"]


def beside_a_busy_core():
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        return tokens_per_s(os.cpu_count())
    finally:
        busy.kill()
        busy.wait()


ratios = []
for number in range(args.rounds):
    if number % 2 == 0: alone, beside = tokens_per_s(1), beside_a_busy_core()
    else: beside, alone = beside_a_busy_core(), tokens_per_s(1)
    ratios.append(beside / alone)
    print(f"1 thread alone {alone:.1f} tokens/s; {os.cpu_count()} threads beside a busy core {beside:.1f}: {ratios[-1]:.2f}", flush=True)
median = statistics.median(ratios)
print(f"median {median:.2f} ({min(ratios):.2f} to {max(ratios):.2f}), goal {args.goal}")
sys.exit(median < args.goal)
