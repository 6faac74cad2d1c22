"""Rope frequencies, and cos and sin at some positions, as bit patterns."""

import argparse
import pathlib

import torch
from transformers.models.deepseek_v4.configuration_deepseek_v4 import DeepseekV4Config
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4RotaryEmbedding

import reference

POSITIONS = [0, 1, 2, 3, 127, 128, 4095, 4096, 65535, 65536, 262143, 524288, 1048575]
YARN = {"type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1}
CASES = {
    "nano": dict(head_dim=64, qk_rope_head_dim=16),
    "yarn": dict(head_dim=512, qk_rope_head_dim=64, rope_scaling={**YARN, "original_max_position_embeddings": 65536}),
    "short": dict(head_dim=48, qk_rope_head_dim=16, rope_scaling={**YARN, "factor": 8, "original_max_position_embeddings": 4096}),
}


def bits(tensor):
    return tensor.contiguous().view(torch.int32).flatten().tolist()


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--root", type=pathlib.Path, required=True)
    out = args.parse_args().root / "tests/goldens/rope.json"
    value = {"what": "bit patterns of f32 as i32; cos and sin are [positions, pairs]", "positions": POSITIONS}
    for name, kwargs in CASES.items():
        config = DeepseekV4Config(num_hidden_layers=1, **kwargs)
        rope = DeepseekV4RotaryEmbedding(config)
        for kind in ("main", "compress"):
            cos, sin = rope(torch.zeros(1), torch.tensor([POSITIONS]), layer_type=kind)
            value[f"{name}.{kind}"] = {
                "theta": config.rope_parameters[kind]["rope_theta"],
                "inv_freq": bits(getattr(rope, f"{kind}_inv_freq")),
                "cos": bits(cos),
                "sin": bits(sin),
            }
    value["versions"] = reference.versions()
    reference.dump(out, value)


if __name__ == "__main__":
    main()
