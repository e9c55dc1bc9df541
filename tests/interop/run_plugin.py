#!/usr/bin/env python3
"""Runs the engines' own caches with our publisher plugged into them, and compares every answer with the engines' own pools.

    publisher/python/build_wheel --out dist
    tests/interop/run_plugin.py --leaf bazel-bin/indexer/leaf/kvatlas-leaf --wheel dist/*.whl [--engine vllm] [--variant NAME]

As run_engines.py (which makes the environment when it is missing), but the events do not go over the engine's ZeroMQ publisher:
the wheel is installed beside the engine, the engine's factory makes our `EventPublisher` because its endpoint begins with
kvatlas://, and a leaf hears of the blocks over gRPC. Prints exact, over and under per variant, and what a call of `publish` cost
the engine's thread. The exit status is 1 if any answer differs.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import urllib.parse
from pathlib import Path

import run_engines
from run_engines import EngineProcess, Indexer, Run, say
from variants import VARIANTS

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "embed"))

from leaf_process import Leaf  # noqa: E402

# Hashes of blocks that cover the token behind them: who asks a leaf with token ids asks for the other kind.
LOOKS_AHEAD = ("eagle", "lookahead")


class PluggedProcess(EngineProcess):
    """An engine whose events go to the leaf by our plug-in."""

    packages = None  # folder with the wheel, installed
    grpc = None

    def start(self):
        env = {**os.environ, **self.spec.env, "PYTHONPATH": str(self.packages)}
        env.pop("PYTHONHASHSEED", None)
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [str(self.python), str(HERE / "plugin_engine.py"), self.spec.kind, str(self.source)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, env=env, text=True)
        query = urllib.parse.urlencode({"model": self.options["model"], "worker": self.spec.instance,
                                        "block_size": self.options["open"]["block_size"]})
        self.do("open", endpoint=f"kvatlas://{self.grpc}?{query}", rank=self.spec.rank, **self.options["open"])
        self.endpoint = self.replay_endpoint = None


class PluggedRun(Run):
    """A variant where there is nothing to register, subscribe or replay: an engine with our publisher announces itself."""

    def __init__(self, variant, arguments, indexer):
        super().__init__(variant, arguments, indexer)
        self.publish_ns = []

    def register(self):
        pass

    def await_subscriber(self, engine):
        pass

    def settle(self, marker):
        super().settle(marker)
        for engine in self.engines:
            facts = engine.do("facts")
            self.publish_ns += facts["publish_ns"]
            stats = facts["publisher"]
            if stats["engine_unreadable"] or stats["engine_refused"] or stats["engine_parked"]:
                say(f"  {self.variant.name}: not understood: {stats}")


def install(wheel, folder):
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", folder,
                    str(wheel)], check=True, stdout=sys.stderr)
    PluggedProcess.packages = Path(folder)


def choose(arguments):
    known = {variant.name: variant for variant in VARIANTS}
    if arguments.variant:
        return [known[name] for name in arguments.variant]
    return [variant for variant in VARIANTS
            if variant.expected and not any(word in variant.name for word in LOOKS_AHEAD)
            and all(arguments.engine in ("all", spec.kind) for spec in variant.engines)]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--leaf", required=True, help="a kvatlas-leaf to start")
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--engine", choices=("vllm", "sglang", "all"), default="all")
    parser.add_argument("--variant", action="append", default=[], help="only this one; may be repeated")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--requests", type=int, default=100, help="distinct requests of a variant")
    parser.add_argument("--trace", type=Path, default=HERE.parent / "data" / "conversation_excerpt.jsonl")
    parser.add_argument("--show", type=int, default=3, help="wrong answers to print of a variant")
    parser.add_argument("--verbose", action="store_true")
    return parser.parse_args()


def main():
    arguments = parse()
    # Whatever `Run` starts is an engine with the plug-in, which is told its model.
    run_engines.EngineProcess = lambda spec, options: PluggedProcess(
        spec, {**options, "model": run.model})
    wrong, rows = 0, [("variant", "queries", "exact", "over", "under", "publish p50 us", "p99 us", "s")]
    with tempfile.TemporaryDirectory() as packages, Leaf(arguments.leaf) as leaf:
        install(arguments.wheel, packages)
        PluggedProcess.grpc = leaf.grpc
        indexer = Indexer(f"http://{leaf.http.host}:{leaf.http.port}")
        for variant in choose(arguments):
            started = time.monotonic()
            run = PluggedRun(variant, arguments, indexer)
            _, counts = run.run()
            wrong += counts["over"] + counts["under"]
            ns = sorted(run.publish_ns)
            rows.append((variant.name, *counts.values(), *(f"{ns[int(share * (len(ns) - 1))] / 1000:.1f}"
                                                          for share in (0.5, 0.99)),
                         f"{time.monotonic() - started:.1f}"))
            say(" ".join(str(value) for value in rows[-1]))
    widths = [max(len(str(row[i])) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(str(value).ljust(width) for value, width in zip(row, widths)).rstrip())
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
