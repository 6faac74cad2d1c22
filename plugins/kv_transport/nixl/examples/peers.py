"""NIXL's Python API between two processes, for bench_nixl.rs: an initiator reads a target's memory, as the example
`basic_two_peers.py` of NIXL does. Each line on stdin is a round, `whole` or `scattered`; its seconds are printed."""

import multiprocessing
import sys
import time

import numpy
from nixl_cu12 import nixl_agent, nixl_agent_config


def agent(name, memory):
    made = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
    made.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], "DRAM")
    return made


def target(total, told, end):
    memory = (numpy.arange(total, dtype=numpy.uint32) * 7).astype(numpy.uint8)
    made = agent("target", memory)
    told.put((made.get_agent_metadata(), memory.ctypes.data))
    end.get()


def main(item, items):
    context = multiprocessing.get_context("spawn")
    told, end = context.Queue(), context.Queue()
    other = context.Process(target=target, args=(item * items, told, end), daemon=True)
    other.start()
    memory = numpy.zeros(item * items, numpy.uint8)
    made = agent("initiator", memory)
    metadata, base = told.get()
    made.add_remote_agent(metadata)
    half = items // 2
    scattered = [(i // 2 + i % 2 * half) * item for i in range(items)]
    ranges = {"whole": [(0, item * items)], "scattered": [(at, item) for at in scattered]}

    def descriptors(start, shape):
        return made.get_xfer_descs([(start + at, n, 0) for at, n in ranges[shape]], "DRAM")

    # As in the example, lists of descriptors are made once.
    lists = {shape: (descriptors(memory.ctypes.data, shape), descriptors(base, shape)) for shape in ranges}
    print("ready", flush=True)
    for line in sys.stdin:
        local, remote = lists[line.strip()]
        start = time.perf_counter()
        handle = made.initialize_xfer("READ", local, remote, "target", b"done")
        state = made.transfer(handle)
        while state == "PROC":
            state = made.check_xfer_state(handle)
        seconds = time.perf_counter() - start
        made.release_xfer_handle(handle)
        print(seconds if state == "DONE" else "failed", flush=True)
    wanted = (numpy.arange(memory.size, dtype=numpy.uint32) * 7).astype(numpy.uint8)
    print("same" if (memory == wanted).all() else "differs", flush=True)
    end.put(None)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
