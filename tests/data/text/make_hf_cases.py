#!/usr/bin/env python3
"""What HuggingFace's tokenizers says about random strings: pieces of pre-tokenizers, and ids of
tokenizers with added-token flags, normalizers and unknown bytes.

    python3 -m venv venv && venv/bin/pip install tokenizers==0.23.3
    venv/bin/python make_hf_cases.py > hf_cases.json
"""
import json
import pathlib
import random
import sys

import tokenizers
from tokenizers import Regex, Tokenizer, pre_tokenizers

assert tokenizers.__version__ == "0.23.3"
HERE = pathlib.Path(__file__).parent
RNG = random.Random(20261129)

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"


def cased(upper, lower, tail):
    contraction = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    return (rf"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+{contraction}"
            rf"|[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*{contraction}"
            rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[{tail}]*|\s*[\r\n]+|\s+(?!\S)|\s+")


O200K = cased(f"[{UPPER}]", f"[{LOWER}]", r"\r\n/")
KIMI = r"[\p{Han}]+|" + cased(rf"[{UPPER}&&[^\p{{Han}}]]", rf"[{LOWER}&&[^\p{{Han}}]]", r"\r\n")
DEEPSEEK = [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]
BEHAVIORS = ["isolated", "removed", "merged_with_previous", "merged_with_next", "contiguous"]

# Letters of every case and none, marks, digits of every kind, white space, symbols, the long s,
# Han that are no letters, and characters younger than Unicode 14.
ALPHABET = list("aabbcXYZsStTlLdD'''''  \n\r\t.,!?-_/123") + [
    "'s", "'LL", "'Ve", "\u017f", "\u00df", "\u01c5", "\u00e9", "\u0416", "\u0436", "\u02b0",
    "\u00aa", "\u0301", "\u0327", "\u094d", "\u0939", "\u0e01", "\u4e2d", "\u6587", "\u3005",
    "\u3007", "\u2e80", "\u30fd", "\u3042", "\ud55c", "\u00b2", "\u2168", "\u0663", "\u00a0",
    "\u3000", "\u0085", "\u180e", "\u200d", "\U0001f600", "\U00031350", "\U0001e4f0",
    "\U0001e4d0", "\U00010d40", "\u1c89", "\u20ac", "\ufffd", "\0"]


def strings(count, extra=()):
    alphabet = ALPHABET + list(extra) * 4
    return ["".join(RNG.choice(alphabet) for _ in range(RNG.randint(1, 24))) for _ in range(count)]


def split(pattern, behavior="isolated", invert=False):
    return {"regex": pattern, "behavior": behavior, "invert": invert}


def pieces_of(steps, text):
    parts = []
    for step in steps:
        if "digits" in step:
            parts.append(pre_tokenizers.Digits(individual_digits=step["digits"]))
        else:
            pattern = Regex(step["regex"]) if "regex" in step else step["text"]
            parts.append(pre_tokenizers.Split(pattern, step["behavior"], step["invert"]))
    return [piece for piece, _ in pre_tokenizers.Sequence(parts).pre_tokenize_str(text)]


def pre_tokenizer_cases():
    chains = [([split(p)], 120) for p in (GPT2, LLAMA3, QWEN2, O200K, KIMI)]
    chains += [([split(p) for p in DEEPSEEK], 120), ([{"digits": True}, split(GPT2)], 60),
               ([{"digits": False}], 30)]
    # Patterns that only the translation to PCRE2 can do, and what it has to get right.
    chains += [([split(p)], 40) for p in (
        r"[\p{Han}&&[^\p{Lm}]]+|[^\p{Han}\s]", r"\p{^L}+", r"\P{N}\p{N}", r"(?<=\s)\S|\S(?=\d)",
        r"[^\S\r\n]+", r"(?:'[sS]|\p{L})+?\s", r"[a-cX-Z\u0400-\u04ff]{2,3}", r".+", r"\p{M}*",
        r"(?i:'LL|dd)", r"\s{,2}", r"[\d&&[^1]]|[[ab]c]+")]
    chains += [([split(r"\s+|'", b, i)], 20) for b in BEHAVIORS for i in (False, True)]
    chains += [([{"text": " ", "behavior": b, "invert": False}], 15) for b in BEHAVIORS]
    out = []
    for steps, count in chains:
        out.append({"steps": steps, "cases": [[t, pieces_of(steps, t)] for t in strings(count)]})
    return out


def added(id, content, **flags):
    token = {"id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
    return {**token, **flags}


def tokenizer_cases():
    base = json.loads((HERE / "../tiny/tokenizer.json").read_text())
    base["model"]["vocab"] = {t: i for t, i in base["model"]["vocab"].items() if i < 600}
    vocab = base["model"]["vocab"]
    base["model"]["merges"] = [m for m in base["model"]["merges"] if "".join(m) in vocab]
    base["added_tokens"] = [added(600, "[A]"), added(601, "[A]b", special=False)]
    few = [t for t in vocab if len(t) == 1 and t.isascii()]
    sparse = {"vocab": {t: i for i, t in enumerate(few + ["<unk>"])}, "merges": [],
              "unk_token": "<unk>"}
    split_ws = {"type": "Split", "pattern": {"Regex": r"\s+(?!\S)|\s|\p{L}+"},
                "behavior": "MergedWithNext", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}
    changes = [
        ("flags", {"added_tokens": [
            added(600, "[A]", lstrip=True), added(601, "[B]", rstrip=True),
            added(602, "[C]", lstrip=True, rstrip=True, special=False),
            added(603, "ab", single_word=True), added(604, "abc", special=False),
            added(605, "\u00e9\u0301", normalized=True, special=False), added(606, " [D]"), added(607, "\n")]}),
        ("nfc", {"normalizer": {"type": "NFC"}, "added_tokens": [
            added(600, "e\u0301", normalized=True, special=False), added(601, "a\u0301")]}),
        ("nfkd", {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKD"}]}}),
        ("prefix", {"pre_tokenizer": byte_level}),
        ("digits", {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": True}, {**byte_level, "use_regex": True}]}}),
        ("nested", {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Sequence", "pretokenizers": [split_ws]},
            {**byte_level, "add_prefix_space": False, "use_regex": False}]}}),
        ("unk", {"model": {**base["model"], **sparse}, "added_tokens": []}),
        ("fuse_unk", {"model": {**base["model"], **sparse, "fuse_unk": True}, "added_tokens": []}),
        ("no_unk", {"model": {**base["model"], **sparse, "unk_token": None}, "added_tokens": []}),
    ]
    extra = ["[A]", "[B]", "[C]", " [D]", "ab", "abc", "e\u0301", "\u00e9", "\u0301\u0327", "\ufb01"]
    out = []
    for name, change in changes:
        text = json.dumps({**base, **change})
        tokenizer = Tokenizer.from_str(text)
        cases = [[t, tokenizer.encode(t, add_special_tokens=False).ids] for t in strings(60, extra)]
        # What differs from "base" only, so that the file stays small.
        out.append({"name": name, "change": change if "unk" not in name else
                    {"added_tokens": [], "model": change["model"]}, "cases": cases})
    return {"base": base, "variants": out}


def lines(values):
    return "[\n" + ",\n".join(json.dumps(v, separators=(",", ":")) for v in values) + "\n]"


def main():
    tok = tokenizer_cases()
    sys.stdout.write('{"pre_tokenizers":' + lines(pre_tokenizer_cases()) + ',\n"base":' +
                     json.dumps(tok["base"], separators=(",", ":")) + ',\n"tokenizers":' +
                     lines(tok["variants"]) + "}\n")


main()
