#!/usr/bin/env python3
"""Writes tiny_tokens.json: prose and chats as token ids of the tiny model, a calibration text for tests.

usage: python3 make_tiny_tokens.py TERN   (the built program)
"""
import json, pathlib, subprocess, sys

DATA = pathlib.Path(__file__).resolve().parent.parent
MODEL = DATA / "tiny/model"


def filter_lines(command, values):
    text = "".join(json.dumps(value) + "\n" for value in values)
    out = subprocess.run([sys.argv[1], *command], input=text, capture_output=True, text=True, check=True).stdout
    return [json.loads(line) for line in out.splitlines()]


prose = (DATA / "tiny/perplexity_dev.txt").read_text()[:9000]
items = [json.loads(line) for line in (DATA / "tiny/tasks_dev.jsonl").read_text().splitlines()]
answered = [item | {"messages": item["messages"] + [{"role": "assistant", "content": item["expect"]}]} for item in items if "expect" in item]
chats = [{"messages": item["messages"]} for item in answered[::40]]
texts = [prose] + filter_lines(["template", "--template", str(MODEL / "chat_template.jinja")], chats)
ids = filter_lines(["tokenize", "--tokenizer", str(MODEL)], texts)
lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in ids)
(pathlib.Path(__file__).parent / "tiny_tokens.json").write_text(f"[\n{lines}\n]\n")
print(len(ids), "texts,", sum(map(len, ids)), "tokens")
