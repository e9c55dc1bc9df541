#!/usr/bin/env python3
"""vLLM's own publishers, as llm-d has them: all dial one socket of a leaf, each with a topic kv@POD@MODEL.

    tests/interop/run_central.py --leaf bazel-bin/indexer/leaf/kvatlas-leaf

The publisher is that of the installed wheel, which connects where its endpoint names a host. Two pods store different prompts; one
starts again; one ends. Each answer is what that pod stored. Nothing sleeps: what must have happened is waited for. The exit status is
1 if an answer is not as it should be.
"""

import argparse
import json
import sys
import threading
import time
import urllib.request

import environment

MODEL = "org/llama"
BLOCK = 4
WAIT_S = 60


class Leaf:
    def __init__(self, binary, port):
        self.process = environment.Process(binary, "--grpc=127.0.0.1:0", "--http=127.0.0.1:0", "--lease_ttl=1s",
                                           f"--workers=kv@=tcp://127.0.0.1:{port};block_size={BLOCK}")
        self.http = self.process.addresses["http"]

    def ask(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{self.http}{path}", data=data, headers={"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return json.load(answer)

    def scores(self, tokens):
        """Tokens that each pod has of these."""
        if not any(one["instance_id"] for one in self.ask("/workers")):
            return {}
        scores = self.ask("/query", {"token_ids": tokens, "model_name": MODEL})["scores"]
        return {pod: max(ranks.values()) for pod, ranks in scores.items() if max(ranks.values()) > 0}


def await_that(condition, what):
    until = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > until:
            raise SystemExit(f"not after {WAIT_S} s: {what}")
        threading.Event().wait(0.05)
    print(what, flush=True)


def publisher(port, pod):
    from vllm.distributed.kv_events import ZmqEventPublisher

    return ZmqEventPublisher(0, endpoint=f"tcp://127.0.0.1:{port}", topic=f"kv@{pod}@{MODEL}")


def stored(first, tokens):
    """A batch of blocks with names of this engine's own."""
    from vllm.distributed.kv_events import BlockStored, KVEventBatch

    names = [first + i for i in range(len(tokens) // BLOCK)]
    return KVEventBatch(ts=time.time(), events=[BlockStored(
        block_hashes=names, parent_block_hash=None, token_ids=tokens, block_size=BLOCK, lora_id=None, medium="GPU", lora_name=None)])


def check(leaf, port):
    a_tokens, b_tokens = list(range(100, 140)), list(range(500, 520))
    a, b = "127.0.0.1:8001", "vllm-b"
    publishers = {a: publisher(port, a), b: publisher(port, b)}
    # What a publisher is given before its connection stands is sent nowhere: that is a gap of its own.
    for pod, tokens in ((a, a_tokens), (b, b_tokens)):
        await_that(lambda pod=pod, tokens=tokens: publishers[pod].publish(stored(1, tokens)) or pod in leaf.scores(tokens), f"{pod} dialed in")
    await_that(lambda: leaf.scores(a_tokens) == {a: 40}, f"{a} has its prompt alone")
    await_that(lambda: leaf.scores(b_tokens) == {b: 20}, f"{b} has its prompt alone, under names that the other has too")
    publishers[a].shutdown()
    publishers[a] = publisher(port, a)
    other = list(range(900, 920))
    await_that(lambda: publishers[a].publish(stored(1, other)) or leaf.scores(other) == {a: 20}, f"{a} started again")
    await_that(lambda: leaf.scores(a_tokens) == {}, f"{a} has nothing of what it had before")
    await_that(lambda: leaf.scores(b_tokens) == {b: 20}, f"{b} has what it had")
    publishers[b].shutdown()
    await_that(lambda: leaf.scores(b_tokens) == {}, f"{b} is gone")
    publishers[a].shutdown()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--leaf", required=True)
    arguments = parser.parse_args()
    python = environment.prepare_python("central", ["msgspec", "pyzmq", "cbor2", "xxhash", "numpy", "pydantic", "regex"])
    if sys.executable != str(python):
        environment.run_again_with(python)
    import vllm_engine

    vllm_engine.load(str(environment.fetch_engine("vllm")))
    port = environment.free_port()
    leaf = Leaf(arguments.leaf, port)
    try:
        check(leaf, port)
    finally:
        leaf.process.close()
    print("as it should be")


if __name__ == "__main__":
    main()
