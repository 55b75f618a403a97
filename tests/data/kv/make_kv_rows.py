"""Bytes of grouped-query and indexer rows in the FP8 formats of docs/formats/kv_page.md, made with PyTorch's float8_e4m3fn.

usage: make_kv_rows.py OUT.safetensors     (torch 2.15, safetensors 0.8)

gqa_k, gqa_v      float32 [R, H, D]    rows as a model gives them
gqa_e4m3_k, _v    uint8 [R, H*D]       divided by k_scale = 0.05 and v_scale = 0.11 after rounding to BF16
gqa_tiled_k, _v   uint8 [R, H*D]       gqa_tiled_scales uint8 [R, S]: e8m0 bytes of K heads, V heads, zero to a multiple of 8
index             float32 [R, 40]      index_codes uint8 [R, 40], index_scales float32 [R]: max(amax, 1e-4) / 448
(latent rows and all conversions of BF16: kv_rows.safetensors, the project's reference material)
"""
import sys

import torch
from safetensors.torch import save_file


def e4m3(x):
    nan = torch.isnan(x)
    q = x.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    q[nan] = 0x7F
    return q


def exponent(amax):
    m, e = torch.frexp(amax.double())
    r = e - 9 + (m > 0.875).to(e.dtype)
    return torch.where(amax == 0, torch.zeros_like(r), r.clamp(-127, 127))


def tiled(x):
    """codes and e8m0 bytes of [R, H, D], one scale a head."""
    e = exponent(x.abs().amax(-1))
    return e4m3((x.double() * torch.pow(2.0, -e.double())[..., None]).float()), (e + 127).to(torch.uint8)


g = torch.Generator().manual_seed(7)
R, H, D = 29, 3, 24
size = torch.pow(10.0, torch.randint(-12, 5, (R, H, 1), generator=g).float())
k = torch.randn(R, H, D, generator=g) * size
v = torch.randn(R, H, D, generator=g) * size.flip(0)
k[3] = 0
v[5, 1] = 0
k[7, 2, 4] = 3e38
bk, bv = k.to(torch.bfloat16).float(), v.to(torch.bfloat16).float()
ck, sk = tiled(bk)
cv, sv = tiled(bv)
scales = torch.zeros(R, (2 * H + 7) // 8 * 8, dtype=torch.uint8)
scales[:, :H], scales[:, H:2 * H] = sk, sv
index = torch.randn(R, 40, generator=g) * torch.pow(10.0, torch.randint(-8, 4, (R, 1), generator=g).float())
index[2] = 0
bi = index.to(torch.bfloat16).float()
si = bi.abs().amax(1).clamp(min=1e-4) / torch.tensor(448.0)
flat = lambda x: x.reshape(R, -1).contiguous()
save_file(dict(gqa_k=flat(k), gqa_v=flat(v), gqa_e4m3_k=flat(e4m3(bk / torch.tensor(0.05))), gqa_e4m3_v=flat(e4m3(bv / torch.tensor(0.11))),
               gqa_tiled_k=flat(ck), gqa_tiled_v=flat(cv), gqa_tiled_scales=scales, index=index, index_codes=e4m3(bi / si[:, None]), index_scales=si),
          sys.argv[1])
