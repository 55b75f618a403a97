"""Golden GGUF blocks: random bytes, and the numbers that the `gguf` package (PyPI) reads in them.

    python -m venv venv && venv/bin/pip install gguf==0.19.0 numpy
    venv/bin/python tests/data/gguf/make_blocks.py tests/data/gguf

Writes <type>.blocks (raw blocks) and <type>.f32 (their numbers, little-endian float32).
Scales are random binary16 numbers of both signs; the first block has subnormal ones, the second
zero, the third the largest that keep every product finite.
"""
import sys

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType as T

BLOCKS = 12
# Type -> (bytes per block, numbers per block, offsets of its binary16 scales).
TYPES = {
    T.Q4_0: (18, 32, [0]),
    T.Q4_1: (20, 32, [0, 2]),
    T.Q8_0: (34, 32, [0]),
    T.Q4_K: (144, 256, [0, 2]),
    T.Q6_K: (210, 256, [208]),
}

rng = np.random.default_rng(20240607)
for kind, (size, numbers, scales) in TYPES.items():
    blocks = rng.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
    for offset in scales:
        d = (rng.standard_normal(BLOCKS) * 0.02).astype(np.float16)
        d[0] = np.float16(3e-7)
        d[1] = 0
        d[2] = 60000
        blocks[:, offset : offset + 2] = d.view(np.uint8).reshape(BLOCKS, 2)
    values = gguf.quants.dequantize(blocks, kind).astype("<f4").reshape(BLOCKS, numbers)
    assert np.isfinite(values).all()
    name = f"{sys.argv[1]}/{kind.name.lower()}"
    blocks.tofile(name + ".blocks")
    values.tofile(name + ".f32")
    print(kind.name, blocks.shape, values.shape)
