#!/usr/bin/env python3
"""Feeds an indexer from the engines' own code and compares every answer with the engines' own pools.

    tests/interop/run_engines.py --leaf bazel-bin/indexer/leaf/kvatlas-leaf
    tests/interop/run_engines.py --leaf http://127.0.0.1:8090 --variant vllm-salt --seed 7
    tests/interop/run_engines.py --serve bazel-bin/tools/kvatlas/kvatlas --engine vllm
    tests/interop/run_engines.py --record tests/interop/recordings --requests 30

vLLM's scheduler and SGLang's radix caches run as they are, without a GPU or a model, in a virtual environment of their
own ($KVATLAS_INTEROP_DIR), which is made when it is missing: packages come from the Python package index (vLLM's and SGLang's
wheels without their dependencies, which are stubbed; PyTorch, some gigabytes, only for SGLang). Each variant (--list)
runs requests made from a seed, waits until a last request of its own is found through the indexer, asks for every
distinct prompt, with and without its salt and adapter, and compares. The exit status is 1 if any answer differs.
"""

import argparse
import base64
import http.client
import http.server
import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from pathlib import Path

import environment
import hybrid_reference
import recording
from environment import VERSIONS
from variants import VARIANTS, pool_blocks
from workloads import Workload

HERE = Path(__file__).resolve().parent
# What the code under test really computes with; everything else is stubbed (stubs.py).
NEEDS = {
    "vllm": ["msgspec", "pyzmq", "cbor2", "xxhash", "numpy", "pydantic", "regex"],
    "sglang": ["msgspec", "pyzmq", "numpy", "pydantic", "packaging", "psutil", "torch==2.14.0"],
}
SETTLE_S = 20


def pause():
    """Between two looks at another program that does not say when it is ready."""
    threading.Event().wait(0.05)


def say(text):
    print(text, file=sys.stderr, flush=True)


# ---- Engines ----

class EngineProcess:
    """An engine in a process of its own, as engine_process.py says."""

    def __init__(self, spec, options):
        self.spec = spec
        self.options = options
        self.source = environment.fetch_engine(spec.kind)
        self.python = environment.prepare_python(spec.kind, NEEDS[spec.kind])
        self.frames = []
        self.live_from = 0
        self.port = free_port()
        self.replay_port = free_port()
        self.start()

    def start(self):
        env = {**os.environ, **self.spec.env}
        env.pop("PYTHONHASHSEED", None)
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [str(self.python), str(HERE / f"{self.spec.kind}_engine.py"), str(self.source)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, env=env, text=True)
        # Engines add their rank to the port; a wildcard makes them bind.
        at = f"tcp://*:{self.port - self.spec.rank}"
        replay = f"tcp://*:{self.replay_port - self.spec.rank}" if self.options.get("replay") else None
        self.do("open", endpoint=at, replay_endpoint=replay, rank=self.spec.rank, **self.options["open"])
        self.endpoint = f"tcp://127.0.0.1:{self.port}"
        self.replay_endpoint = f"tcp://127.0.0.1:{self.replay_port}" if replay else None

    def do(self, what, **arguments):
        try:
            self.process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self.log.seek(0)
            raise RuntimeError(f"the {self.spec.kind} engine died at {what!r}:\n"
                               + self.log.read().decode(errors="replace")[-4000:])
        return json.loads(line)

    def keep_frames(self):
        self.frames += [[base64.b64decode(part) for part in frame] for frame in self.do("frames")["frames"]]

    def restart(self):
        self.keep_frames()
        self.process.kill()
        self.process.wait()
        self.start()

    def stop(self):
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def cache_classes(engine):
    """Of a model whose layers keep different parts of a prompt, or whose hits drop a block: (kind, block size, tokens of the
    window or chunk, whether it drops), full attention first."""
    options = engine.options["open"]
    classes = {}
    if options.get("eagle") and engine.spec.kind != "vllm":
        return []
    groups = [{"kind": "window", "window": group} if isinstance(group, int) else
              group if isinstance(group, dict) else {"kind": group} for group in options.get("groups", ["full"])]
    marked = any(group.get("eagle") for group in groups)
    for group in groups:
        key = (("full", "window", "mamba", "chunk").index(group["kind"]), group.get("block_size", options["block_size"]),
               group.get("window") or group.get("chunk") or 0)
        drops = options.get("eagle", False) and (group.get("eagle", False) or not marked)
        classes[key] = classes.get(key, False) or drops
    found = sorted(((*key, int(drops)) for key, drops in classes.items()), key=lambda of_class: of_class[0] != 0)
    return found if len(found) > 1 or found[0][0] or found[0][3] else []


# ---- The indexer ----

def asked_salt(salt):
    """vLLM's users may mark a salt as meant for a router; it is asked for without the mark."""
    return salt.removeprefix("dynamo-cache-salt:") if salt else None


class Indexer:
    """The HTTP interface that Dynamo's standalone indexer has and kvatlas-leaf speaks."""

    def __init__(self, url):
        parts = urllib.parse.urlsplit(url)
        self.connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)

    def post(self, path, body, expect=(200, 201)):
        self.connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        response = self.connection.getresponse()
        text = response.read().decode()
        if response.status not in expect:
            raise RuntimeError(f"POST {path}: {response.status} {text[:500]}")
        return json.loads(text) if text else None

    def register(self, engine, model):
        body = {"instance_id": engine.spec.instance, "endpoint": engine.endpoint, "model_name": model,
                "block_size": engine.options["open"]["block_size"], "dp_rank": engine.spec.rank}
        if engine.replay_endpoint:
            body["replay_endpoint"] = engine.replay_endpoint
        body.update(unsaid(engine.options["open"]))
        self.post("/register", body)

    def unregister(self, engine, model):
        self.post("/unregister", {"instance_id": engine.spec.instance, "model_name": model},
                  expect=(200, 404))

    @staticmethod
    def asked(question, model):
        body = {"token_ids": question["tokens"], "model_name": model}
        if question["salt"]:
            body["cache_salt"] = asked_salt(question["salt"])
        if question["lora"]:
            body["lora_name"] = question["lora"]
        return body

    def scores(self, question, model):
        """{(instance, rank): tokens}."""
        scores = self.post("/query", self.asked(question, model))["scores"]
        return {(int(instance), int(rank)): tokens for instance, ranks in scores.items()
                for rank, tokens in ranks.items()}

    def exact(self, question, model):
        """Whether an answer says that it is exact: kvatlas-leaf alone says otherwise."""
        detail = self.post("/query?detail=1", self.asked(question, model)).get("detail", {})
        return any(rank.get("trust", "exact") == "exact" for ranks in detail.values() for rank in ranks.values())


def unsaid(options):
    """What a registration has to say of an engine, since no event does: groups whose last block is dropped, chunks."""
    said = {}
    if options.get("window"):
        said["window_tokens"] = options["window"]
    if options.get("states"):
        said["hybrid"] = True
    groups = [group if isinstance(group, dict) else {} for group in options.get("groups", ["full"])]
    if options.get("eagle") and "cache" not in options:  # SGLang's hits are of whole pages of bigrams: none is dropped
        marked = [str(i) for i, group in enumerate(groups) if group.get("eagle")]
        said["eagle_drop"] = ",".join(marked) or "all"
    for group in groups:
        if "chunk" in group:
            said["chunk_tokens"] = group["chunk"]
    if options.get("report"):
        said["count_copies"] = False
    return said


class ServedEngines(Indexer):
    """`kvatlas serve` in front of the engines: it hears of them by its --engines_file, and asks each over HTTP what it serves. The
    engine's own code has no HTTP server here; one for each engine answers what vLLM's says of its model and version."""

    def __init__(self, binary):
        self.folder = tempfile.TemporaryDirectory()
        self.list = Path(self.folder.name) / "engines"
        self.list.write_text("")
        self.log = tempfile.TemporaryFile()
        self.lines = {}  # engine -> (its line in the list, its HTTP server)
        ports = {name: free_port() for name in ("listen", "http", "grpc", "leaf_http", "leaf_grpc")}
        self.process = subprocess.Popen(
            [binary, "serve", f"--engines_file={self.list}", "--hf_cache=",
             *(f"--{name}=127.0.0.1:{port}" for name, port in ports.items())], stdout=self.log, stderr=subprocess.STDOUT)
        await_port(self.process, ports["leaf_http"], self.log, binary)
        super().__init__(f"http://127.0.0.1:{ports['leaf_http']}")

    @staticmethod
    def takes(variant):
        """Whether an engine's URL and events say all of it: one rank each, and nothing that only a registration says."""
        specs = variant.engines
        return (len({spec.instance for spec in specs}) == len(specs) and not any(spec.rank for spec in specs)
                and not any(unsaid(spec.options) for spec in specs))

    def register(self, engine, model):
        about = {"/v1/models": {"object": "list", "data": [{"id": model, "object": "model", "root": model}]},
                 "/version": {"version": VERSIONS[engine.spec.kind]}}
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), answering(about))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        topic = engine.options["open"].get("topic")
        line = (f"http://127.0.0.1:{server.server_port};events={engine.endpoint};"
                f"replay={engine.replay_endpoint or 'none'};name={engine.spec.instance}"
                + (f";topic={topic}" if topic else ""))
        self.lines[engine] = (line, server)
        self.write()

    def unregister(self, engine, model):
        line, server = self.lines.pop(engine, (None, None))
        if server is not None:
            self.write()
            server.shutdown()
            server.server_close()

    def write(self):
        """Whole, since it is read while it is written."""
        new = self.list.with_suffix(".new")
        new.write_text("".join(line + "\n" for line, _ in self.lines.values()))
        new.rename(self.list)

    def scores(self, question, model):
        try:
            return super().scores(question, model)
        except RuntimeError as error:
            if ": 404 " in str(error):  # no block was announced yet
                return {}
            raise


def answering(about):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            found = about.get(self.path)
            body = json.dumps(found or {"error": "not found"}).encode()
            self.send_response(200 if found else 404)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    return Handler


class Reference:
    """In the place of an indexer: what hybrid_reference.py makes of what the engines sent."""

    def __init__(self, engines):
        self.workers = {}
        for engine in engines:
            options = engine.options["open"]
            groups = options.get("groups", ["full"])
            of = [group if isinstance(group, dict) else {} for group in groups]
            twin = hybrid_reference.HybridReference(
                options.get("eagle", False), [i for i, group in enumerate(of) if group.get("eagle")],
                {i: group["chunk"] for i, group in enumerate(of) if "chunk" in group}, options.get("hash_block_size"))
            for _, number, payload in engine.frames:
                if not any(number):  # started, or started again
                    twin.copies.clear()
                twin.hear(payload)
            size = options["block_size"]
            self.workers[engine.spec.instance, engine.spec.rank] = twin, size

    def unregister(self, engine, model):
        pass

    def exact(self, question, model):
        return True

    def scores(self, question, model):
        answers = {}
        for worker, (twin, size) in self.workers.items():
            reusable, _ = twin.answer(question["tokens"], question["lora"], question["salt"])
            if reusable:
                answers[worker] = reusable * size
        return answers


def start_leaf(binary):
    """Starts kvatlas-leaf on free ports; returns (process, url)."""
    port = free_port()
    log = tempfile.TemporaryFile()
    process = subprocess.Popen([binary, f"--http=127.0.0.1:{port}", "--grpc=127.0.0.1:0"],
                               stdout=log, stderr=subprocess.STDOUT)
    await_port(process, port, log, binary)
    return process, f"http://127.0.0.1:{port}"


def await_port(process, port, log, binary):
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError:
            pause()
    process.kill()
    log.seek(0)
    raise RuntimeError(f"{binary} does not serve:\n" + log.read().decode(errors="replace")[-3000:])


# ---- A variant ----

class Run:
    def __init__(self, variant, arguments, indexer):
        self.variant = variant
        self.arguments = arguments
        self.indexer = indexer
        self.model = f"interop-{variant.name}-{os.getpid()}"
        # Of the main class.
        self.block_size = variant.engines[0].options.get("block_size", 16)
        self.workload = Workload(arguments.seed, variant.vocab, self.block_size, variant.salts,
                                 variant.loras, variant.stretch)
        self.engines = []

    def run(self):
        """Returns (questions asked, their number, exact, over, under)."""
        variant = self.variant
        try:
            for spec in variant.engines:
                blocks = pool_blocks(spec.options["blocks"], self.arguments.requests)
                options = {"open": {"block_size": self.block_size, "vocab": variant.vocab, **spec.options,
                                    "blocks": blocks},
                           "replay": variant.replay}
                self.engines.append(EngineProcess(spec, options))
            if "register" not in variant.phases:
                self.register()
            jobs = self.make_jobs()
            half = len(jobs) // 2
            for phase in variant.phases:
                self.take(phase, jobs, half)
            marker = self.workload.marker(max(self.aligned(spec) for spec in variant.engines))
            for engine in self.engines:
                engine.do("run", jobs=[marker])
                engine.keep_frames()
            if self.arguments.reference:
                self.indexer = Reference(self.engines)
            questions = self.truth(self.workload.questions(cut=variant.hybrid) + [marker])
            for engine in self.engines:
                if self.arguments.verbose:
                    say(f"  {engine.spec.kind} rank {engine.spec.rank}: {engine.do('facts')}")
            if self.indexer is not None:
                self.settle(questions[-1])
            return questions, self.compare(questions)
        finally:
            for engine in self.engines:
                if self.indexer is not None:
                    self.indexer.unregister(engine, self.model)
                engine.stop()

    def aligned(self, spec):
        """Tokens of which a hit is a multiple; with speculation one more is needed."""
        groups = spec.options.get("groups", ["full"])
        sizes = [group.get("block_size", self.block_size) for group in groups if isinstance(group, dict)]
        return math.lcm(self.block_size, *sizes)

    def make_jobs(self):
        if "trace" in self.variant.phases:
            return self.workload.trace(self.arguments.trace, 2 * self.arguments.requests)
        count = max(4, int(self.arguments.requests * self.variant.requests))
        return self.workload.jobs(count, self.variant.copies, self.variant.together, branches=self.variant.branches)

    def take(self, phase, jobs, half):
        if phase == "run half":
            part = jobs[:half]
            del jobs[:half]
            start = part[0]["at"]
            for job in part:
                job["at"] -= start
            for engine in self.engines:
                engine.do("run", jobs=part)
        elif phase in ("run", "trace"):
            for i, engine in enumerate(self.engines):
                # Ranks and engines see different parts of the same traffic, in part.
                share = jobs if i == 0 else [job for n, job in enumerate(jobs) if (n + i) % 3]
                engine.do("run", jobs=share)
        elif phase == "register":
            for engine in self.engines:
                engine.live_from = len(engine.do("frames")["frames"])
            self.register()
        elif phase == "reset":
            for engine in self.engines:
                if not engine.do("reset")["cleared"]:
                    raise RuntimeError("the engine did not reset")
        elif phase == "restart":
            for engine in self.engines:
                engine.restart()
                self.await_subscriber(engine)
        else:
            raise ValueError(phase)

    def register(self):
        if self.indexer is None:
            return
        for engine in self.engines:
            self.indexer.register(engine, self.model)
        for engine in self.engines:
            if engine.live_from == 0:
                self.await_subscriber(engine)

    def await_subscriber(self, engine):
        if self.indexer is not None and not engine.do("subscribed", timeout_s=SETTLE_S)["subscribed"]:
            raise RuntimeError(f"no subscriber at {engine.endpoint}")

    def truth(self, questions):
        for question in questions:
            question["depths"], question["held"] = [], []
        for engine in self.engines:
            depths = engine.do("depths", prompts=[
                {key: question[key] for key in ("tokens", "salt", "lora")} for question in questions])
            for question, depth, held in zip(questions, depths["depths"], depths["held"]):
                question["depths"].append(depth)
                question["held"].append(held)
        return questions

    def expected(self, question):
        return {(engine.spec.instance, engine.spec.rank): depth * self.block_size
                for engine, depth in zip(self.engines, question["depths"]) if depth}

    def settle(self, marker):
        deadline = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline:
            if self.indexer.scores(marker, self.model) == self.expected(marker):
                return
            pause()
        say(f"  {self.variant.name}: the last request was not found within {SETTLE_S} s")

    def compare(self, questions):
        counts = {"queries": len(questions), "exact": 0, "over": 0, "unmarked": 0, "under": 0, "reused": 0, "too many": 0,
                  "too few": 0, "held": 0}
        for question in questions:
            counts["reused"] += sum(question["depths"])
            counts["held"] += sum(question["held"])
        if self.indexer is None:
            return counts
        shown = 0
        for question in questions:
            got = self.indexer.scores(question, self.model)
            want = self.expected(question)
            if got == want:
                counts["exact"] += 1
                continue
            keys = set(got) | set(want)
            for key in keys:
                more = (got.get(key, 0) - want.get(key, 0)) // self.block_size
                counts["too many" if more > 0 else "too few"] += abs(more)
            over = any(got.get(key, 0) > want.get(key, 0) for key in keys)
            counts["over" if over else "under"] += 1
            # Too much, and not said to be an upper bound.
            counts["unmarked"] += over and self.indexer.exact(question, self.model)
            if shown < self.arguments.show:
                shown += 1
                say(f"  {self.variant.name}: {len(question['tokens'])} tokens, salt {question['salt']}, "
                    f"adapter {question['lora']}: answered {got}, the engines hold {want}")
        return counts

    def record(self, folder, questions):
        about = {"variant": self.variant.name, "seed": self.arguments.seed,
                 "engines": [f"{engine.spec.kind} {VERSIONS[engine.spec.kind]}" for engine in self.engines],
                 "replay": self.variant.replay}
        streams = [{"instance": engine.spec.instance, "rank": engine.spec.rank, "block_size": self.block_size,
                    "live_from": engine.live_from, "classes": cache_classes(engine)} for engine in self.engines]
        # Round robin: what the order between engines is does not matter.
        frames = []
        longest = max(len(engine.frames) for engine in self.engines)
        for i in range(longest):
            for stream, engine in enumerate(self.engines):
                if i < len(engine.frames):
                    topic, number, payload = engine.frames[i]
                    frames.append((stream, topic, int.from_bytes(number, "big"), payload))
        path = folder / f"{self.variant.name}.rec.gz"
        asked = [{**question, "salt": asked_salt(question["salt"])} for question in questions]
        recording.write(path, about, streams, frames, asked)
        say(f"  {path.name}: {path.stat().st_size} bytes, {len(frames)} frames, {len(questions)} questions")


# ---- The whole ----

def table(rows):
    header = ("variant", "queries", "exact", "over", "unmarked", "under", "reused", "too many", "too few", "held", "seconds")
    rows = [header] + [tuple(str(value) for value in row) for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    for row in rows:
        print("  ".join(value.ljust(width) if i == 0 else value.rjust(width)
                        for i, (value, width) in enumerate(zip(row, widths))))


def choose(arguments):
    chosen = [variant for variant in VARIANTS
              if (variant.name in arguments.variant if arguments.variant else variant.expected)
              and (variant.hybrid or not arguments.hybrid)
              and (arguments.engine == "all" or all(engine.kind == arguments.engine
                                                    for engine in variant.engines))
              and not (arguments.serve and not ServedEngines.takes(variant))]
    unknown = set(arguments.variant) - {variant.name for variant in VARIANTS}
    if unknown or not chosen:
        sys.exit(f"run_engines.py: no such variant: {', '.join(sorted(unknown)) or 'none chosen'} (try --list)")
    return chosen


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("vllm", "sglang", "all"), default="all")
    parser.add_argument("--variant", action="append", default=[], help="only this one; may be repeated")
    parser.add_argument("--hybrid", action="store_true", help="only models whose layers keep different parts of a prompt")
    parser.add_argument("--list", action="store_true", help="the variants, and nothing else")
    parser.add_argument("--leaf", help="address of a running indexer, or a kvatlas-leaf to start")
    parser.add_argument("--serve", help="a kvatlas binary: `kvatlas serve` is put in front of the engines; variants of which their "
                                        "URLs and events say all")
    parser.add_argument("--reference", action="store_true", help="ask hybrid_reference.py instead of an indexer")
    parser.add_argument("--record", type=Path, help="write recordings into this folder")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--requests", type=int, default=100, help="distinct requests of a variant")
    parser.add_argument("--trace", type=Path, default=HERE.parent / "data" / "conversation_excerpt.jsonl")
    parser.add_argument("--show", type=int, default=3, help="wrong answers to print of a variant")
    parser.add_argument("--verbose", action="store_true", help="also what the engines did")
    arguments = parser.parse_args()
    if arguments.list:
        for variant in VARIANTS:
            more = variant.note if variant.expected else f"(only by name) {variant.note}"
            print(f"{variant.name}  {more}".rstrip())
        sys.exit(0)
    if not (arguments.leaf or arguments.serve or arguments.record or arguments.reference):
        parser.error("one of --leaf, --serve, --reference and --record is needed")
    return arguments


def main():
    arguments = parse()
    chosen = choose(arguments)
    process, indexer = None, None
    if arguments.leaf:
        url = arguments.leaf
        if "://" not in url:
            process, url = start_leaf(url)
        indexer = Indexer(url)
    elif arguments.serve:
        indexer = ServedEngines(arguments.serve)
        process = indexer.process
    if arguments.record:
        arguments.record.mkdir(parents=True, exist_ok=True)
    rows, wrong = [], 0
    try:
        for variant in chosen:
            started = time.monotonic()
            run = Run(variant, arguments, indexer)
            questions, counts = run.run()
            if arguments.record:
                run.record(arguments.record, questions)
            wrong += counts["over"] + counts["under"]
            rows.append((variant.name, *counts.values(), f"{time.monotonic() - started:.1f}"))
            say(" ".join(str(value) for value in rows[-1]))
    finally:
        if process is not None:
            process.terminate()
            process.wait()
        table(rows)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
