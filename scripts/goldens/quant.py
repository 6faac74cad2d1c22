"""Bytes of quantised KV entries and index keys, made with torch: its e4m3 cast, and e2m1 by definition.

The steps are those of the serving engines: SGLang's `fused_store_cache` and `fused_store_indexer_cache`, and `act_quant`
and `fp4_act_quant` of DeepSeek's own inference code. Values are rounded to bf16 first, keys are rotated between two
roundings to bf16.
"""

import argparse
import json
import pathlib

import torch

DIM, ROPE, KEY = 512, 64, 128
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def bf16(x):
    return x.to(torch.bfloat16).to(torch.float32)


def ceil_power(x):
    """The least power of two that is not below x, and its ue8m0 byte."""
    mantissa, exponent = torch.frexp(x)
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent)
    return torch.ldexp(torch.ones_like(x), exponent), (exponent + 127).to(torch.uint8)


def e4m3(x):
    return x.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)


def e2m1(value):
    """Nearest number of the format, the even code of two that are equally near."""
    size = min(abs(value), 6.0)
    code = min(range(8), key=lambda c: (abs(E2M1[c] - size), c % 2))
    sign = 8 if torch.tensor(value).signbit() else 0
    return code | sign


def rotate(x):
    """Hadamard in natural order, butterflies of rising stride in f32, times n^-1/2, between two roundings to bf16."""
    x, n, half = bf16(x), x.numel(), 1
    while half < n:
        pairs = x.reshape(-1, 2, half)
        x = torch.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], dim=1).reshape(n)
        half *= 2
    return bf16(x * torch.tensor(n**-0.5, dtype=torch.float32))


def kv_fp8(x):
    x = bf16(x)
    groups = x[: DIM - ROPE].reshape(-1, 64)
    scale, byte = ceil_power(groups.abs().amax(1).clamp_min(1e-4) * torch.tensor(1 / 448))
    codes = e4m3(groups / scale[:, None]).reshape(-1)
    rope = x[DIM - ROPE :].to(torch.bfloat16).view(torch.uint8)
    return torch.cat([codes, rope]), torch.cat([byte, torch.zeros(1, dtype=torch.uint8)])


def key_fp8(x):
    x = rotate(x)
    scale = x.abs().amax().clamp_min(1e-4) / 448
    return e4m3(x * (1 / scale)), scale.reshape(1).view(torch.uint8)


def key_fp4(x):
    groups = rotate(x).reshape(-1, 32)
    floor = 6 * 2.0**-126
    scale, byte = ceil_power(groups.abs().amax(1).clamp_min(floor) * torch.tensor(1 / 6, dtype=torch.float32))
    codes = [e2m1(v) for v in (groups / scale[:, None]).reshape(-1).tolist()]
    return torch.tensor([a | b << 4 for a, b in zip(codes[::2], codes[1::2])], dtype=torch.uint8), byte


def inputs(n, generator):
    """Entries of ordinary and of awkward values."""
    normal = lambda: torch.randn(n, generator=generator)
    yield normal()
    yield normal() * torch.logspace(-5, 4, n)
    outlier = normal()
    outlier[7] = 900.0
    yield outlier
    # Bin borders: the largest value of a group is on, just below and just above a power of two times the largest code.
    border = normal() * 0.1
    for i, power in enumerate(range(-5, n // 64 - 5)):
        border[64 * i + 3] = 448 * 2.0**power * [1, 1 - 2**-8, 1 + 2**-7][i % 3]
    yield border
    # Ties of e4m3 at scale 1, with the largest code to fix the scale; halves of the smallest number among them.
    ties = torch.tensor([1.0625, 1.1875, 17.0, 19.0, 2.0**-10, 3 * 2.0**-10, -1.0625, -(2.0**-10)]).repeat(n // 8)
    ties[::64] = 448.0
    yield ties
    zeros = torch.zeros(n)
    zeros[5] = 1e-7
    yield zeros


def golden(name, make, n, generator):
    entries = []
    for values in inputs(n, generator):
        data, scale = make(values)
        hexed = lambda t: bytes(t.tolist()).hex()
        entries.append({"values": values.view(torch.uint8).numpy().tobytes().hex(), "data": hexed(data), "scale": hexed(scale)})
    return {"layout": name, "dim": n, "entries": entries}


def main():
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).parents[2])
    out = args.parse_args().root / "abi/conformance/tests/quant.json"
    generator = torch.Generator().manual_seed(584)
    layouts = [("kv-fp8-ds-mla", kv_fp8, DIM), ("key-fp8-hadamard", key_fp8, KEY), ("key-fp4-hadamard", key_fp4, KEY)]
    value = [golden(*layout, generator) for layout in layouts]
    out.write_text(json.dumps({"torch": torch.__version__.split("+")[0], "layouts": value}, indent=1) + "\n")


if __name__ == "__main__":
    main()
