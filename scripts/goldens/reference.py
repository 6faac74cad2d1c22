"""The reference model: transformers' DeepseekV4ForCausalLM on the CPU, in f32, and the same code in f64."""

import importlib.util
import inspect
import json
import re
import sys

import torch
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as single

torch.set_num_threads(2)
torch.set_grad_enabled(False)


def load(directory):
    """Model in f32 with eager attention and eager experts; every tensor must be found and used."""
    model, info = single.DeepseekV4ForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager", output_loading_info=True
    )
    assert not any(info.values()), info
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert model.config._attn_implementation == "eager"
    return model.eval()


def double(model):
    """The same weights in f64. Rope tables stay those of f32, which are part of the model; all else is f64 throughout."""
    source = inspect.getsource(single)
    parts = re.split(r"(?m)^(?=class |def |@)", source)
    for i, part in enumerate(parts):
        if not part.startswith("class DeepseekV4RotaryEmbedding"):
            parts[i] = part.replace(".float()", ".double()").replace("torch.float32", "torch.float64")
    name = single.__name__ + "_f64"
    spec = importlib.util.spec_from_loader(name, loader=None)
    module = importlib.util.module_from_spec(spec)
    module.__file__ = single.__file__
    module.__package__ = single.__package__
    sys.modules[name] = module
    exec(compile("".join(parts), name, "exec"), module.__dict__)
    wide = module.DeepseekV4ForCausalLM(model.config)
    missing = wide.load_state_dict(model.state_dict(), strict=True)
    assert not missing.missing_keys and not missing.unexpected_keys
    wide = wide.double().eval()
    for module in wide.modules():  # `double` widened the frequencies too, exactly; the product must be f32 again
        for key, buffer in list(module.named_buffers(recurse=False)):
            if key.endswith("inv_freq"):
                setattr(module, key, buffer.float())
    return wide


def prefix_logits(model, ids, length):
    """Logits after the first `length` tokens, computed in one go without a cache."""
    out = model(torch.tensor([ids[:length]]), use_cache=False, logits_to_keep=1)
    return out.logits[0, -1]


def cached_logits(model, ids, length, steps):
    """The same logits from a prefill of `length - steps` tokens and `steps` decode steps with the cache."""
    out = model(torch.tensor([ids[: length - steps]]), use_cache=True, logits_to_keep=1)
    for i in range(length - steps, length):
        out = model(torch.tensor([[ids[i]]]), cache=out.cache, use_cache=True)
    return out.logits[0, -1]


def streams(model, ids, length, rows):
    """Residual streams after every layer, last `rows` rows: [layers, rows, hc_mult, hidden]."""
    kept = []
    hooks = [layer.register_forward_hook(lambda _m, _a, out: kept.append(out[0, -rows:])) for layer in model.model.layers]
    prefix_logits(model, ids, length)
    for hook in hooks:
        hook.remove()
    return torch.stack(kept)


def near_ties(model, ids, length, tolerance):
    """Queries whose choice of compressed entries hangs by less than `tolerance` of the spread of their scores.

    Another order of summation may choose otherwise there. Returns (near, queries that had to choose).
    """
    topk, ratio, near, chose = model.config.index_topk, 4, 0, 0
    taken = []
    hooks = [
        m.register_forward_hook(lambda _m, _a, out: taken.append(out[0]))
        for m in model.modules()
        if isinstance(m, single.DeepseekV4IndexerScorer)
    ]
    prefix_logits(model, ids, length)
    for hook in hooks:
        hook.remove()
    for scores in taken:
        for row in range(length):
            ready = (row + 1) // ratio
            if ready > topk:
                seen = scores[row, :ready].sort(descending=True).values
                chose += 1
                near += int(seen[topk - 1] - seen[topk] < tolerance * (seen[0] - seen[-1]))
    return near, chose


def versions():
    import numpy
    import transformers

    return {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0], "numpy": numpy.__version__}


def dump(path, value):
    """JSON with one key per line and lists on one line."""
    lines = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
