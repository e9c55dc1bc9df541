#!/usr/bin/env python3
"""Records what token ids vLLM and SGLang make of requests, by their own code, on the CPU and without weights.

    tests/interop/record_requests.py --models qwen3=/models/qwen3 record bodies.jsonl > vectors.jsonl
    tests/interop/record_requests.py --models /models check vectors/*.jsonl.gz       # records again and compares
    tests/interop/record_requests.py --models /models ask < lines.jsonl              # {"engine", "model", "path", "body"} a line

A model is a folder with config.json, tokenizer and chat template; `--models DIR` takes every folder in DIR by its name; `--models @FILE` is what kvatlas
reads, of tokenizers that lie in this repository (paths from its root; config.json is made). A line of bodies.jsonl has
`case`, `kind`, `path` and `body` (or `text`: the body's JSON as it goes over the wire), and may have `engine`, `model` and `flags` (the engine's options);
without `engine` or `model` it is asked of all. A line out is that with `version` and `ids`, or `error` {"status", "reason"}; and, where they
say something, `prompts`, `reads_cache` and `any` (request_reader.py). The engines are fetched into the environment of the other scripts of
this folder ($KVATLAS_INTEROP_DIR) with the packages that their servers import (PyTorch with CUDA's libraries among them: some gigabytes), unless --python
names a python that has one: `--python vllm=/venv/bin/python`. For gpt-oss, --harmony names a folder with o200k_base.tiktoken.
`check` exits with 1 when one answer differs.
"""

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import environment
from environment import VERSIONS

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# Of a model that is never loaded.
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 1400, "hidden_size": 64, "intermediate_size": 128,
          "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 131072,
          "rms_norm_eps": 1e-6, "torch_dtype": "bfloat16", "tie_word_embeddings": True, "hidden_act": "silu"}
# What the servers import. Of the engines' own requirements what computes on a GPU is left out.
PACKAGES = {
    "vllm": [
        "transformers==5.20.2", "torch==2.13.0", "torchvision==0.28.0", "regex", "cachetools", "psutil", "sentencepiece", "numpy", "requests", "tqdm",
        "blake3", "py-cpuinfo", "huggingface_hub>=1.31.0", "tokenizers>=0.23.2", "safetensors", "protobuf", "fastapi[standard]>=0.133.0,<0.137.0",
        "starlette>=1.0.1", "aiohttp>=3.14.4", "openai>=2.25.0", "pydantic>=2.12.0", "orjson", "prometheus_client", "pillow>=13.0.0",
        "prometheus-fastapi-instrumentator>=8.0.0", "tiktoken", "lm-format-enforcer==0.11.3", "llguidance>=1.7.0,<1.8.0", "outlines_core==0.2.14",
        "lark==1.2.2", "xgrammar==0.2.8", "filelock", "partial-json-parser", "jsonschema", "pyzmq", "msgspec", "mistral_common[image]>=1.11.6",
        "opencv-python-headless", "pyyaml", "einops", "compressed-tensors==0.17.0", "depyf==0.20.0", "cloudpickle", "watchfiles",
        "python-json-logger", "ninja", "pybase64", "cbor2", "ijson", "setproctitle", "oss-harmony>=0.0.11", "anthropic>=0.71.0",
        "model-hosting-container-standards>=0.1.14,<1.0.0", "mcp>=2.2.0,<3.0.0", "opentelemetry-sdk", "opentelemetry-api",
        "opentelemetry-exporter-otlp", "opentelemetry-semantic-conventions-ai", "numba==0.65.0", "httpx"],
    "sglang": [
        "transformers==5.19.0", "torch==2.13.0", "torchvision==0.28.0", "aiohttp", "anthropic", "apache-tvm-ffi==0.1.11", "blobfile==3.0.0",
        "compressed-tensors==0.18.0", "datasets", "distro", "easydict", "einops", "fastapi", "gguf", "interegular", "IPython",
        "llguidance>=1.7.6,<2.0.0", "mistral_common>=1.11.5", "modelscope", "msgspec", "ninja", "numpy", "nvidia-ml-py", "openai==2.8.0",
        "openai-harmony==0.0.4", "orjson", "outlines==0.1.11", "packaging", "partial_json_parser", "pillow", "prometheus-client", "psutil", "pybase64",
        "pydantic", "python-dateutil<3", "python-multipart", "pyzmq", "regex", "requests", "scipy", "sentencepiece==0.2.1", "setproctitle",
        "soundfile==0.13.1", "tiktoken", "timm==1.0.25", "tml-renderers==0.1.0", "tokenizers==0.23.2", "tqdm", "uvicorn>=0.51", "uvloop",
        "watchfiles", "xgrammar==0.2.7", "xxhash", "zstandard", "deepseek-recipe==0.2.0", "httpx"]}


def say(text):
    print(text, file=sys.stderr, flush=True)


def models_of(given):
    """`NAME=DIR,…`, a folder of folders, or `@FILE` as kvatlas reads it, as {name: folder}."""
    if given.startswith("@"):
        return {model["name"]: str(with_config(model)) for model in json.loads(Path(given[1:]).read_text())["models"]}
    if "=" not in given:
        return {folder.name: str(folder) for folder in sorted(Path(given).iterdir()) if (folder / "config.json").exists()}
    return {name: str(Path(folder).resolve()) for name, folder in (part.split("=", 1) for part in given.split(","))}


def with_config(model):
    """A folder as engines take it, of a tokenizer of this repository: its files, the chat template in its place, a config.json."""
    folder = environment.home() / "request-models" / model["name"]
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / model["path"], folder)
    if "chat_template" in model:
        shutil.copyfile(ROOT / model["chat_template"], folder / "chat_template.jinja")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


class Reading:
    """An engine's reading of requests, in a process of its own."""

    def __init__(self, engine, models, python=None, harmony=None):
        self.engine = engine
        self.models = models
        sources = []
        if python is None:
            sources = [str(environment.fetch_engine(engine))]
            python = environment.prepare_python(f"requests-{engine}", PACKAGES[engine])
        env = dict(os.environ)
        if sources:  # vLLM looks at a model's class in a process of its own
            env["PYTHONPATH"] = os.pathsep.join([*sources, *filter(None, [env.get("PYTHONPATH")])])
        if harmony:  # as openai_harmony and as its successor name it
            env.update(TIKTOKEN_ENCODINGS_BASE=str(harmony), TIKTOKEN_RS_CACHE_DIR=str(harmony))
        self.log = tempfile.NamedTemporaryFile("w+", prefix=f"kvatlas-{engine}-", suffix=".log")
        self.process = subprocess.Popen([str(python), str(HERE / f"{engine}_requests.py"), *sources], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=self.log, env=env, text=True)

    def ask(self, line):
        """The line's `model` by its folder here; {"ids"} or {"error"}."""
        asked = {key: line[key] for key in ("model", "path", "body", "text", "flags", "decode") if key in line}
        try:
            self.process.stdin.write(json.dumps({**asked, "folder": self.models[line["model"]]}) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            self.log.seek(0)
            raise RuntimeError(f"{self.engine} died at {json.dumps(asked)[:300]}\n{self.log.read()[-3000:]}")
        return json.loads(answer)

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


class Readings:
    """Engines by name, started at their first request."""

    def __init__(self, options):
        self.options = options
        self.models = models_of(options.models)
        self.pythons = dict(part.split("=", 1) for part in options.python)
        self.running = {}

    def ask(self, engine, line):
        if engine not in self.running:
            self.running[engine] = Reading(engine, self.models, self.pythons.get(engine), self.options.harmony)
        return self.running[engine].ask(line)

    def close(self):
        for reading in self.running.values():
            reading.close()


def add_options(parser):
    parser.add_argument("--models", required=True, help="NAME=DIR,…, a folder of model folders, or @FILE")
    parser.add_argument("--engine", choices=sorted(VERSIONS), action="append", help="only this one; may be given again")
    parser.add_argument("--python", action="append", default=[], metavar="ENGINE=PYTHON", help="a python that has the engine")
    parser.add_argument("--harmony", help="a folder with o200k_base.tiktoken")


def lines_of(name):
    with (gzip.open(name, "rt", encoding="utf-8") if name.endswith(".gz") else open(name, encoding="utf-8")) as file:
        for line in file:
            yield json.loads(line)


def record(readings, names, engines):
    for name in names:
        for line in lines_of(name):
            for model in [line["model"]] if "model" in line else readings.models:
                for engine in [line["engine"]] if "engine" in line else engines:
                    asked = {"case": line["case"], "kind": line["kind"], "engine": engine, "version": VERSIONS[engine], "model": model,
                             **{key: line[key] for key in ("path", "flags", "body", "text") if key in line}}
                    print(json.dumps({**asked, **readings.ask(engine, asked)}, ensure_ascii=False, separators=(",", ":")), flush=True)
    return 0


def masked(vector):
    """The ids without those of the day of the recording."""
    ids = list(vector.get("ids", ()))
    for first, end in vector.get("any", ()):
        ids[first:end] = [None] * (end - first)
    return ids


def check(readings, names, engines):
    """Prints each vector whose answer is another one now."""
    compared = differing = 0
    for name in names:
        for vector in lines_of(name):
            if vector["engine"] not in engines or vector["model"] not in readings.models:
                continue
            if vector["version"] != VERSIONS[vector["engine"]]:
                raise RuntimeError(f"{name} is of {vector['engine']} {vector['version']}, and this records {VERSIONS[vector['engine']]}")
            now = readings.ask(vector["engine"], vector)
            compared += 1
            if any((now.get(key) or None) != (vector.get(key) or None) for key in ("prompts", "any")) \
                    or now.get("reads_cache") != vector.get("reads_cache") or masked(now) != masked(vector):
                differing += 1
                print(json.dumps({"then": vector, "now": now}, ensure_ascii=False)[:2000], flush=True)
    say(f"interop: {compared} vectors, {differing} differ")
    return 1 if differing or not compared else 0


def ask(readings, names, engines):
    for line in sys.stdin:
        line = json.loads(line)
        print(json.dumps(readings.ask(line["engine"], line)), flush=True)
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("what", choices=("record", "check", "ask"))
    parser.add_argument("files", nargs="*")
    options = parser.parse_args()
    readings = Readings(options)
    try:
        return {"record": record, "check": check, "ask": ask}[options.what](
            readings, options.files, options.engine or sorted(VERSIONS, reverse=True))
    finally:
        readings.close()


if __name__ == "__main__":
    sys.exit(main())
