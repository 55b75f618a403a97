#!/usr/bin/env python3
"""Decode speed that `tern plan` expects of this machine against `tern bench model`, by turns.

usage: plan_speed.py TERN MODEL [--recipe NAME] [--threads N] [--kv bf16,fp8_e4m3] [--points 1@0,1@4096,8@512,8@4096]
                     [--activation-dtype NAME] [--rounds N] [--steady X] [--others X] [--limit X]

Of each point: a plan, then rounds of a measurement and a plan. A round's ratio is the mean of the plans before and after
its measurement over what was measured; the median of the rounds counts. A round is repeated where these two plans differ by
more than --steady, for then the machine changed meanwhile (memory of virtual machines does, for minutes), and where other
processes took more than --others of the processors during one of the three; three times as many rounds as asked for at most.
Exit code 1: a median is off by more than --limit, or a point had too few rounds to judge.
For a config.json, --recipe says which made-up weights both have (int4-linear).
"""
import argparse, json, os, statistics, subprocess, sys, time

parser = argparse.ArgumentParser()
parser.add_argument("tern")
parser.add_argument("model")
parser.add_argument("--recipe", default="")
parser.add_argument("--threads", default="0")
parser.add_argument("--kv", default="bf16,fp8_e4m3")
parser.add_argument("--points", default="1@0,1@4096,8@512,8@4096")
parser.add_argument("--activation-dtype", default="int8")
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--steady", type=float, default=0.1)
parser.add_argument("--others", type=float, default=0.1)
parser.add_argument("--limit", type=float, default=0.15)
args = parser.parse_args()
STEPS = 32  # of a measurement; a plan is asked for their middle
common = ["--threads", args.threads, "--activation-dtype", args.activation_dtype]


def busy_s():
    """Seconds that all processors have worked, or were taken from this machine; of these, seconds of this process and its children."""
    user, nice, system, _, _, irq, softirq, steal = map(int, open("/proc/stat").readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK"), sum(os.times()[:4])


def run(command, *options):
    """What the command prints as JSON, and the share of all processors that others took meanwhile."""
    start, (busy, own) = time.monotonic(), busy_s()
    done = subprocess.run([args.tern, *command.split(), *options, *common], capture_output=True, text=True)
    if done.returncode != 0: sys.exit(f"tern {command} failed:\n{done.stderr}")
    now_busy, now_own = busy_s()
    return json.loads(done.stdout), (now_busy - busy - now_own + own) / ((time.monotonic() - start) * os.cpu_count())


def plan(kv, batch, context):
    """Tokens a second, bytes a second of memory, the machine's name, others' share."""
    got, others = run("plan", args.model, *(["--recipe", args.recipe] if args.recipe else []), "--kv-cache-dtype", kv, "--batch", str(batch),
                      "--context-length", str(context + STEPS // 2), "--prompt-tokens", "16", "--max-total-tokens", "40960", "--json")
    return got["decode"][-1]["tokens_per_s"], got["machine"]["bytes_per_s"], got["machine"]["name"], others


def measure(kv, batch, context):
    """Tokens a second, threads and level, others' share."""
    dummy = ["--load-format", "dummy", "--dummy-recipe", args.recipe] if args.recipe else []
    got, others = run("bench model", "--model-path", args.model, *dummy, "--kv-cache-dtype", kv, "--prefill", "", "--decode", f"{batch}@{context}",
                      "--decode-tokens", str(STEPS), "--json", "-")
    result = got["results"][0]
    return result["tokens_per_s"], f"{result['threads']} threads, {result['isa']}", others


def judge(kv, batch, context):
    """Prints one point; whether it is near enough."""
    ratios, plans, speeds, changed, busy = [], [], [], 0, 0
    before, read, machine, others_before = plan(kv, batch, context)
    reads = [read]
    while len(ratios) < args.rounds and len(ratios) + changed + busy < 3 * args.rounds:
        speed, how, others = measure(kv, batch, context)
        if not machine.endswith(how): sys.exit(f"the plan is of {machine}, the measurement of {how}")
        after, read, _, others_after = plan(kv, batch, context)
        reads.append(read)
        if max(others_before, others, others_after) > args.others:
            busy += 1
        elif max(before, after) > (1 + args.steady) * min(before, after):
            changed += 1
        else:
            plans.append((before + after) / 2)
            speeds.append(speed)
            ratios.append(plans[-1] / speed)
        before, others_before = after, others_after
    rounds = f"not counted {busy} rounds of a busy machine, {changed} of one that changed; memory {min(reads) / 1e9:.0f} to {max(reads) / 1e9:.0f} GB/s"
    if len(ratios) < args.rounds:
        print(f"{kv} {batch}@{context}: not judged, {len(ratios)} rounds are too few; {rounds}", flush=True)
        return False
    median = statistics.median(ratios)
    print(f"{kv} {batch}@{context}: plan {statistics.median(plans):.1f}, measured {statistics.median(speeds):.1f} tokens/s, "
          f"ratio {median:.3f} ({min(ratios):.3f} to {max(ratios):.3f}); {rounds}", flush=True)
    return abs(median - 1) <= args.limit


points = [tuple(map(int, point.split("@"))) for point in args.points.split(",")]
good = [judge(kv, *point) for kv in args.kv.split(",") for point in points]
print(f"{sum(good)} of {len(good)} points within {args.limit:.0%}")
sys.exit(0 if all(good) else 1)
