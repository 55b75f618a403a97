#!/usr/bin/env python3
"""What HuggingFace's tokenizers puts around texts (add_special_tokens=True), for the kinds of post_processor that files of
byte-level models have: changes of tests/data/tiny/tokenizer.json, texts and ids; and post-processors that it refuses.

    python3 -m venv venv && venv/bin/pip install tokenizers==0.23.3
    venv/bin/python make_post_processor_cases.py > post_processor_cases.json
"""
import json
import pathlib

import tokenizers
from tokenizers import Tokenizer

assert tokenizers.__version__ == "0.23.3"
BASE = json.loads((pathlib.Path(__file__).parent / "../tiny/tokenizer.json").read_text())
IDS = {token["content"]: token["id"] for token in BASE["added_tokens"]}
BOS, EOS = list(IDS)[:2]

A, B = {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}


def special(token):
    return {"SpecialToken": {"id": token, "type_id": 0}}


def template(single, **known):
    tokens = {**{t: {"id": t, "ids": [i], "tokens": [t]} for t, i in IDS.items()}, **known}
    used = {piece["SpecialToken"]["id"] for piece in single if "SpecialToken" in piece}
    return {"type": "TemplateProcessing", "single": single, "pair": [A, B],
            "special_tokens": {t: tokens[t] for t in used}}


def sequence(*parts):
    return {"type": "Sequence", "processors": list(parts)}


GOOD = {
    "none": None,
    "byte_level": BYTE_LEVEL,                                                      # Qwen, GLM, DeepSeek
    "llama3": sequence(BYTE_LEVEL, template([special(BOS), A])),
    "bos": template([special(BOS), A]),
    "both": template([special(BOS), A, special(EOS)]),
    "text_alone": template([A]),
    "several_ids": template([special("<two>"), A], **{"<two>": {"id": "<two>", "ids": [IDS[BOS], 7], "tokens": [BOS, "x"]}}),
    "nested": sequence(sequence(BYTE_LEVEL), sequence(template([special(EOS), special(BOS), A, special(EOS)]))),
    "roberta": {"type": "RobertaProcessing", "sep": [EOS, IDS[EOS]], "cls": [BOS, IDS[BOS]], "trim_offsets": True,
                "add_prefix_space": False},
    "bert": {"type": "BertProcessing", "sep": [EOS, IDS[EOS]], "cls": [BOS, IDS[BOS]]},
}
BAD = {
    "unknown_type": {"type": "Unknown"},
    "piece_as_text": {**template([A]), "single": ["$A"]},
    "cls_alone": {"type": "BertProcessing", "cls": [BOS, IDS[BOS]]},
}
TEXTS = ["", "a", " a", "Hello, world!\n", BOS, BOS + "twice", "end" + EOS, "a b 12345 \u00e9\u4e2d", "  "]


def refused(post_processor):
    try:
        Tokenizer.from_str(json.dumps({**BASE, "post_processor": post_processor}))
    except Exception:
        return True
    return False


cases = []
for name, post_processor in GOOD.items():
    tokenizer = Tokenizer.from_str(json.dumps({**BASE, "post_processor": post_processor}))
    cases.append({"name": name, "post_processor": post_processor,
                  "cases": [[text, tokenizer.encode(text).ids] for text in TEXTS]})
assert all(refused(p) for p in BAD.values()), [n for n, p in BAD.items() if not refused(p)]
lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
print('{"good":[\n' + lines + '],\n"refused":' + json.dumps(BAD, separators=(",", ":")) + "}")
