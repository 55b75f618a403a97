#!/usr/bin/env python3
"""Writes the tokenizer of a GGUF file as JSON: the keys tokenizer.ggml.* without their prefix.

    python3 gguf_tokenizer.py MODEL.gguf > smollm2_tokenizer.json
"""
import json
import struct
import sys

PREFIX = "tokenizer.ggml."
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


class Reader:
    def __init__(self, file):
        self.file = file

    def scalar(self, fmt):
        return struct.unpack("<" + fmt, self.file.read(struct.calcsize(fmt)))[0]

    def string(self):
        return self.file.read(self.scalar("Q")).decode()

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            kind, count = self.scalar("I"), self.scalar("Q")
            return [self.value(kind) for _ in range(count)]
        return self.scalar(SCALARS[kind])


def main():
    with open(sys.argv[1], "rb") as file:
        reader = Reader(file)
        if file.read(4) != b"GGUF":
            sys.exit(f"{sys.argv[1]}: not a GGUF file")
        reader.scalar("I")  # version
        reader.scalar("Q")  # tensors
        keys = {}
        for _ in range(reader.scalar("Q")):
            key = reader.string()
            value = reader.value(reader.scalar("I"))
            if key.startswith(PREFIX):
                keys[key[len(PREFIX):]] = value
    # Nearly all tokens are of type 1 (normal): the others are listed.
    keys["token_type"] = {i: t for i, t in enumerate(keys["token_type"]) if t != 1}
    json.dump(keys, sys.stdout, ensure_ascii=False, separators=(",", ":"))
    print()


main()
