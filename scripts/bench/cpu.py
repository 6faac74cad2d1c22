"""Hotseam against transformers on the embedded checkpoint: same tokens, turns taken A B A B, medians of each.

transformers runs in f32 and in bf16; the faster of the two in the warm-up round is the peer of each figure. Its experts run with the default
implementation, its attention eagerly (the only one it has for this model)."""
import argparse, json, os, platform, statistics, subprocess, sys, time

import torch
from transformers import AutoModelForCausalLM, DynamicCache

GOALS = {"prefill 2048": 4.0, "decode at 512": 10.0, "decode at 2048": 10.0}


class Hotseam:
    def __init__(self, path):
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


class Transformers:
    def __init__(self, directory, dtype):
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()
        if dtype == torch.float32:
            self.model = self.model.float()

    @torch.inference_mode()
    def prefill(self, tokens):
        cache = DynamicCache(config=self.model.config)
        start = time.perf_counter()
        out = self.model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return time.perf_counter() - start, cache, out.logits[:, -1:].argmax(-1)

    @torch.inference_mode()
    def decode(self, tokens, count):
        _, cache, token = self.prefill(tokens)
        start = time.perf_counter()
        for _ in range(count):
            out = self.model(token, past_key_values=cache, use_cache=True)
            token = out.logits[:, -1:].argmax(-1)
        return time.perf_counter() - start


def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS:"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("engine")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    load = os.getloadavg()[0]
    if load > 1.0:
        print(f"warning: load average {load:.1f}; figures of a busy machine mean little", file=sys.stderr)
    torch.set_num_threads(os.cpu_count())
    with open("tests/goldens/nano-v4.u16", "rb") as f:
        ids = torch.frombuffer(bytearray(f.read()), dtype=torch.uint16).to(torch.int64)[None]
    hotseam = Hotseam(args.engine)
    before = resident()
    peers = {"f32": Transformers("assets/nano-v4", torch.float32), "bf16": Transformers("assets/nano-v4", torch.bfloat16)}
    cases = [("prefill 512", "prefill", 512, 0), ("prefill 2048", "prefill", 2048, 0),
             ("decode at 512", "decode", 512, 32), ("decode at 2048", "decode", 2044, 32)]
    rows = []
    for name, kind, length, count in cases:
        seconds, running = {"hotseam": []}, dict(peers)
        for round_ in range(args.rounds + 1):
            turn = {"hotseam": hotseam.ask(f"{kind} {length}" + (f" {count}" if count else ""))}
            for dtype, peer in running.items():
                tokens = ids[:, :length]
                turn[dtype] = peer.prefill(tokens)[0] if kind == "prefill" else peer.decode(tokens, count)
            if round_:
                for who, value in turn.items():
                    seconds.setdefault(who, []).append(value)
            else:  # the first round warms up and picks the peer
                best = min(peers, key=turn.get)
                running = {best: peers[best]}
            print(f"{name} round {round_}: " + "  ".join(f"{w} {v:.3f} s" for w, v in turn.items()), file=sys.stderr)
        tokens = count or length
        rate = {who: tokens / statistics.median(values) for who, values in seconds.items()}
        ratios = [b / a for a, b in zip(seconds["hotseam"], seconds[best])]
        rows.append({"case": name, "hotseam_tokens_per_s": round(rate["hotseam"], 1),
                     "transformers_tokens_per_s": round(rate[best], 1), "transformers_dtype": best,
                     "ratio": round(statistics.median(ratios), 2), "ratio_min": round(min(ratios), 2),
                     "ratio_max": round(max(ratios), 2), "goal": GOALS.get(name)})
    batch = [hotseam.ask("batch 8 512 32") for _ in range(args.rounds)]
    memory = {"hotseam_rss_mb": round(hotseam.ask("rss") / 2**20), "transformers_rss_mb_both_dtypes": round(resident() / 2**20),
              "python_and_torch_rss_mb_before_models": round(before / 2**20)}
    print(f"{'case':16} {'hotseam tok/s':>14} {'transformers':>13} {'dtype':>6} {'ratio (min to max)':>22} {'goal':>6}")
    for r in rows:
        spread = f"{r['ratio']:.1f} ({r['ratio_min']:.1f} to {r['ratio_max']:.1f})"
        print(f"{r['case']:16} {r['hotseam_tokens_per_s']:14.1f} {r['transformers_tokens_per_s']:13.1f} "
              f"{r['transformers_dtype']:>6} {spread:>22} {r['goal'] or '':>6}")
    print(f"hotseam, 8 sequences decoding at 512: {8 * 32 / statistics.median(batch):.1f} tokens/s")
    print(f"resident: hotseam {memory['hotseam_rss_mb']} MB; python {memory['transformers_rss_mb_both_dtypes']} MB with two "
          f"copies of the model, {memory['python_and_torch_rss_mb_before_models']} MB before them")
    print(json.dumps({"machine": platform.processor() or platform.machine(), "cpus": os.cpu_count(), "load": load,
                      "rounds": args.rounds, "rows": rows, "batch8_tokens_per_s": round(8 * 32 / statistics.median(batch), 1),
                      **memory}))
    missed = [r["case"] for r in rows if r["goal"] and r["ratio"] < r["goal"]]
    sys.exit(f"missed: {', '.join(missed)}" if missed else 0)


if __name__ == "__main__":
    main()
