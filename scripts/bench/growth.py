"""Time against context length, beside the floating point operations and bytes of the model's formulae."""
import argparse
import json
import os
import subprocess
import sys

RATIOS = {0: "window", 4: "csa", 128: "hca"}


class Shape:
    """The numbers of a config.json that the formulae need."""

    def __init__(self, directory):
        with open(os.path.join(directory, "config.json")) as file:
            c = json.load(file)
        self.layers = c["num_hidden_layers"]
        ratios = c["compress_ratios"][: self.layers]
        self.count = {r: ratios.count(r) for r in RATIOS}
        self.hidden, self.vocab = c["hidden_size"], c["vocab_size"]
        self.heads, self.dim = c["num_attention_heads"], c["head_dim"]
        self.q_lora, self.o_lora, self.groups = c["q_lora_rank"], c["o_lora_rank"], c["o_groups"]
        self.index_heads, self.index_dim, self.topk = c["index_n_heads"], c["index_head_dim"], c["index_topk"]
        self.window, self.hc = c["sliding_window"], c["hc_mult"]
        self.active = c["num_experts_per_tok"] + c["n_shared_experts"]
        self.inner, self.experts = c["moe_intermediate_size"], c["n_routed_experts"]

    def dense(self):
        """Multiply-adds of a token that do not depend on the context, the output head apart."""
        h, ad = self.hidden, self.heads * self.dim
        attention = h * self.q_lora + self.q_lora * ad + h * self.dim + ad * self.o_lora + self.groups * self.o_lora * h
        compress = self.count[4] * 4 * h * self.dim + self.count[128] * 2 * h * self.dim
        index = self.count[4] * (self.q_lora * self.index_heads * self.index_dim + h * self.index_heads
                                 + 4 * h * self.index_dim)
        mixing = 2 * self.layers * (2 + self.hc) * self.hc * self.hc * h
        moe = self.layers * (self.experts * h + self.active * 3 * h * self.inner)
        return self.layers * attention + compress + index + mixing + moe

    def at(self, n):
        """Multiply-adds of attention and indexer of the token after n others."""
        window = min(n, self.window)
        entries = (self.count[0] * window + self.count[4] * (min(self.topk, n // 4) + window)
                   + self.count[128] * (n // 128 + window))
        scored = self.count[4] * (n // 4) if n // 4 > self.topk else 0
        return 2 * self.heads * self.dim * entries + self.index_heads * self.index_dim * scored

    def decode(self, n):
        return 2 * (self.dense() + self.vocab * self.hidden + self.at(n))

    def prefill(self, n):
        step = max(1, n // 512)
        return 2 * (n * self.dense() + self.vocab * self.hidden + sum(self.at(i) * step for i in range(0, n, step)))


class Engine:
    """A child that answers lines with numbers."""

    def __init__(self, program, checkpoint, context):
        self.child = subprocess.Popen([program, checkpoint, str(context)], text=True,
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self.child.stdout.readline().strip() != "ready":
            sys.exit("bench-growth: the engine did not start, see above")

    def ask(self, line):
        self.child.stdin.write(line + "\n")
        self.child.stdin.flush()
        answer = self.child.stdout.readline()
        if not answer:
            sys.exit(f"bench-growth: the engine stopped at `{line}`, see above")
        return [float(number) for number in answer.split()]


def numbers(text):
    return [int(number) for number in text.split(",")]


def main():
    parser = argparse.ArgumentParser(prog="scripts/bench-growth")
    parser.add_argument("program", help=argparse.SUPPRESS)
    parser.add_argument("checkpoint", help="directory of a checkpoint")
    parser.add_argument("--depths", type=numbers, default=[1024, 2048, 4096, 8192, 16384, 32768])
    parser.add_argument("--prompts", type=numbers, default=[512, 1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--tokens", type=int, default=32, help="tokens decoded at each depth")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    args = parser.parse_args()

    shape = Shape(args.checkpoint)
    lengths = sorted(set(args.depths) | set(args.prompts))
    engine = Engine(args.program, args.checkpoint, lengths[-1] + args.tokens + 8)
    engine.ask(f"run 64 {args.tokens}")
    rows = []
    for n in lengths:
        print(f"bench-growth: {n} tokens", file=sys.stderr)
        prompt, answer = engine.ask(f"run {n} {args.tokens}")
        rows.append({"context": n, "prefill_s": prompt, "decode_ms": answer / args.tokens * 1e3,
                     "prefill_gflop": shape.prefill(n) / 1e9, "decode_gflop": shape.decode(n) / 1e9})
    for row in rows:
        row["prefill_gflops"] = row["prefill_gflop"] / row["prefill_s"]
        row["decode_gflops"] = row["decode_gflop"] / row["decode_ms"] * 1e3
    growth = {}
    for what, picked, key in (("prefill", args.prompts, "prefill_s"), ("decode", args.depths, "decode_ms")):
        chosen = [row for row in rows if row["context"] in picked]
        first, last = chosen[0], chosen[-1]
        growth[what] = {"from": first["context"], "to": last["context"], "time": last[key] / first[key],
                        "work": last[f"{what}_gflop"] / first[f"{what}_gflop"]}
    if args.format == "json":
        print(json.dumps({"checkpoint": args.checkpoint, "rows": rows, "growth": growth}, indent=1))
        return
    print(f"{'context':>8} {'prefill s':>10} {'tokens/s':>9} {'GFLOP/s':>8}   {'decode ms':>9} {'tokens/s':>9} {'GFLOP/s':>8}")
    for row in rows:
        n = row["context"]
        print(f"{n:>8} {row['prefill_s']:>10.2f} {n / row['prefill_s']:>9.0f} {row['prefill_gflops']:>8.1f}   "
              f"{row['decode_ms']:>9.2f} {1e3 / row['decode_ms']:>9.0f} {row['decode_gflops']:>8.1f}")
    for what, g in growth.items():
        print(f"{what} from {g['from']} to {g['to']}: {g['time']:.2f} times the time for {g['work']:.2f} times the work")


if __name__ == "__main__":
    main()
