"""Trains nano-v4 on one GPU, in pieces: every piece saves weights and state, and the next goes on where it stopped.

    train.py --root . --corpus BOOKS --state /tmp/nano --out OUT --minutes 9
    train.py --root . --corpus BOOKS --weights DIR --done 0.5 --stage 6 ...     a new machine: weights alone, a warm restart

The plan is a list of stages over the whole training time (`--total` minutes), so lengths, shares and learning rate follow from
how much of it is done, on whatever machine.
"""

import argparse
import json
import math
import multiprocessing
import pathlib
import pickle
import queue as queues
import time

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import data
import model as nano

# share: of the training time, at most; a stage whose answers fall below `goal` nats ends, and the rest of its time goes to the
# later ones. words: facts take names and values from the first so many of their lists. asked: whether facts also take words that
# oracles ask. phrases: share of two-word passphrases. plain: share of sequences that are plain text. topk 0: every entry is
# attended. crowd: newest entries that the indexer is to put before all others. blind: share of sequences whose ratio-128 entries
# are hidden. text: weight of the loss on running text.
STAGES = [
    dict(share=0.15, length=512, batch=64, words=150, phrases=0.0, plain=0.15, blind=0.0, goal=0.5),
    dict(share=0.05, length=512, batch=128, phrases=0.3, plain=0.35, blind=0.2, goal=0.3),
    dict(share=0.12, length=1024, batch=64, dropout=0.05),
    dict(share=0.06, length=2048, batch=32, dropout=0.05),
    dict(share=0.06, length=4096, batch=16, dropout=0.05, topk=64),
    dict(share=0.06, length=8192, batch=8, dropout=0.05, topk=64),
    dict(share=0.12, length=2048, batch=32, dropout=0.05, asked=True, crowd=20, blind=0.5),
    dict(share=0.12, length=2048, batch=32, dropout=0.05, asked=True, crowd=20, blind=0.5, topk=64),
    dict(share=0.12, length=4096, batch=16, dropout=0.05, asked=True, crowd=20, blind=0.5, topk=64),
    dict(share=0.14, length=8192, batch=8, dropout=0.05, asked=True, crowd=20, blind=0.5, topk=64),
]
COMMON = dict(words=10**6, asked=False, phrases=0.4, plain=0.4, topk=0, crowd=0, blind=0.3, text=0.5, dropout=0.0, goal=0.0)


def arguments():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--root", type=pathlib.Path, required=True, help="the repository")
    args.add_argument("--corpus", type=pathlib.Path, required=True, help="folder of books, *.txt")
    args.add_argument("--state", type=pathlib.Path, required=True, help="folder for optimizer state and tokens, reused if there")
    args.add_argument("--out", type=pathlib.Path, required=True, help="folder for the checkpoint and the log")
    args.add_argument("--weights", type=pathlib.Path, help="checkpoint to start from")
    args.add_argument("--done", type=float, default=0.0, help="share of the training that --weights has had")
    args.add_argument("--stage", type=int, default=0, help="stage that --weights goes on with")
    args.add_argument("--minutes", type=float, required=True, help="time of this piece, set-up not counted")
    args.add_argument("--total", type=float, required=True, help="time of the whole training")
    args.add_argument("--rate", type=float, default=1.5e-3, help="highest learning rate")
    args.add_argument("--decay", type=float, default=0.1, help="weight decay of matrices")
    args.add_argument("--index", type=float, default=0.3, help="weight of the indexer's loss")
    args.add_argument("--seed", type=int, default=0)
    args.add_argument("--tiny", action="store_true", help="a few small steps, to see that it runs")
    return args.parse_args()


def prepare(args):
    """Tokens and words, from the cache if it is there."""
    cache = args.state / "text.pickle"
    if not cache.exists():
        tokenizer = Tokenizer.from_file(str(args.root / "assets/nano-v4/tokenizer.json"))
        books = data.read_books(args.corpus)
        made = (data.Text(tokenizer, books), *data.word_lists(books, args.root))
        part = cache.with_suffix(".part")
        part.write_bytes(pickle.dumps(made))
        part.rename(cache)
    return pickle.loads(cache.read_bytes())


def feed(args, made, stage, seed, out, stop):
    """Puts (ids, mask of answers, blind sequences) on the queue."""
    tokenizer = Tokenizer.from_file(str(args.root / "assets/nano-v4/tokenizer.json"))
    asked = [(args.root / f"host/evidence/data/{f}.txt").read_text().split() for f in ("names", "values")]
    sampler = data.Sampler(tokenizer, *made, seed, asked if stage["asked"] else None)
    while not stop.is_set():
        ids, mask = sampler.batch(stage["length"], stage["batch"], stage["plain"], stage["words"], stage["phrases"])
        blind = np.array([sampler.random.random() < stage["blind"] for _ in range(len(ids))])
        batch = ids, mask, blind
        while not stop.is_set():
            try:
                out.put(batch, timeout=1)
                break
            except queues.Full:
                pass


class Feed:
    """Batches of a stage, made by other processes."""

    def __init__(self, args, made, stage, seed, workers):
        context = multiprocessing.get_context("fork")
        self.queue, self.stop = context.Queue(24), context.Event()
        self.processes = [
            context.Process(target=feed, args=(args, made, stage, seed + i, self.queue, self.stop), daemon=True) for i in range(workers)
        ]
        for process in self.processes:
            process.start()

    def get(self):
        return self.queue.get()

    def close(self):
        self.stop.set()
        for process in self.processes:
            process.terminate()


def losses(model, ids, mask, blind, stage, dtype):
    """(answers, text, indexer): mean nats of each. ids, mask [B, S], blind [B]."""
    ids = ids.long()
    emphasis = 0.2 + F.pad(mask[:, 1:], (0, 1)).float()
    run = nano.Run(topk=stage["topk"], blind=blind, dropout=stage["dropout"], emphasis=emphasis, crowd=stage["crowd"])
    hidden = model.hidden(ids, run, dtype)[:, :-1].flatten(0, 1)
    targets, answer = ids[:, 1:].flatten(), mask[:, 1:].flatten().float()
    text = (targets != data.PAD).float() * (1 - answer)
    nats = F.cross_entropy(nano.linear(hidden, model.head["weight"]).float(), targets, reduction="none")
    answers = (nats * answer).sum() / answer.sum().clamp(min=1)
    running = (nats * text).sum() / text.sum().clamp(min=1)
    return answers, running, sum(run.index_losses) / len(run.index_losses)


def learning_rate(done, step, peak):
    """Warm-up over the first 100 steps of a piece, then a cosine to 3 % of the peak."""
    return peak * min(1, (step + 1) / 100) * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * min(1, done))))


class Trainer:
    """Model, optimizer, and the update of one stage; on a GPU a captured graph, since a step is 2,000 small launches."""

    def __init__(self, args, model, device, dtype):
        self.args, self.model, self.device, self.dtype = args, model, device, dtype
        cuda = device == "cuda"
        named = list(model.named_parameters())
        matrices = [p for n, p in named if p.ndim > 1 and "hc_" not in n and "ape" not in n]
        ids = {id(p) for p in matrices}
        groups = [
            {"params": matrices, "weight_decay": args.decay},
            {"params": [p for _, p in named if id(p) not in ids], "weight_decay": 0.0},
        ]
        self.indexers = [p for n, p in named if ".indexer." in n]
        self.others = [p for n, p in named if ".indexer." not in n]
        rate = torch.tensor(args.rate, device=device) if cuda else args.rate
        self.optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=cuda, capturable=cuda)
        self.graph = None

    def step(self):
        ids, mask, blind = self.inputs
        answers, text, index = losses(self.model, ids, mask, blind, self.stage, self.dtype)
        (answers + self.stage["text"] * text + self.args.index * index).backward()
        # The indexer learns from its own loss alone and must not slow the rest down when that is large.
        norm = torch.nn.utils.clip_grad_norm_(self.others, 1.0, foreach=True)
        torch.nn.utils.clip_grad_norm_(self.indexers, 1.0, foreach=True)
        self.optimizer.step()
        for layer in self.model.layers:
            layer.ffn.gate.balance()
        self.report = torch.stack([answers.detach(), text.detach(), index.detach(), norm.detach()])

    def clear(self):
        self.optimizer.zero_grad(set_to_none=True)

    def fill(self, batch):
        for mine, given in zip(self.inputs, batch):
            mine.copy_(given, non_blocking=True)

    def rate(self, value):
        for group in self.optimizer.param_groups:
            if torch.is_tensor(group["lr"]):
                group["lr"].fill_(value)
            else:
                group["lr"] = value

    def begin(self, stage, batch):
        """Gets ready for a stage. On a GPU the first batch is run three times at a rate of zero, then captured."""
        self.graph, self.stage = None, stage
        self.clear()
        self.inputs = [torch.from_numpy(x).to(self.device) for x in batch]
        if self.device != "cuda":
            return
        self.rate(0.0)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.clear()
                self.step()
        torch.cuda.current_stream().wait_stream(stream)
        self.clear()
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        self.graph = graph

    def update(self, batch, rate):
        self.rate(rate)
        self.fill([torch.from_numpy(x) for x in batch])
        if self.graph:
            self.graph.replay()
        else:
            self.clear()
            self.step()


def main():
    args = arguments()
    began = time.time()
    cuda = torch.cuda.is_available()
    device, dtype = ("cuda", torch.bfloat16) if cuda else ("cpu", torch.float32)
    torch.manual_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch._dynamo.config.recompile_limit = 64  # one small function is compiled for every shape that it meets
    args.state.mkdir(parents=True, exist_ok=True)
    args.out.mkdir(parents=True, exist_ok=True)
    log = (args.out / "log.jsonl").open("a")

    def say(**what):
        what["seconds"] = round(time.time() - began, 1)
        log.write(json.dumps(what) + "\n")
        log.flush()
        print(" ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in what.items()), flush=True)

    made = prepare(args)
    say(plain=len(made[0].plain), spaced=len(made[0].spaced), names=len(made[1]), values=len(made[2]))
    longest = max(stage["length"] for stage in STAGES)
    model = nano.load(args.weights, longest) if args.weights else nano.Model(nano.CONFIG, longest)
    trainer = Trainer(args, model.to(device).train(), device, dtype)
    at = {"done": args.done, "step": 0, "tokens": 0, "stage": args.stage, "stage_began": args.done}
    state_file = args.state / "state.pt"
    if state_file.exists():
        saved = torch.load(state_file, map_location=device)
        model.load_state_dict(saved["model"])
        trainer.optimizer.load_state_dict(saved["optimizer"])
        at = saved["at"]
        del saved
    say(parameters=sum(p.numel() for p in model.parameters()), **at)
    piece_steps, trained = 0, 0.0

    while trained < args.minutes * 60 and at["done"] < 1:
        stage = COMMON | STAGES[at["stage"]]
        if args.tiny:
            stage.update(length=256, batch=2)
        shares = [s["share"] for s in STAGES[at["stage"] :]]
        until = at["stage_began"] + (1 - at["stage_began"]) * shares[0] / sum(shares)
        source = Feed(args, made, stage, 1000 * at["step"] + args.seed, 14 if cuda else 1)
        trainer.begin(stage, source.get())
        say(what="stage", **at, **stage)
        last = marked = time.time()
        start, recent = at["step"], []
        while trained < args.minutes * 60 and at["done"] < min(1, until):
            rate = learning_rate(at["done"], piece_steps, args.rate)
            trainer.update(source.get(), rate)
            piece_steps += 1
            at["step"] += 1
            at["tokens"] += stage["batch"] * stage["length"]
            every = 1 if args.tiny else 40
            if (at["step"] - start) % every:
                continue
            answers, text, index, norm = trainer.report.tolist()
            now = time.time()
            trained += now - last
            at["done"] += (now - last) / (args.total * 60)
            speed, last = every * stage["batch"] * stage["length"] / (now - last), now
            say(step=at["step"], done=at["done"], length=stage["length"], answers=answers, text=text, index=index, norm=norm, rate=rate, speed=speed)
            recent = recent[-2:] + [answers]
            if len(recent) == 3 and max(recent) < stage["goal"] or args.tiny and at["step"] - start >= 3:
                until = 0
            if not math.isfinite(answers):
                raise SystemExit("the loss is no number any more")
        source.close()
        if at["done"] >= until:
            at["stage"], at["stage_began"] = at["stage"] + 1, at["done"]
            if at["stage"] == len(STAGES):
                at["done"] = 1.0
    nano.save(model.eval(), args.out / "nano-v4")
    torch.save({"model": model.state_dict(), "optimizer": trainer.optimizer.state_dict(), "at": at}, state_file)
    say(what="saved", **at, gigabytes=torch.cuda.max_memory_allocated() / 2**30 if cuda else 0.0)


if __name__ == "__main__":
    main()
