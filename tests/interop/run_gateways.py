#!/usr/bin/env python3
"""Puts gateways that people use, and `kvatlas serve`, in front of the same mock engines, and compares what they find and cost.

    bazel build -c opt //tools/kvatlas //tools/engine:mock_engine
    tests/interop/run_gateways.py [--seeds 5] [--gateways kvatlas,smg,sglang-router,vllm-router,vllm-router-kv,direct]

For each seed, and in each of these for each gateway, four engines start empty (native ZMQ events, OpenAI's HTTP, true
`cached_tokens`), the gateway starts in front of them, and chats of several turns go through it: a few system prompts, each chat's next
turn after its last answer, `--at_once` chats at a time. Columns: prompt tokens found cached, by the engines' own count; requests a
second; time of a request; processor time of the gateway for one; its memory. `direct` goes to the engines by turns, without a gateway.

smg, sglang-router and vllm-router come from PyPI into a virtual environment under `$KVATLAS_INTEROP_DIR` (by default
~/.cache/kvatlas-interop) the first time; nothing but loopback is used afterwards. The exit status is 1 when a request failed.
"""

import argparse
import http.client
import json
import os
import random
import re
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import environment

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ["smg==1.13.0", "sglang-router==0.3.2", "vllm-router==0.1.17"]
MODEL = "mock"
BLOCK = 16
ENGINES = 4
WAIT_S = 60
SYSTEM_WORDS = 120
TURN_WORDS = 40


class Engine:
    def __init__(self, arguments, index):
        command = [str(arguments.engine), "--grpc=127.0.0.1:0", "--http=127.0.0.1:0", f"--model={MODEL}",
                   f"--worker=engine-{index}", f"--block_size={BLOCK}", f"--capacity={arguments.capacity}",
                   "--zmq_events=tcp://127.0.0.1:0", "--zmq_replay=tcp://127.0.0.1:0", "--zmq_attach=bind",
                   "--log_level=error"]
        if arguments.tokenizer:
            command.append(f"--tokenizer={arguments.tokenizer}")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        ready = self.process.stdout.readline()
        self.addresses = dict(re.findall(r"(\w+)=(\S+:\d+)", ready))
        if "http" not in self.addresses:
            raise RuntimeError(f"the mock engine is not ready: {ready!r}")
        self.url = "http://" + self.addresses["http"]
        self.events = "tcp://" + self.addresses["zmq_events"]
        self.replay = "tcp://" + self.addresses["zmq_replay"]


def commands(arguments, python_bin, engines, port):
    """Command lines of the gateways by name."""
    urls = [engine.url for engine in engines]
    metrics = str(environment.free_port())
    return {
        "kvatlas": [str(arguments.kvatlas), "serve", f"--listen=127.0.0.1:{port}", "--http=127.0.0.1:0", "--grpc=127.0.0.1:0",
                    "--leaf_http=127.0.0.1:0", "--leaf_grpc=127.0.0.1:0", "--log_level=error",
                    *[f"--engine={e.url};events={e.events};replay={e.replay}" for e in engines]],
        "smg": [str(python_bin / "smg"), "launch", "--host", "127.0.0.1", "--port", str(port), "--policy", "cache_aware",
                "--prometheus-port", metrics, "--log-level", "error", "--worker-urls", *urls],
        "sglang-router": [str(python_bin / "python"), "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port",
                          str(port), "--policy", "cache_aware", "--prometheus-port", metrics, "--log-level", "error",
                          "--worker-urls", *urls],
        "vllm-router": [str(python_bin / "vllm-router"), "--host", "127.0.0.1", "--port", str(port), "--policy", "cache_aware",
                        "--prometheus-port", metrics, "--log-level", "error", "--worker-urls", *urls],
        "vllm-router-kv": [str(python_bin / "vllm-router"), "--host", "127.0.0.1", "--port", str(port), "--policy", "kv_aware",
                           "--prometheus-port", metrics, "--log-level", "error", "--kv-event-block-size", str(BLOCK), "--kv-event-model", MODEL,
                           *[f"--kv-event-source={e.url}={e.events}" for e in engines],
                           *[f"--kv-event-replay-source={e.url}={e.replay}" for e in engines], "--worker-urls", *urls],
    }


def family(pid):
    """A process and all below it."""
    pids = [pid]
    for known in pids:
        try:
            for task in Path(f"/proc/{known}/task").iterdir():
                pids += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            pass
    return pids


def cpu_seconds(pid):
    ticks = 0
    for one in family(pid):
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rsplit(") ", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
        except OSError:
            pass
    return ticks / os.sysconf("SC_CLK_TCK")


def resident_mib(pid):
    pages = 0
    for one in family(pid):
        try:
            pages += int(Path(f"/proc/{one}/statm").read_text().split()[1])
        except OSError:
            pass
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def ask(connection, messages):
    """(prompt tokens, cached tokens), or the error's text."""
    body = json.dumps({"model": MODEL, "messages": messages, "max_tokens": 8})
    try:
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        response = connection.getresponse()
        text = response.read()
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        return str(error) or type(error).__name__
    if response.status != 200:
        return f"{response.status} {text[:200]!r}"
    usage = json.loads(text)["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def words(rng, count):
    return " ".join("".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(count))


class Load:
    """Chats of several turns through some addresses, by turns."""

    def __init__(self, arguments, seed, addresses):
        rng = random.Random(seed)
        systems = [words(rng, SYSTEM_WORDS) for _ in range(3)]
        self.chats = [(rng.choice(systems), [words(rng, rng.randint(TURN_WORDS // 2, TURN_WORDS * 2)) for _ in
                                             range(arguments.turns)]) for _ in range(arguments.chats)]
        self.addresses = addresses
        self.lock = threading.Lock()
        self.next = 0
        self.prompt = self.cached = 0
        self.times = []
        self.errors = []

    def run(self, at_once):
        begin = time.monotonic()
        threads = [threading.Thread(target=self.work, args=(i,)) for i in range(at_once)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.seconds = time.monotonic() - begin
        return self

    def work(self, index):
        connections = [http.client.HTTPConnection(address, timeout=WAIT_S) for address in self.addresses]
        asked = index
        while True:
            with self.lock:
                if self.next == len(self.chats):
                    return
                system, turns = self.chats[self.next]
                self.next += 1
            messages = [{"role": "system", "content": system}]
            for turn in turns:
                messages.append({"role": "user", "content": turn})
                begin = time.monotonic()
                got = ask(connections[asked % len(connections)], messages)
                took = time.monotonic() - begin
                asked += 1
                with self.lock:
                    if isinstance(got, str):
                        self.errors.append(got)
                    else:
                        self.prompt += got[0]
                        self.cached += got[1]
                        self.times.append(took)
                messages.append({"role": "assistant", "content": "w0 w1 w2 w3 w4 w5 w6 w7"})


def wait_until_it_serves(port, process, log):
    until = time.monotonic() + WAIT_S
    waiting = threading.Event()
    while time.monotonic() < until and process.poll() is None:
        got = ask(http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S), [{"role": "user", "content": "are you there"}])
        if not isinstance(got, str):
            return
        waiting.wait(0.1)
    raise RuntimeError(f"{process.args[0]} does not serve; its output:\n{Path(log).read_text()[-2000:]}")


def measure(arguments, python_bin, name, seed):
    engines = [Engine(arguments, i) for i in range(ENGINES)]
    process = None
    try:
        if name == "direct":
            load = Load(arguments, seed, [engine.addresses["http"] for engine in engines]).run(arguments.at_once)
            return load, 0.0, 0.0
        port = environment.free_port()
        log = f"/tmp/gateway-{name}.log"
        with open(log, "w") as output:
            process = subprocess.Popen(commands(arguments, python_bin, engines, port)[name], stdout=output, stderr=output)
        wait_until_it_serves(port, process, log)
        before = cpu_seconds(process.pid)
        load = Load(arguments, seed, [f"127.0.0.1:{port}"]).run(arguments.at_once)
        return load, cpu_seconds(process.pid) - before, resident_mib(process.pid)
    finally:
        for one in [process] + [engine.process for engine in engines]:
            if one is not None:
                one.terminate()
        for one in [process] + [engine.process for engine in engines]:
            if one is not None:
                try:
                    one.wait(10)
                except subprocess.TimeoutExpired:
                    one.kill()


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else float("nan")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kvatlas", type=Path, default=ROOT / "bazel-bin/tools/kvatlas/kvatlas")
    parser.add_argument("--engine", type=Path, default=ROOT / "bazel-bin/tools/engine/mock_engine")
    parser.add_argument("--gateways", default="direct,kvatlas,smg,sglang-router,vllm-router,vllm-router-kv")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--chats", type=int, default=100)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--at_once", type=int, default=16)
    parser.add_argument("--capacity", type=int, default=2048, help="blocks in an engine's pool")
    parser.add_argument("--tokenizer", help="folder of a tokenizer.json for the engines; else a token for each byte")
    parser.add_argument("--json", help="file for a line per gateway and seed")
    arguments = parser.parse_args()
    python_bin = environment.prepare_python("gateways", PACKAGES).parent
    names = arguments.gateways.split(",")
    results = {name: [] for name in names}
    for seed in range(1, arguments.seeds + 1):
        for name in names:
            load, cpu, memory = measure(arguments, python_bin, name, seed)
            count = max(1, len(load.times))
            row = {"gateway": name, "seed": seed, "cached": load.cached / max(1, load.prompt), "rate": count / load.seconds,
                   "p50_ms": 1e3 * percentile(load.times, 0.5), "p99_ms": 1e3 * percentile(load.times, 0.99),
                   "cpu_us": 1e6 * cpu / count, "mib": memory, "errors": len(load.errors)}
            results[name].append(row)
            print(f"seed {seed} {name:15} cached {100 * row['cached']:5.1f} %" +
                  (f"  {len(load.errors)} failed: {load.errors[0]}" if load.errors else ""), flush=True)
            if arguments.json:
                with open(arguments.json, "a") as out:
                    out.write(json.dumps(row) + "\n")
    print(f"\n{'mean of ' + str(arguments.seeds) + ' seeds':16} {'cached':>8} {'requests/s':>11} {'p50 ms':>8} {'p99 ms':>8} "
          f"{'CPU us':>8} {'MiB':>6} {'failed':>7}")
    for name in names:
        mean = {key: statistics.mean(row[key] for row in results[name]) for key in results[name][0] if key not in ("gateway", "seed")}
        print(f"{name:16} {100 * mean['cached']:6.1f} % {mean['rate']:11.0f} {mean['p50_ms']:8.1f} {mean['p99_ms']:8.1f} "
              f"{mean['cpu_us']:8.0f} {mean['mib']:6.0f} {sum(row['errors'] for row in results[name]):7d}")
    return 1 if any(row["errors"] for rows in results.values() for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
