#!/usr/bin/env python3
"""Asks through kvatlas with OpenAI's own Python client, as a user's program would: through `kvatlas serve`,

    bazel build //tools/kvatlas //tools/testing/mock_engine:mock_engine
    tests/interop/run_openai_client.py --serve

or through the proxy of kvatlas-frontend, beside a leaf:

    bazel build //indexer/leaf:kvatlas-leaf //frontend:kvatlas-frontend //tools/testing/mock_engine:mock_engine
    tests/interop/run_openai_client.py

The PyPI package `openai` is installed into a virtual environment under `$KVATLAS_INTEROP_DIR` (by default ~/.cache/kvatlas-interop)
the first time; nothing but loopback is used afterwards. Chats and completions go, streamed and whole, through the proxy to mock
engines, which make the tokens too (`/tokenize`). A prompt that was there before must go to the worker that has it, and find there what
was promised. With --serve the engines publish vLLM's events over ZeroMQ, one of them is killed and started again, and what was checked
is printed line by line. Nothing sleeps: what must have happened is asked for until it has. The exit status is 1 if anything is not so.
"""

import argparse
import re
import sys
import time
import unittest
import urllib.request
from pathlib import Path

import environment

PACKAGE = "openai==3.54.0"
MODEL = "mock"
BLOCK = 16
ENGINES = 3
WAIT_S = 60
ARGUMENTS = None  # of the command line
BUILT = Path(__file__).resolve().parents[2] / "bazel-bin"
BINARIES = {"kvatlas": "tools/kvatlas/kvatlas", "leaf": "indexer/leaf/kvatlas-leaf", "frontend": "frontend/kvatlas-frontend",
            "engine": "tools/testing/mock_engine/mock_engine"}


class ClientTest(unittest.TestCase):
    """What asks through a proxy at `self.client`."""

    def make_client(self, proxy):
        import openai

        self.openai = openai
        self.client = openai.OpenAI(base_url=f"http://{proxy}/v1", api_key="none", max_retries=0, timeout=WAIT_S)
        self.addCleanup(self.client.close)

    def start(self, *command):
        process = environment.Process(*command)
        self.addCleanup(process.close)
        return process

    def until(self, holds, what):
        """Asks until it holds."""
        give_up = time.monotonic() + WAIT_S
        while (value := holds()) is None:
            self.assertLess(time.monotonic(), give_up, what)
        return value

    def chat(self, words, **more):
        return self.client.chat.completions.with_raw_response.create(
            model=MODEL, messages=[{"role": "system", "content": "be brief"}, {"role": "user", "content": words * 30}], **more)

    def completion(self, words, **more):
        return self.client.completions.with_raw_response.create(model=MODEL, prompt=words * 30, **more)


class OpenAiClientTest(ClientTest):
    """Through kvatlas-frontend."""

    def setUp(self):
        free = "127.0.0.1:0"
        self.leaf = self.start(ARGUMENTS.leaf, f"--grpc={free}", f"--http={free}")
        for i in range(ENGINES):
            self.start(ARGUMENTS.engine, f"--grpc={free}", f"--http={free}", f"--leaf={self.leaf.addresses['grpc']}",
                       f"--worker=engine-{i}", f"--model={MODEL}", f"--block_size={BLOCK}", "--capacity=4096")
        self.frontend = self.start(ARGUMENTS.frontend, f"--grpc={free}", f"--http={free}", f"--proxy={free}",
                                   "--tokenize=engine", f"--leaves=cell={self.leaf.addresses['grpc']}", "--deadline=5s")
        self.make_client(self.frontend.addresses["proxy"])
        self.until(self.an_answer_has_tokens, "engines are known, and make tokens")

    def an_answer_has_tokens(self):
        try:
            raw = self.client.completions.with_raw_response.create(model=MODEL, prompt="is anybody there? " * 4)
        except self.openai.APIStatusError:
            return None  # no engine has said hello yet
        return raw if "x-kvatlas-overlap-blocks" in raw.headers and raw.headers["x-kvatlas-overlap-blocks"] != "0" else None

    def in_flight(self):
        with urllib.request.urlopen(f"http://{self.frontend.addresses['http']}/metrics", timeout=WAIT_S) as answer:
            text = answer.read().decode()
        return float(re.search(r"^kvatlas_frontend_in_flight (\S+)$", text, re.M)[1])

    def nothing_left_in_flight(self):
        self.until(lambda: True if self.in_flight() == 0 else None, "choices are reported on")

    def check_headers(self, raw):
        self.assertRegex(raw.headers["x-kvatlas-worker"], r"^engine-\d$")
        self.assertEqual(raw.headers["x-kvatlas-cell"], "cell")
        self.assertRegex(raw.headers["x-kvatlas-decision"], r"^\d+$")
        self.assertGreaterEqual(int(raw.headers["x-kvatlas-overlap-blocks"]), 0)

    def check_again(self, ask, cached_of):
        """The same prompt once more goes where the first one went, and is cached there."""
        first = ask()
        self.check_headers(first)
        worker = first.headers["x-kvatlas-worker"]
        first_cached = cached_of(first)

        def again():
            raw = ask()
            cached = cached_of(raw)
            promised = int(raw.headers["x-kvatlas-overlap-blocks"])
            self.assertLessEqual(promised * BLOCK, cached, "an engine has what was promised")
            return (raw, cached) if promised > 10 else None

        raw, cached = self.until(again, "the leaf hears of the prompt's blocks")
        self.assertEqual(raw.headers["x-kvatlas-worker"], worker)
        self.assertGreater(cached, first_cached)
        self.nothing_left_in_flight()

    def test_chats(self):
        def cached(raw):
            answer = raw.parse()
            self.assertEqual(answer.object, "chat.completion")
            self.assertEqual(answer.choices[0].message.role, "assistant")
            self.assertIn("w0", answer.choices[0].message.content)
            self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)
            return answer.usage.prompt_tokens_details.cached_tokens

        self.check_again(lambda: self.chat("what is a cache? "), cached)

    def test_completions(self):
        def cached(raw):
            answer = raw.parse()
            self.assertIn("w0", answer.choices[0].text)
            return answer.usage.prompt_tokens_details.cached_tokens

        self.check_again(lambda: self.completion("once upon a time "), cached)

    def test_streamed_chats(self):
        def cached(raw):
            pieces = list(raw.parse())
            text = "".join(p.choices[0].delta.content or "" for p in pieces if p.choices)
            self.assertIn("w6", text)
            self.assertGreater(len(pieces), 6, "word by word")
            return pieces[-1].usage.prompt_tokens_details.cached_tokens

        self.check_again(lambda: self.chat("and in pieces? ", stream=True, max_tokens=7,
                                           stream_options={"include_usage": True}), cached)

    def test_streamed_completions(self):
        def cached(raw):
            pieces = list(raw.parse())
            self.assertIn("w6", "".join(p.choices[0].text for p in pieces if p.choices))
            return pieces[-1].usage.prompt_tokens_details.cached_tokens

        self.check_again(lambda: self.completion("word by word ", stream=True, max_tokens=7,
                                                 stream_options={"include_usage": True}), cached)

    def test_a_stream_that_is_left_leaves_nothing_in_flight(self):
        stream = self.chat("do not stop ", stream=True, max_tokens=4000).parse()
        next(iter(stream))
        stream.close()
        self.nothing_left_in_flight()

    def test_refusals_are_the_clients_own_errors(self):
        with self.assertRaises(self.openai.BadRequestError) as refused:
            self.client.chat.completions.create(model=MODEL, messages="hello")
        self.assertEqual(refused.exception.param, "messages")
        self.assertEqual(refused.exception.type, "BadRequestError")
        with self.assertRaises(self.openai.APIStatusError) as refused:
            self.client.completions.create(model="another", prompt="hello")
        self.assertIn(refused.exception.status_code, (404, 503))
        self.nothing_left_in_flight()

    def test_models_are_listed(self):
        self.assertEqual([model.id for model in self.client.models.list()], [MODEL])


class ServeClientTest(ClientTest):
    """Through `kvatlas serve`, in front of two engines that publish as vLLM does."""

    def start_engine(self, name, http="127.0.0.1:0", events="127.0.0.1:0", replay="127.0.0.1:0"):
        return self.start(ARGUMENTS.engine, "--grpc=127.0.0.1:0", f"--http={http}", f"--worker={name}", f"--model={MODEL}",
                          f"--block_size={BLOCK}", "--capacity=4096", f"--zmq_events=tcp://{events}",
                          f"--zmq_replay=tcp://{replay}", "--zmq_attach=bind")

    def setUp(self):
        self.engines = [self.start_engine(name) for name in ("a", "b")]
        specs = []
        for engine in self.engines:
            of = engine.addresses
            specs.append(f"--engine=http://{of['http']};events=tcp://{of['zmq_events']};replay=tcp://{of['zmq_replay']}")
        ports = [f"--{port}=127.0.0.1:0" for port in ("listen", "http", "grpc", "leaf_http", "leaf_grpc")]
        self.serve = self.start(ARGUMENTS.kvatlas, "serve", "--hf_cache=", *ports, *specs)
        self.make_client(self.serve.addresses["listen"])

    def said(self, what):
        print(f"  {what}", flush=True)

    def cached_of(self, raw):
        return raw.parse().usage.prompt_tokens_details.cached_tokens

    def check_second_turn(self, words):
        """The second turn of a chat is served from cache, and the header says so: the answer's headers and cached tokens."""
        first = self.chat(words)

        def next_turn():
            raw = self.chat(words + " and then some more. ")
            promised = int(raw.headers["x-kvatlas-overlap-blocks"]) * BLOCK
            cached = self.cached_of(raw)
            self.assertLessEqual(promised, cached, "an engine has what was promised")
            return (raw, cached) if promised > 0 else None

        self.assertGreaterEqual(int(first.headers["x-kvatlas-overlap-blocks"]), 0)
        raw, cached = self.until(next_turn, "the engine's blocks are known")
        self.assertGreater(cached, 0)
        return raw.headers, cached

    def test_two_engines(self):
        self.assertEqual([model.id for model in self.client.models.list()], [MODEL])
        self.said(f"GET /v1/models lists {MODEL}")
        for chat in range(4):
            headers, cached = self.check_second_turn(f"chat {chat}: what is a cache? ")
            self.assertIn(headers["x-kvatlas-worker"], [engine.addresses["http"] for engine in self.engines])
        self.said(f"the second turn of a chat is served from cache: x-kvatlas-worker {headers['x-kvatlas-worker']}, "
                  f"x-kvatlas-overlap-blocks {headers['x-kvatlas-overlap-blocks']}, cached_tokens {cached}")
        pieces = list(self.chat("and in pieces? ", stream=True, max_tokens=7).parse())
        self.assertIn("w6", "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices))
        self.said(f"a stream comes in {len(pieces)} pieces")
        vectors = self.client.embeddings.create(model=MODEL, input=["a text", "another"]).data
        self.assertEqual(len(vectors), 2)
        self.assertNotEqual(vectors[0].embedding, vectors[1].embedding)
        self.said(f"/v1/embeddings gives {len(vectors)} vectors of {len(vectors[0].embedding)}")
        with self.assertRaises(self.openai.NotFoundError):
            self.client.completions.create(model="another", prompt="hello")
        self.said("a model that no engine serves is 404")
        self.check_restart()

    def check_restart(self):
        engine, other = self.engines
        engine.kill()
        for i in range(8):
            headers = self.chat(f"request {i} after a kill ").headers
            self.assertEqual(headers["x-kvatlas-worker"], other.addresses["http"])
        self.said("8 requests after an engine was killed: all answered by the other one")
        of = engine.addresses
        self.engines[0] = self.start_engine("a", of["http"], of["zmq_events"], of["zmq_replay"])
        self.until(lambda: True if self.chat(f"at {time.monotonic()} is it back? ").headers["x-kvatlas-worker"] == of["http"]
                   else None, "the engine gets requests again")
        self.check_second_turn("a chat after the restart: ")
        self.said("started again it gets requests, and second turns come from cache")


def main():
    global ARGUMENTS
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", action="store_true", help="through `kvatlas serve` in the place of kvatlas-frontend")
    for name, path in BINARIES.items():
        parser.add_argument("--" + name, default=BUILT / path, type=lambda path: str(Path(path).resolve()),
                            help="its binary; by default the one in bazel-bin")
    parser.add_argument("tests", nargs="*", help="only these, as Class or Class.test")
    ARGUMENTS = parser.parse_args()
    try:
        import openai  # noqa: F401
    except ImportError:
        environment.run_again_with(environment.prepare_python("openai", [PACKAGE]))
    for name in ("kvatlas", "engine") if ARGUMENTS.serve else ("leaf", "frontend", "engine"):
        binary = Path(getattr(ARGUMENTS, name))
        if not binary.exists():
            target = BINARIES[name].rsplit("/", 1)
            parser.error(f"--{name}: there is no {binary}; build it: bazel build //{target[0]}:{target[1]}")
    tests = ARGUMENTS.tests or ["ServeClientTest" if ARGUMENTS.serve else "OpenAiClientTest"]
    unittest.main(argv=[sys.argv[0], *tests], verbosity=2)


if __name__ == "__main__":
    main()
