#!/usr/bin/env python3
"""What does a stored batch of 32 blocks of 16 tokens cost an engine's thread in Python? Prints p50 and p99 in microseconds, as the
clock says and of the thread's own processor time.

    PYTHONPATH=SITE_PACKAGES_WITH_THE_WHEEL publisher/python/publisher_benchmark.py [LEAF]

LEAF: HOST:PORT; without it no leaf is told. `engine batch` needs msgspec, as engines have it, and includes its encoding.
"""

import sys
import time
from array import array

sys.path.pop(0)  # the sources beside this file have no library

from kvatlas_publisher import Publisher  # noqa: E402

BLOCKS, BLOCK_SIZE, STEPS, EVERY_NS = 32, 16, 5000, 200_000


def paced(publisher, call, step_arguments):
    wall, own = [], []
    following = time.perf_counter_ns()
    for step in range(STEPS):
        arguments = step_arguments(step)
        following += EVERY_NS
        while time.perf_counter_ns() < following:
            pass
        # Processor time is asked for outside the wall clock's span: asking is a system call.
        own_start = time.thread_time_ns()
        start = time.perf_counter_ns()
        call(*arguments)
        wall.append(time.perf_counter_ns() - start)
        own.append(time.thread_time_ns() - own_start)
        if step % 512 == 511:
            publisher.cleared()
    return wall, own


def report(name, wall, own):
    def at(values, share):
        return f"{sorted(values)[int(share * (len(values) - 1))] / 1000:7.2f}"

    print(f"{name:24} {at(wall, 0.5)} {at(wall, 0.99)}   {at(own, 0.5)} {at(own, 0.99)}")


def names(step):
    return [step * BLOCKS + i + 1 for i in range(BLOCKS)]


def tokens(step):
    return [(step * BLOCKS * BLOCK_SIZE + i) % 150_000 for i in range(BLOCKS * BLOCK_SIZE)]


def measure(name, leaves, arguments, call):
    with Publisher(leaves, worker="benchmark", model="benchmark", block_size=BLOCK_SIZE) as publisher:
        report(name, *paced(publisher, call(publisher), arguments))


def engine_batches():
    """(encode, step -> batch): structs as vLLM has them."""
    import msgspec

    class Batch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
        ts: float
        events: list
        data_parallel_rank: int = 0

    class BlockStored(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
        block_hashes: list
        parent_block_hash: int | None
        token_ids: list
        block_size: int
        lora_id: int | None
        medium: str | None
        lora_name: str | None

    def batch(step):
        return [Batch(time.time(), [BlockStored(names(step), None, tokens(step), BLOCK_SIZE, None, "GPU", None)])]

    return msgspec.msgpack.Encoder().encode, batch


def main():
    leaves = sys.argv[1:]
    print(f"{'microseconds':24} {'p50':>7} {'p99':>7}   {'own p50':>7} {'p99':>7}")
    measure("nothing (the clock)", leaves, lambda step: (), lambda publisher: lambda: None)
    measure("arrays", leaves, lambda step: (array("Q", names(step)), array("I", tokens(step))),
            lambda publisher: publisher.stored)
    measure("lists", leaves, lambda step: (names(step), tokens(step)), lambda publisher: publisher.stored)
    try:
        encode, batch = engine_batches()
    except ImportError:
        print("engine batch             (no msgspec here)")
        return
    measure("engine batch", leaves, batch, lambda publisher: lambda b: publisher.publish(encode(b)))
    measure("engine batch, encoded", leaves, lambda step: (encode(*batch(step)),),
            lambda publisher: publisher.publish)


if __name__ == "__main__":
    main()
