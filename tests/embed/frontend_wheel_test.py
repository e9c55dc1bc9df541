"""Run in a virtual environment that has the wheels of frontend and publisher and nothing else: does a gateway in Python get the worker
that has the prompt? Usage: frontend_wheel_test.py LEAF WHEEL (by frontend_wheel_test.sh)
"""

import asyncio
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import time
import unittest
import zipfile
from array import array
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import kvatlas_frontend  # noqa: E402
from kvatlas_frontend import Frontend, FrontendError, Route  # noqa: E402
from kvatlas_publisher import Publisher  # noqa: E402
from leaf_process import Leaf  # noqa: E402

LEAF, WHEEL = sys.argv[1:3]
LONG_S = 60
MODEL = "m"
PROMPT = list(range(1000, 1033))  # two blocks, and the token that an engine computes in any case
TESTDATA = Path("frontend/prompt/text/testdata").resolve()


def recorded(name):
    with (TESTDATA / f"{name}.jsonl").open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


TEXT = max((body.get("prompt", "") for body in recorded("prompts")), key=len)
TEXT_TOKENS = recorded("bytes")[recorded("prompts").index({"prompt": TEXT})]


class FrontendTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.leaf = cls.enterClassContext(Leaf(LEAF, "--cell=c"))
        cls.near = Publisher([cls.leaf.grpc], worker="near", model=MODEL, block_size=16, labels={"url": "http://near:8000"})
        cls.far = Publisher([cls.leaf.grpc], worker="far", model=MODEL, block_size=16)
        cls.near.stored([1, 2], PROMPT[:32])
        whole = len(TEXT_TOKENS) // 16
        cls.near.stored(range(3, 3 + whole), TEXT_TOKENS[:whole * 16])
        for publisher in (cls.near, cls.far):
            publisher.set_load(running_requests=1)
            assert publisher.wait_acknowledged(LONG_S)

    @classmethod
    def tearDownClass(cls):
        cls.near.close()
        cls.far.close()

    def frontend(self, **options):
        self.leaf.wait_for_nothing_pending()  # of frontends of other tests, which were closed
        return self.enterContext(Frontend(leaves=["c=" + self.leaf.grpc], deadline=LONG_S, **options))

    def test_the_worker_with_the_prefix(self):
        frontend = self.frontend()
        for tokens in (PROMPT, tuple(PROMPT), array("I", PROMPT), memoryview(array("I", PROMPT))):
            route = frontend.route(MODEL, tokens=tokens)
            self.assertIsInstance(route, Route)
            self.assertEqual((route.worker, route.rank, route.cell, route.overlap_blocks, route.url),
                             ("near", 0, "c", 2, "http://near:8000"))
            self.assertEqual((route.decode_worker, route.tokens, route.prompt_tokens), (None, None, 33))
            self.assertEqual(len(route.receipt["candidates"]), 2)
            self.assertEqual(frontend.stats()["in_flight"], 1)
            frontend.report(route, finished=True, cached_tokens=32, prompt_tokens=33)
            self.assertEqual(frontend.stats()["in_flight"], 0)
        frontend.report(12345, finished=True)  # unknown ids are ignored

    def test_text_a_chat_and_a_body(self):
        frontend = self.frontend(models=f"{MODEL}={TESTDATA}/bytes")
        route = frontend.route(MODEL, text=TEXT, return_tokens=True)
        self.assertEqual((route.worker, route.tokens), ("near", TEXT_TOKENS))
        self.assertGreater(route.overlap_blocks, 0)
        by_body = frontend.route(body={"model": MODEL, "prompt": TEXT})
        self.assertEqual((by_body.worker, by_body.overlap_blocks), (route.worker, route.overlap_blocks))
        chat = frontend.route(MODEL, messages=[{"role": "user", "content": "hello"}], return_tokens=True)
        self.assertIn("tokenizer.json", chat.tokenizer)
        self.assertGreater(len(chat.tokens), 0)

    def test_a_model_of_sentencepiece(self):
        frontend = self.frontend(models=f"{MODEL}={TESTDATA}/sentences")
        expected = recorded("sentences")[recorded("prompts").index({"prompt": TEXT})]
        self.assertEqual(frontend.route(MODEL, text=TEXT, return_tokens=True).tokens, expected)

    def test_many_at_once(self):
        frontend = self.frontend()
        futures = [frontend.submit(MODEL, tokens=PROMPT) for _ in range(50)]
        self.assertLessEqual({future.result(LONG_S).worker for future in futures}, {"near", "far"})
        self.assertEqual(frontend.stats()["routes"], 50)

        async def ask():
            return await asyncio.gather(*(frontend.route_async(MODEL, tokens=PROMPT) for _ in range(10)))

        self.assertEqual(len(asyncio.run(ask())), 10)

    def test_only_allowed_workers(self):
        self.assertEqual(self.frontend().route(MODEL, tokens=PROMPT, allowed_workers=["far"]).worker, "far")

    def test_what_cannot_be_routed_says_why(self):
        frontend = self.frontend()
        with self.assertRaises(FrontendError) as no_model:
            frontend.route("other", tokens=PROMPT)
        self.assertEqual(no_model.exception.code, 5)
        with self.assertRaises(FrontendError) as no_prompt:
            frontend.route(MODEL)
        self.assertEqual(no_prompt.exception.code, 3)
        with self.assertRaises(FrontendError) as later:
            frontend.submit("other", tokens=PROMPT).result(LONG_S)
        self.assertEqual(later.exception.code, 5)
        with self.assertRaises(FrontendError):
            frontend.route(MODEL, tokens=[1 << 40])
        with self.assertRaises(FrontendError) as nothing:
            Frontend()
        self.assertEqual(nothing.exception.code, 3)
        with self.assertRaisesRegex(TypeError, "no option 'hierarchie'"):
            Frontend(hierarchie="h:1")
        closed = Frontend(leaves="c=" + self.leaf.grpc)
        closed.close()
        closed.close()
        with self.assertRaisesRegex(FrontendError, "closed"):
            closed.route(MODEL, tokens=PROMPT)

    def test_what_submit_refuses_says_why(self):
        frontend = self.frontend()
        with self.assertRaisesRegex(FrontendError, "more than one of tokens") as refused:
            frontend.submit(MODEL, tokens=PROMPT, text=TEXT)
        self.assertEqual(refused.exception.code, 3)
        with self.silent() as leaf, Frontend(leaves=["c=" + leaf], deadline=0.5, routes_max=1) as full:
            full.submit(MODEL, tokens=PROMPT)
            with self.assertRaisesRegex(FrontendError, "RESOURCE_EXHAUSTED: routes_max routes are under way"):
                full.submit(MODEL, tokens=PROMPT)

    def test_a_text_is_whole_or_refused(self):
        frontend = self.frontend(models=f"{MODEL}={TESTDATA}/bytes")
        body = frontend.route(body={"model": MODEL, "prompt": "abcd\0efgh"}, return_tokens=True)
        self.assertGreater(len(body.tokens), len("abcd"))
        for text in ("abcd\0efgh", b"abcd\0efgh"):
            self.assertEqual(frontend.route(MODEL, text=text, return_tokens=True).tokens, body.tokens)
        for name in ("cache_salt", "lora_name", "tenant", "session_id"):
            with self.assertRaisesRegex(ValueError, f"{name}: has a NUL"):
                frontend.route(MODEL, tokens=PROMPT, **{name: "a\0b"})
        with self.assertRaisesRegex(ValueError, "allowed_workers: has a NUL"):
            frontend.route(MODEL, tokens=PROMPT, allowed_workers=["near\0"])
        self.near.stored([1000], PROMPT[:16], cache_salt="salt")
        self.assertTrue(self.near.wait_acknowledged(LONG_S))
        for salt in ("salt", b"salt"):
            self.assertEqual(frontend.route(MODEL, tokens=PROMPT, cache_salt=salt).overlap_blocks, 1)

    def test_what_c_would_wrap_is_refused(self):
        frontend = self.frontend()
        for name, wrong in (("block_size", lambda: self.frontend(block_size=2**32 + 16)),
                            ("temperature", lambda: self.frontend(temperature=float("nan"))),
                            ("in_flight_ttl", lambda: self.frontend(in_flight_ttl=-1)),
                            ("deadline", lambda: Frontend(leaves=["c=" + self.leaf.grpc], deadline=-1)),
                            ("deadline", lambda: frontend.route(MODEL, tokens=PROMPT, deadline=float("nan"))),
                            ("expected_output_tokens", lambda: frontend.route(MODEL, tokens=PROMPT, expected_output_tokens=-1)),
                            ("cached_tokens", lambda: frontend.report(1, cached_tokens=2**63)),
                            ("route", lambda: frontend.report(-1))):
            with self.subTest(name), self.assertRaisesRegex(ValueError, name):
                wrong()

    def test_an_option_of_a_wrong_type_is_refused(self):
        for name, value in (("zone", 3), ("models", 3), ("schedule", 3), ("hierarchy", 3), ("ask", "2"), ("seed", 1.5)):
            with self.subTest(name), self.assertRaisesRegex(TypeError, name):
                self.frontend(**{name: value})

    def test_a_deadline_that_has_passed_does_not_wait(self):
        with (Leaf(LEAF, "--cell=c") as leaf, Publisher([leaf.grpc], worker="w", model=MODEL) as publisher,
              Frontend(leaves=["c=" + leaf.grpc]) as frontend):
            publisher.stored([1, 2], PROMPT[:32])
            self.assertTrue(publisher.wait_acknowledged(LONG_S))
            frontend.route(MODEL, tokens=PROMPT, deadline=LONG_S)
            leaf.process.send_signal(signal.SIGSTOP)
            try:
                frontend.submit(MODEL, tokens=PROMPT, deadline=-0.001).result(LONG_S / 6)
            finally:
                leaf.process.send_signal(signal.SIGCONT)

    def test_a_cancelled_route_does_not_count(self):
        frontend = self.frontend()

        async def cancel():
            tasks = [asyncio.create_task(frontend.route_async(MODEL, tokens=PROMPT)) for _ in range(20)]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            return all(task.cancelled() for task in tasks)

        self.assertTrue(asyncio.run(cancel()))
        frontend.submit(MODEL, tokens=PROMPT).cancel()
        end = time.monotonic() + LONG_S
        # A choice that is not taken is given back behind its answer.
        while (frontend.stats()["under_way"] or frontend.stats()["in_flight"]) and time.monotonic() < end:
            pass
        self.assertEqual((frontend.stats()["routes"], frontend.stats()["in_flight"]), (21, 0))

    def test_a_done_callback(self):
        """Runs in a thread of the library's: it may submit and report, is told of what would wait for itself, and may close."""
        with self.silent() as leaf:
            said = queue.Queue()
            frontend = Frontend(leaves=["c=" + leaf], deadline=0.2)

            def again(_):
                said.put(frontend.stats()["under_way"])
                try:
                    frontend.route(MODEL, tokens=PROMPT)
                except FrontendError as error:
                    said.put(error.code)
                frontend.submit(MODEL, tokens=PROMPT).add_done_callback(close)

            def close(_):
                frontend.close()
                said.put("closed")

            frontend.submit(MODEL, tokens=PROMPT).add_done_callback(again)
            self.assertEqual([said.get(timeout=LONG_S) for _ in range(3)], [1, 9, "closed"])

    def silent(self):
        """A place that takes connections and says nothing."""

        class Silent(socket.socket):
            def __enter__(self):
                self.bind(("127.0.0.1", 0))
                self.listen(100)
                return "127.0.0.1:%d" % self.getsockname()[1]

        return Silent()

    def test_a_program_ends_while_routes_are_under_way(self):
        with self.silent() as leaf:
            done = subprocess.run([sys.executable, "-I", "-c", """
import atexit
futures = []
atexit.register(lambda: print([type(future.exception(0)).__name__ for future in futures].count("FrontendError")))  # comes last
import asyncio, kvatlas_frontend, sys, threading
frontend = kvatlas_frontend.Frontend(leaves=["c=" + sys.argv[1]], deadline=0.3)
async def gateway():
    tasks = [asyncio.create_task(frontend.route_async("m", tokens=[1])) for _ in range(50)]
    await asyncio.sleep(0)
asyncio.run(gateway())
asked = threading.Event()
def route():
    asked.set()
    try:
        frontend.route("m", tokens=[1])
    except kvatlas_frontend.FrontendError:
        pass
threading.Thread(target=route, daemon=True).start()
asked.wait()
futures += [frontend.submit("m", tokens=[i]) for i in range(200)]
""", leaf], capture_output=True, text=True, timeout=LONG_S, check=False)
        self.assertEqual((done.returncode, done.stdout), (0, "200\n"), done.stderr)

    def test_a_forked_child_is_told(self):
        frontend = self.frontend()
        frontend.route(MODEL, tokens=PROMPT)
        pid = os.fork()
        if pid == 0:
            try:
                frontend.route(MODEL, tokens=PROMPT)
                os._exit(1)
            except FrontendError as error:
                os._exit(0 if error.code == 9 else 2)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)


class PackageTest(unittest.TestCase):
    def test_versions_agree(self):
        self.assertEqual(kvatlas_frontend.__version__, kvatlas_frontend.library_version())
        self.assertIn(f"-{kvatlas_frontend.__version__}-", WHEEL)

    def test_the_wheel_has_libraries_and_licences(self):
        names = zipfile.ZipFile(WHEEL).namelist()
        self.assertIn("kvatlas_frontend/lib/libkvatlas_frontend.so.1", names)
        self.assertIn("kvatlas_frontend/lib/libkvatlas_sentencepiece.so", names)
        self.assertTrue(any(name.endswith("licenses/LICENSE") for name in names))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
