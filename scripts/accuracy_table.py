#!/usr/bin/env python3
"""The results of scripts/accuracy.sh as Markdown tables: weights, KV formats, prefill and decode apart, conversations.

usage: accuracy_table.py DIR MODEL...
"""
import json, pathlib, sys

folder, models = pathlib.Path(sys.argv[1]), sys.argv[2:]


def interval(pair, scale=1.0, digits=2, sign=""):
    return f"[{scale * pair[0]:{sign}.{digits}f}, {scale * pair[1]:{sign}.{digits}f}]" if pair else "[too little text]"


def accuracy(tasks):
    return f"{100 * tasks['all']['accuracy']:.2f} {interval(tasks['all']['interval'], 100)}"


def accuracy_against(comparison):
    if not comparison: return ["", ""]
    counted = comparison["counted"] or comparison["all"]
    return [f"{100 * counted['difference']:+.2f} {interval(counted['interval'], 100, 2, '+')}", f"{counted['mcnemar_p']:.2g}"]


def row(name, r):
    p, tasks, kl, c = r["perplexity"], r["tasks"], r.get("kl"), r.get("comparison")
    cells = [name, f"{r['settings']['weight_bytes'] / 1e6:.1f}", f"{p['value']:.3f} {interval(p['interval'])}", accuracy(tasks)]
    ratio = c["perplexity"] if c else None
    cells.append(f"{100 * (ratio['ratio'] - 1):+.2f} {interval([x - 1 for x in ratio['interval']], 100, 2, '+')}" if c else "")
    cells += accuracy_against(c)
    if kl:
        low, high = kl["mean"]["interval"]
        cells += [f"{kl['mean']['value']:.3g} [{low:.3g}, {high:.3g}]", f"{kl['p99']['value']:.3g}",
                  f"{100 * kl['top1_agreement']['value']:.2f}"]
    else:
        cells += ["", "", ""]
    cells += [c["verdict"] if c else "baseline", f"{p['tokens_per_s']:.0f}",
              f"{(tasks['prompt_tokens'] + tasks['completion_tokens']) / max(tasks['seconds'], 1e-9):.0f}"]
    return "| " + " | ".join(cells) + " |"


def talk_row(name, r):
    c = r.get("comparison")
    return "| " + " | ".join([name, accuracy(r["tasks"]), *accuracy_against(c), c["verdict"] if c else "baseline"]) + " |"


HEAD = ["row", "weights, MB", "perplexity", "accuracy, %", "perplexity against {0}, %", "accuracy against {0}, points", "McNemar p",
        "KL mean, nats", "KL p99", "same top, %", "verdict", "text, tokens/s", "tasks, tokens/s"]
TALK_HEAD = ["row", "accuracy, %", "accuracy against BF16 rows, points", "McNemar p", "verdict"]


def table(head, make_row, files):
    if not files: return
    print("| " + " | ".join(head) + " |\n|" + " --- |" * len(head))
    for file in files: print(make_row(file.stem, json.loads(file.read_text())))
    print()


for model in models:
    files = sorted(folder.glob(f"{model}_*.json"), key=lambda f: (not f.stem == f"{model}_own", f.stat().st_mtime))
    if not files: continue
    first = json.loads(files[0].read_text())
    print(f"{model}: {first['tasks']['all']['items']} items, {first['perplexity']['tokens']} tokens; all intervals 95 %\n")
    talks = [f for f in files if "_talks_" in f.stem]
    kv = sorted(f for f in files if "_kv_" in f.stem and f not in talks)
    apart = sorted(f for f in files if "_apart_" in f.stem)
    table([h.format("own") for h in HEAD], row, [f for f in files if f not in talks + kv + apart])
    table([h.format("BF16 rows") for h in HEAD], row, kv)
    table([h.format("own") for h in HEAD], row, apart)
    table(TALK_HEAD, talk_row, talks)
