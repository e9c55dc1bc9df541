#!/usr/bin/env python3
"""What does the picker add to a request through Envoy? Times of requests with it and without it, at one rate, in turns.

    tests/interop/bench_envoy.py --leaf bazel-bin/indexer/leaf/kvatlas-leaf --frontend bazel-bin/frontend/kvatlas-frontend \\
        --library bazel-bin/publisher/libkvatlas_publisher.so [--rate 500] [--seconds 20] [--rounds 3]

Envoy 1.40 (as run_envoy.py installs it) answers requests itself behind its filters, so that no engine's time is in the figures: one
listener asks the picker by TLS and in streamed bodies, as Envoy AI Gateway and agentgateway do, the other is the same without the
picker. Two bodies: a prompt of 128 tokens, and a chat of 4 KB whose tokens the frontend makes. Prints p50 and p99 of both listeners
and their differences, in microseconds.
"""

import argparse
import concurrent.futures
import json
import os
import socket
import statistics
import tempfile
import threading
import time
from pathlib import Path

import run_envoy
from run_envoy import ENGINES, MODEL, Engine, Envoy, Frontend, Leaf
from run_gateways import percentile

ROOT = Path(__file__).resolve().parent.parent.parent
CONNECTIONS = 10
IDLE = threading.Event()  # never set: waits end by their time
OWN_ANSWER = {"match": {"prefix": "/"}, "direct_response": {"status": 200, "body": {"inline_string": "{}"}}}


def answers_itself(name, with_picker):
    made = run_envoy.listener(name, "FULL_DUPLEX_STREAMED", False)
    manager = made["filter_chains"][0]["filters"][0]["typed_config"]
    manager["route_config"]["virtual_hosts"][0]["routes"] = [OWN_ANSWER]
    # Envoy would close a connection whose body had not come whole when it answers.
    whole = {"name": "whole", "typed_config": {"@type": run_envoy.FILTER + "buffer.v3.Buffer", "max_request_bytes": 1 << 20}}
    manager["http_filters"].insert(-1, whole)
    if not with_picker:
        manager["http_filters"] = [one for one in manager["http_filters"] if one["name"] != "picker"]
    return made


class OwnAnswers(Envoy):
    PORTS = {"picked": (True,), "plain": (False,)}
    LISTENER = staticmethod(answers_itself)


def times(port, path, body, options):
    """Microseconds of each request, sent at fixed times over connections that are kept; those of the first second are left out."""
    data = json.dumps(body).encode()
    request = f"POST {path} HTTP/1.1\r\nhost: m\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data
    start = time.perf_counter() + 0.1
    taken = []

    def client(number):
        with socket.create_connection(("127.0.0.1", port)) as connection, connection.makefile("rb") as answers:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for i in range(options.rate * (options.seconds + 1) // CONNECTIONS):
                at = start + (i * CONNECTIONS + number) / options.rate
                IDLE.wait(max(0, at - time.perf_counter()))
                sent = time.perf_counter()
                connection.sendall(request)
                status = answers.readline().split()[1]
                if status != b"200":
                    raise RuntimeError(f"{path} was answered by {status}")
                length = 0
                while (line := answers.readline().lower()) != b"\r\n":
                    if line.startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                    elif line.startswith(b"transfer-encoding:"):
                        length = None
                if length is None:
                    while size := int(answers.readline(), 16):
                        answers.read(size + 2)
                    length = 2
                answers.read(length)
                if at - start >= 1:
                    taken.append(round((time.perf_counter() - sent) * 1e6))

    with concurrent.futures.ThreadPoolExecutor(CONNECTIONS) as pool:
        for done in [pool.submit(client, number) for number in range(CONNECTIONS)]:
            done.result()
    return taken


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("leaf", "frontend", "library"):
        parser.add_argument("--" + name, required=True, type=lambda path: str(Path(path).resolve()))
    parser.add_argument("--rate", type=int, default=500, help="requests a second")
    parser.add_argument("--seconds", type=int, default=20, help="of one round")
    parser.add_argument("--rounds", type=int, default=3)
    options = run_envoy.ARGUMENTS = parser.parse_args()
    os.environ["KVATLAS_PUBLISHER_LIBRARY"] = options.library
    run_envoy.closing_support()
    with tempfile.TemporaryDirectory() as made, Leaf(options.leaf) as leaf:
        folder = Path(made)
        engines = [Engine(i, leaf.grpc) for i in range(ENGINES)]
        frontend = Frontend(leaf.grpc, f"--models={MODEL}={ROOT / 'frontend/prompt/text/testdata/bytes'}")
        envoy = OwnAnswers(run_envoy.envoy_binary(), [frontend.ext_proc], True, [engine.address for engine in engines], folder)
        try:
            bodies = {
                "128 tokens": ("/v1/completions", {"model": MODEL, "prompt": run_envoy.prompt(1)}),
                "chat of 4 KB": ("/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": "A word of it. " * 290}]})}
            for name, (path, body) in bodies.items():
                found = {port: [] for port in OwnAnswers.PORTS}
                for _ in range(options.rounds):
                    for port in OwnAnswers.PORTS:
                        values = times(envoy.ports[port], path, body, options)
                        found[port].append((percentile(values, 0.5), percentile(values, 0.99)))
                p50, p99 = ({port: statistics.median(pair[i] for pair in pairs) for port, pairs in found.items()} for i in (0, 1))
                print(f"{name}, {options.rate}/s: p50 {p50['picked']} us with the picker, {p50['plain']} without: {p50['picked'] - p50['plain']} added; "
                      f"p99 {p99['picked']} and {p99['plain']}: {p99['picked'] - p99['plain']} added", flush=True)
            print(f"picks: {frontend.metric('kvatlas_ext_proc_picks_total'):.0f}")
        finally:
            envoy.stop()
            frontend.kill()
            for engine in engines:
                engine.close()


if __name__ == "__main__":
    main()
