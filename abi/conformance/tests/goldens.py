"""Writes goldens.json: small inputs and outputs of the DeepSeek-V4 modules of transformers 5.24, in float32.

Run: python goldens.py > goldens.json
"""

import json

import torch
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as m
from transformers.models.deepseek_v4.configuration_deepseek_v4 import DeepseekV4Config

torch.manual_seed(4)
torch.set_num_threads(1)
config = DeepseekV4Config(
    vocab_size=11, hidden_size=8, moe_intermediate_size=6, num_hidden_layers=3, num_attention_heads=2, head_dim=8,
    q_lora_rank=6, o_groups=1, o_lora_rank=4, index_n_heads=3, index_head_dim=8, index_topk=2, num_experts_per_tok=2,
    n_routed_experts=5, hc_mult=4, swiglu_limit=1.0, sliding_window=3, compress_ratios=[0, 4, 128],
    compress_rate_hca=5, num_hash_layers=1, partial_rotary_factor=0.5, max_position_embeddings=64,
)  # fmt: skip


def fill(module, scale=1.0):
    """Random parameters; norms near 1."""
    for name, p in module.named_parameters():
        torch.nn.init.normal_(p, std=scale if p.dim() < 2 else scale * p.shape[-1] ** -0.5)
        if "norm" in name:
            p.data = 1 + 0.2 * p.data
    return module.eval()


def lists(**tensors):
    return {k: v.detach().flatten().tolist() for k, v in tensors.items()}


out = {}
with torch.no_grad():
    streams = torch.randn(1, 3, 4, 8)
    hc = fill(m.DeepseekV4HyperConnection(config))
    post, comb, x = hc(streams)
    out["mhc_pre"] = lists(
        streams=streams, fn=hc.fn, base=hc.base, scale=hc.scale, post=post, comb=comb, x=x
    )
    f = torch.randn(1, 3, 8)
    mixed = post.unsqueeze(-1) * f.unsqueeze(-2) + torch.matmul(comb.transpose(-1, -2), streams)
    out["mhc_post"] = lists(f=f, post=post, comb=comb, streams=streams, out=mixed)
    head = fill(m.DeepseekV4HyperHead(config))
    out["mhc_head"] = lists(
        streams=streams, fn=head.hc_fn, base=head.hc_base, scale=head.hc_scale, x=head(streams)
    )

    x = torch.randn(1, 4, 8)
    router = fill(m.DeepseekV4TopKRouter(config), 2.0)
    router.e_score_correction_bias.normal_()
    _, weights, ids = router(x)
    out["route"] = lists(x=x, gate=router.weight, bias=router.e_score_correction_bias, ids=ids, weights=weights)
    experts = fill(m.DeepseekV4Experts(config), 3.0)
    y = experts(x[0], ids, weights)
    out["experts"] = lists(x=x, ids=ids, weights=weights, gate_up=experts.gate_up_proj, down=experts.down_proj, out=y)

    tokens, q_residual = torch.randn(1, 14, 8), torch.randn(1, 14, 6)
    positions = torch.arange(14).unsqueeze(0)
    for name, cls in (("csa", m.DeepseekV4CSACompressor), ("hca", m.DeepseekV4HCACompressor)):
        c = fill(cls(config))
        entries, _ = c(tokens, q_residual, positions, None, 1)
        cos, sin = c.rotary_emb(tokens, position_ids=positions, layer_type="compress")
        out[name] = lists(
            kv=c.kv_proj(tokens), gate=c.gate_proj(tokens), ape=c.position_bias, norm=c.kv_norm.weight, cos=cos, sin=sin,
            entries=entries,
        )  # fmt: skip
        if name == "csa":
            i, keys, scores = c.indexer, [], []


            def keep(_, args, result):
                keys.append(args[1])
                scores.append(result)

            i.scorer.register_forward_hook(keep)
            i(tokens, q_residual, positions, None, 1)
            out["select"] = lists(
                q_lora=q_residual, x=tokens, wq_b=i.q_b_proj.weight, weights_proj=i.scorer.weights_proj.weight,
                keys=keys[0], scores=scores[0], cos=cos, sin=sin,
            )  # fmt: skip

    # Window of 3 and two entries of ratio 4, as masks over one list of keys.
    q, window, entries = torch.randn(1, 2, 10, 8), torch.randn(1, 1, 10, 8), torch.randn(1, 1, 2, 8)
    p, k = torch.arange(10)[:, None], torch.arange(10)[None, :]
    seen = torch.cat([(k <= p) & (k > p - 3), torch.arange(2)[None, :] < (p + 1) // 4], dim=-1)
    mask = torch.zeros(1, 1, 10, 12).masked_fill(~seen, float("-inf"))
    attention = fill(m.DeepseekV4Attention(config, 0))
    keys = torch.cat([window, entries], dim=2)
    result, _ = m.eager_attention_forward(attention, q, keys, keys, mask, scaling=8**-0.5)
    out["core"] = lists(q=q.transpose(1, 2), sinks=attention.sinks, swa=window, entries=entries, out=result)

print(json.dumps({k: {n: [float(f"{v:.9g}") for v in t] for n, t in d.items()} for k, d in out.items()}))
