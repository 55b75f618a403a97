#!/usr/bin/env python3
"""Writes answer_cases.json: assistant turns as models' own templates write them.

    python3 tests/data/templates/make_answer_cases.py ../shared/text/templates/golden.json

Cuts the turns out of transformers 5.24's renderings of published templates, so that what a parser
must find in them is what the template was given: {template, case, format, tools, first_call_index,
text, reasoning, content, tool_calls}. `content` has no whitespace around it, as GLM's templates
render it.
"""

import json
import os
import re
import sys

KIMI = r"<\|im_assistant\|>assistant<\|im_middle\|>(.*?)(?:<\|im_end\|>|$)"
GLM = r"<\|assistant\|>(.*?)(?=<\|user\|>|<\|observation\|>|<\|assistant\|>|<\|system\|>|$)"
TEMPLATES = {
    "tiny": ("kimi_k2", KIMI),
    "moonshotai-Kimi-K2": ("kimi_k2", KIMI),
    "Kimi-K2-Instruct": ("kimi_k2", KIMI),
    "Kimi-K2-Thinking": ("kimi_k2", KIMI),
    "GLM-4.6": ("glm45", GLM),
    "GLM-4.7-Flash": ("glm47", GLM),
}


def turns_of(case):
    format_name, pattern = TEMPLATES[case["template"]]
    turns = re.findall(pattern, case["text"], re.DOTALL)
    messages = [m for m in case["messages"] if m["role"] == "assistant"]
    calls_so_far = 0
    for text, message in zip(turns, messages):
        calls = message.get("tool_calls", [])
        content, reasoning = message["content"], message.get("reasoning_content", "")
        if "</think>" in content:
            reasoning, content = content.split("</think>")
            reasoning = reasoning.split("<think>")[-1]
        if text.count("<think>") < 2:  # one template writes an empty one before what is there
            yield {
                "template": case["template"],
                "case": case["case"],
                "format": format_name,
                "tools": case["kwargs"].get("tools"),
                "first_call_index": calls_so_far,
                "text": text,
                # Templates leave out the reasoning of earlier turns.
                "reasoning": reasoning if reasoning in text else "",
                "content": content.strip(),
                "tool_calls": [{"id": c["id"], **c["function"]} for c in calls],
            }
        calls_so_far += len(calls)


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        golden = json.load(file)
    cases = [turn for case in golden if case["template"] in TEMPLATES and "text" in case
             for turn in turns_of(case)]
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "answer_cases.json")
    with open(path, "w", encoding="utf-8") as out:
        out.write("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")
    print(len(cases), "cases")


if __name__ == "__main__":
    main()
