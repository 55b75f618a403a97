"""Seals of docs/formats/kv_page.md for pages of every format, by Python's xxhash and by arithmetic of its own.

usage: make_seals.py > seals.json     (xxhash 4.1)

Byte i of a page is (i * 131 + i // 251 * 17 + 7) mod 256. `rows` rows are sealed, the first at `first_position`, which begins
its page. seals[layer] is the sum of the rows' hashes modulo 2^64, first[layer] the hash of the first row.
"""
import json

import xxhash

FORMATS = ["f32", "bf16", "fp8_e4m3", "fp8_tiled", "fp8_ds_mla"]
NUMBER = {"f32": 4, "bf16": 2, "fp8_e4m3": 1, "fp8_tiled": 1, "fp8_ds_mla": 1}
MASK = (1 << 64) - 1


def mix64(x):
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 & MASK
    x ^= x >> 27
    x = x * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def up(n, to):
    return -(-n // to) * to


def parts(layer, f):
    """Bytes of a token's parts: those of the slab, those of the index slab."""
    n = NUMBER[f]
    if "heads" in layer:
        slab = [layer["heads"] * layer["dim"] * n] * 2
        if f == "fp8_tiled": slab.append(up(2 * layer["heads"], 8))
    else:
        tiles = -(-layer["latent"] // 128)
        slab = [layer["latent"] + 4 * tiles + 2 * layer["rope"] if f == "fp8_ds_mla" else (layer["latent"] + layer["rope"]) * n]
        if f == "fp8_tiled": slab.append(up(tiles + 1, 8))
    index = []
    if layer.get("index"):
        index = [layer["index"] * n] + ([4] if f.startswith("fp8") else [])
    return slab, index


def seals(case):
    p, offset, places = case["page_tokens"], 64, []
    for i, layer in enumerate(case["layers"]):
        f = "bf16" if i in case["bf16_layers"] else case["format"]
        place = []
        for slab in parts(layer, f):
            at = offset
            for size in slab:
                place.append((at, size))
                at += size * p
            offset += up(sum(slab) * p, 64)
        places.append((f, place))
    page = bytes((i * 131 + i // 251 * 17 + 7) % 256 for i in range(offset))
    sums, first = [], []
    for i, (f, place) in enumerate(places):
        hashes = []
        for row in range(case["rows"]):
            data = b"".join(page[at + row * size:at + (row + 1) * size] for at, size in place)
            position = case["first_position"] + row
            hashes.append(xxhash.xxh3_64_intdigest(data, seed=mix64(position << 24 | i << 8 | FORMATS.index(f))))
        sums.append(f"{sum(hashes) & MASK:016x}")
        first.append(f"{hashes[0]:016x}")
    return dict(case, page_bytes=offset, seals=sums, first=first)


gqa, mla, dsa = dict(heads=3, dim=64), dict(latent=512, rope=64), dict(latent=512, rope=64, index=128)
cases = [dict(format=f, layers=[gqa, dict(heads=1, dim=3)], page_tokens=4, first_position=8, rows=3, bf16_layers=[]) for f in FORMATS[:4]]
cases += [dict(format=f, layers=[mla, dsa, mla], page_tokens=64, first_position=64 * 1000, rows=64, bf16_layers=[2]) for f in FORMATS[1:]]
cases += [dict(format="f32", layers=[dict(latent=5, rope=0), dsa], page_tokens=1, first_position=3, rows=1, bf16_layers=[])]
print(json.dumps([seals(c) for c in cases], indent=1))
