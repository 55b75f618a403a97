"""Safetensors without packages: raw bytes in, raw bytes out."""
import glob
import json
import os
import struct


def load_file(path):
    """{name: (dtype, shape, bytes)}"""
    data = open(path, "rb").read()
    size = struct.unpack_from("<Q", data)[0]
    tensors = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name != "__metadata__":
            begin, end = (8 + size + x for x in entry["data_offsets"])
            tensors[name] = (entry["dtype"], entry["shape"], data[begin:end])
    return tensors


def load(folder):
    """All model*.safetensors of a folder; no name twice."""
    tensors = {}
    for path in sorted(glob.glob(os.path.join(folder, "model*.safetensors"))):
        for name, value in load_file(path).items():
            assert name not in tensors, name
            tensors[name] = value
    return tensors


def save(path, tensors):
    header, at = {}, 0
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, _, raw in tensors.values():
            f.write(raw)


def bf16_values(raw):
    """BF16 bytes as floats."""
    halves = struct.unpack(f"<{len(raw) // 2}H", raw)
    return struct.unpack(f"<{len(halves)}f", struct.pack(f"<{len(halves)}I", *(h << 16 for h in halves)))


def e4m3(byte):
    sign = -1.0 if byte & 0x80 else 1.0
    exponent, mantissa = byte >> 3 & 15, byte & 7
    return sign * (mantissa * 2.0 ** -9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10))


def fp8_values(codes, scales, rows, columns):
    """[rows, columns] of float8_e4m3fn codes and float32 scales per block of 128 x 128."""
    table = [e4m3(i) if i & 0x7F != 0x7F else float("nan") for i in range(256)]
    across = -(-columns // 128)
    s = struct.unpack(f"<{len(scales) // 4}f", scales)
    return [table[codes[r * columns + c]] * s[r // 128 * across + c // 128] for r in range(rows) for c in range(columns)]
