"""Writes a small DeepSeek-V4 checkpoint with random weights, in the official layout and tensor names.

  python scripts/bench/official_checkpoint.py target/peers/ck              FP8 and FP4 weights, 101 M parameters, 99 MB
  python scripts/bench/official_checkpoint.py target/peers/ck-bf16 --dtype bf16     the same numbers in bf16

`--dtype fp8` stores dense projections in e4m3 with one ue8m0 scale per 128x128 block and routed experts in MXFP4 (two
e2m1 values a byte, the lower nibble first, one ue8m0 scale per 32 columns). `wo_a`, compressors, embedding and head are
bf16. `--dtype bf16` stores what the packed weights stand for; that is exact, since an e4m3 or e2m1 value times a power
of two fits bf16. Random weights are good for speed only: two correct engines part ways on their near-ties."""
import argparse, json, os

import torch
from safetensors.torch import save_file

# The values of the 16 codes of e2m1.
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
# Exponents of the scales: they bring weights of variance 1/512 into the range of their type.
FP8_EXPONENT, FP4_EXPONENT = -10, -6


class Writer:
    """Collects tensors by name. The random numbers do not depend on how they are stored."""

    def __init__(self, dtype, seed):
        self.packed = dtype == "fp8"
        self.random = torch.Generator().manual_seed(seed)
        self.tensors = {}
        self.parameters = 0

    def put(self, name, tensor, parameters=None):
        self.tensors[name] = tensor.contiguous()
        self.parameters += tensor.numel() if parameters is None else parameters

    def normal(self, *shape, std):
        return torch.randn(shape, generator=self.random) * std

    def ones(self, name, n):
        self.put(name, torch.ones(n, dtype=torch.bfloat16))

    def f32(self, name, *shape, std=0.02):
        self.put(name, self.normal(*shape, std=std))

    def bf16(self, name, rows, columns, std=None):
        self.put(name, self.normal(rows, columns, std=std or columns**-0.5).to(torch.bfloat16))

    def fp8(self, name, rows, columns):
        """A matrix of e4m3 values with one scale per block of 128 x 128."""
        codes = (self.normal(rows, columns, std=columns**-0.5) * 2.0**-FP8_EXPONENT).clamp(-448, 448).to(torch.float8_e4m3fn)
        if not self.packed:
            return self.put(name + ".weight", (codes.float() * 2.0**FP8_EXPONENT).to(torch.bfloat16))
        self.put(name + ".weight", codes)
        self.put(name + ".scale", scales(FP8_EXPONENT, -(-rows // 128), -(-columns // 128)), 0)

    def fp4(self, name, rows, columns):
        """A matrix of e2m1 values, two a byte, with one scale per 32 columns of a row."""
        codes = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8, generator=self.random)
        if not self.packed:
            values = torch.stack([E2M1[(codes & 15).long()], E2M1[(codes >> 4).long()]], dim=-1).reshape(rows, columns)
            return self.put(name + ".weight", (values * 2.0**FP4_EXPONENT).to(torch.bfloat16))
        self.put(name + ".weight", codes.view(torch.int8), rows * columns)
        self.put(name + ".scale", scales(FP4_EXPONENT, rows, columns // 32), 0)

    def experts_of(self, vocab, experts, chosen):
        """For each token, which experts a hash layer sends it to: `chosen` different ones."""
        return torch.rand(vocab, experts, generator=self.random).argsort(1)[:, :chosen].to(torch.int32)


def scales(exponent, rows, columns):
    return torch.full((rows, columns), 127 + exponent, dtype=torch.uint8).view(torch.float8_e8m0fnu)


def config(args):
    """`config.json` in the official form: two window layers, then CSA and HCA in turn."""
    ratios = [0, 0] + [4, 128] * ((args.layers - 2) // 2)
    c = dict(architectures=["DeepseekV4ForCausalLM"], model_type="deepseek_v4", torch_dtype="bfloat16",
             vocab_size=args.vocab, hidden_size=args.hidden, num_hidden_layers=args.layers,
             num_attention_heads=args.heads, num_key_value_heads=1, head_dim=512, qk_rope_head_dim=64,
             q_lora_rank=256, o_lora_rank=128, o_groups=4, sliding_window=128, compress_ratios=ratios,
             rope_theta=10000.0, compress_rope_theta=160000.0,
             rope_scaling=dict(type="yarn", factor=16, original_max_position_embeddings=4096, beta_fast=32, beta_slow=1),
             max_position_embeddings=65536, index_n_heads=args.index_heads, index_head_dim=128, index_topk=512,
             n_routed_experts=args.experts, n_shared_experts=1, num_experts_per_tok=4, moe_intermediate_size=256,
             num_hash_layers=2, scoring_func="sqrtsoftplus", topk_method="noaux_tc", norm_topk_prob=True,
             routed_scaling_factor=1.5, swiglu_limit=10.0, hc_mult=4, hc_sinkhorn_iters=20, hc_eps=1e-6,
             num_nextn_predict_layers=0, rms_norm_eps=1e-6, hidden_act="silu", tie_word_embeddings=False,
             attention_bias=False, bos_token_id=0, eos_token_id=1)
    if args.dtype == "fp8":
        c["expert_dtype"] = "fp4"
        c["quantization_config"] = dict(quant_method="fp8", fmt="e4m3", scale_fmt="ue8m0", activation_scheme="dynamic",
                                        weight_block_size=[128, 128])
    return c


def write(w, c):
    hidden, head_dim, heads = c["hidden_size"], c["head_dim"], c["num_attention_heads"]
    hc, o_rank = c["hc_mult"], c["o_groups"] * c["o_lora_rank"]
    w.bf16("embed.weight", c["vocab_size"], hidden, std=0.02)
    w.bf16("head.weight", c["vocab_size"], hidden)
    w.ones("norm.weight", hidden)
    w.f32("hc_head_fn", hc, hc * hidden)
    w.f32("hc_head_base", hc)
    w.put("hc_head_scale", torch.ones(1))
    for layer, ratio in enumerate(c["compress_ratios"]):
        p = f"layers.{layer}."
        for part in ("attn", "ffn"):
            w.f32(f"{p}hc_{part}_fn", (2 + hc) * hc, hc * hidden)
            w.f32(f"{p}hc_{part}_base", (2 + hc) * hc)
            w.put(f"{p}hc_{part}_scale", torch.ones(3))
            w.ones(f"{p}{part}_norm.weight", hidden)
        a = p + "attn."
        w.fp8(a + "wq_a", c["q_lora_rank"], hidden)
        w.ones(a + "q_norm.weight", c["q_lora_rank"])
        w.fp8(a + "wq_b", heads * head_dim, c["q_lora_rank"])
        w.fp8(a + "wkv", head_dim, hidden)
        w.ones(a + "kv_norm.weight", head_dim)
        w.bf16(a + "wo_a.weight", o_rank, heads * head_dim // c["o_groups"])
        w.fp8(a + "wo_b", hidden, o_rank)
        w.f32(a + "attn_sink", heads)
        if ratio:
            compressor(w, c, a + "compressor.", ratio, head_dim)
        if ratio == 4:
            w.fp8(a + "indexer.wq_b", c["index_n_heads"] * c["index_head_dim"], c["q_lora_rank"])
            w.bf16(a + "indexer.weights_proj.weight", c["index_n_heads"], hidden)
            compressor(w, c, a + "indexer.compressor.", ratio, c["index_head_dim"])
        moe(w, c, p + "ffn.", layer)


def compressor(w, c, prefix, ratio, width):
    wide = width * (2 if ratio == 4 else 1)  # a CSA entry overlaps the one before it
    w.f32(prefix + "ape", ratio, wide)
    w.bf16(prefix + "wkv.weight", wide, c["hidden_size"])
    w.bf16(prefix + "wgate.weight", wide, c["hidden_size"])
    w.ones(prefix + "norm.weight", width)


def moe(w, c, prefix, layer):
    hidden, inner, experts = c["hidden_size"], c["moe_intermediate_size"], c["n_routed_experts"]
    shapes = dict(w1=(inner, hidden), w2=(hidden, inner), w3=(inner, hidden))
    w.bf16(prefix + "gate.weight", experts, hidden)
    if layer < c["num_hash_layers"]:
        w.put(prefix + "gate.tid2eid", w.experts_of(c["vocab_size"], experts, c["num_experts_per_tok"]))
    else:
        w.f32(prefix + "gate.bias", experts)
    for expert in range(experts):
        for name, shape in shapes.items():
            w.fp4(f"{prefix}experts.{expert}.{name}", *shape)
    for name, shape in shapes.items():
        w.fp8(f"{prefix}shared_experts.{name}", *shape)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", help="directory to write; made if it is not there")
    parser.add_argument("--dtype", choices=["fp8", "bf16"], default="fp8", help="element types (default: fp8)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layers", type=int, default=8, help="layers, an even number from 4 (default: 8)")
    parser.add_argument("--hidden", type=int, default=512, help="hidden size, a multiple of 128 (default: 512)")
    parser.add_argument("--heads", type=int, default=16, help="attention heads, a multiple of 4 (default: 16)")
    parser.add_argument("--index-heads", type=int, default=64, help="heads of the indexer (default: 64)")
    parser.add_argument("--experts", type=int, default=16, help="routed experts, from 4; 4 are used (default: 16)")
    parser.add_argument("--vocab", type=int, default=4096, help="tokens, from 512 (default: 4096)")
    args = parser.parse_args()
    for name, good in dict(layers=args.layers >= 4 and args.layers % 2 == 0, hidden=args.hidden >= 128 and args.hidden % 128 == 0,
                           heads=args.heads >= 4 and args.heads % 4 == 0, index_heads=args.index_heads >= 1,
                           experts=args.experts >= 4, vocab=args.vocab >= 512).items():
        if not good:
            parser.error(f"--{name.replace('_', '-')} {getattr(args, name)}: see --help for what it may be")
    return args


def main():
    args = arguments()
    c = config(args)
    w = Writer(args.dtype, args.seed)
    write(w, c)
    os.makedirs(args.out, exist_ok=True)
    save_file(w.tensors, f"{args.out}/model.safetensors", metadata={"format": "pt"})
    with open(f"{args.out}/config.json", "w") as file:
        json.dump(c, file, indent=1)
    print(f"{args.out}: {w.parameters / 1e6:.1f} M parameters in {args.dtype}, "
          f"{os.path.getsize(f'{args.out}/model.safetensors') / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
