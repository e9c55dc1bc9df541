#!/usr/bin/env python3
"""Loads our /dump into Dynamo's standalone indexer, and its into a leaf of ours, and compares with the engines' pools.

    tests/interop/dynamo_dump.py --leaf bazel-bin/indexer/leaf/kvatlas-leaf

    engines ─▶ leaf A ──/dump──▶ Dynamo's indexer C, started with A as its peer: asked for every prompt
       └─────▶ Dynamo's indexer B ──/dump──▶ leaf D, started with B as its peer: asked for every prompt

The engines run as in run_engines.py, whose environment and variants it uses; Dynamo's indexer (ai-dynamo-runtime,
ai-dynamo) is installed beside them. What Dynamo's indexer gets wrong while it listens (the column "B") is not held
against the leaf that recovers from it: D is compared with B. The exit status is 1 if C or D answers otherwise.
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import run_engines
from run_engines import Indexer, Run, asked_salt, free_port, pause, say
from variants import VARIANTS

VERSION = "1.6.1"
# Not: look-ahead hashes, which cannot be asked for by tokens there; engines that name the same content differently on
# one model (three-engines), since there the first name counts for all, in what it loads as in what it hears.
DEFAULT = ["vllm-tight", "vllm-copies", "vllm-hybrid-tight", "vllm-salt", "vllm-lora", "vllm-lora-and-salt",
           "vllm-bytes", "vllm-xxhash", "vllm-ranks", "vllm-trace", "sglang-radix-tight", "sglang-salt",
           "sglang-dynamo-format", "sglang-rank-2"]


def prepare_dynamo(home):
    folder = home / f"venv-dynamo-{VERSION}"
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        say(f"interop: installing Dynamo's indexer {VERSION} into {folder}")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(python), "-m", "pip", "install", "-q"]
        subprocess.run([*pip, "--no-deps", f"ai-dynamo-runtime=={VERSION}", f"ai-dynamo=={VERSION}"],
                       check=True, stdout=sys.stderr)
        subprocess.run([*pip, "pydantic<=2.13.5", "uvloop", "msgspec"], check=True, stdout=sys.stderr)
        (folder / "ready").touch()
    return python


class Service:
    """An indexer in a process of its own."""

    def __init__(self, command, port):
        self.url = f"http://127.0.0.1:{port}"
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + 30
        while not self._answers(port):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.log.seek(0)
                raise RuntimeError(f"{command[0]} does not serve:\n"
                                   + self.log.read().decode(errors="replace")[-3000:])
            pause()
        self.indexer = Indexer(self.url)

    @staticmethod
    def _answers(port):
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return True
        except OSError:
            return False

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()


def start_leaf(binary, *more):
    port = free_port()
    return Service([binary, f"--http=127.0.0.1:{port}", "--grpc=127.0.0.1:0", *more], port)


def start_dynamo(python, *more):
    port = free_port()
    return Service([str(python), "-m", "dynamo.indexer", f"--port={port}", "--threads=1", *more], port)


class DumpRun(Run):
    """A run whose engines two indexers listen to, and whose questions go to two others that recovered from those."""

    def __init__(self, variant, arguments, python, leaf, dynamo):
        super().__init__(variant, arguments, leaf.indexer)
        self.python, self.leaf, self.dynamo = python, leaf, dynamo

    def register(self):
        super().register()
        for engine in self.engines:
            self.dynamo.indexer.register(engine, self.model)
            self.await_subscriber(engine)

    def settle(self, marker):
        super().settle(marker)
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            if self.dynamo.indexer.scores(marker, self.model) == self.expected(marker):
                return
            pause()

    def compare(self, questions):
        counts = {"queries": len(questions), "A": 0, "B": 0, "C": 0, "D": 0}
        theirs = start_dynamo(self.python, f"--peers={self.leaf.url}")
        ours = start_leaf(self.arguments.leaf, f"--peers={self.dynamo.url}", "--repair_timeout=1h")
        try:
            self.await_recovery(theirs, ours, questions[-1])
            for question in questions:
                want = self.expected(question)
                live = self.scores_or_none(self.dynamo.indexer, question)
                answers = {"A": self.indexer.scores(question, self.model), "B": live,
                           "C": self.scores_or_none(theirs.indexer, question),
                           "D": self.scores_or_none(ours.indexer, question)}
                for who, answer in answers.items():
                    right = answer == (live if who == "D" else want)
                    counts[who] += right
                    if not right and who != "B" and self.shown < self.arguments.show:
                        self.shown += 1
                        say(f"  {self.variant.name}: {who} answered {answer} to {len(question['tokens'])} tokens, "
                            f"salt {asked_salt(question['salt'])}, adapter {question['lora']}; "
                            f"the engines hold {want}, B answered {live}")
        finally:
            theirs.stop()
            ours.stop()
            for engine in self.engines:
                self.dynamo.indexer.unregister(engine, self.model)
        return counts

    shown = 0

    def await_recovery(self, theirs, ours, marker):
        """Neither says when it has recovered in the same words: until the last request is found, or for a while."""
        deadline = time.monotonic() + 10
        live = self.scores_or_none(self.dynamo.indexer, marker)
        while time.monotonic() < deadline:
            if (self.scores_or_none(theirs.indexer, marker) == self.expected(marker)
                    and self.scores_or_none(ours.indexer, marker) == live):
                return
            pause()

    def scores_or_none(self, indexer, question):
        """{} also where the model is not known."""
        try:
            return indexer.scores(question, self.model)
        except RuntimeError as error:
            if " 404 " in str(error):
                return {}
            raise


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--leaf", required=True, help="a kvatlas-leaf to start")
    parser.add_argument("--variant", action="append", default=[], help="of run_engines.py; may be repeated")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--trace", type=Path,
                        default=run_engines.HERE.parent / "data" / "conversation_excerpt.jsonl")
    parser.add_argument("--environment", type=Path, default=Path(
        os.environ.get("KVATLAS_INTEROP_DIR", Path.home() / ".cache" / "kvatlas-interop")))
    parser.add_argument("--show", type=int, default=3, help="wrong answers to print of a variant")
    parser.add_argument("--verbose", action="store_true", help="also what the engines did")
    return parser.parse_args()


def main():
    arguments = parse()
    python = prepare_dynamo(arguments.environment)
    wanted = arguments.variant or DEFAULT
    wrong = 0
    print(f"{'variant':24}{'queries':>8}{'A right':>9}{'B right':>9}{'C right':>9}{'D = B':>9}", flush=True)
    for variant in VARIANTS:
        if variant.name not in wanted:
            continue
        leaf, dynamo = start_leaf(arguments.leaf), start_dynamo(python)
        try:
            _, counts = DumpRun(variant, arguments, python, leaf, dynamo).run()
        finally:
            leaf.stop()
            dynamo.stop()
        print(f"{variant.name:24}{counts['queries']:8}{counts['A']:9}{counts['B']:9}{counts['C']:9}"
              f"{counts['D']:9}", flush=True)
        wrong += 2 * counts["queries"] - counts["C"] - counts["D"]
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
