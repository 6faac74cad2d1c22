"""The programs that take turns. Each answers `run(length, count)` with the seconds of a prompt and of `count` tokens."""
import contextlib
import json
import os
import subprocess

import prepare
from prepare import HERE, PeerError


class Child:
    """A process that answers lines, see tests/examples/bench_engine; loaded once, idle between its turns."""

    def __init__(self, name, command, environment=None):
        self.name = name
        self.log = prepare.CACHE / f"{name.replace(' ', '-')}.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=log, text=True, env=os.environ | (environment or {}))
        if self.read() != "ready":
            raise PeerError(name, "it did not get ready", f"read {self.log}")

    def read(self):
        line = self.process.stdout.readline().strip()
        if not line:
            code = self.process.wait()
            last = self.log.read_text(errors="replace").strip().splitlines()[-1:] or ["no message"]
            ours = self.name.startswith("hotseam")
            advice = f"read {self.log}" + ("" if ours else ", or leave it out with --peers")
            raise PeerError(self.name, f"it ended with {code}: {last[0]}", advice)
        return line

    def ask(self, *words):
        with contextlib.suppress(BrokenPipeError):  # it has ended; `read` says how
            self.process.stdin.write(" ".join(map(str, words)) + "\n")
            self.process.stdin.flush()
        return [float(number) for number in self.read().split()]

    def run(self, length, count):
        return self.ask("run", length, count)

    def resident(self):
        """Most bytes of memory it has had."""
        with open(f"/proc/{self.process.pid}/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()


class LlamaBench:
    """llama.cpp's own benchmark, a process a turn: it loads, warms up and measures once."""

    def __init__(self, program, gguf, threads, options):
        self.name = "llama.cpp"
        self.command = [str(program), "-m", str(gguf), "-t", str(threads), "-r", "1", "-o", "json", *options]

    def bench(self, *test):
        command = [*self.command, *map(str, test)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or ["no message"]
            raise PeerError(self.name, f"llama-bench ended with {done.returncode}: {last[0]}",
                            f"run it by hand: {' '.join(command)}; if it is an assertion about backends, try --llama-args='--repack 0'")
        [result] = json.loads(done.stdout)
        return result["avg_ns"] * 1e-9

    def run(self, length, count):
        """Prompt and tokens are two tests. Depth 0 is an empty cache; a longer one is filled first, not timed."""
        depth = 0 if length == 1 else length
        prompt = self.bench("-p", length, "-n", 0) if length > 1 else 0.0
        return prompt, self.bench("-p", 0, "-n", count, "-d", depth) if count else 0.0

    def resident(self):
        return None

    def close(self):
        pass


def prepare_all(args, peers, jobs):
    """Builds Hotseam and the chosen peers; a function that starts each, in the order of their turns, and their versions."""
    context = max([*args.prefill, *args.depths]) + args.tokens + 64
    cores = {"OMP_NUM_THREADS": str(args.threads), "OPENBLAS_NUM_THREADS": str(args.threads)}
    engine, python = prepare.hotseam(jobs), prepare.transformers()
    wide = args.checkpoint or prepare.checkpoint(python, "bf16")
    packed = args.checkpoint or prepare.checkpoint(python, "fp8")
    makers = [lambda: Child("hotseam", [engine, packed, context])]
    if args.amx:
        makers.append(lambda: Child("hotseam amx", [engine, packed, context, "amx"]))
    if args.control:
        makers.append(lambda: Child("hotseam bf16", [engine, wide, context]))
    if "transformers" in peers:
        script = HERE / "transformers_child.py"
        for dtype in ("f32", "bf16"):
            command = [python, script, wide, dtype, args.threads]
            makers.append(lambda dtype=dtype, command=command: Child(f"transformers {dtype}", command, cores))
    if "llama.cpp" in peers:
        program, gguf = prepare.llama_bench(jobs), prepare.gguf(python, packed)
        makers.append(lambda: LlamaBench(program, gguf, args.threads, args.llama_args.split()))
    if "flyweight" in peers:
        vocab = json.loads((packed / "config.json").read_text())["vocab_size"]
        command = [prepare.flyweight(), HERE / "flyweight_child.py", prepare.gguf(python, packed), context, vocab]
        makers.append(lambda: Child("flyweight", command, cores))
    return makers, prepare.versions(python)
