#!/usr/bin/env python3
"""Compares the token ids that kvatlas makes of random requests with those of vLLM's and SGLang's own code.

    bazel build //tools/kvatlas && tests/interop/run_requests.py --models qwen3=/models/qwen3 --requests 1000 --seed 7
    tests/interop/run_requests.py --models /models --engine vllm --path /v1/messages --show 20 --keep differences.jsonl
    tests/interop/run_requests.py --models /models --again differences.jsonl

Requests come from a seed (request_corpus.py): each model has its own, which go to every engine, there through the engine's own HTTP application
(record_requests.py has the environment and its options), here through `kvatlas tokenize --models NAME=DIR --as ENGINE --path PATH`, a JSON line out for
each line in. Both sides are processes that stay. Right is: the same ids, or none where the engine refuses. Differences are counted by kind (the
verdict and the reason of the side that has no ids); the first of each kind are printed with the smallest body that still has them, as far as
--tries reach, then the totals. --keep writes each difference as a vector with the engine's answer, and --again asks kvatlas alone for
those. The exit status is 1 if any answer differs.
"""

import argparse
import collections
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from environment import VERSIONS
from record_requests import Readings, add_options, lines_of, masked, models_of, say
from request_corpus import PATHS, Raw, random_request, text_of

ROOT = Path(__file__).resolve().parent.parent.parent
# Both have ids and they differ; the engine has ids and we have none; the engine refuses and we have ids. Not wrong is "given": the engine
# refuses a body that has ids itself, of which we read no more than these.
WRONG = ("differs", "refused", "answers")
SHORTER = ["", "a"]
SHOWN_MAX = 600
KIND_MAX = 100


class Kvatlas:
    """`kvatlas tokenize` in a process for each engine and path, of one model at a time."""

    def __init__(self, binary, models):
        self.binary = binary
        self.models = models
        self.model = None
        self.running = {}

    def ask(self, engine, model, path, text):
        """{"ids"} or {"error"} for a body."""
        if model != self.model:
            self.close()
            self.model = model
        if (engine, path) not in self.running:
            log = tempfile.NamedTemporaryFile("w+", prefix="kvatlas-tokenize-", suffix=".log")
            process = subprocess.Popen([str(self.binary), "tokenize", "--models", f"{model}={self.models[model]}", "--as", engine, "--path", path],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
            self.running[engine, path] = process, log
        process, log = self.running[engine, path]
        body = "{" + f'"model":{json.dumps(model)}' + ("," if text.strip() != "{}" else "") + text.lstrip()[1:]
        try:
            process.stdin.write(body.replace("\n", " ").encode("utf-8", "surrogatepass") + b"\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = b""
        if not answer:
            log.seek(0)
            raise RuntimeError(f"kvatlas tokenize died at {path} {body[:2000]}\n{log.read()[-500:]}")
        return json.loads(answer)

    def close(self):
        for process, log in self.running.values():
            process.stdin.close()
            process.wait()
            process.stdout.close()
            log.close()
        self.running = {}


def verdict(theirs, ours):
    if "ids" not in theirs:
        return "equal" if "ids" not in ours else "given" if ours.get("way") == "ids" else "answers"
    if "ids" not in ours:
        return "unknown" if ours.get("code") == "UNIMPLEMENTED" else "refused"
    ids = list(ours["ids"])
    for first, end in theirs.get("any", ()):
        ids[first:end] = [None] * (end - first)
    return "equal" if ids == masked(theirs) else "differs"


def kind_of(theirs, ours):
    """The verdict and why, without what is of one request alone."""
    found = verdict(theirs, ours)
    why = ours["error"] if found in ("refused", "unknown") else theirs["error"]["reason"] if found == "answers" else ""
    return f"{found}: {re.sub('[0-9]+', '0', why)}"[:KIND_MAX] if why else found


# ---- The smallest body ----

def smaller(value):
    """Values with one thing less in them, the largest steps first."""
    if isinstance(value, dict):
        for key in value:
            yield {k: v for k, v in value.items() if k is not key}
        for key, inner in value.items():
            for less in smaller(inner):
                yield {k: less if k is key else v for k, v in value.items()}
    elif isinstance(value, list):
        if len(value) > 3:
            yield value[:len(value) // 2]
            yield value[len(value) // 2:]
        for at in range(len(value)):
            yield value[:at] + value[at + 1:]
        for at, inner in enumerate(value):
            for less in smaller(inner):
                yield value[:at] + [less] + value[at + 1:]
    elif isinstance(value, str) and not isinstance(value, Raw):
        for less in [text for text in SHORTER if len(text) < len(value)]:
            yield less
        if len(value) > 2:
            yield value[:len(value) // 2]
            yield value[len(value) // 2:]
            yield value[1:]
            yield value[:-1]


class Comparison:
    """Both readings of requests by one engine and model."""

    def __init__(self, readings, kvatlas, engine, model):
        self.readings = readings
        self.kvatlas = kvatlas
        self.engine = engine
        self.model = model

    def both(self, path, text):
        theirs = self.readings.ask(self.engine, {"model": self.model, "path": path, "text": text})
        return theirs, self.kvatlas.ask(self.engine, self.model, path, text)

    def shrink(self, path, body, style, wanted, tries):
        """The smallest body found by so many tries that differs in the same way."""
        before = None
        while before is not body:
            before = body
            for less in smaller(body):
                tries -= 1
                if tries < 0:
                    return body
                if kind_of(*self.both(path, text_of(less, **style))) == wanted:
                    body = less
                    break
        return body

    def show(self, path, text, kind):
        theirs, ours = self.both(path, text)
        print(json.dumps({"kind": kind, "engine": self.engine, "model": self.model, "path": path}) + "\n  body    " + text)
        at = first_difference(theirs.get("ids", []), ours.get("ids", []))
        for name, answer in ((self.engine, theirs), ("kvatlas", ours)):
            print(f"  {name:<8}{self.around(answer, at)}", flush=True)

    def around(self, answer, at):
        if "ids" not in answer:
            return f"refused: {answer['error']}"[:SHOWN_MAX]
        first = max(0, at - 8)
        text = self.readings.ask(self.engine, {"model": self.model, "decode": answer["ids"][first:at + 24]})["text"]
        return f"{len(answer['ids'])} ids, from {first}: {answer['ids'][first:at + 8]} {json.dumps(text, ensure_ascii=False)}"


def first_difference(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def requests_of(options, model):
    """The same for every engine; each model has its own."""
    rng = random.Random(f"{options.seed} {model}")
    for number in range(options.requests):
        yield random_request(rng, options.path[number % len(options.path)])


def shape(value):
    """A body without its texts, so that one difference is shown once."""
    if isinstance(value, dict):
        return tuple(sorted((str(key), shape(inner)) for key, inner in value.items()))
    if isinstance(value, list):
        return tuple(shape(inner) for inner in value)
    return type(value).__name__


class Counts:
    """How often each verdict and each kind of difference came."""

    def __init__(self):
        self.totals = collections.defaultdict(collections.Counter)
        self.kinds = collections.Counter()
        self.models = collections.defaultdict(set)

    def add(self, engine, model, path, theirs, ours):
        """Returns the kind of the difference, or None."""
        found = verdict(theirs, ours)
        self.totals[engine, path][found] += 1
        self.totals[engine, path]["refused by both"] += found == "equal" and "ids" not in theirs
        if found in ("equal", "given"):
            return None
        kind = engine, path, kind_of(theirs, ours)
        self.kinds[kind] += 1
        self.models[kind].add(model)
        return kind if found in WRONG else None

    def print(self):
        """Returns how many differ."""
        for kind, count in self.kinds.most_common():
            print(f"{count:>6} {' '.join(kind)} ({len(self.models[kind])} models)")
        columns = ("equal", "refused by both", "given", "unknown", *WRONG)
        print(f"{'engine':<8}{'path':<22}" + "".join(f"{column:>16}" for column in columns))
        for (engine, path), counts in sorted(self.totals.items()):
            print(f"{engine:<8}{path:<22}" + "".join(f"{counts[column]:>16}" for column in columns))
        return sum(counts[word] for counts in self.totals.values() for word in WRONG)


def compare(options, readings, kvatlas, counts, keep):
    shown = set()
    per_kind = collections.Counter()
    started = time.monotonic()
    for model in readings.models:
        for engine in options.engine or sorted(VERSIONS, reverse=True):
            comparison = Comparison(readings, kvatlas, engine, model)
            differing = 0
            for path, body, style in requests_of(options, model):
                text = text_of(body, **style)
                theirs, ours = comparison.both(path, text)
                kind = counts.add(engine, model, path, theirs, ours)
                if kind is None:
                    continue
                differing += 1
                if keep:
                    vector = {"case": f"random_{options.seed}_{model}", "kind": "random", "engine": engine, "version": VERSIONS[engine], "model": model, "path": path,
                              "text": text, **theirs}
                    print(json.dumps(vector, separators=(",", ":")), file=keep, flush=True)
                if per_kind[kind] < options.show:
                    per_kind[kind] += 1
                    small = comparison.shrink(path, body, style, kind[2], options.tries)
                    if (engine, path, shape(small)) not in shown:
                        shown.add((engine, path, shape(small)))
                        comparison.show(path, text_of(small, **style), kind[2])
            say(f"interop: {engine} {model}: {options.requests} requests, {differing} differ, {time.monotonic() - started:.0f} s so far")


def ask_again(options, kvatlas, counts):
    for vector in sorted(lines_of(options.again), key=lambda vector: vector["model"]):
        engine, model, path = vector["engine"], vector["model"], vector["path"]
        text = vector["text"] if "text" in vector else json.dumps(vector["body"], ensure_ascii=False)
        ours = kvatlas.ask(engine, model, path, text)
        kind = counts.add(engine, model, path, vector, ours)
        if kind and counts.kinds[kind] <= options.show:
            print(f"{kind[2]} {engine} {model} {path} {text}\n  {json.dumps({key: ours[key] for key in ('ids', 'error') if key in ours})[:SHOWN_MAX]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--kvatlas", type=Path, default=ROOT / "bazel-bin/tools/kvatlas/kvatlas")
    parser.add_argument("--path", action="append", choices=PATHS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--requests", type=int, default=400, help="random ones, for each engine and model")
    parser.add_argument("--show", type=int, default=2, help="differences made small and printed, per engine, path and kind")
    parser.add_argument("--tries", type=int, default=400, help="to make one of them small")
    parser.add_argument("--keep", type=Path, help="a file for the differences, as vectors")
    parser.add_argument("--again", help="a file of --keep: asks kvatlas alone")
    options = parser.parse_args()
    options.path = options.path or list(PATHS)
    counts = Counts()
    if options.again:
        kvatlas = Kvatlas(options.kvatlas, models_of(options.models))
        ask_again(options, kvatlas, counts)
        kvatlas.close()
        return 1 if counts.print() else 0
    readings = Readings(options)
    kvatlas = Kvatlas(options.kvatlas, readings.models)
    keep = options.keep.open("w", encoding="utf-8") if options.keep else None
    try:
        compare(options, readings, kvatlas, counts, keep)
    finally:
        differing = counts.print()
        kvatlas.close()
        readings.close()
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
