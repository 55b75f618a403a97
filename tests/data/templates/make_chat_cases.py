#!/usr/bin/env python3
"""Writes chat_cases.json: the renderings of smollm2.jinja and tiny.jinja by transformers 5.24.

    python3 tests/data/templates/make_chat_cases.py ../shared/text/templates/golden.json

Takes them out of the reference file as they are: {template, case, messages, kwargs, text or error},
all rendered with bos_token "[BOS]" and eos_token "[EOS]".
"""

import json
import os
import sys


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        cases = [c for c in json.load(file) if c["template"] in ("smollm2", "tiny")]
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "chat_cases.json")
    with open(path, "w", encoding="utf-8") as out:
        out.write("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")
    print(len(cases), "cases")


if __name__ == "__main__":
    main()
