"""Asks transformers what Hotseam was asked: prompts of `hotseam needle --save-prompts`, greedy answers, f32.

    hotseam needle -c configs/quickstart.yaml --set engine.max_context=8300 --lengths 512,8192 --probes 64 \
        --save-prompts prompts.json --format json > ours.json
    spot.py --root ../.. --prompts prompts.json --ours ours.json --count 32

Prints how many of evenly picked prompts have the same answer, and how many are recalled.
"""

import argparse
import json
import pathlib
import sys

import torch
from tokenizers import Tokenizer

def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--root", type=pathlib.Path, required=True)
    args.add_argument("--prompts", type=pathlib.Path, required=True)
    args.add_argument("--ours", type=pathlib.Path, required=True, help="report of the same run, --format json")
    args.add_argument("--count", type=int, default=32)
    args = args.parse_args()
    sys.path.insert(0, str(args.root / "scripts/goldens"))
    import needles
    import reference

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = False
    model = reference.load(args.root / "assets/nano-v4").to(device)
    tokenizer = Tokenizer.from_file(str(args.root / "assets/nano-v4/tokenizer.json"))
    prompts, ours = json.loads(args.prompts.read_text()), json.loads(args.ours.read_text())["probes"]
    keys = [[(row["length"], row["name"], row["value"]) for row in rows] for rows in (prompts, ours)]
    assert keys[0] == keys[1], "the report is of another run"
    picked = [i * len(prompts) // args.count for i in range(min(args.count, len(prompts)))]
    same = recalled = 0
    for i in picked:
        theirs = tokenizer.decode(needles.answer(model, prompts[i]["prompt"])).strip()
        own = ours[i]["answer"].strip()
        same += theirs == own
        recalled += prompts[i]["value"] in theirs
        if theirs != own:
            print(f"{prompts[i]['length']} tokens, {prompts[i]['name']}: `{theirs}` and `{own}`", flush=True)
    print(f"{same} of {len(picked)} answers are the same; transformers recalls {recalled}")
    raise SystemExit(same != len(picked))


if __name__ == "__main__":
    main()
