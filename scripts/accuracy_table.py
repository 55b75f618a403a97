#!/usr/bin/env python3
"""The results of scripts/accuracy.sh as a Markdown table.

usage: accuracy_table.py DIR MODEL...
"""
import json, pathlib, sys

folder, models = pathlib.Path(sys.argv[1]), sys.argv[2:]


def interval(pair, scale=1.0, digits=2, sign=""):
    return f"[{scale * pair[0]:{sign}.{digits}f}, {scale * pair[1]:{sign}.{digits}f}]" if pair else "[too little text]"


def row(name, r):
    p, tasks, kl, c = r["perplexity"], r["tasks"], r.get("kl"), r.get("comparison")
    cells = [name, f"{r['settings']['weight_bytes'] / 1e6:.1f}", f"{p['value']:.3f} {interval(p['interval'])}",
             f"{100 * tasks['all']['accuracy']:.2f} {interval(tasks['all']['interval'], 100)}"]
    if c:
        ratio, counted = c["perplexity"], c["counted"] or c["all"]
        cells += [f"{100 * (ratio['ratio'] - 1):+.2f} {interval([x - 1 for x in ratio['interval']], 100, 2, '+')}",
                  f"{100 * counted['difference']:+.2f} {interval(counted['interval'], 100, 2, '+')}",
                  f"{counted['mcnemar_p']:.2g}"]
    else:
        cells += ["", "", ""]
    if kl:
        low, high = kl["mean"]["interval"]
        cells += [f"{kl['mean']['value']:.3g} [{low:.3g}, {high:.3g}]", f"{kl['p99']['value']:.3g}",
                  f"{100 * kl['top1_agreement']['value']:.2f}"]
    else:
        cells += ["", "", ""]
    cells += [c["verdict"] if c else "baseline", f"{p['tokens_per_s']:.0f}",
              f"{(tasks['prompt_tokens'] + tasks['completion_tokens']) / max(tasks['seconds'], 1e-9):.0f}"]
    return "| " + " | ".join(cells) + " |"


HEAD = ["row", "weights, MB", "perplexity", "accuracy, %", "perplexity against own, %", "accuracy against own, points", "McNemar p",
        "KL mean, nats", "KL p99", "same top, %", "verdict", "text, tokens/s", "tasks, tokens/s"]
for model in models:
    files = sorted(folder.glob(f"{model}_*.json"), key=lambda f: (not f.stem == f"{model}_own", f.stat().st_mtime))
    if not files: continue
    first = json.loads(files[0].read_text())
    print(f"{model}: {first['tasks']['all']['items']} items, {first['perplexity']['tokens']} tokens; all intervals 95 %\n")
    print("| " + " | ".join(HEAD) + " |\n|" + " --- |" * len(HEAD))
    for file in files: print(row(file.stem, json.loads(file.read_text())))
    print()
