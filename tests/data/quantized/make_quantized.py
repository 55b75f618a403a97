"""Golden quantized weights: random codes, packed by compressed-tensors, and their numbers.

    python -m venv venv && venv/bin/pip install torch compressed-tensors==0.20.1 ml_dtypes numpy
    venv/bin/python tests/data/quantized/make_quantized.py tests/data/quantized

Writes for each case <name>.data, <name>.scales, <name>.zeros (asymmetric only) as a checkpoint
stores them, and <name>.f32, the dequantized numbers [rows, columns] in float32: one product of the
exact integer (or e4m3 number) and the scale, rounded once. All little-endian.
"""
import sys

import ml_dtypes
import numpy as np
import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32

torch.manual_seed(4)
rng = np.random.default_rng(4)


def write(name, suffix, array):
    np.ascontiguousarray(array).tofile(f"{sys.argv[1]}/{name}.{suffix}")


def raw(tensor):
    return tensor.flatten().clone().view(torch.uint8).numpy()


# name: rows, columns, group, scale type, asymmetric
INT4 = {
    "int4_g32_bf16": (19, 96, 32, torch.bfloat16, False),
    "int4_g128_f16": (5, 256, 128, torch.float16, False),
    "int4_g64_f32": (3, 64, 64, torch.float32, False),
    "int4_g64_bf16_zeros": (19, 128, 64, torch.bfloat16, True),
    "int4_g32_f16_zeros": (17, 64, 32, torch.float16, True),
    "int4_g128_f32_zeros": (10, 128, 128, torch.float32, True),
}
for name, (rows, columns, group, dtype, asymmetric) in INT4.items():
    q = torch.randint(-8, 8, (rows, columns), dtype=torch.int8)
    scales = (torch.randn(rows, columns // group) * 0.02).to(dtype)
    scales[0, 0] = 0
    if dtype != torch.float16:
        scales[1, 0] = 3e30  # outside binary16
        scales[2, 0] = -1e-30
    packed = pack_to_int32(q, 4)
    codes = unpack_from_int32(packed, 4, q.shape).to(torch.int32)
    assert (codes == q).all()
    if asymmetric:
        zeros = torch.randint(-8, 8, (rows, columns // group), dtype=torch.int8)
        packed_zeros = pack_to_int32(zeros, 4, packed_dim=0)
        write(name, "zeros", raw(packed_zeros))
        codes -= unpack_from_int32(packed_zeros, 4, zeros.shape, packed_dim=0).to(
            torch.int32
        ).repeat_interleave(group, dim=1)
    values = codes.to(torch.float32) * scales.to(torch.float32).repeat_interleave(group, dim=1)
    write(name, "data", raw(packed))
    write(name, "scales", raw(scales))
    write(name, "f32", values.numpy().astype("<f4"))

# Partial blocks at both edges; every code but the two NaNs.
rows, columns = 131, 133
codes = rng.permutation(np.resize(np.delete(np.arange(256), [0x7F, 0xFF]), rows * columns))
codes = codes.astype(np.uint8).reshape(rows, columns)
scales = (rng.standard_normal((2, 2)) * 1e-3).astype(np.float32)
numbers = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
values = numbers * np.kron(scales, np.ones((128, 128), np.float32))[:rows, :columns]
write("fp8_block", "data", codes)
write("fp8_block", "scales", scales)
write("fp8_block", "f32", values.astype("<f4"))
