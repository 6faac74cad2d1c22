"""Recall and held-out loss of a checkpoint, teacher-forced, with the training model.

    evaluate.py --root . --weights assets/nano-v4 --lengths 512,2048 --topk 64,8 --probes 64

Pairs and books are held out. A probe counts when every token of the value is the likeliest one.
"""

import argparse
import json
import math
import pathlib

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import data
import model as nano


@torch.no_grad()
def recalled(model, sampler, length, probes, run, size, device, dtype, **task):
    hits, total = 0, 0
    for first in range(0, probes, size):
        count = min(size, probes - first)
        rows = [sampler.recall(length, **(task | {"depths": [(first + i + 0.5) / probes]} if task["needles"] == 1 else task)) for i in range(count)]
        ids = torch.stack([torch.from_numpy(r[0].astype("int64")) for r in rows]).to(device)
        mask = torch.stack([torch.from_numpy(r[1]) for r in rows]).to(device)
        last = mask.clone()
        for row in last:  # only the last answer counts
            on = row.nonzero().flatten()
            gaps = (on[1:] - on[:-1] > 1).nonzero().flatten()
            if len(gaps):
                row[: on[gaps[-1] + 1]] = 0
        hidden = model.hidden(ids, run(), dtype)
        for h, i, m in zip(hidden, ids, last):
            at = m.nonzero().flatten()
            hits += bool((nano.linear(h[at - 1], model.head["weight"]).argmax(-1) == i[at]).all())
            total += 1
    return hits / total


@torch.no_grad()
def bits_per_byte(model, tokenizer, text, length, run, device, dtype):
    """Over the whole text, in contexts of `length` tokens that begin with BOS."""
    ids = torch.tensor(tokenizer.encode(text, add_special_tokens=False).ids)
    nats = 0.0
    for start in range(0, len(ids), length - 1):
        part = torch.cat([torch.tensor([data.BOS]), ids[start : start + length - 1]])
        used = len(part)
        part = F.pad(part, (0, -used % 128), value=data.PAD).to(device)[None]
        logits = model(part, run(), dtype)[0, : used - 1].float()
        nats += F.cross_entropy(logits, part[0, 1:used], reduction="sum").item()
    return nats / math.log(2) / len(text.encode())


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--root", type=pathlib.Path, required=True)
    args.add_argument("--weights", type=pathlib.Path, required=True)
    args.add_argument("--lengths", default="512,1024,2048,4096,8192")
    args.add_argument("--topk", default="64")
    args.add_argument("--probes", type=int, default=64)
    args.add_argument("--extras", action="store_true", help="also four needles, six turns, hidden ratio-128 entries, loss")
    args.add_argument("--out", type=pathlib.Path, help="JSON file for the figures")
    args = args.parse_args()
    cuda = torch.cuda.is_available()
    device, dtype = ("cuda", torch.bfloat16) if cuda else ("cpu", torch.float32)
    lengths = [int(x) for x in args.lengths.split(",")]
    topks = [int(x) for x in args.topk.split(",")]
    model = nano.load(args.weights, max(lengths + [4096])).to(device).eval()
    tokenizer = Tokenizer.from_file(str(args.root / "assets/nano-v4/tokenizer.json"))
    books = [f.read_text() for f in sorted((args.root / "assets/haystack").glob("*.txt"))]
    words = [(args.root / f"host/evidence/data/{f}.txt").read_text().split() for f in ("names", "values")]
    text, found = data.Text(tokenizer, books), []

    def say(what, length, topk, share):
        found.append({"what": what, "length": length, "topk": topk, "value": round(share, 4)})
        print(f"{what:24} length {length:5} top-k {topk:4}  {share:.3f}", flush=True)

    def ask(what, length, topk, blind=False, **task):
        size = max(1, min(args.probes, 65536 // length if cuda else 4))
        hide = torch.ones(size, dtype=torch.bool, device=device) if blind else None
        task = dict(needles=1, questions=1, turns=1, phrases=0.0) | task
        sampler = data.Sampler(tokenizer, text, *words, 7 + length)
        share = recalled(model, sampler, length, args.probes, lambda: nano.Run(topk=topk, blind=hide), size, device, dtype, **task)
        say(what, length, topk, share)

    for topk in topks:
        for length in lengths:
            ask("one needle", length, topk)
    if args.extras:
        longest = max(lengths)
        ask("one passphrase", longest, topks[0], phrases=1.0)
        ask("ratio 128 hidden", longest, topks[0], blind=True)
        ask("one of four needles", 4096, topks[0], needles=4)
        ask("told in turn 1 of 6", 4096, topks[0], needles=6, questions=6, turns=6, ask=0)
        for book in books:
            say("bits per byte", 4096, topks[0], bits_per_byte(model, tokenizer, book, 4096, lambda: nano.Run(topk=topks[0]), device, dtype))
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
