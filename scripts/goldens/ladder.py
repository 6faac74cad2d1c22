"""Last-token logits over a ladder of prompt lengths, for the trained model and for two random ones."""

import argparse
import hashlib
import pathlib
import subprocess

import numpy as np
import torch
from tokenizers import Tokenizer

import reference

# Around every boundary of the model: compress ratios 4 and 128, window 128, pages of 256, a selection that begins to choose.
LENGTHS = [
    1, 2, 3, 4, 5, 7, 8, 127, 128, 129, 131, 132, 255, 256, 257, 259, 260, 263, 264, 383, 384, 385, 511, 512, 513,
    767, 768, 1023, 1024, 1025, 1027, 2044, 2048, 2052,
]  # fmt: skip
LAYER_LENGTH, LAYER_ROWS = 264, 4


def weights_digest(directory):
    """SHA-256 over the shards in the order of their names."""
    digest = hashlib.sha256()
    for shard in sorted(directory.glob("*.safetensors")):
        digest.update(shard.read_bytes())
    return digest.hexdigest()


def ladder(name, directory, tokens, out):
    model = reference.load(directory)
    wide = reference.double(model)
    ids = np.fromfile(out / tokens, dtype="<u2").tolist()
    rows, noise = [], []
    for length in LENGTHS:
        row = reference.prefix_logits(model, ids, length)
        truth = reference.prefix_logits(wide, ids, length)
        assert row.dtype == torch.float32 and truth.dtype == torch.float64 and row.isfinite().all()
        spread = truth.max() - truth.min()
        noise.append(float(f"{(row - truth).abs().max() / spread:.2e}"))
        rows.append(row.numpy())
    table = np.stack(rows).astype("<f4")
    table.tofile(out / f"{name}.bin")
    cached = {}
    for length in (132, 264, 513, 1025):
        row = reference.cached_logits(model, ids, length, 5)
        spread = table[LENGTHS.index(length)].max() - table[LENGTHS.index(length)].min()
        cached[str(length)] = float(f"{np.abs(row.numpy() - table[LENGTHS.index(length)]).max() / spread:.2e}")
    near, chose = reference.near_ties(model, ids, LENGTHS[-1], 1e-5)
    meta = {
        "what": "logits after the first `length` tokens, f32, little-endian, row-major [lengths, vocab]",
        "file": f"{name}.bin",
        "tokens": tokens,
        "lengths": LENGTHS,
        "vocab": table.shape[1],
        "min": float(table.min()),
        "max": float(table.max()),
        "weights_sha256": weights_digest(directory),
        "noise_what": "largest difference to the same model in f64, over the range of that row's logits, by length",
        "noise": noise,
        "cached_what": "largest difference of prefill plus 5 cached decode steps to one go, over the range, by length",
        "cached": cached,
        "near_ties_what": "queries at the last length whose selection hangs by < 1e-5 of their scores' spread, of those that choose",
        "near_ties": [near, chose],
        "versions": reference.versions(),
    }
    reference.dump(out / f"{name}.json", meta)
    print(f"{name}: noise {max(noise):.1e}, cached {max(cached.values()):.1e}, near ties {near} of {chose}", flush=True)
    return model, wide, ids


def layers(model, wide, ids, out):
    found = reference.streams(model, ids, LAYER_LENGTH, LAYER_ROWS)
    truth = reference.streams(wide, ids, LAYER_LENGTH, LAYER_ROWS)
    found.numpy().astype("<f4").tofile(out / "nano-layers.bin")
    noise = [float(f"{(a - b).abs().max() / b.abs().max():.2e}") for a, b in zip(found, truth)]
    meta = {
        "what": "residual streams after each layer, last rows of a prompt of `length` tokens, f32, little-endian",
        "file": "nano-layers.bin",
        "tokens": "nano-v4.u16",
        "length": LAYER_LENGTH,
        "shape": list(found.shape),
        "shape_what": ["layers", "rows", "hc_mult", "hidden"],
        "noise_what": "largest difference to the same model in f64, over the largest value, by layer",
        "noise": noise,
        "versions": reference.versions(),
    }
    reference.dump(out / "nano-layers.json", meta)


def tokens(root, out):
    """BOS and the opening of the held-out book for the trained model, random tokens for the others."""
    tokenizer = Tokenizer.from_file(str(root / "assets/nano-v4/tokenizer.json"))
    text = (root / "assets/haystack/time-machine.txt").read_text()
    ids = [0] + tokenizer.encode(text[:20000], add_special_tokens=False).ids
    np.array(ids[: LENGTHS[-1]], dtype="<u2").tofile(out / "nano-v4.u16")
    random = np.random.Generator(np.random.PCG64(4)).integers(3, 512, LENGTHS[-1])
    random[0] = 0
    random.astype("<u2").tofile(out / "random.u16")


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--root", type=pathlib.Path, required=True)
    args.add_argument("--only", choices=["nano-v4", "flash-like", "pro-like"])
    args = args.parse_args()
    root, out = args.root, args.root / "tests/goldens"
    out.mkdir(parents=True, exist_ok=True)
    tokens(root, out)
    if args.only in (None, "nano-v4"):
        layers(*ladder("nano-v4", root / "assets/nano-v4", "nano-v4.u16", out), out)
    for name in ("flash-like", "pro-like"):
        if args.only in (None, name):
            directory = root / "target/random-models" / name
            command = ["cargo", "run", "--release", "-q", "-p", "hotseam-checkpoint", "--example", "random-model", "--"]
            subprocess.run([*command, name, str(directory)], check=True, cwd=root)
            ladder(name, directory, "random.u16", out)


if __name__ == "__main__":
    main()
