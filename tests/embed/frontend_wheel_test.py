"""Run in a virtual environment that has the wheels of frontend and publisher and nothing else: does a gateway in Python get the worker
that has the prompt? Usage: frontend_wheel_test.py LEAF WHEEL (by frontend_wheel_test.sh)
"""

import asyncio
import json
import os
import sys
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
