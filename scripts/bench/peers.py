"""Hotseam against other programs on the same checkpoint: they take turns A B C A B C in one run."""
import argparse
import contextlib
import json
import os
import statistics
import sys
import time

import engines
import machine
import report
from prepare import CACHE, PeerError, note

PEERS = ("transformers", "llama.cpp", "flyweight")
EXIT_FAILED, EXIT_USAGE, EXIT_BUSY, EXIT_MISSED = 1, 2, 3, 4
# A dtype of transformers that takes so many times as long as the other, and so many seconds, is not repeated, and not
# tried on longer prompts: bf16 without a bf16 unit needs many minutes for a prompt of 2,048.
SLOW, SLOW_SECONDS = 2.0, 30.0
# Rest between two turns, in which threads that spin after their work go to sleep.
REST_SECONDS = 0.3

HELP = """
  scripts/bench-peers-cpu                                   everything, about 20 minutes once the peers are built
  scripts/bench-peers-cpu --depths 0,2048,8192 --format json > run.json
  scripts/bench-peers-cpu --checkpoint assets/nano-v4 --prefill 512,2048 --depths 512,2048

Peers, downloads and checkpoints are kept under target/peers; the first run builds llama.cpp, which takes about 10
minutes of a free core. HOTSEAM_PYTHON names an interpreter with transformers 5.24 and torch; otherwise one is made under .venv.

exit codes: 0 all goals met; 1 a peer or Hotseam failed (the message names it); 2 usage; 3 the machine is busy;
4 measured, but a goal was missed"""


def numbers(least):
    def parse(text):
        values = sorted({int(word) for word in text.split(",") if word})
        if any(value < least for value in values):
            raise argparse.ArgumentTypeError(f"expected numbers from {least}, found {text}")
        return values

    return parse


def arguments():
    parser = argparse.ArgumentParser(prog="scripts/bench-peers-cpu", description=__doc__, epilog=HELP,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=None, help=f"which of {','.join(PEERS)} (default: all that can read the checkpoint)")
    parser.add_argument("--prefill", type=numbers(2), default=[128, 512, 2048], metavar="N,..", help="prompt lengths (default: 128,512,2048)")
    parser.add_argument("--depths", type=numbers(0), default=[0, 2048], metavar="N,..", help="tokens before decode (default: 0,2048)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of a decode (default: 64)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds after the first, which warms up (default: 5)")
    parser.add_argument("--threads", type=int, default=2, help="threads and cores of every program (default: 2)")
    parser.add_argument("--batch", type=int, default=0, metavar="B", help="also time Hotseam on B sequences at once")
    parser.add_argument("--control", action="store_true", help="also run Hotseam on the bf16 form of the checkpoint")
    parser.add_argument("--amx", action="store_true", help="also run Hotseam with the processor's matrix tiles")
    parser.add_argument("--checkpoint", metavar="DIR", help="a bf16 checkpoint; then transformers is the only peer that can read it")
    parser.add_argument("--llama-args", default="", metavar="ARGS", help="further arguments of llama-bench")
    parser.add_argument("--jobs", type=int, default=1, help="compilers at once when peers are built (default: 1)")
    parser.add_argument("--force", action="store_true", help=f"measure although the load is above {machine.QUIET}; the report says so")
    parser.add_argument("--format", choices=["text", "json"], default="text", help="a table or JSON on standard output (default: text)")
    args = parser.parse_args()
    readable = PEERS[:1] if args.checkpoint else PEERS
    peers = args.peers.split(",") if args.peers else list(readable)
    for peer in peers:
        if peer not in PEERS:
            parser.error(f"--peers {peer}: expected some of {','.join(PEERS)}")
        if peer not in readable:
            parser.error(f"--peers {peer}: its converter needs FP4 experts, so leave it out or leave out --checkpoint")
    if args.checkpoint and not os.path.exists(f"{args.checkpoint}/config.json"):
        parser.error(f"--checkpoint {args.checkpoint}: it has no config.json")
    if args.threads > len(os.sched_getaffinity(0)):
        parser.error(f"--threads {args.threads}: this process may use {len(os.sched_getaffinity(0))} cores")
    for name in ("tokens", "rounds", "threads", "jobs"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} {getattr(args, name)}: expected at least 1")
    if not args.prefill and not args.depths:
        parser.error("--prefill and --depths are both empty: nothing to measure")
    return args, peers


def cases(args):
    """(prompt, tokens after it), short ones first; depth 0 is a prompt of one token."""
    deep = {max(depth, 1) for depth in args.depths}
    return [(length, args.tokens if length in deep else 0) for length in sorted(deep | set(args.prefill))]


def take_turns(case, running, round_, rounds):
    turn = {}
    for engine in running:
        time.sleep(REST_SECONDS)
        prompt, tokens = turn[engine.name] = engine.run(*case)
        note(f"prompt {case[0]}, {case[1]} tokens, " + (f"round {round_} of {rounds}" if round_ else "warm-up")
             + f": {engine.name} {prompt:.3f} s + {tokens:.3f} s")
    return turn


def slower_dtype(turn, case):
    """The dtype of transformers that is not worth repeating, and why."""
    total = {name: sum(seconds) for name, seconds in turn.items() if name.startswith("transformers")}
    if len(total) == 2:
        slow, fast = max(total, key=total.get), min(total, key=total.get)
        if total[slow] > max(SLOW * total[fast], SLOW_SECONDS):
            return {slow: f"{total[slow] / total[fast]:.1f} times the time of {fast} at {case[0]}"}
    return {}


def measure(args, started):
    """Tokens a second of every measure, engine and round, and the engines left out of later rounds."""
    samples, slow = {}, {}
    for case in cases(args):
        length, count = case
        running = [engine for engine in started if engine.name not in slow]
        first = take_turns(case, running, 0, args.rounds)
        slow |= slower_dtype(first, case)
        running = [engine for engine in running if engine.name not in slow]
        kept = [take_turns(case, running, round_, args.rounds) for round_ in range(1, args.rounds + 1)]
        for engine in started:
            own = [turn[engine.name] for turn in kept if engine.name in turn]
            if engine.name in first and engine.name in slow:
                own = [first[engine.name]]
            if own and length in args.prefill:
                samples.setdefault(f"prefill {length}", {})[engine.name] = [length / prompt for prompt, _ in own]
            if own and count:
                name = f"decode at {0 if length == 1 else length}"
                samples.setdefault(name, {})[engine.name] = [count / tokens for _, tokens in own]
    return samples, slow


def limits(started):
    """What the machine can do, by the programs that are running."""
    by_name = {engine.name: engine for engine in started}
    hotseam, torch = by_name["hotseam"], by_name.get("transformers f32")
    gemm = {"hotseam": hotseam.ask("gemm", 2048)[0]}
    if torch:
        gemm |= dict(zip(("torch.mm", "numpy"), torch.ask("gemm", 2048)))
    return {"stream_bytes_per_s": hotseam.ask("stream")[0], "gemm_flops": gemm}


def batch(args, hotseam):
    rates = [args.batch * args.tokens / hotseam.ask("batch", args.batch, 512, args.tokens)[1] for _ in range(args.rounds)]
    return {"sequences": args.batch, "tokens_per_s": round(statistics.median(rates), 1)}


def benchmark(args, peers):
    makers, versions = engines.prepare_all(args, peers, args.jobs)
    machine.use_cores(args.threads)
    with contextlib.ExitStack() as stack:
        started = []
        for make in makers:
            started.append(make())
            stack.callback(started[-1].close)
            note(f"{started[-1].name}: ready")
        if not args.force and not machine.settle(300, note):
            return None
        before = machine.load()
        ceilings = limits(started)
        samples, slow = measure(args, started)
        name = os.path.basename(os.path.normpath(args.checkpoint)) if args.checkpoint else "official"
        rows = report.summarise(samples, args.rounds, report.GOALS.get(name, {}))
        return {"machine": machine.describe() | ceilings | {"threads": args.threads, "load_before": before, "load_after": machine.load()},
                "forced": args.force, "checkpoint": args.checkpoint or "random, 101 M parameters, FP8 with FP4 experts",
                "versions": versions, "rounds": args.rounds, "rows": rows, "slow": slow, "batch": batch(args, started[0]) if args.batch else None,
                "resident": {engine.name: engine.resident() for engine in started if engine.resident()},
                "missed": report.missed(rows)}


def main():
    args, peers = arguments()
    busy = f"the machine is busy: its load is above {machine.QUIET}, and figures of it mean little; wait, or use --force"
    if not args.force and machine.load() > machine.QUIET:
        note(busy)
        return EXIT_BUSY
    CACHE.mkdir(parents=True, exist_ok=True)
    try:
        result = benchmark(args, peers)
    except PeerError as error:
        note(f"error: {error}")
        return EXIT_FAILED
    if result is None:
        note(busy)
        return EXIT_BUSY
    print(json.dumps(result, indent=1) if args.format == "json" else report.text(result))
    return EXIT_MISSED if result["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
