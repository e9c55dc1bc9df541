"""What the README shows is what one gets: its commands are run as they stand there, on ports of this test and with mock engines in place of vLLM.

Usage: readme_test.py KVATLAS MOCK_ENGINE LEAF HIERARCHY FRONTEND (by readme_test.sh)
"""

import json
import os
import re
import select
import shlex
import socket
import subprocess
import sys
import time
import unittest

PROGRAMS = dict(zip(("kvatlas", "mock_engine", "kvatlas-leaf", "kvatlas-hierarchy", "kvatlas-frontend"), map(os.path.abspath, sys.argv[1:6])))
with open("README.md", encoding="utf-8") as file:
    README = file.read()
LONG_S = 60


def commands(start):
    """The indented lines of the README that begin with `start`, as words; a line that ends in a quote left open goes on."""
    found, text = [], ""
    for line in README.split("\n"):
        if not line.startswith("    "):
            text = ""
            continue
        text = f"{text} {line.strip()}".strip() if text else line.strip()
        try:
            words = shlex.split(text)
        except ValueError:
            continue
        if text.startswith(start):
            found.append(words)
        text = ""
    return found


def free_ports(count):
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [str(one.getsockname()[1]) for one in held]
    for one in held:
        one.close()
    return ports


def await_true(what):
    end = time.monotonic() + LONG_S
    while time.monotonic() < end:
        found = what()
        if found:
            return found
        select.select([], [], [], 0.05)
    raise AssertionError(f"not within {LONG_S} s")


class ReadmeTest(unittest.TestCase):
    def start(self, program, *arguments):
        """Until it is ready."""
        child = subprocess.Popen([PROGRAMS[program], *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(child.stdout.close)
        self.addCleanup(child.wait)
        self.addCleanup(child.terminate)
        self.assertIn(" ready ", child.stdout.readline())
        return child

    def test_the_demo_says_what_is_shown(self):
        shown = re.search(r"\n((?:    \d  .*\n){5})", README)[1].split("\n")
        said = subprocess.run([PROGRAMS["kvatlas"], "demo", "--once"], stdout=subprocess.PIPE, text=True, timeout=LONG_S, check=True).stdout.split("\n")

        def form(line):
            return re.sub(r"(127\.0\.0\.1:)\d+", r"\1P", re.sub(r"\b[ab]\b", "E", line.strip().removesuffix("   a turn a second goes on; Ctrl-C ends")))

        self.assertEqual([form(line) for line in shown[:5]], [form(line) for line in said[:5]])

    def test_serve_in_front_of_engines(self):
        engines, (serve,), curl = commands("vllm serve MODEL --port"), commands("kvatlas serve --engine"), commands("curl -s 127.0.0.1:8000")[0]
        self.assertEqual(len(engines), 2)
        ports = dict(zip(("8000", "8001", "8002", "5557", "5657", "5757", "5857"), free_ports(7)))
        mine = lambda text: re.sub(r":(\d{4})\b", lambda match: ":" + ports[match[1]], text)
        for words in engines:
            config = json.loads(words[words.index("--kv-events-config") + 1])
            self.assertTrue(config["enable_kv_cache_events"])
            self.start("mock_engine", "--grpc=127.0.0.1:0", f"--http=127.0.0.1:{ports[words[words.index('--port') + 1]]}", f"--model={words[2]}",
                       "--block_size=16", "--zmq_events=" + mine(config["endpoint"]), "--zmq_replay=" + mine(config["replay_endpoint"]))
        others = [f"--{flag}=127.0.0.1:0" for flag in ("http", "grpc", "leaf_http", "leaf_grpc")]
        self.start("kvatlas", *map(mine, serve[1:]), f"--listen=127.0.0.1:{ports['8000']}", "--hf_cache=", *others)
        question = [mine(word) for word in curl]
        question[question.index("-d") + 1] = question[question.index("-d") + 1].replace("a long question", "a long question " * 20)

        def cached():
            answer = json.loads(subprocess.run(question, stdout=subprocess.PIPE, text=True, check=True, timeout=LONG_S).stdout)
            return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

        await_true(cached)

    def test_a_leaf_that_listens_to_engines(self):
        (register, query), leaf = commands("curl -s -H"), commands("bazel-bin/indexer/leaf/kvatlas-leaf --cell a")[0]
        events, replay, http, grpc = free_ports(4)
        ports = {"5557": events, "5657": replay, "8090": http}
        mine = lambda text: re.sub(r":(\d{4})\b", lambda match: ":" + ports.get(match[1], match[1]), text)
        self.start("mock_engine", "--grpc=127.0.0.1:0", f"--zmq_events=tcp://*:{events}", f"--zmq_replay=tcp://*:{replay}", "--block_size=16")
        self.start("kvatlas-leaf", *leaf[1:], f"--http=127.0.0.1:{http}", f"--grpc=127.0.0.1:{grpc}")

        def asked(words):
            words = [mine(word).replace("[…]", str(list(range(64)))) for word in words]
            return json.loads(subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, timeout=LONG_S).stdout)

        self.assertEqual(asked(register).get("status"), "ok")
        self.assertIn("scores", await_true(lambda: asked(query)))

    def test_a_fleet_takes_the_flags_that_are_shown(self):
        for name in ("kvatlas-hierarchy", "kvatlas-leaf", "kvatlas-frontend"):
            found = [words for words in commands("bazel-bin/") if words[0].endswith(name) and len(words) > 2]
            self.assertTrue(found, name)
            for words in found:
                done = subprocess.run([PROGRAMS[name], *words[1:], "--check"], capture_output=True, text=True, timeout=LONG_S, check=False)
                self.assertEqual(done.returncode, 0, done.stderr)

    def test_what_it_links_to_shows_something(self):
        for path in re.findall(r"!\[[^]]+\]\(([^)]+)\)", README):
            self.assertGreater(os.path.getsize(path), 1000, path)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
