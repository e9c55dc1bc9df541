#!/usr/bin/env python3
"""Feeds a leaf from vLLM's own scheduler with its KV connectors and compares every answer with what vLLM could reuse.

    tests/interop/run_connectors.py --leaf bazel-bin/indexer/leaf/kvatlas-leaf --model FOLDER [--python PYTHON] [--seed 7] [NAME…]

The scenarios (`connector_engine.py`): OffloadingConnector with chunks of 1, 2 and 4 blocks, named by their last hash and self-describing, with room
for all and for few; two connectors within MultiConnector; a folder beside host memory (tiering); hashes that look ahead. PYTHON is that of an
environment with the whole of vLLM 0.33.0 and PyTorch (5 GB), by default one that is made under $KVATLAS_INTEROP_DIR; a GPU is not needed.
FOLDER has a model's config.json. An answer above what vLLM could reuse, or below, is printed; the exit status is 1 if there is any.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import environment

HERE = Path(__file__).resolve().parent
SETTLE_S = 30


def payloads(file):
    data = file.read_bytes()
    while data:
        size = int.from_bytes(data[:4], "big")
        yield data[4:4 + size]
        data = data[4 + size:]


def ask(url, body=None):
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(),
                                     {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


class Publisher:
    """Publishes as vLLM does. XPUB tells of a subscriber, so that nothing is sent before there is one."""

    def __init__(self):
        import zmq

        self.socket = zmq.Context.instance().socket(zmq.XPUB)
        self.socket.setsockopt(zmq.SNDHWM, 0)
        self.socket.bind("tcp://127.0.0.1:*")
        self.endpoint = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def send_all(self, all_of_them):
        if not self.socket.poll(1000 * SETTLE_S):
            raise RuntimeError("the leaf does not subscribe")
        self.socket.recv()
        sent = 0
        for payload in all_of_them:
            self.socket.send_multipart([b"", sent.to_bytes(8, "big"), payload])
            sent += 1
        return sent


def batches_of(leaf, model):
    workers = ask(leaf + "/workers?detail=1")
    workers = workers if isinstance(workers, list) else workers.get("workers", [])
    for worker in workers:
        if worker.get("model_name") == model:
            return worker.get("batches", 0)
    return 0


def wait_until_applied(leaf, model, batches):
    end = time.monotonic() + SETTLE_S
    while batches_of(leaf, model) < batches:
        if time.monotonic() > end:
            raise RuntimeError(f"{model}: {batches_of(leaf, model)} of {batches} batches applied")
        threading.Event().wait(0.05)


def check(leaf, folder, name, number):
    """How many answers were too high, too low, and right."""
    case = json.loads((folder / f"{name}.json").read_text())
    publisher = Publisher()
    ask(leaf + "/register", {"instance_id": number, "endpoint": publisher.endpoint, "model_name": name, **case["register"]})
    wait_until_applied(leaf, name, publisher.send_all(payloads(folder / f"{name}.bin")))
    over, under, right = 0, 0, 0
    for key, prompt in case["prompts"].items():
        body = {"model_name": name, "token_ids": prompt["tokens"]}
        if "salt" in prompt:
            body["cache_salt"] = prompt["salt"]
        ranks = next(iter(ask(leaf + "/query?detail=1", body)["detail"].values()), {})
        rank = next(iter(ranks.values()), {})
        answer = rank.get("any", 0)
        over += answer > prompt["reusable"]
        under += answer < prompt["reusable"]
        right += answer == prompt["reusable"]
        if answer != prompt["reusable"]:
            print(f"  {name} prompt {key}: {len(prompt['tokens'])} tokens, vLLM {prompt['reusable']} "
                  f"({prompt['device']} on the device), leaf {answer} ({rank.get('device', 0)}), {rank.get('trust')}")
    print(f"{name}: {right} exact, {over} over, {under} under")
    return over + under


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--leaf", required=True, help="path of kvatlas-leaf")
    parser.add_argument("--model", required=True, help="folder with a config.json")
    parser.add_argument("--python", help="of an environment with vLLM and its dependencies")
    parser.add_argument("--seed", default="7")
    parser.add_argument("--folder", type=Path, help="recordings that are there already, or are to stay")
    parser.add_argument("names", nargs="*", help="scenarios; default: all")
    options = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        if not list(folder.glob("*.json")):
            python = options.python or environment.prepare_python("vllm-whole", [f"vllm=={environment.VERSIONS['vllm']}"])
            subprocess.run([str(python), str(HERE / "connector_engine.py"), options.model, str(folder), options.seed, *options.names],
                           check=True, stdout=sys.stderr)
        leaf = environment.Process(options.leaf, "--grpc=127.0.0.1:0", "--http=127.0.0.1:0")
        try:
            names = options.names or sorted(file.stem for file in folder.glob("*.json"))
            for number, name in enumerate(names, 1):
                wrong += check("http://" + leaf.addresses["http"], folder, name, number)
        finally:
            leaf.close()
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
