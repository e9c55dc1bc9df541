#!/usr/bin/env python3
"""Asks through kvatlas-frontend's proxy with OpenAI's own Python client, as a user's program would.

    bazel build //indexer/leaf:kvatlas-leaf //frontend:kvatlas-frontend //tools/engine:mock_engine
    tests/interop/run_openai_client.py --leaf bazel-bin/indexer/leaf/kvatlas-leaf --frontend bazel-bin/frontend/kvatlas-frontend \\
        --engine bazel-bin/tools/engine/mock_engine

The PyPI package `openai` is installed into a virtual environment under `$KVATLAS_INTEROP_DIR` (by default ~/.cache/kvatlas-interop)
the first time; nothing but loopback is used afterwards. Chats and completions go, streamed and whole, through the proxy to mock
engines, which make the tokens too (`/tokenize`). A prompt that was there before must go to the worker that has it, and find there what
was promised. Nothing sleeps: what must have happened is asked for until it has. The exit status is 1 if anything is not so.
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


class OpenAiClientTest(unittest.TestCase):
    def setUp(self):
        import openai

        self.openai = openai
        free = "127.0.0.1:0"
        self.leaf = self.start(ARGUMENTS.leaf, f"--grpc={free}", f"--http={free}")
        for i in range(ENGINES):
            self.start(ARGUMENTS.engine, f"--grpc={free}", f"--http={free}", f"--leaf={self.leaf.addresses['grpc']}",
                       f"--worker=engine-{i}", f"--model={MODEL}", f"--block_size={BLOCK}", "--capacity=4096")
        self.frontend = self.start(ARGUMENTS.frontend, f"--grpc={free}", f"--http={free}", f"--proxy={free}",
                                   "--tokenize=engine", f"--leaves=cell={self.leaf.addresses['grpc']}", "--deadline=5s")
        self.client = openai.OpenAI(base_url=f"http://{self.frontend.addresses['proxy']}/v1", api_key="none",
                                    max_retries=0, timeout=WAIT_S)
        self.addCleanup(self.client.close)
        self.until(self.an_answer_has_tokens, "engines are known, and make tokens")

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

    def an_answer_has_tokens(self):
        try:
            raw = self.client.completions.with_raw_response.create(model=MODEL, prompt="is anybody there? " * 4)
        except self.openai.APIStatusError:
            return None  # no engine has said hello yet
        return raw if "x-kvatlas-overlap-blocks" in raw.headers and raw.headers["x-kvatlas-overlap-blocks"] != "0" else None

    def chat(self, words, **more):
        return self.client.chat.completions.with_raw_response.create(
            model=MODEL, messages=[{"role": "system", "content": "be brief"}, {"role": "user", "content": words * 30}], **more)

    def completion(self, words, **more):
        return self.client.completions.with_raw_response.create(model=MODEL, prompt=words * 30, **more)

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
        self.assertEqual(refused.exception.type, "invalid_request_error")
        with self.assertRaises(self.openai.APIStatusError) as refused:
            self.client.completions.create(model="another", prompt="hello")
        self.assertIn(refused.exception.status_code, (404, 503))
        self.nothing_left_in_flight()

    def test_models_are_listed(self):
        self.assertEqual([model.id for model in self.client.models.list()], [MODEL])


def main():
    global ARGUMENTS
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("leaf", "frontend", "engine"):
        parser.add_argument("--" + name, required=True, type=lambda path: str(Path(path).resolve()))
    parser.add_argument("tests", nargs="*", help="only these, as Class or Class.test")
    ARGUMENTS = parser.parse_args()
    try:
        import openai  # noqa: F401
    except ImportError:
        environment.run_again_with(environment.prepare_python("openai", [PACKAGE]))
    unittest.main(argv=[sys.argv[0], *ARGUMENTS.tests], verbosity=2)


if __name__ == "__main__":
    main()
