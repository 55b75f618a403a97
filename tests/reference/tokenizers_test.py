#!/usr/bin/env python3
"""`tern tokenize` against tokenizers and tiktoken on random strings, all sets of tests/data.

usage: tokenizers_test.py TERN [--strings N] [--seed S]       (N per set, default 100000)

The strings mix scripts, digits, spaces, marks, contractions, control tokens whole and cut. A string
that differs is made as short as it stays different and printed with both lists of ids.
"""
import argparse
import base64
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import tiktoken
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"
SMOLLM2 = DATA.parents[1] / ".cache/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
# Of Kimi's published tokenizer.
KIMI = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
])


def kimi():
    folder = DATA / "text/kimi-style"
    ranks = {}
    for line in (folder / "tiktoken.model").read_bytes().splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    named = json.loads((folder / "tokenizer_config.json").read_text())["added_tokens_decoder"]
    special = {named[str(i)]["content"] if str(i) in named else f"<|reserved_token_{i}|>": i
               for i in range(len(ranks), len(ranks) + 256)}
    encoding = tiktoken.Encoding("kimi", pat_str=KIMI, mergeable_ranks=ranks, special_tokens=special)
    return folder / "tiktoken.model", lambda texts: [
        encoding.encode(text, allowed_special="all") for text in texts], list(special)[:12]


def hugging_face(path):
    tokenizer = Tokenizer.from_file(str(path))
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    return path, lambda texts: [
        e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)], added[:24]


def framed(folder):
    """Llama 3's post-processor on the tiny tokenizer: a BOS in front of every text."""
    case = next(c for c in json.loads((DATA / "text/post_processor_cases.json").read_text())["good"]
                if c["name"] == "llama3")
    file = json.loads((DATA / "tiny/tokenizer.json").read_text())
    path = pathlib.Path(folder) / "tokenizer.json"
    path.write_text(json.dumps({**file, "post_processor": case["post_processor"]}))
    tokenizer = Tokenizer.from_file(str(path))
    return path, lambda texts: [e.ids for e in tokenizer.encode_batch(texts)], hugging_face(path)[2]


def smollm2():
    """The tokenizer of the GGUF file. Its reference ids (tests/data/text/smollm2_golden.json) are those of a byte-level
    pre-tokenizer alone; src/text/pre_tokenizer.cc tells why digits are not cut out first."""
    keys = {key.removeprefix("tokenizer.ggml."): value for key, value in json.loads(
        (DATA / "text/smollm2_tokenizer.json").read_text()).items()}
    vocab = {token: i for i, token in enumerate(keys["tokens"])}
    merges = [tuple(merge.split(" ", 1)) for merge in keys["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    control = [keys["tokens"][i] for i, kind in enumerate(keys["token_type"]) if kind in (3, 4)]
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in control])
    return SMOLLM2, lambda texts: [
        e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)], control[:17]


RANGES = [(0x20, 0x7F)] * 6 + [(0xA0, 0x180), (0x370, 0x530), (0x590, 0x600), (0x600, 0x700),
          (0x900, 0xE00), (0x300, 0x370), (0x1E00, 0x2000), (0x2000, 0x2070), (0x3040, 0x3100),
          (0x4E00, 0x9FFF), (0xAC00, 0xD7A4), (0xFF00, 0xFFF0), (0x1F300, 0x1F700), (0x20000, 0x20100),
          (0x10000, 0x10300), (0x1D400, 0x1D800)]
PIECES = ["'s", "'T", "'re", "'LL", "n't", " ", "  ", "\n", "\r\n", "\n\n", "\t", "\u00a0", "\u3000",
          "\u2028", "\u200b", "\u200d", "\ufe0f", "e\u0301", "1234567890", "\u0663\u0664", "\u00bd",
          "HTMLParser", "snake_case", "....", "<|", "|>", "<", ">", "</", "\u0130", "\u00df", "\ufb01",
          "\ufffd", "\x00", "\x7f", "\u1112\u1161\u11ab", "\U0001f468\u200d\U0001f469"]


def random_text(rng, control):
    text = ""
    for _ in range(rng.randint(1, 8)):
        kind = rng.random()
        if kind < 0.35:
            first, last = rng.choice(RANGES)
            text += "".join(chr(rng.randrange(first, last)) for _ in range(rng.randint(1, 6)))
        elif kind < 0.65:
            text += "".join(rng.choice("abcdefgh ETAOIN19 \n'.-") for _ in range(rng.randint(1, 12)))
        elif kind < 0.9 or not control:
            text += rng.choice(PIECES) * rng.choice([1, 1, 1, 2, 5])
        else:
            token = rng.choice(control)
            text += token if rng.random() < 0.7 else token[:rng.randint(1, len(token))]
    return text


def tern_ids(tern, path, texts, options=()):
    done = subprocess.run([tern, "tokenize", "--tokenizer", str(path), *options], capture_output=True, text=True,
                          input="".join(json.dumps(text) + "\n" for text in texts))
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def shortest(text, differs):
    smaller = True
    while smaller:
        smaller = False
        for i in range(len(text)):
            shorter = text[:i] + text[i + 1:]
            if shorter and differs(shorter):
                text, smaller = shorter, True
                break
    return text


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tern")
    parser.add_argument("--strings", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    failures = 0
    sets = {"tiny": lambda: hugging_face(DATA / "tiny/tokenizer.json"),
            "glm-style": lambda: hugging_face(DATA / "text/glm-style/tokenizer.json"),
            "kimi-style": kimi, "smollm2": smollm2, "framed": lambda: framed(folder.name)}
    folder = tempfile.TemporaryDirectory()
    for name, make in sets.items():
        path, reference, control = make()
        options = ["--add-special-tokens"] if name == "framed" else []
        if not path.exists():
            sys.exit(f"{path} is missing: scripts/fetch_smollm2.sh fetches it")
        rng = random.Random(args.seed)
        texts = [random_text(rng, control) for _ in range(args.strings)]
        wrong = [text for text, want, got in zip(texts, reference(texts), tern_ids(args.tern, path, texts, options))
                 if want != got]
        failures += len(wrong)
        print(f"{name}: {len(texts)} strings, {len(wrong)} differ", flush=True)
        for text in wrong[:5]:
            text = shortest(text, lambda t: reference([t]) != tern_ids(args.tern, path, [t], options))
            print(f"  {ascii(text)}: reference {reference([text])[0]}, "
                  f"tern {tern_ids(args.tern, path, [text], options)[0]}")
    sys.exit(1 if failures else 0)


main()
