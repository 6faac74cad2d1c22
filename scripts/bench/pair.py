"""Time to first token of pairs of workers against a single one: real `hotseam serve` processes, asked over HTTP."""
import concurrent.futures
import argparse
import http.client
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

import machine

EPILOG = """\
Each round asks every arm once, in an order that turns: a single worker, a pair over each transport, and the single worker
once more, whose difference to the first time is what the machine makes of no difference at all. "added" is taken within
rounds. A pair is asked as a router asks it: both workers at once, and the first token is the one that decode sends.

examples:
  scripts/bench-pair
  scripts/bench-pair --lengths 512,4096 --rounds 15 --transports tcp,shm --format json
  scripts/bench-pair --transports shm --lengths 4096 --chunk 256

exit codes: 0 measured; 1 a worker failed (the message names it); 2 usage; 3 the machine is busy
"""
VOCAB = 4000


def note(text):
    print(f"bench-pair: {text}", file=sys.stderr)


class Worker:
    """A running server."""

    def __init__(self, name, config, options, directory):
        self.name, self.directory = name, os.path.join(directory, name.replace(" ", "-"))
        os.mkdir(self.directory, 0o700)
        self.log = os.path.join(self.directory, "log")
        options = [f"server.admin={self.directory}/admin.sock", f"plugins.state_dir={self.directory}/state",
                   "server.listen=127.0.0.1:0", *options]
        command = ["target/release/hotseam", "serve", "-c", f"configs/{config}.yaml"]
        for option in options:
            command += ["--set", option]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)

    def wait(self):
        line = self.process.stdout.readline().strip()
        if not line:
            self.fail("did not start")
        self.host, port = line.removeprefix("http://").split(":")
        self.port = int(port)

    def fail(self, what):
        with open(self.log) as log:
            sys.exit(f"bench-pair: {self.name} {what}:\n{log.read()[-2000:]}")

    def first_token(self, body, started):
        """Seconds from `started` to the first event of the stream; the rest of it is read."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=600)
        connection.request("POST", "/generate", json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            self.fail(f"answered {answer.status} {answer.read()[:300]}")
        line = answer.readline()
        seconds = time.monotonic() - started
        if not line.startswith(b'data: {"text"'):
            self.fail(f"said {line[:300]}")
        answer.read()
        connection.close()
        return seconds


class Single:
    def __init__(self, name, options, directory):
        self.workers = [Worker(name, "quickstart", options, directory)]

    def ask(self, body):
        return self.workers[0].first_token(body, time.monotonic())


class Pair:
    def __init__(self, transport, options, directory):
        options = [*options, f"assignments.live[4].use=kv_transport/{transport}"]
        roles = ("prefill", "decode")
        self.workers = [Worker(f"{role} over {transport}", f"pd-{role}", options, directory) for role in roles]

    def ask(self, body):
        prefill, decode = self.workers
        body = body | {"bootstrap_host": prefill.host, "bootstrap_port": prefill.port,
                       "bootstrap_room": random.getrandbits(62)}
        started = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            other = threads.submit(prefill.first_token, body, started)
            seconds = decode.first_token(body, started)
            other.result()
        return seconds


def measure(arms, length, rounds, tokens):
    """Milliseconds to the first token by arm and round. The first round of a length is not kept."""
    samples = {name: [] for name, _ in arms}
    for turn in range(rounds + 1):
        order = arms[turn % len(arms):] + arms[:turn % len(arms)]
        for name, arm in order:
            ids = [3 + random.randrange(VOCAB) for _ in range(length)]
            body = {"input_ids": ids, "stream": True, "sampling_params": {"max_new_tokens": tokens, "temperature": 0}}
            seconds = arm.ask(body)
            if turn:
                samples[name].append(1000 * seconds)
        note(f"{length} tokens, round {turn} of {rounds}" + ("" if turn else " (not kept)"))
    return samples


def spread(values):
    quarters = statistics.quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3
    return {"median": round(statistics.median(values), 2), "min": round(min(values), 2), "max": round(max(values), 2),
            "quartiles": [round(quarters[0], 2), round(quarters[2], 2)]}


def rows_of(length, samples):
    base = samples["single"]
    rows = []
    for name, values in samples.items():
        row = {"tokens": length, "arm": name, "first_token_ms": spread(values)}
        if name != "single":
            row["added_ms"] = spread([value - other for value, other in zip(values, base)])
        rows.append(row)
    return rows


def text(result):
    m = result["machine"]
    lines = [f"{m['cpu']}, {m['cores']} cores; load {m['load_before']:.2f} before, {m['load_after']:.2f} after"
             + (", forced" if result["forced"] else ""),
             f"{result['rounds']} rounds, chunks of {result['chunk']}; milliseconds to the first token", "",
             f"{'tokens':>6}  {'arm':16} {'median':>9} {'min to max':>20} {'added':>8} {'quartiles':>18}"]
    for row in result["rows"]:
        first, added = row["first_token_ms"], row.get("added_ms")
        line = f"{row['tokens']:6}  {row['arm']:16} {first['median']:9.1f} {first['min']:9.1f} to {first['max']:7.1f}"
        if added:
            low, high = added["quartiles"]
            line += f" {added['median']:8.1f} {low:8.1f} to {high:6.1f}"
        lines.append(line)
    return "\n".join(lines)


def numbers(words):
    return [int(word) for word in words.split(",")]


def main():
    parser = argparse.ArgumentParser(prog="scripts/bench-pair", description=__doc__, epilog=EPILOG,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=numbers, default=[512, 4096], help="tokens of the prompts (default 512,4096)")
    parser.add_argument("--transports", default="tcp,shm", help="variants of kv_transport (default tcp,shm)")
    parser.add_argument("--rounds", type=int, default=11, help="kept rounds of a length (default 11)")
    parser.add_argument("--tokens", type=int, default=4, help="tokens of an answer (default 4)")
    parser.add_argument("--chunk", type=int, default=512, help="rows of a prefill step (default 512)")
    parser.add_argument("--threads", type=int, default=0, help="threads of each worker; 0: one a core")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("--force", action="store_true",
                        help=f"measure although the load is above {machine.QUIET}; the report says so")
    args = parser.parse_args()
    if args.rounds < 1 or min(args.lengths) < 1:
        parser.error("--rounds and --lengths count from 1")
    subprocess.run(["cargo", "build", "--release", "--locked", "-p", "hotseam", "-p", "hotseam-attention-cpu-stock",
                    "-p", "hotseam-indexer-cpu-stock", "-p", "hotseam-moe-cpu-stock", "-p", "hotseam-mhc-cpu-stock",
                    "-p", "hotseam-kv-transport-local",
                    *(word for name in args.transports.split(",") for word in ("-p", f"hotseam-kv-transport-{name}"))],
                   check=True)
    if not args.force and not machine.settle(120, note):
        note(f"the machine is busy: its load is {machine.load():.2f}; wait, or use --force")
        sys.exit(3)
    options = [f"engine.chunk={args.chunk}", f"engine.threads={args.threads}",
               f"engine.max_context={max(args.lengths) + args.tokens}", "engine.max_seqs=2"]
    random.seed(1)
    arms = []
    with tempfile.TemporaryDirectory() as directory:
        try:
            arms.append(("single", Single("single", options, directory)))
            for transport in args.transports.split(","):
                arms.append((f"pair over {transport}", Pair(transport, options, directory)))
            arms.append(("single again", arms[0][1]))
            for _, arm in arms[:-1]:
                for worker in arm.workers:
                    worker.wait()
            before, rows = machine.load(), []
            for length in args.lengths:
                rows += rows_of(length, measure(arms, length, args.rounds, args.tokens))
            result = {"machine": machine.describe() | {"load_before": before, "load_after": machine.load()},
                      "forced": args.force, "rounds": args.rounds, "chunk": args.chunk, "threads": args.threads,
                      "rows": rows}
        finally:
            for _, arm in arms[:-1] if len(arms) > 1 else arms:
                for worker in arm.workers:
                    worker.process.kill()
                    worker.process.wait()
    print(json.dumps(result) if args.format == "json" else text(result))


if __name__ == "__main__":
    main()
