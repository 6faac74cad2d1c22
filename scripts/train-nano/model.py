"""DeepSeek-V4 in PyTorch for training: whole sequences, no cache, every tensor under its official name.

The arithmetic is that of transformers' `DeepseekV4ForCausalLM` (`check.py` compares the two); the arrangement is for speed.
Keys and values are one head, so a block of 128 positions and its 8 heads are 1,024 rows of one product. The window is computed
block against previous and own block, the compressed entries densely with a mask, and both share one softmax with the sink.

Shapes: B sequences, S positions (a multiple of 128), H heads of D channels, T compressed entries, N streams.
"""

import json
import math

import torch
import torch.nn.functional as F
from torch import nn

import kernels

CONFIG = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "torch_dtype": "bfloat16",
    "vocab_size": 4096,
    "hidden_size": 256,
    "num_hidden_layers": 7,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 64,
    "o_lora_rank": 32,
    "o_groups": 4,
    "sliding_window": 128,
    "compress_ratios": [0, 0, 4, 128, 4, 128, 4],
    "rope_theta": 10000.0,
    "compress_rope_theta": 160000.0,
    "rope_scaling": {
        "type": "yarn",
        "factor": 16,
        "original_max_position_embeddings": 1024,
        "beta_fast": 32,
        "beta_slow": 1,
    },
    "max_position_embeddings": 16384,
    "index_n_heads": 8,
    "index_head_dim": 128,
    "index_topk": 64,
    "n_routed_experts": 6,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "num_hash_layers": 3,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "swiglu_limit": 10.0,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-06,
    "num_nextn_predict_layers": 0,
    "rms_norm_eps": 1e-06,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
WINDOW = 128
EPS = 1e-6


def fused(function):
    """`function` as one kernel or a few on a GPU, as it stands on a CPU. Its shapes depend on the positions of a step alone,
    whatever the length of the sequences, so it is compiled once."""
    return torch.compile(function, dynamic=False) if torch.cuda.is_available() else function


def linear(x, weight):
    return F.linear(x, weight.to(x.dtype))


@fused
def rms_norm(x, weight):
    """x [rows, D]"""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS) * weight).to(x.dtype)


@fused
def pool_windows(kv, gate, ape):
    """Softmax-weighted sum over axis 1. kv, gate [entries, window, D], ape [window, D] or a scalar."""
    weights = (gate.float() + ape).softmax(1)
    return (kv.float() * weights).sum(1).to(kv.dtype)


@fused
def overlap(kv, gate, before, gate_before, ape, ape_before):
    """The same over an own and a previous window of 4, [entries, 4, D] each; a previous gate of -1e30 is no window."""
    gates = [(gate_before[:, i].float() + ape_before[i]) for i in range(4)] + [(gate[:, i].float() + ape[i]) for i in range(4)]
    values = [before[:, i].float() for i in range(4)] + [kv[:, i].float() for i in range(4)]
    top = gates[0]
    for one in gates[1:]:
        top = torch.maximum(top, one)
    total, mixed = 0.0, 0.0
    for one, value in zip(gates, values):
        weight = (one - top).exp()
        total, mixed = total + weight, mixed + weight * value
    return (mixed / total).to(kv.dtype)


@fused
def mhc_weights(mixes, square, base, scale, hc: int, eps: float, width: int):
    """pre, post and the first comb of each row. mixes [rows, (2 + N) * N], square: sum of squares."""
    mixes = mixes.float() * torch.rsqrt(square / width + EPS).unsqueeze(-1)
    pre = torch.sigmoid(mixes[:, :hc] * scale[0] + base[:hc]) + eps
    post = 2 * torch.sigmoid(mixes[:, hc : 2 * hc] * scale[1] + base[hc : 2 * hc])
    comb = (mixes[:, 2 * hc :] * scale[2] + base[2 * hc :]).unflatten(-1, (hc, hc)).softmax(-1) + eps
    return pre, post, comb


@fused
def square_sum(x):
    return x.float().square().sum(-1)


@fused
def collapse(streams, pre):
    """streams [rows, N, hidden], pre [rows, N]"""
    return (streams.float() * pre.unsqueeze(-1)).sum(1).to(streams.dtype)


@fused
def expand(streams, out, post, comb):
    """comb is used transposed: new[k] = post[k] * out + sum over j of comb[j, k] * streams[j]."""
    wide = streams.float()
    mixed = (comb.unsqueeze(-1) * wide.unsqueeze(2)).sum(1)
    return (mixed + post.unsqueeze(-1) * out.float().unsqueeze(1)).to(streams.dtype)


@fused
def swiglu(gate, up, weights, limit: float):
    """gate, up [rows, E, M], weights [rows, E]."""
    return (F.silu(gate.float().clamp(max=limit)) * up.float().clamp(-limit, limit) * weights.unsqueeze(-1)).to(gate.dtype)


def matrix(*shape, std=0.02):
    return nn.Parameter(torch.randn(*shape) * std)


def ones(n):
    return nn.Parameter(torch.ones(n))


class Rope(nn.Module):
    """cos and sin [positions, rope / 2] of both kinds of layers, in f32 as transformers computes them."""

    def __init__(self, config, positions):
        super().__init__()
        dim = config["qk_rope_head_dim"]
        at = torch.arange(positions).float()[:, None]
        main = 1.0 / (config["rope_theta"] ** (torch.arange(0, dim, 2).float() / dim))
        far = 1.0 / (config["compress_rope_theta"] ** (torch.arange(0, dim, 2).float() / dim))
        yarn = config.get("rope_scaling")
        if yarn:
            far = self.stretch(far, dim, config["compress_rope_theta"], yarn)
        for name, freq in (("main", main), ("far", far)):
            self.register_buffer(name + "_cos", (at * freq).cos(), persistent=False)
            self.register_buffer(name + "_sin", (at * freq).sin(), persistent=False)

    @staticmethod
    def stretch(freq, dim, base, yarn):
        """YaRN: low frequencies divided by the factor, with a ramp between beta_fast and beta_slow turns."""
        length, factor = yarn["original_max_position_embeddings"], yarn["factor"]

        def channel(turns):
            return dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))

        low, high = max(math.floor(channel(yarn["beta_fast"])), 0), min(math.ceil(channel(yarn["beta_slow"])), dim - 1)
        high = high + 0.001 if low == high else high
        ramp = ((torch.arange(dim // 2).float() - low) / (high - low)).clamp(0, 1)
        return freq / factor * ramp + freq * (1 - ramp)

    def turn(self, x, kind, stride=1, back=False):
        """x [B, S, D] or [B, S, H, D]"""
        wide = x if x.ndim == 4 else x.unsqueeze(2)
        return kernels.turn(wide, getattr(self, kind + "_cos"), getattr(self, kind + "_sin"), stride, back).view(x.shape)


class Compressor(nn.Module):
    def __init__(self, hidden, dim, ratio):
        super().__init__()
        self.ratio, self.dim, wide = ratio, dim, 2 * dim if ratio == 4 else dim
        self.wkv, self.wgate = nn.ParameterDict({"weight": matrix(wide, hidden)}), nn.ParameterDict({"weight": matrix(wide, hidden)})
        self.ape = nn.Parameter(torch.zeros(ratio, wide))
        self.norm = nn.ParameterDict({"weight": ones(dim)})

    def forward(self, x, rope):
        """x [B, S, hidden] -> entries [B, S / ratio, D]. At ratio 4 an entry spans its own and the previous window."""
        batch, windows = x.shape[0], x.shape[1] // self.ratio
        kv, gate = (linear(x, w["weight"]).unflatten(1, (windows, self.ratio)) for w in (self.wkv, self.wgate))
        if self.ratio == 4:
            own, before = slice(self.dim, None), slice(None, self.dim)
            earlier = lambda part, value: F.pad(part[:, :-1, :, before], (0, 0, 0, 0, 1, 0), value=value).flatten(0, 1)
            args = kv[..., own].flatten(0, 1), gate[..., own].flatten(0, 1), earlier(kv, 0.0), earlier(gate, -1e30)
            entries = overlap(*args, self.ape[:, own], self.ape[:, before])
        else:
            entries = pool_windows(kv.flatten(0, 1), gate.flatten(0, 1), self.ape)
        entries = rms_norm(entries, self.norm["weight"])
        return rope.turn(entries.view(batch, windows, self.dim), "far", self.ratio)


class Indexer(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden, self.heads, self.dim = config["hidden_size"], config["index_n_heads"], config["index_head_dim"]
        self.wq_b = nn.ParameterDict({"weight": matrix(self.heads * self.dim, config["q_lora_rank"])})
        self.weights_proj = nn.ParameterDict({"weight": matrix(self.heads, hidden)})
        self.compressor = Compressor(hidden, self.dim, 4)

    def forward(self, x, q_lora, rope):
        """Scores [B, S, T] in f32. Learns from its own loss only: inputs are cut off."""
        x, q_lora = x.detach(), q_lora.detach()
        batch, length, _ = x.shape
        keys = self.compressor(x, rope)
        q = rope.turn(linear(q_lora, self.wq_b["weight"]).unflatten(-1, (self.heads, self.dim)), "far")
        dots = (q.flatten(1, 2) @ keys.mT).view(batch * length, self.heads, -1)
        weights = linear(x, self.weights_proj["weight"]).float() * (self.heads * self.dim) ** -0.5
        return kernels.scores(dots, weights.flatten(0, 1)).view(batch, length, -1)


class Attention(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        c, self.layer = config, layer
        hidden, self.heads, self.dim = c["hidden_size"], c["num_attention_heads"], c["head_dim"]
        self.groups, width = c["o_groups"], self.heads * self.dim
        self.ratio = c["compress_ratios"][layer]
        weight = lambda *shape: nn.ParameterDict({"weight": matrix(*shape)})
        self.wq_a, self.wq_b = weight(c["q_lora_rank"], hidden), weight(width, c["q_lora_rank"])
        self.wkv = weight(self.dim, hidden)
        self.wo_a, self.wo_b = weight(self.groups * c["o_lora_rank"], width // self.groups), weight(hidden, self.groups * c["o_lora_rank"])
        self.q_norm, self.kv_norm = nn.ParameterDict({"weight": ones(c["q_lora_rank"])}), nn.ParameterDict({"weight": ones(self.dim)})
        self.attn_sink = nn.Parameter(torch.zeros(self.heads))
        self.register_buffer("scale", torch.tensor(self.dim**-0.5), persistent=False)
        if self.ratio:
            self.compressor = Compressor(hidden, self.dim, self.ratio)
        if self.ratio == 4:
            self.indexer = Indexer(c)

    def forward(self, x, rope, run):
        batch, length, _ = x.shape
        kind = "far" if self.ratio else "main"
        q_lora = rms_norm(linear(x, self.wq_a["weight"]).flatten(0, 1), self.q_norm["weight"]).view(batch, length, -1)
        q = rms_norm(linear(q_lora, self.wq_b["weight"]).view(-1, self.dim), self.scale)
        q = rope.turn(q.view(batch, length, self.heads, self.dim), kind)
        kv = rms_norm(linear(x, self.wkv["weight"]).flatten(0, 1), self.kv_norm["weight"])
        kv = rope.turn(kv.view(batch, length, self.dim), kind)

        blocks = length // WINDOW
        near = kv.unflatten(1, (blocks, WINDOW))
        near = torch.cat([F.pad(near[:, :-1], (0, 0, 0, 0, 1, 0)), near], 2)
        rows = q.view(batch, blocks, WINDOW * self.heads, self.dim)
        window = (rows @ near.mT).view(batch, length, self.heads, 2 * WINDOW)

        if self.ratio:
            entries = self.compressor(x, rope)
            far = (q.flatten(1, 2) @ entries.mT).view(batch, length, self.heads, -1)
            seen = run.ready(length, self.ratio, x.device).expand(batch, -1, -1)
            if self.ratio == 4:
                scores = self.indexer(x, q_lora, rope)
                seen = run.choose(scores, seen)
            elif run.blind is not None:
                seen = seen & ~run.blind.view(-1, 1, 1)
        else:
            far, seen = x.new_zeros(batch, length, self.heads, 1), torch.zeros(1, length, 1, dtype=torch.bool, device=x.device)
        window, far = kernels.share(window, far, seen, self.attn_sink)
        if self.ratio == 4 and run.emphasis is not None:
            heads, newest = far.detach().flatten(0, 1), run.newest(length, x.device)
            run.index_losses.append(kernels.index_loss(scores.flatten(0, 1), heads, seen | newest, run.emphasis.flatten(), run.crowd))
        out = (window.view(batch, blocks, WINDOW * self.heads, 2 * WINDOW) @ near).view(batch, length, self.heads, self.dim)
        if self.ratio:
            out = out + (far.flatten(1, 2) @ entries).view(batch, length, self.heads, self.dim)
        out = rope.turn(out, kind, back=True)
        out = out.reshape(batch * length, self.groups, -1).transpose(0, 1)
        out = torch.bmm(out, self.wo_a["weight"].to(x.dtype).unflatten(0, (self.groups, -1)).mT).transpose(0, 1)
        return linear(out.reshape(batch, length, -1), self.wo_b["weight"])


class Gate(nn.Module):
    def __init__(self, config, hashed):
        super().__init__()
        self.experts, self.top, self.factor = config["n_routed_experts"], config["num_experts_per_tok"], config["routed_scaling_factor"]
        self.weight = matrix(self.experts, config["hidden_size"])
        if hashed:
            table = torch.stack([torch.randperm(self.experts)[: self.top] for _ in range(config["vocab_size"])])
            self.register_buffer("tid2eid", table)
        else:
            self.register_buffer("bias", torch.zeros(self.experts))
            self.register_buffer("load", torch.zeros(self.experts), persistent=False)

    def forward(self, x, tokens):
        """Weights [rows, experts], zero where an expert is not chosen."""
        scores = F.softplus(linear(x, self.weight).float()).sqrt()
        if hasattr(self, "tid2eid"):
            chosen = self.tid2eid[tokens]
        else:
            chosen = (scores + self.bias).topk(self.top, -1, sorted=False).indices
        kept = torch.zeros_like(scores).scatter(1, chosen, 1.0)
        if self.training and hasattr(self, "load"):
            self.load += kept.detach().sum(0)
        kept = kept * scores
        return kept / (kept.sum(-1, keepdim=True) + 1e-20) * self.factor

    def balance(self, step=1e-3):
        """Moves the bias towards equal load and forgets the load."""
        if hasattr(self, "load"):
            self.bias += step * torch.sign(self.load.mean() - self.load)
            self.load.zero_()


class Moe(nn.Module):
    """All experts are computed for every row, as one product; the shared expert is one more with weight 1."""

    def __init__(self, config, layer):
        super().__init__()
        self.count, inner, hidden = config["n_routed_experts"] + 1, config["moe_intermediate_size"], config["hidden_size"]
        self.limit = config["swiglu_limit"]
        self.gate = Gate(config, layer < config["num_hash_layers"])
        self.w1, self.w3 = matrix(self.count, inner, hidden), matrix(self.count, inner, hidden)
        self.w2 = matrix(self.count, hidden, inner)

    def forward(self, x, tokens):
        weights = F.pad(self.gate(x, tokens), (0, 1), value=1.0)
        gate, up = (linear(x, w.flatten(0, 1)).unflatten(-1, (self.count, -1)) for w in (self.w1, self.w3))
        inner = swiglu(gate, up, weights, self.limit)
        return linear(inner.flatten(1), self.w2.permute(1, 0, 2).flatten(1))


class Streams(nn.Module):
    """mHC around one block. Starts as a plain residual network: streams are averaged and kept apart."""

    def __init__(self, config):
        super().__init__()
        self.hc, self.iters, self.eps = config["hc_mult"], config["hc_sinkhorn_iters"], config["hc_eps"]
        self.width = self.hc * config["hidden_size"]
        self.fn = matrix((2 + self.hc) * self.hc, self.width)
        base = torch.cat([torch.full((self.hc,), -1.1), torch.zeros(self.hc), (torch.eye(self.hc) * 4).flatten()])
        self.base, self.scale = nn.Parameter(base), nn.Parameter(torch.full((3,), 0.1))

    def forward(self, streams, block):
        """streams [rows, N, hidden]."""
        flat = streams.flatten(1)
        mixes = linear(flat, self.fn)
        pre, post, comb = mhc_weights(mixes, square_sum(flat), self.base, self.scale, self.hc, self.eps, self.width)
        comb = kernels.sinkhorn(comb, self.iters, self.eps)
        return expand(streams, block(collapse(streams, pre)), post, comb)


class Layer(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        hidden = config["hidden_size"]
        self.attn, self.ffn = Attention(config, layer), Moe(config, layer)
        self.attn_norm, self.ffn_norm = nn.ParameterDict({"weight": ones(hidden)}), nn.ParameterDict({"weight": ones(hidden)})
        self.hc_attn, self.hc_ffn = Streams(config), Streams(config)

    def forward(self, streams, tokens, rope, run):
        batch, length = tokens.shape

        def attend(x):
            x = rms_norm(x, self.attn_norm["weight"]).unflatten(0, (batch, length))
            return run.drop(self.attn(x, rope, run).flatten(0, 1))

        def feed(x):
            return run.drop(self.ffn(rms_norm(x, self.ffn_norm["weight"]), tokens.flatten()))

        return self.hc_ffn(self.hc_attn(streams, attend), feed)


class Run:
    """How one forward pass is made."""

    def __init__(self, topk=0, blind=None, dropout=0.0, emphasis=None, crowd=0):
        """topk 0 attends every entry. blind [B]: sequences whose ratio-128 entries are hidden. emphasis [B, S]: weight
        of each row in the indexer's loss, None for no loss. crowd: newest entries that the indexer is to put first."""
        self.topk, self.blind, self.dropout, self.emphasis, self.crowd = topk, blind, dropout, emphasis, crowd
        self.index_losses = []

    def drop(self, x):
        return F.dropout(x, self.dropout) if self.dropout else x

    @staticmethod
    def ready(length, ratio, device):
        """[1, S, T]: entries whose tokens have all been seen."""
        done = (torch.arange(length, device=device) + 1) // ratio
        return (torch.arange(length // ratio, device=device) < done.unsqueeze(-1)).unsqueeze(0)

    def newest(self, length, device):
        """[1, S, T]: the `crowd` newest of the ready entries."""
        done = (torch.arange(length, device=device) + 1) // 4
        entries = torch.arange(length // 4, device=device)
        return ((entries < done.unsqueeze(-1)) & (entries >= done.unsqueeze(-1) - self.crowd)).unsqueeze(0)

    def choose(self, scores, ready):
        if not self.topk or self.topk >= scores.shape[-1]:
            return ready
        held = scores.detach().masked_fill(~ready, float("-inf"))
        return ready & (held >= held.topk(self.topk, -1).values[..., -1:])


class Model(nn.Module):
    def __init__(self, config, positions):
        super().__init__()
        self.config, hidden, vocab = config, config["hidden_size"], config["vocab_size"]
        self.embed, self.head = nn.ParameterDict({"weight": matrix(vocab, hidden)}), nn.ParameterDict({"weight": matrix(vocab, hidden)})
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config["num_hidden_layers"]))
        self.norm = nn.ParameterDict({"weight": ones(hidden)})
        hc = config["hc_mult"]
        self.hc_head_fn, self.hc_head_base = matrix(hc, hc * hidden), nn.Parameter(torch.full((hc,), -1.1))
        self.hc_head_scale = nn.Parameter(torch.full((1,), 0.1))
        self.rope = Rope(config, positions)

    def hidden(self, tokens, run, dtype):
        """Normed hidden states [B, S, hidden]."""
        batch, length = tokens.shape
        x = run.drop(self.embed["weight"].index_select(0, tokens.flatten()).to(dtype))
        streams = x.unsqueeze(1).expand(-1, self.config["hc_mult"], -1).contiguous()
        for layer in self.layers:
            streams = layer(streams, tokens, self.rope, run)
        flat = streams.flatten(1)
        mixes = linear(flat, self.hc_head_fn).float() * torch.rsqrt(square_sum(flat) / flat.shape[1] + EPS).unsqueeze(-1)
        pre = torch.sigmoid(mixes * self.hc_head_scale + self.hc_head_base) + self.config["hc_eps"]
        return rms_norm(collapse(streams, pre), self.norm["weight"]).unflatten(0, (batch, length))

    def forward(self, tokens, run=None, dtype=torch.float32):
        return linear(self.hidden(tokens, run or Run(), dtype), self.head["weight"])


def official(model):
    """Every tensor under its name in an official checkpoint: matrices in bf16, norms and small tensors in f32."""
    found = {}
    for name, value in model.state_dict().items():
        value = value.detach().cpu()
        name = name.replace(".hc_attn.", ".hc_attn_").replace(".hc_ffn.", ".hc_ffn_")
        parts = name.split(".")
        if parts[-2:-1] == ["ffn"] and parts[-1] in ("w1", "w2", "w3"):
            for i, one in enumerate(value):
                owner = "shared_experts" if i == len(value) - 1 else f"experts.{i}"
                found[f"{'.'.join(parts[:-1])}.{owner}.{parts[-1]}.weight"] = one.to(torch.bfloat16).contiguous()
            continue
        small = value.ndim == 1 or any(t in name for t in ("hc_", "ape", "sink"))
        if value.is_floating_point():
            value = value.float() if small else value.to(torch.bfloat16)
        found[name] = value.contiguous()
    return found


def load_official(model, tensors):
    """The reverse of `official`, strictly."""
    left, state = dict(tensors), {}
    for name in model.state_dict():
        own = name.replace(".hc_attn.", ".hc_attn_").replace(".hc_ffn.", ".hc_ffn_")
        parts = own.split(".")
        if parts[-2:-1] == ["ffn"] and parts[-1] in ("w1", "w2", "w3"):
            owners = [f"experts.{i}" for i in range(model.config["n_routed_experts"])] + ["shared_experts"]
            state[name] = torch.stack([left.pop(f"{'.'.join(parts[:-1])}.{o}.{parts[-1]}.weight") for o in owners]).float()
        else:
            value = left.pop(own)
            state[name] = value.float() if value.is_floating_point() else value
    if left:
        raise ValueError(f"tensors that this model has no place for: {sorted(left)}")
    model.load_state_dict(state, strict=True)


def save(model, directory, shard_bytes=15 * 2**20):
    """config.json, model-*.safetensors and their index."""
    from safetensors.torch import save_file

    directory.mkdir(parents=True, exist_ok=True)
    shards, size = [{}], 0
    for name, value in sorted(official(model).items()):
        if size + value.nbytes > shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = value
        size += value.nbytes
    index = {}
    for i, shard in enumerate(shards):
        file = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, directory / file)
        index.update(dict.fromkeys(shard, file))
    total = sum(v.nbytes for shard in shards for v in shard.values())
    listing = {"metadata": {"total_size": total}, "weight_map": dict(sorted(index.items()))}
    (directory / "model.safetensors.index.json").write_text(json.dumps(listing, indent=1) + "\n")
    (directory / "config.json").write_text(json.dumps(model.config, indent=1) + "\n")


def load(directory, positions):
    from safetensors.torch import load_file

    config = json.loads((directory / "config.json").read_text())
    model, tensors = Model(config, positions), {}
    for file in sorted(directory.glob("model-*.safetensors")):
        tensors.update(load_file(file))
    load_official(model, tensors)
    return model
