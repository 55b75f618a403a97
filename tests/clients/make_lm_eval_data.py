#!/usr/bin/env python3
"""Writes the texts of the lm-eval tasks in this folder from tests/data/tiny, and the tasks' files.

usage: make_lm_eval_data.py FOLDER
  tern_choice: multiple choice, by log probabilities: which answer to a task of the tiny model is right
  tern_prose:  log probability of prose, in windows
  tern_ask:    generated answers, compared with the right ones
"""
import json
import pathlib
import sys

TINY = pathlib.Path(__file__).resolve().parents[1] / "data/tiny"
folder = pathlib.Path(sys.argv[1]).resolve()
folder.mkdir(parents=True, exist_ok=True)


def prompt(item):
    """As the tiny model's chat template has it."""
    said = "".join(f"<|im_{m['role']}|>{m['role']}<|im_middle|>{m['content']}<|im_end|>" for m in item["messages"])
    return "[BOS]" + said + "<|im_assistant|>assistant<|im_middle|>"


def write(name, rows, task):
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / f"{name}.yaml").write_text(
        f"task: {name}\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {folder}/{name}.jsonl\n"
        f"test_split: test\n{task}metadata:\n  version: 1\n")


items = [json.loads(line) for line in (TINY / "tasks_dev.jsonl").read_text().splitlines()]
counted = [item for item in items if item["task"] == "count"][:100]
rows = []
for i, item in enumerate(counted):
    wrong = [other["expect"] for other in counted if other["expect"] != item["expect"]][i % 20:][:3]
    choices = wrong[:i % 4] + [item["expect"]] + wrong[i % 4:]
    rows.append({"prompt": prompt(item), "choices": choices, "label": choices.index(item["expect"])})
write("tern_choice", rows,
      "output_type: multiple_choice\ndoc_to_text: \"{{prompt}}\"\ndoc_to_choice: \"{{choices}}\"\ndoc_to_target: \"{{label}}\"\n"
      "target_delimiter: \"\"\nmetric_list:\n  - metric: acc\n")
text = (TINY / "perplexity_dev.txt").read_text()
write("tern_prose", [{"text": text[:20000]}],
      "output_type: loglikelihood_rolling\ndoc_to_text: \"\"\ndoc_to_target: \"{{text}}\"\n"
      "metric_list:\n  - metric: word_perplexity\n  - metric: bits_per_byte\n")
write("tern_ask", [{"prompt": prompt(item), "answer": item["expect"]} for item in counted],
      "output_type: generate_until\ndoc_to_text: \"{{prompt}}\"\ndoc_to_target: \"{{answer}}\"\n"
      "generation_kwargs:\n  until: [\"<|im_end|>\"]\n  max_gen_toks: 32\n  temperature: 0\n"
      "metric_list:\n  - metric: exact_match\n")
