"""Run in a virtual environment that has the wheel and nothing else: does an engine in Python reach a leaf, whatever it does to
its process? Usage: wheel_test.py LEAF WHEEL (by wheel_test.sh)
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
import unittest
import zipfile
from array import array
from importlib.metadata import entry_points
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "interop")]

import kvatlas_publisher  # noqa: E402
import recording  # noqa: E402
from kvatlas_publisher import Publisher, PublisherError, engine  # noqa: E402
from leaf_process import Leaf  # noqa: E402

LEAF, WHEEL = sys.argv[1:3]
LONG_S = 60
RECORDINGS = HERE.parent / "interop" / "recordings"
TOKENS = list(range(64))


def forked(work):
    """The exit status of a child that runs `work`: 0 when it returned, 1 when it raised."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException as error:  # noqa: BLE001: a child of a test has nowhere else to say it
            print("in a child:", repr(error), file=sys.stderr)
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class WithLeaf(unittest.TestCase):
    def setUp(self):
        self.leaf = self.enterContext(Leaf(LEAF))

    def publisher(self, **options):
        made = Publisher([self.leaf.grpc], **{"worker": "1", "model": "m", "block_size": 16, **options})
        self.addCleanup(made.close)
        return made

    def depth(self, tokens=None, **namespace):
        """Leading blocks that the leaf knows of worker 1."""
        return self.leaf.query("m", TOKENS if tokens is None else tokens, **namespace).get(("1", 0), 0) // 16


class CallsTest(WithLeaf):
    def expect(self, publisher, depth, **namespace):
        self.assertTrue(publisher.wait_acknowledged(LONG_S), publisher.stats())
        self.assertEqual(self.depth(**namespace), depth)

    def test_stores_and_removals_arrive(self):
        publisher = self.publisher()
        publisher.stored([1, 2], TOKENS[:32])
        publisher.stored([3, 4], TOKENS[32:], parent=2)
        self.expect(publisher, 4)
        publisher.stored([3], TOKENS[32:48], parent=2)  # a second copy
        publisher.removed([3, 4])
        self.expect(publisher, 3)
        publisher.removed([3])
        self.expect(publisher, 2)
        publisher.cleared()
        self.expect(publisher, 0)
        self.assertEqual(publisher.stats()["last_error"], "")

    def test_leaves_are_found(self):
        publisher = Publisher(["dns:" + self.leaf.grpc], worker="1", model="m", block_size=16)
        self.addCleanup(publisher.close)
        publisher.stored([1, 2], TOKENS[:32])
        self.expect(publisher, 2)
        with self.assertRaisesRegex(PublisherError, "cell") as refused:
            Publisher(["redis://127.0.0.1:1"], worker="1", model="m")
        self.assertEqual(refused.exception.code, 3)
        # No engine waits for the leaves that are looked for.
        Publisher(["redis://127.0.0.1:1"], cell="c", worker="2", model="m").close()

    def test_buffers_are_as_good_as_lists(self):
        publisher = self.publisher()
        publisher.stored(array("Q", [1, 2]), array("I", TOKENS[:32]))
        publisher.stored(memoryview(array("q", [-3])), memoryview(array("I", TOKENS)).toreadonly()[32:48], parent=2)
        publisher.stored([-4], tuple(TOKENS[48:]), parent=-3)
        self.expect(publisher, 4)
        publisher.removed(memoryview(array("Q", [2**64 - 4])))
        self.expect(publisher, 3)
        with self.assertRaises(TypeError):
            publisher.stored(array("H", [1]), TOKENS[:16])

    def test_names_may_be_digests(self):
        publisher = self.publisher()
        names = [bytes([i]) * 32 for i in range(4)]
        publisher.stored(names[:2], TOKENS[:32])
        publisher.stored(names[2:], TOKENS[32:], parent=names[1])
        self.expect(publisher, 4)
        publisher.removed([names[3]])
        self.expect(publisher, 3)
        with self.assertRaises(ValueError):
            publisher.removed([b"1", b"22"])

    def test_namespaces_tiers_and_loads(self):
        publisher = self.publisher()
        publisher.stored([1], TOKENS[:16], lora_name="sql", cache_salt="s")
        publisher.stored([1], tier="host")
        publisher.set_load(running_requests=3, tokens_per_s=12.5)
        self.expect(publisher, 0)
        self.expect(publisher, 1, lora="sql", salt="s")
        publisher.removed([1])
        self.assertTrue(publisher.wait_acknowledged(LONG_S))
        self.assertEqual(publisher.stats()["blocks_held"], 1, "in the host's memory")
        publisher.cleared("host", "disk")
        self.assertTrue(publisher.wait_acknowledged(LONG_S))
        self.assertEqual(publisher.stats()["blocks_held"], 0)

    def test_hashed_blocks(self):
        publisher = self.publisher()
        publisher.stored([1], TOKENS[:16])
        publisher.stored_hashed(1, 12345, [777])
        self.assertTrue(publisher.wait_acknowledged(LONG_S))
        self.assertEqual(publisher.stats()["blocks_held"], 2)
        publisher.removed_hashed([777])
        self.assertTrue(publisher.wait_acknowledged(LONG_S))
        self.assertEqual(publisher.stats()["blocks_held"], 1)

    def test_groups_of_a_hybrid_model_are_answered_by_what_is_reusable(self):
        publisher = self.publisher()
        names = [bytes([number]) * 32 for number in range(1, 5)]
        publisher.stored_in_group(0, "full", names, TOKENS)
        # A window of 17 tokens is one block before the boundary: of the third block's end, not of the fourth's.
        publisher.stored_in_group(1, "window", names[2:3], TOKENS[32:48], names[1], window=17)
        self.expect(publisher, 3)
        publisher.stored_in_group(1, "window", names[3:], TOKENS[48:], names[2], window=17)
        self.expect(publisher, 4)
        publisher.removed_in_group(1, names[2:])
        self.expect(publisher, 0)
        with self.assertRaisesRegex(ValueError, "kind 'moon': expected one of full, window, state, chunk"):
            publisher.stored_in_group(1, "moon", [1], TOKENS[:16])
        with self.assertRaisesRegex(PublisherError, "INVALID_ARGUMENT"):
            publisher.stored([1], TOKENS[:16])

    def test_a_text_with_a_nul_is_refused(self):
        publisher = self.publisher()
        for wrong in (lambda: publisher.stored([1], TOKENS[:16], cache_salt="tenant\0A"),
                      lambda: publisher.stored_in_group(0, "full", [1], TOKENS[:16], lora_name=b"sql\0"),
                      lambda: self.publisher(worker="1\0"), lambda: self.publisher(labels={"zone": "a\0"}),
                      lambda: Publisher(["a:1\0"], worker="1", model="m")):
            with self.assertRaisesRegex(ValueError, "^[a-z_]+: has a NUL"):
                wrong()
        with self.assertRaisesRegex(TypeError, "^model: a str or bytes is wanted, not int"):
            self.publisher(model=3)
        publisher.stored([1], TOKENS[:16], cache_salt=b"tenant")
        self.expect(publisher, 1, salt="tenant")

    def test_a_number_that_does_not_fit_is_refused(self):
        publisher = self.publisher()
        for name, wrong in (("block_size", lambda: self.publisher(block_size=2**32 + 16)),
                            ("dp_rank", lambda: self.publisher(dp_rank=-1)),
                            ("hash_seed", lambda: self.publisher(hash_seed=2**64)),
                            ("batch_age_s", lambda: self.publisher(batch_age_s=-1)),
                            ("running_requests", lambda: publisher.set_load(running_requests=-1)),
                            ("tokens_per_s", lambda: publisher.set_load(tokens_per_s=float("nan"))),
                            ("position", lambda: publisher.stored_hashed(2**32, 1, [1])),
                            ("group", lambda: publisher.removed_in_group(-1, [1])),
                            ("window_tokens", lambda: publisher.stored_in_group(0, "window", [1], TOKENS[:16], window=-1)),
                            ("timeout_s", lambda: publisher.wait_acknowledged(float("nan"))),
                            ("flush_for_s", lambda: publisher.stop(flush_for_s=float("nan")))):
            with self.subTest(name), self.assertRaisesRegex(ValueError, name):
                wrong()
        for wrong in (lambda: publisher.removed([2**64]), lambda: publisher.stored([1], TOKENS[:16], parent=-2**63 - 1)):
            with self.assertRaisesRegex(OverflowError, "name"):
                wrong()
        with self.assertRaisesRegex(TypeError, "block_size"):
            self.publisher(block_size="16")

    def test_a_time_that_has_passed_does_not_wait(self):
        publisher = Publisher(["127.0.0.1:1"], worker="1", model="m")
        self.addCleanup(publisher.close)
        publisher.stored([1], TOKENS[:16])
        start = time.monotonic()
        self.assertFalse(publisher.wait_acknowledged(-0.001))
        publisher.stop(flush_for_s=-0.1)
        self.assertLess(time.monotonic() - start, LONG_S / 2)

    def test_names_may_come_from_a_generator(self):
        publisher = self.publisher()
        publisher.stored((name for name in (5, -6)), TOKENS[:32])
        self.expect(publisher, 2)
        publisher.removed(name for name in (5, -6))
        self.expect(publisher, 0)
        self.assertEqual(publisher.stats()["blocks_held"], 0)

    def test_what_is_wrong_is_said(self):
        publisher = self.publisher()
        for wrong in (lambda: publisher.stored([1], TOKENS[:15]), lambda: publisher.stored_hashed(1, 0, [1])):
            with self.assertRaisesRegex(PublisherError, "INVALID_ARGUMENT"):
                wrong()
        with self.assertRaisesRegex(PublisherError, "2 blocks of 16 tokens need 32 token ids; got 20"):
            publisher.stored([1, 2], [1] * 20)
        with self.assertRaisesRegex(ValueError, "tier 'moon'"):
            publisher.removed([1], tier="moon")
        with self.assertRaisesRegex(PublisherError, "model"):
            Publisher(worker="w", model="")
        with self.assertRaisesRegex(PublisherError, "block_size"):
            Publisher(worker="w", model="m", block_size=0)
        publisher.stored([9], TOKENS[:16], parent=8)
        self.assertTrue(publisher.wait_acknowledged(LONG_S))
        self.assertEqual(publisher.stats()["unknown_parents"], 1)
        self.assertIn("parent", publisher.stats()["last_error"])
        publisher.stop()
        with self.assertRaisesRegex(PublisherError, "FAILED_PRECONDITION"):
            publisher.removed([1])
        publisher.close()
        publisher.close()
        for use in (lambda: publisher.removed([1]), lambda: publisher.publish(b"x"), publisher.flush):
            with self.assertRaisesRegex(PublisherError, "closed"):
                use()


class EngineBatchesTest(WithLeaf):
    # Engines that hash over the token behind a block answer to questions about such blocks alone.
    NAMES = sorted(path.name for path in RECORDINGS.glob("*.rec.gz")
                   if "eagle" not in path.name and "lookahead" not in path.name)

    def replay(self, name):
        """Recorded batches of real engines into a publisher per stream; returns (wrong answers, questions)."""
        recorded = recording.read(RECORDINGS / name)
        publishers = [None] * len(recorded["streams"])
        following = [0] * len(publishers)
        for stream, _, number, payload in recorded["frames"]:
            if publishers[stream] is None or number < following[stream]:  # or the engine started again
                if publishers[stream] is not None:
                    publishers[stream].close()
                about = recorded["streams"][stream]
                # No event says how long chunks of local attention are.
                chunks = [tokens for kind, _, tokens, _ in about["classes"] if kind == 3]
                publishers[stream] = self.publisher(worker=about["instance"], dp_rank=about["rank"], model=name,
                                                    block_size=about["block_size"],
                                                    **({"chunk_tokens": chunks[0]} if chunks else {}))
            following[stream] = number + 1
            publishers[stream].publish(payload)
        for publisher in publishers:
            self.assertTrue(publisher.wait_acknowledged(LONG_S), publisher.stats())
            stats = publisher.stats()
            self.assertEqual((stats["engine_unreadable"], stats["engine_refused"], stats["engine_parked"]), (0, 0, 0))
        wrong = []
        for question in recorded["questions"]:
            want = {(about["instance"], about["rank"]): depth * about["block_size"]
                    for about, depth in zip(recorded["streams"], question["depths"]) if depth}
            got = self.leaf.query(name, question["tokens"], question["lora"], question["salt"])
            if got != want:
                wrong.append((got, want))
        for publisher in publishers:
            publisher.stop()
        return wrong, len(recorded["questions"])

    def test_recorded_engines_are_known_exactly(self):
        self.assertGreater(len(self.NAMES), 30)
        for name in self.NAMES:
            with self.subTest(recording=name):
                wrong, asked = self.replay(name)
                self.assertGreater(asked, 10)
                self.assertEqual(wrong[:3], [], f"{len(wrong)} of {asked}")

    def test_an_engine_speaks_in_one_way(self):
        publisher = self.publisher()
        publisher.publish(b"\x92\x00\x90")
        with self.assertRaisesRegex(PublisherError, "INVALID_ARGUMENT"):
            publisher.stored([1], TOKENS[:16])
        publisher.cleared()
        publisher.publish(b"\xc1")
        self.assertTrue(publisher.wait_acknowledged(LONG_S))
        self.assertEqual(publisher.stats()["engine_unreadable"], 1)
        self.assertEqual(publisher.stats()["invalid_calls"], 1)


class ProcessTest(WithLeaf):
    def test_a_fork_leaves_the_parent_alone(self):
        publisher = self.publisher()
        publisher.stored([1, 2], TOKENS[:32])
        self.assertTrue(publisher.wait_acknowledged(LONG_S))

        def child():
            for use in (lambda: publisher.removed([1]), publisher.stats, publisher.stop, publisher.flush,
                        lambda: publisher.publish(b""), lambda: publisher.wait_acknowledged(1)):
                try:
                    use()
                except PublisherError as error:
                    assert error.code == 9, error
                else:
                    raise AssertionError("a publisher of another process was used")
            try:
                Publisher([self.leaf.grpc], worker="2", model="m")
            except PublisherError as error:
                assert "forked" in str(error), error
            else:
                raise AssertionError("a second gRPC was started")
            publisher.close()

        self.assertEqual(forked(child), 0)
        publisher.stored([3, 4], TOKENS[32:], parent=2)
        self.assertTrue(publisher.wait_acknowledged(LONG_S))
        self.assertEqual(self.depth(), 4)

    def in_a_process(self, source, *arguments):
        """Output of a fresh interpreter."""
        done = subprocess.run([sys.executable, "-I", "-c", source, self.leaf.grpc, *arguments], capture_output=True,
                              text=True, timeout=LONG_S, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_a_child_that_ends_as_programs_do_changes_nothing(self):
        self.in_a_process("""
import kvatlas_publisher, os, sys
publisher = kvatlas_publisher.Publisher([sys.argv[1]], worker="1", model="m", block_size=16)
publisher.stored([1], range(16))
assert publisher.wait_acknowledged(60)
pid = os.fork()
if pid == 0:
    sys.exit(0)  # through finalizers, and what the C library runs at the end
assert os.waitpid(pid, 0)[1] == 0
publisher.stored([2], range(16, 32), parent=1)
assert publisher.wait_acknowledged(60)
""")
        self.assertEqual(self.depth(), 2)

    def test_children_publish_when_the_parent_has_not(self):
        self.in_a_process("""
import kvatlas_publisher, os, sys
from kvatlas_publisher import _native
_native.library()  # loading is no harm, making one is
for worker in ("11", "12"):
    pid = os.fork()
    if pid == 0:
        with kvatlas_publisher.Publisher([sys.argv[1]], worker=worker, model="m", block_size=16) as publisher:
            publisher.stored([1], range(16))
            os._exit(0 if publisher.wait_acknowledged(60) else 1)
    assert os.waitpid(pid, 0)[1] == 0
""")
        self.assertEqual(self.leaf.query("m", TOKENS), {("11", 0): 16, ("12", 0): 16})

    def test_a_program_that_forgets_to_close_ends(self):
        self.in_a_process("""
import kvatlas_publisher, sys
publisher = kvatlas_publisher.Publisher([sys.argv[1], "127.0.0.1:1"], worker="13", model="m", block_size=16)
publisher.stored([1], range(16))
assert publisher.wait_acknowledged(60)
""")
        self.assertEqual(self.leaf.query("m", TOKENS), {("13", 0): 16}, "no goodbye: the lease decides")

    def test_a_program_ends_while_a_thread_is_in_calls(self):
        self.in_a_process("""
import kvatlas_publisher, sys, threading
publisher = kvatlas_publisher.Publisher([sys.argv[1]], worker="14", model="m", block_size=4)
rounds = threading.Semaphore(0)
def engine():
    try:
        while True:
            rounds.release()
            publisher.stored([1], range(4)), publisher.stats(), publisher.removed([1])
    except kvatlas_publisher.PublisherError as error:
        assert error.code == 9, error
for _ in range(2):
    threading.Thread(target=engine, daemon=True).start()
for _ in range(300):
    rounds.acquire()
""")

    def test_close_waits_for_the_calls_of_other_threads(self):
        self.in_a_process("""
import kvatlas_publisher, threading
publisher = kvatlas_publisher.Publisher(["127.0.0.1:1"], worker="w", model="m", block_size=4)
refused, rounds = [], threading.Semaphore(0)
def call(of):
    try:
        while True:
            rounds.release()
            of()
    except kvatlas_publisher.PublisherError as error:
        refused.append(str(error))
threads = [threading.Thread(target=call, args=(of,)) for of in (
    lambda: publisher.wait_acknowledged(3600), publisher.stats, lambda: publisher.publish(b"x"))]
for thread in threads:
    thread.start()
for _ in range(300):
    rounds.acquire()
publisher.close()
for thread in threads:
    thread.join(10)
assert refused == ["the publisher is closed"] * 3, refused
""")

    def test_signals_are_the_programs(self):
        publisher = self.publisher()
        threads = [int(name) for name in os.listdir("/proc/self/task") if int(name) != os.getpid()]
        self.assertGreater(len(threads), 1)
        for thread in threads:
            status = Path(f"/proc/self/task/{thread}/status").read_text(encoding="utf-8")
            blocked = int(status.split("SigBlk:")[1].split()[0], 16)
            self.assertTrue(blocked >> (signal.SIGINT - 1) & 1, status)
        del publisher

    def test_others_of_the_same_libraries_do_not_matter(self):
        """Debian's own libraries of the same names and versions, loaded for all to see, before ours."""
        loaded = [ctypes.CDLL(name, mode=os.RTLD_GLOBAL) for name in ("libssl.so.3", "libz.so.1")]
        self.assertTrue(loaded)
        maps = Path("/proc/self/maps").read_text(encoding="utf-8")
        publisher = self.publisher()
        publisher.stored([1], TOKENS[:16])
        self.assertTrue(publisher.wait_acknowledged(LONG_S))
        after = Path("/proc/self/maps").read_text(encoding="utf-8")
        ours = {line.split()[-1] for line in after.splitlines() if "/kvatlas_publisher/lib/" in line}
        self.assertTrue(any("/libssl-" in path for path in ours), ours)
        outside = {Path(line.split()[-1]).name for line in after.splitlines() if ".so" in line}
        for name in ("libgrpc.so.29", "libprotobuf.so.32", "libzmq.so.5"):
            self.assertFalse(any(o.startswith(name) for o in outside) and name not in maps, name)


class WheelTest(unittest.TestCase):
    def test_nothing_but_glibc_and_the_cpp_runtime_is_taken_from_outside(self):
        folder = Path(kvatlas_publisher.__file__).parent / "lib"
        self.assertIn(sys.prefix, str(folder))
        main = folder / "libkvatlas_publisher.so.1"
        outside = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libresolv.so.2",
                   "ld-linux-x86-64.so.2", "libstdc++.so.6", "libgcc_s.so.1", "linux-vdso.so.1"}
        for line in subprocess.run(["ldd", main], capture_output=True, text=True, check=True).stdout.splitlines():
            name, _, place = line.strip().partition(" => ")
            name = Path(name.split(" ")[0]).name
            if name not in outside:
                self.assertTrue(place.startswith(str(folder)), line)
        for library in folder.iterdir():
            dynamic = subprocess.run(["readelf", "-dW", library], capture_output=True, text=True, check=True).stdout
            self.assertIn("[$ORIGIN]", dynamic, library)
            symbols = subprocess.run(["readelf", "-W", "--dyn-syms", library], capture_output=True, text=True,
                                     check=True).stdout
            self.assertNotIn(" UNIQUE ", symbols, library)

    def test_the_wheel_names_its_glibc_and_its_licences(self):
        self.assertRegex(WHEEL, r"-py3-none-manylinux_2_3[4-6]_x86_64\.whl$")
        with zipfile.ZipFile(WHEEL) as archive:
            names = archive.namelist()
        licences = [name for name in names if ".dist-info/licenses/" in name]
        for library in ("libgrpc", "hiredis"):
            self.assertTrue(any(library in name for name in licences), licences)
        self.assertTrue(any(name.endswith("/LICENSE") for name in licences))

    def test_the_version_is_the_library_s(self):
        self.assertEqual(kvatlas_publisher.__version__, kvatlas_publisher.library_version())

    def test_engines_find_the_plug_ins(self):
        for group, module in (("vllm.general_plugins", "vllm"), ("sglang.srt.plugins", "sglang")):
            found = [point.value for point in entry_points(group=group) if point.name == "kvatlas"]
            self.assertEqual(found, [f"kvatlas_publisher.{module}:register"])


class OptionsTest(unittest.TestCase):
    def test_options_come_from_the_url_and_the_environment(self):
        environment = {"KVATLAS_WORKER": "pod", "KVATLAS_MODEL": "other", "KVATLAS_LABELS": "zone=a,rack=7"}
        options = engine.options_of(
            "kvatlas://a:1,b:2?model=m%2F7b&block_size=32&batch_age_s=0.01&zmq=tcp://*:5557&label.zone=b", environment)
        self.assertEqual(options, {"leaves": ["a:1", "b:2"], "model": "m/7b", "worker": "pod", "block_size": 32,
                                   "batch_age_s": 0.01, "zmq_endpoint": "tcp://*:5557",
                                   "labels": {"zone": "b", "rack": "7"}})
        self.assertEqual(engine.options_of("kvatlas://?model=m&redis=redis%3A%2F%2Fr&redis_cell=c", {"KVATLAS_WORKER": "w"}),
                         {"leaves": [], "model": "m", "worker": "w", "redis_url": "redis://r", "redis_cell": "c"})
        self.assertEqual(engine.options_of("kvatlas://redis%3A%2F%2Fr%3A6379?model=m&cell=c", {"KVATLAS_WORKER": "w"}),
                         {"leaves": ["redis://r:6379"], "model": "m", "worker": "w", "cell": "c"})
        self.assertEqual(engine.options_of("tcp://*:5557", {"KVATLAS_LEAVES": "c:3", **environment})["leaves"], ["c:3"])

    def test_engines_of_a_host_have_names_of_their_own(self):
        host = socket.gethostname()
        for arguments, name in (
                (["/usr/bin/vllm", "serve", "m", "--port", "8001"], f"{host}:8001"),
                (["vllm", "serve", "m", "--port=8002"], f"{host}:8002"),
                (["vllm", "serve", "m"], f"{host}:8000"),
                (["/site/vllm/__main__.py", "serve", "m"], f"{host}:8000"),
                (["/site/sglang/launch_server.py", "--model-path", "m"], f"{host}:30000"),
                (["vllm", "serve", "m", "--config", "c.yaml"], f"{host}-{os.getpid()}"),
                (["/srv/vllm/script.py", "vllm"], f"{host}-{os.getpid()}")):
            self.assertEqual(engine.default_worker(arguments), name)
        options = engine.options_of("kvatlas://a:1?model=m", {})
        self.assertEqual(options["worker"], engine.default_worker())

    def test_wrong_options_are_named(self):
        for url, why in (("kvatlas://a:1", "no model"), ("kvatlas://?model=m", "no leaves"),
                         ("kvatlas://a:1?model=m&blok_size=1", "blok_size"),
                         ("kvatlas://a:1?model=m&block_size=x", "block_size")):
            with self.assertRaisesRegex(ValueError, why):
                engine.options_of(url, {})


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
