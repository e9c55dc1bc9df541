#!/usr/bin/env python3
"""Compares the token ids that kvatlas makes of random requests with those of vLLM's and SGLang's own code.

    bazel build //tools/kvatlas && tests/interop/run_requests.py --models qwen3=/models/qwen3 --requests 1000 --seed 7
    tests/interop/run_requests.py --models /models --engine vllm --path /v1/messages --show 20

Requests come from a seed (request_corpus.py): each goes to every model and engine, there through the engine's own HTTP application
(record_requests.py has the environment and its options), here through `kvatlas tokenize --models NAME=DIR --as ENGINE --path PATH`, a JSON line out for
each line in. Right is: the same ids, or none where the engine refuses. A difference is printed with the smallest body that still has it, then
the totals. The exit status is 1 if any answer differs.
"""

import argparse
import collections
import json
import random
import subprocess
import sys
from pathlib import Path

from record_requests import Readings, add_options, masked, say
from request_corpus import PATHS, Raw, random_request, text_of

ROOT = Path(__file__).resolve().parent.parent.parent
# Both have ids and they differ; the engine has ids and we have none; the engine refuses and we have ids.
WRONG = ("differs", "refused", "answers")
SHRINK_ROUNDS_MAX = 60
SHORTER = ["", "a"]
SHOWN_MAX = 600


class Kvatlas:
    def __init__(self, binary, models):
        self.binary = binary
        self.models = models

    def answers(self, engine, model, path, texts):
        """{"ids"} or {"error"} for each body."""
        bodies = "".join("{" + f'"model":{json.dumps(model)}' + ("," if text.strip() != "{}" else "") + text.lstrip()[1:] + "\n" for text in texts)
        ran = subprocess.run([str(self.binary), "tokenize", "--models", f"{model}={self.models[model]}", "--as", engine, "--path", path],
                             input=bodies.encode("utf-8", "surrogatepass"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        lines = ran.stdout.decode().splitlines()
        if len(lines) != len(texts):
            raise RuntimeError(f"{len(lines)} lines for {len(texts)} bodies, status {ran.returncode}: {ran.stderr.decode()[-500:]}")
        return [json.loads(line) for line in lines]


def verdict(theirs, ours):
    if "ids" not in theirs:
        return "equal" if "ids" not in ours else "answers"
    if "ids" not in ours:
        return "refused"
    ids = list(ours["ids"])
    for first, end in theirs.get("any", ()):
        ids[first:end] = [None] * (end - first)
    return "equal" if ids == masked(theirs) else "differs"


# ---- The smallest body ----

def smaller(value):
    """Values with one thing less in them, the largest steps first."""
    if isinstance(value, dict):
        for key in value:
            yield {k: v for k, v in value.items() if k != key}
        for key, inner in value.items():
            for less in smaller(inner):
                yield {**value, key: less}
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
    def __init__(self, readings, kvatlas, engine, model):
        self.readings = readings
        self.kvatlas = kvatlas
        self.engine = engine
        self.model = model

    def both(self, path, bodies):
        texts = [text_of(body) for body in bodies]
        theirs = [self.readings.ask(self.engine, {"model": self.model, "path": path, "text": text}) for text in texts]
        return list(zip(theirs, self.kvatlas.answers(self.engine, self.model, path, texts)))

    def shrink(self, path, body, wanted):
        """The smallest body found that has the same verdict."""
        for _ in range(SHRINK_ROUNDS_MAX):
            tried = list(smaller(body))
            for start in range(0, len(tried), 40):
                some = tried[start:start + 40]
                found = next((one for one, pair in zip(some, self.both(path, some)) if verdict(*pair) == wanted), None)
                if found is not None:
                    body = found
                    break
            else:
                return body
        return body

    def show(self, path, body, wanted):
        (theirs, ours), = self.both(path, [body])
        print(json.dumps({"verdict": wanted, "engine": self.engine, "model": self.model, "path": path}) + "\n  body    " + text_of(body))
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


def requests_of(options):
    """The same for every engine and model."""
    rng = random.Random(options.seed)
    for number in range(options.requests):
        yield random_request(rng, options.path[number % len(options.path)])


def shape(value):
    """A body without its texts, so that one difference is shown once."""
    if isinstance(value, dict):
        return tuple(sorted((key, shape(inner)) for key, inner in value.items()))
    if isinstance(value, list):
        return tuple(shape(inner) for inner in value)
    return type(value).__name__


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--kvatlas", type=Path, default=ROOT / "bazel-bin/tools/kvatlas/kvatlas")
    parser.add_argument("--path", action="append", choices=PATHS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--requests", type=int, default=400, help="random ones, for each engine and model")
    parser.add_argument("--show", type=int, default=5, help="differences made small and printed, per engine, model, path and verdict")
    options = parser.parse_args()
    options.path = options.path or list(PATHS)
    readings = Readings(options)
    kvatlas = Kvatlas(options.kvatlas, readings.models)
    totals = collections.defaultdict(collections.Counter)
    shown = set()
    try:
        for engine in options.engine or ("vllm", "sglang"):
            for model in readings.models:
                comparison = Comparison(readings, kvatlas, engine, model)
                for path in options.path:
                    bodies = [body for of, body in requests_of(options) if of == path]
                    differing = collections.Counter()
                    for body, pair in zip(bodies, comparison.both(path, bodies)):
                        found = verdict(*pair)
                        totals[engine, path][found] += 1
                        totals[engine, path]["refused by both"] += found == "equal" and "ids" not in pair[0]
                        if found != "equal" and differing[found] < options.show:
                            differing[found] += 1
                            small = comparison.shrink(path, body, found)
                            if (engine, path, shape(small)) not in shown:
                                shown.add((engine, path, shape(small)))
                                comparison.show(path, small, found)
                say(f"interop: {engine} {model} done")
    finally:
        readings.close()
    columns = ("equal", "refused by both", *WRONG)
    print(f"{'engine':<8}{'path':<22}" + "".join(f"{column:>17}" for column in columns))
    for (engine, path), counts in totals.items():
        print(f"{engine:<8}{path:<22}" + "".join(f"{counts[column]:>17}" for column in columns))
    wrong = sum(counts[word] for counts in totals.values() for word in WRONG)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
