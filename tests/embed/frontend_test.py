"""Does a gateway that is not written in C++ get the right worker? The libraries are installed under a prefix as tools/install_frontend
does; example.c is compiled through pkg-config against the shared and the static library; and from Python, through ctypes, the
installed library routes in a cluster of a real hierarchy, a real leaf and two workers: token ids, text and chats.

Usage: frontend_test.py LEAF HIERARCHY PUBLISHER_LIBRARY EXAMPLE_GATEWAY INSTALL HEADER EXAMPLE SENTENCEPIECE SHARED STATIC FLAGS
"""

import ctypes
import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from ctypes import POINTER, byref, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

from leaf_process import Leaf  # noqa: E402

(LEAF, HIERARCHY, PUBLISHER, GATEWAY, INSTALL, HEADER, EXAMPLE, SENTENCEPIECE, SHARED, STATIC, FLAGS) = (
    str(Path(path).resolve()) for path in sys.argv[1:12])
TOKENIZERS = Path("frontend/prompt/text/testdata").resolve()


def recorded(name):
    """What the Python packages have said of those tokenizers, a prompt per line."""
    with (TOKENIZERS / f"{name}.jsonl").open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


TEXT = max((body.get("prompt", "") for body in recorded("prompts")), key=len)
STRICT = ["-std=c11", "-pedantic", "-Wall", "-Wextra", "-Werror"]
MODEL = "example-model"
LONG_S = 60
LONG_US = LONG_S * 1_000_000

OK, INVALID_ARGUMENT, NOT_FOUND, RESOURCE_EXHAUSTED, FAILED_PRECONDITION, UNAVAILABLE = 0, 3, 5, 8, 9, 14


class Options(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("hierarchy", c_char_p), ("leaves", POINTER(c_char_p)),
                ("leaves_count", c_size_t), ("ask", c_uint32), ("block_size", c_uint32), ("hash_seed", c_uint64),
                ("deadline_us", c_uint64), ("in_flight_ttl_ms", c_uint64), ("zone", c_char_p),
                ("zone_distance", c_double), ("prefill_weight", c_double), ("queue_weight", c_double),
                ("decode_weight", c_double), ("temperature", c_double), ("seed", c_uint64), ("routes_max", c_uint32),
                ("models", c_char_p), ("prompt_threads", c_uint32), ("prompts_max", c_uint32),
                ("schedule", c_char_p)]


class Request(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("model", c_char_p), ("tenant", c_char_p), ("tokens", POINTER(c_uint32)),
                ("tokens_count", c_size_t), ("sequence_hashes", POINTER(c_uint64)),
                ("sequence_hashes_count", c_size_t), ("lora_name", c_char_p), ("cache_salt", c_char_p),
                ("session_id", c_char_p), ("allowed_workers", POINTER(c_char_p)), ("allowed_workers_count", c_size_t),
                ("expected_output_tokens", c_uint32), ("deadline_us", c_uint64), ("text", c_char_p),
                ("text_size", c_size_t), ("messages_json", c_char_p), ("tools_json", c_char_p),
                ("template_kwargs_json", c_char_p), ("chat_template", c_char_p), ("add_generation_prompt", c_int32),
                ("continue_final_message", c_int32), ("add_special_tokens", c_int32), ("body", c_char_p),
                ("body_size", c_size_t), ("return_tokens", c_int32)]


class Report(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("accepted", c_int32), ("finished", c_int32), ("abandoned", c_int32),
                ("unreachable", c_int32), ("cached_tokens", c_int64), ("prompt_tokens", c_int64), ("error", c_char_p)]


class Stats(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t)] + [(name, c_uint64) for name in (
        "routes", "failed", "fallbacks", "in_flight", "cells", "workers", "under_way")]


CALLBACK = ctypes.CFUNCTYPE(None, c_void_p, c_int32, c_char_p, c_void_p)


def run(*command, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)
    if done.returncode:
        raise AssertionError(f"{command}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def install(prefix, shared="-", static="-"):
    run(INSTALL, prefix, "1.2.3", HEADER, FLAGS, shared, static, SENTENCEPIECE)
    return prefix


class Library:
    """The installed library's functions by their names without the prefix."""

    def __init__(self, prefix):
        self.library = ctypes.CDLL(str(prefix / "lib/libkvatlas_frontend.so.1"), mode=os.RTLD_LOCAL | os.RTLD_NOW)
        for name, result, arguments in (
                ("frontend_version", c_char_p, []), ("frontend_abi", c_uint32, []),
                ("frontend_code_name", c_char_p, [c_int32]),
                ("frontend_options_init", None, [POINTER(Options), c_size_t]),
                ("frontend_create", c_int32, [POINTER(Options), POINTER(c_void_p), c_char_p, c_size_t]),
                ("frontend_destroy", None, [c_void_p]),
                ("route_request_init", None, [POINTER(Request), c_size_t]),
                ("frontend_route", c_int32, [c_void_p, POINTER(Request), POINTER(c_void_p), c_char_p, c_size_t]),
                ("frontend_route_async", c_int32, [c_void_p, POINTER(Request), CALLBACK, c_void_p]),
                ("route_decision_id", c_uint64, [c_void_p]), ("route_worker", c_char_p, [c_void_p]),
                ("route_rank", c_uint32, [c_void_p]), ("route_cell", c_char_p, [c_void_p]),
                ("route_url", c_char_p, [c_void_p]), ("route_overlap_blocks", c_uint32, [c_void_p]),
                ("route_prompt_tokens", c_uint64, [c_void_p]), ("route_tokenizer", c_char_p, [c_void_p]),
                ("route_tokens", POINTER(c_uint32), [c_void_p, POINTER(c_size_t)]),
                ("route_receipt_json", c_char_p, [c_void_p]), ("route_free", None, [c_void_p]),
                ("route_report_init", None, [POINTER(Report), c_size_t]),
                ("frontend_report", c_int32, [c_void_p, c_uint64, POINTER(Report)]),
                ("frontend_get_stats", c_int32, [c_void_p, POINTER(Stats)])):
            function = getattr(self.library, "kvatlas_" + name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)


@functools.lru_cache(None)
def installed():
    """One prefix and one library for all: two copies of it in a process have messages in common."""
    folder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(folder.cleanup)
    prefix = install(Path(folder.name) / "prefix", shared=SHARED)
    return prefix, Library(prefix)


class Frontend:
    """A gateway's frontend, in this process."""

    def __init__(self, library, hierarchy=None, leaves=(), **options):
        self.library = library
        given = Options()
        library.frontend_options_init(byref(given), ctypes.sizeof(given))
        given.hierarchy = hierarchy and hierarchy.encode()
        given.leaves = (c_char_p * len(leaves))(*(leaf.encode() for leaf in leaves))
        given.leaves_count = len(leaves)
        given.deadline_us = LONG_US
        for name, value in options.items():
            setattr(given, name, value)
        self.handle = c_void_p()
        error = ctypes.create_string_buffer(256)
        self.code = library.frontend_create(byref(given), byref(self.handle), error, len(error))
        self.error = error.value.decode()

    def request(self, tokens, model=MODEL, **more):
        request = Request()
        self.library.route_request_init(byref(request), ctypes.sizeof(request))
        request.model = model.encode()
        request.tokens = (c_uint32 * len(tokens))(*tokens)
        request.tokens_count = len(tokens)
        for name, value in more.items():
            setattr(request, name, value)
            if name in ("text", "body"):
                setattr(request, name + "_size", len(value))
        return request

    def route(self, tokens, **more):
        """The route as a dictionary; or its code and the error."""
        route = c_void_p()
        error = ctypes.create_string_buffer(256)
        code = self.library.frontend_route(self.handle, byref(self.request(tokens, **more)), byref(route), error, 256)
        return self.taken(route) if code == OK else (code, error.value.decode())

    def taken(self, route):
        count = c_size_t()
        tokens = self.library.route_tokens(route, byref(count))
        taken = {"tokens": tokens[:count.value] if tokens else [], "tokenizer": self.library.route_tokenizer(route).decode(),
                 "prompt_tokens": self.library.route_prompt_tokens(route),
                 "id": self.library.route_decision_id(route), "worker": self.library.route_worker(route).decode(),
                 "rank": self.library.route_rank(route), "cell": self.library.route_cell(route).decode(),
                 "url": self.library.route_url(route).decode(), "blocks": self.library.route_overlap_blocks(route),
                 "json": json.loads(self.library.route_receipt_json(route))}
        self.library.route_free(route)
        return taken

    def report(self, decision, **what):
        report = Report()
        self.library.route_report_init(byref(report), ctypes.sizeof(report))
        for name, value in what.items():
            setattr(report, name, value)
        return self.library.frontend_report(self.handle, decision, byref(report))

    def stats(self):
        stats = Stats(struct_size=ctypes.sizeof(Stats))
        code = self.library.frontend_get_stats(self.handle, byref(stats))
        return stats if code == OK else code

    def close(self):
        self.library.frontend_destroy(self.handle)
        self.handle = c_void_p()


class Hierarchy:
    def __init__(self, *flags):
        self.process = subprocess.Popen([HIERARCHY, "--grpc=127.0.0.1:0", "--http=127.0.0.1:0", *flags],
                                        stdout=subprocess.PIPE, text=True)
        ready = self.process.stdout.readline()
        self.grpc = re.search(r"grpc=(\S+)", ready)[1]

    def close(self):
        self.process.terminate()
        self.process.wait()
        self.process.stdout.close()


WORKERS = """
import json, sys
sys.path.insert(0, "publisher/python")
from kvatlas_publisher import Publisher
publishers = [Publisher([sys.argv[1]], worker=worker, model=sys.argv[2], block_size=16,
                        labels={"url": f"http://10.0.0.{i}:8000"}) for i, worker in enumerate(("near", "far"))]
publishers[0].stored([1, 2], range(1000, 1032))
text = json.loads(sys.argv[3])
publishers[0].stored(range(3, 3 + len(text) // 16), text[:len(text) // 16 * 16])
for publisher in publishers:
    publisher.set_load(running_requests=1)
    assert publisher.wait_acknowledged(60)
print("ready", flush=True)
sys.stdin.readline()
"""


class Cluster(unittest.TestCase):
    """A leaf that "near" has told of the example's prompt, and "far" of nothing; the two in a process of their own."""
    SCHEDULE = "early:1;every:16"

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.prefix, cls.library = installed()
        cls.hierarchy = Hierarchy(f"--schedule={cls.SCHEDULE}")
        cls.leaf = Leaf(LEAF, "--cell=c", f"--parents={cls.hierarchy.grpc}", f"--schedule={cls.SCHEDULE}")
        cls.text_tokens = recorded("bytes")[recorded("prompts").index({"prompt": TEXT})]
        cls.workers = subprocess.Popen([sys.executable, "-c", WORKERS, cls.leaf.grpc, MODEL, json.dumps(cls.text_tokens)], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, text=True,
                                       env={**os.environ, "KVATLAS_PUBLISHER_LIBRARY": PUBLISHER})
        assert cls.workers.stdout.readline() == "ready\n"

    @classmethod
    def tearDownClass(cls):
        cls.workers.communicate("\n")
        cls.leaf.__exit__()
        cls.hierarchy.close()
        cls.folder.cleanup()

    def frontend(self, **options):
        options.setdefault("leaves", ["c=" + self.leaf.grpc])
        self.leaf.wait_for_nothing_pending()  # of frontends of other tests, which were destroyed
        frontend = Frontend(self.library, **options)
        self.assertEqual(frontend.code, OK, frontend.error)
        self.addCleanup(frontend.close)
        return frontend


class RouteTest(Cluster):
    PROMPT = list(range(1000, 1033))  # two blocks, and the token that an engine computes in any case

    def test_the_worker_with_the_prefix(self):
        frontend = self.frontend()
        route = frontend.route(self.PROMPT)
        self.assertEqual((route["worker"], route["rank"], route["cell"], route["blocks"]), ("near", 0, "c", 2))
        self.assertEqual(route["url"], "http://10.0.0.0:8000")
        self.assertEqual(route["json"]["worker"]["name"], "near")
        self.assertEqual(len(route["json"]["receipt"]["candidates"]), 2)
        self.assertEqual(int(route["json"]["decision_id"]), route["id"])
        self.assertEqual(frontend.stats().in_flight, 1)
        self.assertEqual(frontend.report(route["id"], finished=1, cached_tokens=32, prompt_tokens=33), OK)
        self.assertEqual(frontend.stats().in_flight, 0)
        self.assertEqual(frontend.report(12345, finished=1), OK, "unknown ids are ignored")

    def test_through_the_hierarchy(self):
        frontend = self.frontend(hierarchy=self.hierarchy.grpc, leaves=(), schedule=self.SCHEDULE.encode())
        until = time.monotonic() + LONG_S
        while True:  # until the leaf's coverage has reached it
            route = frontend.route(self.PROMPT, deadline_us=1_000_000)
            if isinstance(route, dict):
                frontend.report(route["id"], abandoned=1)
                if route["json"]["receipt"]["fallback"] == "FALLBACK_NONE":
                    break
            self.assertLess(time.monotonic(), until, route)
        self.assertEqual((route["worker"], route["cell"], route["blocks"]), ("near", "c", 2))
        self.assertEqual(route["json"]["receipt"]["cells"][0]["blocks_at_least"], 2)

    def test_another_schedule_than_the_hierarchys(self):
        frontend = self.frontend(hierarchy=self.hierarchy.grpc)
        route = frontend.route(self.PROMPT)
        self.assertEqual((route["worker"], route["json"]["receipt"]["fallback"]), ("near", "FALLBACK_OWN_CELL"))
        self.assertIn(f"is not ours, '{self.SCHEDULE}'", route["json"]["receipt"]["reason"])

    def test_by_hashes(self):
        hashes = (c_uint64 * 3)(1, 2, 3)
        route = self.frontend().route([], sequence_hashes=hashes, sequence_hashes_count=3)
        self.assertEqual((route["blocks"], route["json"]["receipt"]["blocks"]), (0, 3))

    def test_text_by_the_tokens_that_the_engine_makes_of_it(self):
        frontend = self.frontend(models=f"{MODEL}={TOKENIZERS}/bytes".encode())
        route = frontend.route([], text=TEXT.encode(), return_tokens=1)
        self.assertEqual((route["worker"], route["blocks"]), ("near", len(self.text_tokens) // 16))
        self.assertEqual((route["tokens"], route["prompt_tokens"]), (self.text_tokens, len(self.text_tokens)))
        self.assertIn("tokenizer.json", route["tokenizer"])
        self.assertEqual(frontend.route([], text=TEXT.encode())["tokens"], [], "not wanted")
        frontend.report(route["id"], finished=1)

    def test_every_recorded_prompt_through_the_installed_library(self):
        for name, path in (("bytes", "bytes"), ("sentences", "sentences/tokenizer.model")):
            frontend = self.frontend(models=f"{MODEL}={TOKENIZERS}/{path}".encode())
            for body, tokens in zip(recorded("prompts"), recorded(name), strict=True):
                # The records are of apply_chat_template alone; an engine refuses empty prompts and parses arguments of tool calls first.
                if body.get("prompt") == "" or any("tool_calls" in message for message in body.get("messages", [])):
                    continue
                route = frontend.route([], body=json.dumps({"model": MODEL, **body}).encode(), return_tokens=1)
                if tokens:
                    self.assertIsInstance(route, dict, (name, body, route))
                    self.assertEqual(route["tokens"], tokens, (name, body))
                    frontend.report(route["id"], abandoned=1)
                else:  # refused, or nothing to route by
                    self.assertEqual(route[0], INVALID_ARGUMENT, (name, body))

    def test_text_from_many_threads(self):
        frontend = self.frontend(models=f"{MODEL}={TOKENIZERS}/bytes".encode(), prompt_threads=3)
        chat = json.dumps([{"role": "user", "content": TEXT}]).encode()
        lengths = set()

        def ask():
            for _ in range(20):
                route = frontend.route([], messages_json=chat)
                lengths.add(route["prompt_tokens"])
                frontend.report(route["id"], finished=1)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(lengths), 1)
        self.assertGreater(min(lengths), len(self.text_tokens))

    def test_many_threads_and_callbacks(self):
        frontend = self.frontend()
        done = threading.Semaphore(0)
        answers = []

        @CALLBACK
        def callback(context, code, error, route):
            answers.append((context, code, frontend.taken(route)["worker"] if code == OK else error))
            done.release()

        request = frontend.request(self.PROMPT)

        def ask(first):
            for i in range(first, first + 50):
                self.assertEqual(self.library.frontend_route_async(frontend.handle, byref(request), callback, i), OK)
                route = frontend.route(self.PROMPT)
                self.assertEqual(frontend.report(route["id"], accepted=1), OK)

        threads = [threading.Thread(target=ask, args=(1 + 50 * i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for _ in range(200):
            self.assertTrue(done.acquire(timeout=LONG_S))
        self.assertEqual(sorted(answer[0] for answer in answers), list(range(1, 201)))
        self.assertEqual({answer[1] for answer in answers}, {OK})
        self.assertEqual(frontend.stats().routes, 400)

    def test_destroying_waits_for_callbacks(self):
        frontend = Frontend(self.library, leaves=["c=" + self.leaf.grpc])
        answers = []
        callback = CALLBACK(lambda context, code, error, route: answers.append(code) or self.library.route_free(route))
        request = frontend.request(self.PROMPT)
        for i in range(20):
            self.assertEqual(self.library.frontend_route_async(frontend.handle, byref(request), callback, i), OK)
        frontend.close()
        self.assertEqual(answers, [OK] * 20)

    def test_what_is_wrong_is_said(self):
        frontend = self.frontend()
        self.assertEqual(frontend.route([])[0], INVALID_ARGUMENT)
        self.assertIn("no prompt", frontend.route([])[1])
        self.assertEqual(frontend.route(self.PROMPT, model="")[0], INVALID_ARGUMENT)
        self.assertEqual(frontend.route(self.PROMPT, tokens_count=0)[0], INVALID_ARGUMENT)
        self.assertEqual(frontend.route([], tokens_count=1, sequence_hashes_count=1)[0], INVALID_ARGUMENT)
        self.assertEqual(frontend.route(self.PROMPT, struct_size=0)[0], INVALID_ARGUMENT)
        code, why = frontend.route(self.PROMPT, model="no-such-model")
        self.assertEqual(code, NOT_FOUND)
        self.assertIn("no-such-model", why)
        self.assertEqual(frontend.route([1] * 16 * 65537)[0], RESOURCE_EXHAUSTED)
        self.assertEqual(frontend.route([1], text=b"two prompts")[0], INVALID_ARGUMENT)
        code, why = frontend.route([], text=b"Hello")
        self.assertEqual(code, NOT_FOUND)
        self.assertIn("no tokenizer", why)
        for wrong, named in (({"leaves": ()}, "neither"), ({"leaves": ["127.0.0.1:1"]}, "CELL"), ({"ask": 0}, "ask"),
                             ({"hierarchy": "=,"}, "hierarchy"), ({"block_size": 0}, "block_size"),
                             ({"models": b"m=/nowhere"}, "models"), ({"schedule": b"sometimes"}, "schedule"), ({"prompt_threads": 0}, "prompt_threads"),
                             ({"temperature": -1.0}, "temperature"), ({"routes_max": 0}, "routes_max")):
            made = Frontend(self.library, **{"leaves": ["c=127.0.0.1:1"], **wrong})
            self.assertEqual(made.code, INVALID_ARGUMENT, wrong)
            self.assertIn(named, made.error)
            self.assertFalse(made.handle)
        self.assertEqual(self.library.frontend_code_name(NOT_FOUND), b"NOT_FOUND")
        self.assertEqual(self.library.frontend_abi(), 1)

    def test_a_bound_on_what_is_under_way(self):
        # A leaf that accepts connections and says nothing.
        import socket
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            # All three are to be asked before the first one's deadline, which a busy machine may not manage.
            for deadline_s in (0.2, 2, 20):
                frontend = self.frontend(leaves=[f"c=127.0.0.1:{silent.getsockname()[1]}"], routes_max=2,
                                         deadline_us=int(deadline_s * 1_000_000))
                codes = []
                callback = CALLBACK(lambda context, code, error, route: codes.append(code))
                request = frontend.request(self.PROMPT)
                began = time.monotonic()
                asked = [self.library.frontend_route_async(frontend.handle, byref(request), callback, i) for i in range(3)]
                in_time = time.monotonic() - began < deadline_s
                frontend.close()
                if in_time:
                    break
            self.assertEqual(asked, [OK, OK, RESOURCE_EXHAUSTED])
            self.assertEqual(codes, [UNAVAILABLE] * 2, "no answer until the deadline")

    def test_a_program_with_an_older_header(self):
        frontend = self.frontend()
        request = frontend.request(self.PROMPT, deadline_us=1)
        request.struct_size = Request.deadline_us.offset  # it had no such field: what lies there is not looked at
        route = c_void_p()
        self.assertEqual(self.library.frontend_route(frontend.handle, byref(request), byref(route), None, 0), OK)
        self.assertEqual(frontend.taken(route)["worker"], "near")

    def test_a_fork_leaves_the_parent_alone(self):
        frontend = self.frontend()
        frontend.route(self.PROMPT)
        pid = os.fork()
        if pid == 0:
            refused = (frontend.route(self.PROMPT)[0] == FAILED_PRECONDITION and frontend.stats() == FAILED_PRECONDITION
                       and frontend.report(1, finished=1) == FAILED_PRECONDITION)
            other = Frontend(self.library, leaves=["c=" + self.leaf.grpc])
            refused = refused and other.code == FAILED_PRECONDITION and "forked" in other.error
            frontend.close()
            os._exit(0 if refused else 1)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.assertEqual(frontend.route(self.PROMPT)["worker"], "near")

    def test_text_before_and_after_a_fork(self):
        frontend = self.frontend(models=f"{MODEL}={TOKENIZERS}/bytes".encode())
        self.assertEqual(frontend.route([], text=TEXT.encode())["worker"], "near")
        pid = os.fork()
        if pid == 0:
            os._exit(0 if frontend.route([], text=TEXT.encode())[0] == FAILED_PRECONDITION else 1)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.assertEqual(frontend.route([], text=TEXT.encode())["worker"], "near")

    def test_signals_are_the_programs(self):
        """A fresh program: of its threads, those that are the library's block all signals."""
        source = f"""
import sys
sys.argv = {sys.argv!r}
sys.path.insert(0, {str(Path(__file__).resolve().parent)!r})
import os, pathlib, frontend_test
library = frontend_test.Library(pathlib.Path({str(self.prefix)!r}))
models = f"{{frontend_test.MODEL}}={{frontend_test.TOKENIZERS}}/bytes".encode()
frontend = frontend_test.Frontend(library, leaves=["c={self.leaf.grpc}"], models=models)
assert frontend.route(list(range(1000, 1032)))["worker"] == "near"
assert frontend.route([], text=b"Hello you")["prompt_tokens"] > 2
for name in os.listdir("/proc/self/task"):
    if int(name) == os.getpid():
        continue
    status = pathlib.Path(f"/proc/self/task/{{name}}/status").read_text()
    assert int(status.split("SigBlk:")[1].split()[0], 16) >> ({int(signal.SIGINT)} - 1) & 1, status
assert len(os.listdir("/proc/self/task")) > 1
frontend.close()
"""
        run(sys.executable, "-c", source)


class ExampleTest(Cluster):
    def options(self, prefix, *more):
        env = {**os.environ, "PKG_CONFIG_PATH": str(prefix / "lib/pkgconfig")}
        return run("pkg-config", "--cflags", "--libs", *more, "kvatlas_frontend", env=env).split()

    def compiled(self, prefix, *more):
        program = prefix / "example"
        run("gcc-12", *STRICT, "-o", program, EXAMPLE, *self.options(prefix, *more))
        return program

    def by_text(self):
        return f"near {len(self.text_tokens) // 16}\n"

    def test_with_the_shared_library(self):
        program = self.compiled(self.prefix)
        env = {**os.environ, "LD_LIBRARY_PATH": str(self.prefix / "lib")}
        self.assertEqual(run(program, "c=" + self.leaf.grpc, env=env), "near 2\n")
        self.assertEqual(run(program, "c=" + self.leaf.grpc, MODEL, TOKENIZERS / "bytes", TEXT, env=env), self.by_text())

    def test_with_the_static_library(self):
        prefix = install(Path(self.folder.name) / "static", static=STATIC)
        program = self.compiled(prefix, "--static")
        self.assertEqual(run(program, "c=" + self.leaf.grpc), "near 2\n")
        self.assertEqual(run(program, "c=" + self.leaf.grpc, MODEL, TOKENIZERS / "bytes", TEXT), self.by_text())
        # Not beside it, but where it is laid out.
        (prefix / "bin").mkdir()
        installed_program = program.rename(prefix / "bin/example")
        pieces = recorded("sentences")[recorded("prompts").index({"prompt": TEXT})]
        self.assertGreater(len(pieces), 16)
        self.assertRegex(run(installed_program, "c=" + self.leaf.grpc, MODEL, TOKENIZERS / "sentences", TEXT),
                         r"^(near|far) 0\n$")

    def test_the_same_in_cpp(self):
        self.assertEqual(run(GATEWAY, self.leaf.grpc), "near 2\n")

    def test_the_header_is_c_of_any_age_and_cpp_also_beside_the_publishers(self):
        source = Path(self.folder.name) / "header.c"
        source.write_text("#include <kvatlas_frontend.h>\n#include <kvatlas_publisher.h>\nint main(void) { return 0; }\n")
        for compiler in ("gcc-12", "clang-19"):
            for language, standard in (("c", "c99"), ("c", "c17"), ("c++", "c++11"), ("c++", "c++20")):
                run(compiler, "-x", language, f"-std={standard}", "-pedantic", "-Wall", "-Wextra", "-Werror",
                    "-fsyntax-only", f"-I{Path(HEADER).parent}", f"-I{Path('publisher').resolve()}", source)

    def test_the_shared_library_shows_the_interface_and_nothing_else(self):
        shown = [line.split()[-1] for line in run("nm", "-D", "--defined-only", SHARED).splitlines()]
        functions = {name.partition("@")[0] for name in shown} - {"KVATLAS_FRONTEND_1"}
        header = Path(HEADER).read_text(encoding="utf-8")
        for name in functions:
            self.assertIn(name + "(", header)
        self.assertEqual(header.count("KVATLAS_API ") - 1, len(functions))
        self.assertIn("libkvatlas_frontend.so.1", run("readelf", "-d", SHARED))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
