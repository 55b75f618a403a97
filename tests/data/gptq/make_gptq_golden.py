#!/usr/bin/env python3
"""Writes gptq.safetensors: inputs, weights, scales, and the INT4 codes that GPTQ gives for them.

usage: python3 make_gptq_golden.py   (numpy)

An implementation of its own, in float64, of GPTQ as published (arXiv 2210.17323, algorithm 1, block size 1): the Cholesky
factor of the inverse of the damped X^T X, and weights that are updated as errors come. tern gets the same numbers without an
inverse. Columns go by falling diagonal; groups keep their place and have their scales before all: amax / 7.5 here.
`importance` is the damped diagonal in units of its mean. The seed leaves no code near a tie: float32 must give the same.
"""
import json, pathlib, struct
import numpy as np

ROWS, COLUMNS, INPUTS, GROUP, DAMPING = 8, 160, 320, 32, 0.01


def bf16_bits(x):
    bits = np.float32(x).view(np.uint32).astype(np.uint64)
    return int((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)


def from_bits(bits):
    return float(np.uint32(bits << 16).view(np.float32))


def codes_of(w, scale):
    return np.clip(np.rint(w / scale), -8, 7)


def gptq(x, w):
    h = x.T @ x
    mean = np.diag(h).mean()
    order = np.argsort(-np.diag(h), kind="stable")
    h = h[np.ix_(order, order)] + DAMPING * mean * np.eye(COLUMNS)
    u = np.linalg.cholesky(np.linalg.inv(h)).T  # upper: inverse = u.T @ u
    amax = np.abs(w).reshape(ROWS, -1, GROUP).max(axis=2)
    scales = np.array([[bf16_bits(np.float32(a) / np.float32(7.5)) for a in row] for row in amax])
    codes, margin = np.empty((ROWS, COLUMNS)), 0.5
    for r in range(ROWS):
        left = w[r, order].copy()
        for step, column in enumerate(order):
            scale = from_bits(int(scales[r, column // GROUP]))
            code = codes_of(left[step], scale)
            steps = left[step] / scale
            if -8.5 < steps < 7.5: margin = min(margin, abs(steps - np.floor(steps) - 0.5))
            codes[r, column] = code
            error = (left[step] - code * scale) / u[step, step]
            left[step:] -= error * u[step, step:]
    return codes.astype(np.int8), scales.astype(np.uint16), margin


def make(seed):
    rng = np.random.default_rng(seed)
    mix = rng.normal(size=(24, COLUMNS))
    x = np.rint(2 * rng.normal(size=(INPUTS, 24)) @ mix + 2 * rng.normal(size=(INPUTS, COLUMNS)))
    x[:, 7] = 0  # an input that is never there
    x[:, 50] = np.rint(x[:, 50] * 3 + 60)  # and one that is always large
    x = np.clip(x, -127, 127)
    w = np.float64([[from_bits(bf16_bits(v)) for v in row] for row in rng.normal(size=(ROWS, COLUMNS)) * 0.05])
    return x, w


def main():
    for seed in range(10000):
        x, w = make(seed)
        codes, scales, margin = gptq(x, w)
        if margin > 3e-4: break
    print(f"seed {seed}: the nearest tie is {margin:.2g} of a step away")
    damped = np.diag(x.T @ x) + DAMPING * np.diag(x.T @ x).mean()
    importance = (damped / damped.mean()).astype(np.float32)
    tensors = {"x": ("I8", x.astype(np.int8)), "w": ("F32", w.astype(np.float32)), "scales": ("BF16", scales),
               "codes": ("I8", codes), "importance": ("F32", importance)}
    header, offset = {"__metadata__": {"group": str(GROUP), "damping": str(DAMPING)}}, 0
    for name, (dtype, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [offset, offset + values.nbytes]}
        offset += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    body = b"".join(values.tobytes() for _, values in tensors.values())
    (pathlib.Path(__file__).parent / "gptq.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)


main()
