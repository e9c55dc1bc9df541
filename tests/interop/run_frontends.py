#!/usr/bin/env python3
"""Many frontends before one fleet: do they choose as one?

    bazel build -c opt //tools/kvatlas //tools/testing/mock_engine:mock_engine //indexer/leaf:kvatlas-leaf //hierarchy:kvatlas-hierarchy //frontend:kvatlas-frontend
    tests/interop/run_frontends.py [--frontends 8] [--cells 2] [--engines 8] [--trials 20] [--fan_out 8] [--conversations 40]
                                   [--kill engine|leaf] [--seed 1]

A hierarchy node, a leaf for each cell (two replicas with `--kill leaf`), mock engines with native events and an HTTP port, whose prefill
takes real time, and frontends that pass requests on. Prompts are token ids. Twice: with what frontends tell (`--tell_leaves`), and without.

*Fan-outs*: prompts with 16,000 tokens in common, and 200 of their own, one every `--gap` seconds, each through another frontend. A trial is
good when exactly one of them found less than the common beginning cached. *Conversations*: turns of some hundred tokens, each through a frontend that is
drawn; cached of what the turn before had in it. `--kill`: an engine, or one replica of a leaf, is killed by SIGKILL at half of the conversations.
The exit status is 1 when a request failed that no killed engine had.
"""

import argparse
import http.client
import json
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import environment

ROOT = Path(__file__).resolve().parents[2]
MODEL, BLOCK, COMMON, OWN, WAIT_S = "mock", 16, 16000, 200, 60


class Fleet:
    def __init__(self, arguments, tell):
        self.processes, self.engines, self.leaves = [], [], []
        bin_dir = arguments.bin
        node = self.start(bin_dir / "hierarchy/kvatlas-hierarchy", "--grpc=127.0.0.1:0", "--http=127.0.0.1:0")
        per_cell = arguments.engines // arguments.cells
        replicas = ["1", "2"] if arguments.kill == "leaf" else [""]
        for cell in range(arguments.cells):
            workers = []
            for i in range(per_cell):
                name = f"e{cell}-{i}"
                engine = self.start(bin_dir / "tools/testing/mock_engine/mock_engine", "--grpc=127.0.0.1:0", "--http=127.0.0.1:0", f"--model={MODEL}",
                                    f"--worker={name}", f"--block_size={BLOCK}", f"--capacity={arguments.capacity}",
                                    "--zmq_events=tcp://127.0.0.1:0", "--zmq_replay=tcp://127.0.0.1:0", "--zmq_attach=bind",
                                    f"--prefill_time={arguments.prefill_ms}ms")
                self.engines.append(engine)
                workers.append(f"{name}=tcp://{engine.addresses['zmq_events']};replay=tcp://{engine.addresses['zmq_replay']};"
                               f"url=http://{engine.addresses['http']}")
            for replica in replicas:
                self.leaves.append(self.start(bin_dir / "indexer/leaf/kvatlas-leaf", "--grpc=127.0.0.1:0", "--http=127.0.0.1:0",
                                              f"--cell=cell{cell}", f"--replica={replica}", f"--model_name={MODEL}", f"--block_size={BLOCK}",
                                              f"--parents={node.addresses['grpc']}", f"--workers={','.join(workers)}"))
        self.frontends = [self.start(bin_dir / "frontend/kvatlas-frontend", "--grpc=127.0.0.1:0", "--http=127.0.0.1:0",
                                     "--proxy=127.0.0.1:0", f"--hierarchy={node.addresses['grpc']}",
                                     f"--tell_leaves={'true' if tell else 'false'}") for _ in range(arguments.frontends)]

    def start(self, program, *flags):
        process = environment.Process(str(program), "--log_level=error", *flags, log=subprocess.DEVNULL)
        self.processes.append(process)
        return process

    def ask(self, frontend, tokens):
        """Cached tokens, or the error's text."""
        host, port = self.frontends[frontend].addresses["proxy"].rsplit(":", 1)
        connection = http.client.HTTPConnection(host, int(port), timeout=WAIT_S)
        try:
            connection.request("POST", "/v1/completions", json.dumps({"model": MODEL, "prompt": tokens, "max_tokens": 4}),
                               {"content-type": "application/json"})
            response = connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException) as error:
            return str(error) or type(error).__name__
        finally:
            connection.close()
        if response.status != 200:
            return f"{response.status} {text[:200]!r}"
        return json.loads(text)["usage"]["prompt_tokens_details"]["cached_tokens"]

    def close(self):
        for process in self.processes:
            process.process.terminate()
        for process in self.processes:
            process.close()


def await_fleet(fleet):
    until = time.monotonic() + WAIT_S
    for frontend in range(len(fleet.frontends)):
        while isinstance(got := fleet.ask(frontend, list(range(64))), str):
            if time.monotonic() > until:
                raise RuntimeError(f"a frontend does not serve: {got}")
            threading.Event().wait(0.1)


def fan_outs(arguments, fleet, rng, errors):
    good = 0
    for trial in range(arguments.trials):
        common = [rng.randrange(1 << 17) for _ in range(COMMON)]
        found = [None] * arguments.fan_out
        order = rng.sample(range(len(fleet.frontends)), len(fleet.frontends))

        def one(i):
            found[i] = fleet.ask(order[i % len(order)], common + [rng.randrange(1 << 17) for _ in range(OWN)])

        threads = []
        for i in range(arguments.fan_out):
            threads.append(threading.Thread(target=one, args=(i,)))
            threads[-1].start()
            threading.Event().wait(arguments.gap)
        for thread in threads:
            thread.join()
        errors += [got for got in found if isinstance(got, str)]
        good += sum(1 for got in found if not isinstance(got, str) and got < COMMON - BLOCK) == 1
    return good


def conversations(arguments, fleet, rng, errors, at_half):
    """Tokens of follow-up turns that were in the prompt before, and of these, found cached."""
    known = cached = 0
    lock = threading.Lock()
    seeds = [rng.random() for _ in range(arguments.conversations)]
    begun = [0]

    def work():
        nonlocal known, cached
        while True:
            with lock:
                if not seeds:
                    return
                own = random.Random(seeds.pop())
                begun[0] += 1
                if begun[0] == arguments.conversations // 2 and at_half:
                    at_half()
            prompt = [own.randrange(1 << 17) for _ in range(own.randint(200, 2000))]
            before = 0
            for _ in range(arguments.turns):
                got = fleet.ask(own.randrange(len(fleet.frontends)), prompt)
                with lock:
                    if isinstance(got, str):
                        errors.append(got)
                    elif before:
                        known += before
                        cached += min(got, before)
                before = len(prompt) // BLOCK * BLOCK
                prompt = prompt + [own.randrange(1 << 17) for _ in range(own.randint(50, 400))]

    threads = [threading.Thread(target=work) for _ in range(arguments.at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return known, cached


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=ROOT / "bazel-bin")
    parser.add_argument("--frontends", type=int, default=8)
    parser.add_argument("--cells", type=int, default=2)
    parser.add_argument("--engines", type=int, default=8)
    parser.add_argument("--capacity", type=int, default=16384, help="blocks in an engine's pool")
    parser.add_argument("--prefill_ms", type=int, default=40, help="real time of 1,000 tokens")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--fan_out", type=int, default=8)
    parser.add_argument("--gap", type=float, default=0.05)
    parser.add_argument("--conversations", type=int, default=40)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--at_once", type=int, default=8)
    parser.add_argument("--kill", choices=["engine", "leaf"])
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    failed = False
    for tell in (True, False):
        rng = random.Random(arguments.seed)
        fleet, errors = Fleet(arguments, tell), []
        try:
            await_fleet(fleet)
            good = fan_outs(arguments, fleet, rng, errors)
            failed = failed or bool(errors)
            victims = {"engine": fleet.engines, "leaf": fleet.leaves}.get(arguments.kill, [])
            known, cached = conversations(arguments, fleet, rng, errors, victims[0].kill if victims else None)
        finally:
            fleet.close()
        failed = failed or (bool(errors) and arguments.kill != "engine")
        print(f"{'told' if tell else 'not told':9} fan-outs of {arguments.fan_out} computed once: {good} of {arguments.trials}; "
              f"follow-up turns cached {100 * cached / max(1, known):.1f} %; {len(errors)} failed"
              + (f": {errors[0]}" if errors else ""), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
