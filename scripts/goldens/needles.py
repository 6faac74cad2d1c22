"""Recall of the trained model in the reference implementation: one needle at 16 depths, greedy answers, f32."""

import argparse
import pathlib
import re

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4Indexer

import reference

BOS, EOS, USER, ASSISTANT, THINK_END = 0, 1, 3, 4, 6
NAMES = "Lisbon Vienna Cairo Oslo Dublin Madrid Prague Athens Lima Dakar Tunis Hanoi Tokyo Berlin Naples Greta Hugo Oscar".split()
VALUES = "tiger apple violin anchor falcon hammer ladder marble pepper rabbit umbrella zebra castle lantern otter tulip".split()
DEPTHS = 16


def haystack(root, tokenizer):
    sentences = []
    for book in sorted((root / "assets/haystack").glob("*.txt")):
        parts = re.split(r"(?<=[.!?])[ \n]+", book.read_text())
        sentences += [" " + s for s in parts if len(s) > 15]
    return [e.ids for e in tokenizer.encode_batch(sentences, add_special_tokens=False)]


def prompt(encode, sentences, start, length, depth, name, value):
    """Exactly `length` tokens: BOS, User, sentences with the needle at `depth`, question, Assistant, end of thinking."""
    needle, question = encode(f" The secret word of {name} is {value}."), encode(f" What is the secret word of {name}?")
    room = length - len(needle) - len(question) - 4
    hay = []
    while room > 0:
        hay.append(sentences[start % len(sentences)][:room])
        room -= len(hay[-1])
        start += 1
    hay.insert(int(depth * len(hay)), needle)
    return [BOS, USER] + [i for s in hay for i in s] + question + [ASSISTANT, THINK_END]


def answer(model, ids, limit=24):
    """Greedy continuation up to the end of the answer."""
    out, said = model(torch.tensor([ids], device=model.device), use_cache=True, logits_to_keep=1), []
    while len(said) < limit:
        said.append(int(out.logits[0, -1].argmax()))
        if said[-1] == EOS:
            break
        out = model(torch.tensor([said[-1:]], device=model.device), cache=out.cache, use_cache=True)
    return [i for i in said if i != EOS]


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--root", type=pathlib.Path, required=True)
    root = args.parse_args().root
    tokenizer = Tokenizer.from_file(str(root / "assets/nano-v4/tokenizer.json"))
    sentences = haystack(root, tokenizer)
    model = reference.load(root / "assets/nano-v4")
    runs, prompts = [], []
    for length, topk in ((512, 64), (1024, 64), (2048, 64), (2048, 8)):
        for module in model.modules():
            if isinstance(module, DeepseekV4Indexer):
                module.index_topk = topk
        random, probes = np.random.Generator(np.random.PCG64(1)), []
        for i in range(DEPTHS):
            depth = (i + 0.5) / DEPTHS
            name, value = str(random.choice(NAMES)), str(random.choice(VALUES))
            encode = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
            ids = prompt(encode, sentences, int(random.integers(len(sentences))), length, depth, name, value)
            assert len(ids) == length
            prompts += ids
            said = tokenizer.decode(answer(model, ids))
            probes.append([depth, name, value, said == f"The secret word of {name} is {value}."])
        recalled = sum(p[-1] for p in probes)
        runs.append({"length": length, "index_topk": topk, "recalled": recalled, "of": DEPTHS, "probes": probes})
        print(f"needles: {recalled} of {DEPTHS} at {length} tokens, index_topk {topk}", flush=True)
    value = {
        "what": "one needle in prompts of `length` tokens; probes are [depth, name, value, recalled word for word]",
        "prompts": "needles.u16",
        "haystack": "assets/haystack, sentences in order from a random start",
        "decoding": "greedy, f32, prefill then cached decode",
        "runs": runs,
        "versions": reference.versions(),
    }
    reference.dump(root / "tests/goldens/needles.json", value)
    np.array(prompts, dtype="<u2").tofile(root / "tests/goldens/needles.u16")


if __name__ == "__main__":
    main()
