"""The machine under the benchmark: processor, load, and whether it is quiet enough to measure on."""
import os
import time

# Load average of one minute above which figures mean little: peers that spin at their barriers lose most.
QUIET = 0.3
# What decides which kernels run.
FEATURES = ("sse4_2", "avx", "avx2", "fma", "f16c", "bmi2", "avx512", "avx_vnni", "amx")


def _cpuinfo(key):
    with open("/proc/cpuinfo") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name.strip() == key:
                return value.strip()
    return ""


def flags():
    return set(_cpuinfo("flags").split())


def describe():
    return {"cpu": _cpuinfo("model name"), "cores": os.cpu_count(),
            "features": sorted(flag for flag in flags() if flag.startswith(FEATURES))}


def load():
    return os.getloadavg()[0]


def settle(seconds, note):
    """Waits until the load of what ran before has decayed, `seconds` at most. Returns whether it has."""
    end = time.monotonic() + seconds
    while load() > QUIET and time.monotonic() < end:
        note(f"waiting for a quiet machine: load {load():.2f}, wanted {QUIET}")
        time.sleep(10)
    return load() <= QUIET


def use_cores(threads):
    """Confines this process and its children to `threads` cores, for programs that have no option for it."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:threads])
