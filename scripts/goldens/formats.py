"""A tiny checkpoint with every storage format, made by torch and safetensors; its values as torch and transformers read them;
and codes that torch's casts give, for the quantisers."""

import argparse
import hashlib
import json
import pathlib

import numpy as np
import torch
from safetensors.torch import save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

import reference

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
LUT = torch.cat([E2M1, -E2M1])
# wo_b has 160 rows of 144 values, so blocks are cut off at both edges.
H, Q_RANK, O_RANK, GROUPS, HEADS, HEAD_DIM, INNER, EXPERTS, VOCAB = 160, 32, 72, 2, 4, 8, 32, 2, 16
CONFIG = {
    "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "vocab_size": VOCAB, "hidden_size": H,
    "num_hidden_layers": 2, "num_attention_heads": HEADS, "num_key_value_heads": 1, "head_dim": HEAD_DIM,
    "qk_rope_head_dim": 8, "q_lora_rank": Q_RANK, "o_lora_rank": O_RANK, "o_groups": GROUPS, "sliding_window": 128,
    "compress_ratios": [4, 0], "rope_theta": 10000.0, "compress_rope_theta": 160000.0, "max_position_embeddings": 4096,
    "index_n_heads": 4, "index_head_dim": 8, "index_topk": 8, "n_routed_experts": EXPERTS, "n_shared_experts": 1,
    "num_experts_per_tok": 1, "moe_intermediate_size": INNER, "num_hash_layers": 1, "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc", "norm_topk_prob": True, "routed_scaling_factor": 1.5, "swiglu_limit": 10.0, "hc_mult": 1,
    "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "rms_norm_eps": 1e-6, "bos_token_id": 0, "eos_token_id": 1,
    "expert_dtype": "fp4",
    "quantization_config": {
        "quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "scale_fmt": "ue8m0",
        "activation_scheme": "dynamic", "quant_algo": "MIXED_PRECISION", "moe_quant_algo": "NVFP4", "group_size": 16,
        "quantized_layers": {"layers.1.ffn.experts": {"quant_algo": "NVFP4", "group_size": 16}},
        "ignore": ["*.attn.*", "*.ffn.shared_experts.*", "head", "mtp.*"],
    },
}  # fmt: skip

generator = torch.Generator().manual_seed(4)


def integers(low, high, shape):
    return torch.randint(low, high, shape, generator=generator)


def fp8_values(codes, scales):
    """Exact f32 values; transformers must agree on the same blocks, padded to whole ones."""
    rows, columns = codes.shape
    wide = scales.float().repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]
    values = codes.float() * wide
    grid = scales.shape
    padded = torch.zeros(grid[0] * 128, grid[1] * 128, dtype=torch.float8_e4m3fn)
    padded.view(torch.uint8)[:rows, :columns] = codes.view(torch.uint8)
    theirs = Fp8Dequantize(None)._dequantize_one(padded, scales, output_dtype=torch.float32)[:rows, :columns]
    assert torch.equal(values, theirs)
    return values


def fp4_codes(packed):
    bytes_ = packed.view(torch.uint8)
    return torch.stack([bytes_ & 15, bytes_ >> 4], -1).flatten(-2).int()


def mxfp4_values(packed, scales):
    rows, columns = packed.shape[0], packed.shape[1] * 2
    values = LUT[fp4_codes(packed)] * scales.float().repeat_interleave(32, 1)
    as_int = packed.view(torch.uint8).view(torch.int8)
    assert torch.equal(values, Fp8Dequantize(None)._dequantize_one(as_int, scales, output_dtype=torch.float32))
    blocks = packed.view(torch.uint8).reshape(1, rows, columns // 32, 16)
    theirs = convert_moe_packed_tensors(blocks, scales.view(torch.uint8)[None], dtype=torch.float32)
    assert torch.equal(values, theirs[0].T)
    return values


def nvfp4_values(packed, scales, factor):
    """transformers quantises to NVFP4 but has no reader of it, so this is ModelOpt's formula alone."""
    return LUT[fp4_codes(packed)] * scales.float().repeat_interleave(16, 1) * factor


class Builder:
    def __init__(self):
        self.tensors, self.values = {}, {}

    def plain(self, name, *shape, dtype=torch.float32, mean=0.0):
        self.tensors[name] = (torch.randn(*shape, generator=generator) * 0.1 + mean).to(dtype)

    def half(self, name, *shape, mean=0.0):
        self.plain(name, *shape, dtype=torch.bfloat16, mean=mean)

    def fp8(self, module, rows, columns, scale_type=torch.float8_e8m0fnu):
        codes = integers(0, 254, (rows, columns))
        codes = (codes + (codes >= 127)).to(torch.uint8)  # every code but the two of NaN
        scales = integers(110, 125, (-(-rows // 128), -(-columns // 128))).to(torch.uint8)
        self.tensors[f"{module}.weight"] = codes.view(torch.float8_e4m3fn)
        self.tensors[f"{module}.scale"] = scales.view(scale_type)
        self.values[module] = fp8_values(codes.view(torch.float8_e4m3fn), scales.view(torch.float8_e8m0fnu))

    def mxfp4(self, module, rows, columns, container):
        packed = integers(0, 256, (rows, columns // 2)).to(torch.uint8)
        scales = integers(112, 124, (rows, columns // 32)).to(torch.uint8).view(torch.float8_e8m0fnu)
        self.tensors[f"{module}.weight"] = packed.view(container)
        self.tensors[f"{module}.scale"] = scales
        self.values[module] = mxfp4_values(packed, scales)

    def nvfp4(self, module, rows, columns, factor, shape=()):
        packed = integers(0, 256, (rows, columns // 2)).to(torch.uint8)
        scales = integers(0, 127, (rows, columns // 16)).to(torch.uint8).view(torch.float8_e4m3fn)
        factor = torch.tensor(factor, dtype=torch.float32)
        self.tensors[f"{module}.weight"] = packed
        self.tensors[f"{module}.weight_scale"] = scales
        self.tensors[f"{module}.weight_scale_2"] = factor.reshape(shape)
        self.values[module] = nvfp4_values(packed, scales, factor)

    def compressor(self, prefix, width):
        self.plain(f"{prefix}.ape", 4, 2 * width)
        self.half(f"{prefix}.wkv.weight", 2 * width, H)
        self.half(f"{prefix}.wgate.weight", 2 * width, H)
        self.half(f"{prefix}.norm.weight", width, mean=1.0)

    def layer(self, index):
        p = f"layers.{index}"
        for part in ("attn", "ffn"):
            self.plain(f"{p}.hc_{part}_fn", 3, H)
            self.plain(f"{p}.hc_{part}_base", 3)
            self.plain(f"{p}.hc_{part}_scale", 3, mean=1.0)
            self.half(f"{p}.{part}_norm.weight", H, mean=1.0)
        a, f = f"{p}.attn", f"{p}.ffn"
        self.fp8(f"{a}.wq_a", Q_RANK, H)
        self.half(f"{a}.q_norm.weight", Q_RANK, mean=1.0)
        self.fp8(f"{a}.wq_b", HEADS * HEAD_DIM, Q_RANK, scale_type=torch.uint8)
        self.fp8(f"{a}.wkv", HEAD_DIM, H)
        self.half(f"{a}.kv_norm.weight", HEAD_DIM, mean=1.0)
        self.fp8(f"{a}.wo_a", GROUPS * O_RANK, HEADS * HEAD_DIM // GROUPS)
        self.fp8(f"{a}.wo_b", H, GROUPS * O_RANK)
        self.plain(f"{a}.attn_sink", HEADS)
        if CONFIG["compress_ratios"][index] == 4:
            self.compressor(f"{a}.compressor", HEAD_DIM)
            self.fp8(f"{a}.indexer.wq_b", 4 * 8, Q_RANK)
            self.half(f"{a}.indexer.weights_proj.weight", 4, H)
            self.compressor(f"{a}.indexer.compressor", 8)
        self.half(f"{f}.gate.weight", EXPERTS, H)
        if index < CONFIG["num_hash_layers"]:
            self.tensors[f"{f}.gate.tid2eid"] = integers(0, EXPERTS, (VOCAB, 1))
        else:
            self.plain(f"{f}.gate.bias", EXPERTS)
        shapes = {"w1": (INNER, H), "w2": (H, INNER), "w3": (INNER, H)}
        containers = {"w1": torch.int8, "w2": torch.uint8, "w3": torch.float4_e2m1fn_x2}
        for expert in range(EXPERTS):
            for number, (w, shape) in enumerate(shapes.items()):
                module = f"{f}.experts.{expert}.{w}"
                if index == 0:
                    self.mxfp4(module, *shape, containers[w])
                else:
                    # Factors that no f32 product hides, another one for each matrix, in both shapes in use.
                    factor = (3.0 + number + expert) / 7.0 * 1e-3
                    self.nvfp4(module, *shape, factor, shape=(1,) if w == "w2" else ())
                    self.tensors[f"{module}.input_scale"] = torch.tensor(1.0)
        for w, shape in shapes.items():
            self.fp8(f"{f}.shared_experts.{w}", *shape)

    def model(self):
        self.half("embed.weight", VOCAB, H)
        self.half("head.weight", VOCAB, H)
        self.half("norm.weight", H, mean=1.0)
        self.plain("hc_head_fn", 1, H)
        self.plain("hc_head_base", 1)
        self.plain("hc_head_scale", 1, mean=1.0)
        for index in range(CONFIG["num_hidden_layers"]):
            self.layer(index)
        self.half("mtp.0.enorm.weight", H)


def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def as_golden(values):
    values = values.contiguous().numpy().astype("<f4")
    samples = [0, 1, values.shape[1] + 17, values.size // 2 + 1, values.size - 1]
    bits = values.view("<u4").ravel()
    return {"shape": list(values.shape), "sha256": digest(values), "samples": {str(i): f"{bits[i]:08x}" for i in samples}}


def inputs(rows, columns):
    """Exact in f32 and the same in Rust (host/checkpoint/tests/quantise.rs): integers of a SplitMix64 stream times powers of
    two that differ by row; short ones in every fourth row, so that many values are ties; one group of zeros."""
    state, out = 0x5EED, np.zeros((rows, columns), dtype=np.float64)
    mask = (1 << 64) - 1
    for i in range(rows):
        for j in range(columns):
            state = (state + 0x9E3779B97F4A7C15) & mask
            z = state
            z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
            z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
            z ^= z >> 31
            short = i % 4 == 3
            integer = (z >> 59) - 16 if short else (z >> 40) - (1 << 23)
            power = (i % 9 - 4) * 3 - (2 if short else 23)
            out[i, j] = integer * 2.0**power
    out[5, 32:64] = 0.0
    out[:, 128:160] = 0.0
    values = torch.from_numpy(out.astype(np.float32))
    assert torch.equal(values.double(), torch.from_numpy(out))
    return values


def power_scale(amax, largest):
    """Exact: the smallest power of two that does not clip; 1 for zeros."""
    mantissa, exponent = torch.frexp(amax.double() / largest)
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent)
    return torch.where(amax == 0, torch.zeros_like(exponent), exponent)


def nearest_e2m1(scaled):
    """Nearest table entry in f64; of two as near the one with the even code."""
    distance = (scaled.double().abs().unsqueeze(-1) - E2M1.double()).abs()
    smallest = distance.min(-1, keepdim=True).values
    tied = distance == smallest
    even_first = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    code = even_first[tied[..., even_first].int().argmax(-1)]
    return (code | torch.signbit(scaled).int() * 8).to(torch.uint8)


def pack(codes):
    return codes[:, 0::2] | codes[:, 1::2] << 4


def quantised(values):
    rows, columns = values.shape
    blocks = values.reshape(rows // 128, 128, columns // 128, 128)
    exponent = power_scale(blocks.abs().amax((1, 3)), 448.0)
    scaled = blocks * torch.exp2(-exponent.float())[:, None, :, None]
    codes = scaled.reshape(rows, columns).to(torch.float8_e4m3fn).view(torch.uint8)
    scales = (exponent + 127).to(torch.uint8)

    class Settings:
        weight_block_size, scale_fmt = [128, 128], "ue8m0"

    class Quantizer:
        quantization_config = Settings

    theirs = Fp8Quantize(Quantizer)._quantize_one("w.weight", values)
    assert torch.equal(theirs["w.weight"].view(torch.uint8), codes)
    assert torch.equal(theirs["w.weight_scale_inv"].view(torch.uint8), scales)
    out = {"fp8": {"codes": digest(codes.numpy()), "scales": digest(scales.numpy())}}

    groups = values.reshape(rows, columns // 32, 32)
    exponent = power_scale(groups.abs().amax(-1), 6.0)
    codes = nearest_e2m1(groups * torch.exp2(-exponent.float())[..., None]).reshape(rows, columns)
    scales = (exponent + 127).to(torch.uint8)
    out["mxfp4"] = {"codes": digest(pack(codes).numpy()), "scales": digest(scales.numpy())}

    groups = values.reshape(rows, columns // 16, 16)
    factor = values.abs().max() / (6.0 * 448.0)
    scales = (groups.abs().amax(-1) / 6.0 / factor).to(torch.float8_e4m3fn)
    step = scales.float() * factor
    scaled = torch.where(step[..., None] == 0, torch.zeros_like(groups), groups / step[..., None])
    codes = nearest_e2m1(scaled).reshape(rows, columns)
    bits = f"{np.float32(factor).view('<u4'):08x}"
    out["nvfp4"] = {"codes": digest(pack(codes).numpy()), "scales": digest(scales.view(torch.uint8).numpy()), "factor": bits}
    return out


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--root", type=pathlib.Path, required=True)
    out = args.parse_args().root / "tests/goldens/formats"
    out.mkdir(exist_ok=True)
    builder = Builder()
    builder.model()
    save_file({k: v.contiguous() for k, v in builder.tensors.items()}, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    (out / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n")
    table = builder.tensors["layers.0.ffn.gate.tid2eid"].flatten().tolist()
    value = {
        "what": "f32 values of each stored matrix, little-endian, row-major: their SHA-256, and some bit patterns by flat index. "
        "torch computes them; transformers (integrations/finegrained_fp8.py, integrations/mxfp4.py) gives the same "
        "bits for FP8 and MXFP4, and has no reader of NVFP4",
        "weights_sha256": digest(np.frombuffer((out / "model.safetensors").read_bytes(), dtype=np.uint8)),
        "versions": reference.versions(),
        "tid2eid": table,
        "matrices": {module: as_golden(values) for module, values in builder.values.items()},
        "quantised_what": "SHA-256 of codes and scales of the inputs [256, 256] that host/checkpoint/tests/quantise.rs makes too; "
        "torch casts to E4M3, transformers' Fp8Quantize gives the same FP8 bits; E2M1 is the nearest of its table",
        "quantised": quantised(inputs(256, 256)),
    }  # fmt: skip
    (out / "values.json").write_text(json.dumps(value, indent=1) + "\n")


if __name__ == "__main__":
    main()
