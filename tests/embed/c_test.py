"""Does an engine in C reach a leaf? The libraries are installed under a prefix as tools/install_publisher does, example.c is
compiled with the plain C compiler through pkg-config, against the shared and against the static library, and the leaf must know
exactly what it said.

Usage: c_test.py LEAF INSTALL HEADER EXAMPLE SHARED STATIC FLAGS CPP_EXAMPLE
"""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

from leaf_process import Leaf  # noqa: E402

LEAF, INSTALL, HEADER, EXAMPLE, SHARED, STATIC, FLAGS, CPP = (str(Path(path).resolve()) for path in sys.argv[1:9])
SOURCES = Path.cwd()
COMPILERS = ["gcc-12", "clang-19"]
STRICT = ["-std=c11", "-pedantic", "-Wall", "-Wextra", "-Werror"]
TOKENS = range(1000, 1032)


def run(*command, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)
    if done.returncode:
        raise AssertionError(f"{command}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


class CTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def install(self, shared="-", static="-"):
        prefix = self.folder / "prefix"
        run(INSTALL, prefix, "1.2.3", HEADER, FLAGS, shared, static, SOURCES)
        return prefix

    def options(self, prefix, *more, module="kvatlas_publisher"):
        env = {**os.environ, "PKG_CONFIG_PATH": str(prefix / "lib/pkgconfig")}
        return run("pkg-config", "--cflags", "--libs", *more, module, env=env).split()

    def expect_exact(self, program, env):
        with Leaf(LEAF) as leaf, subprocess.Popen([program, leaf.grpc], stdin=subprocess.PIPE,
                                                  stdout=subprocess.PIPE, text=True, env=env) as engine:
            self.assertEqual(engine.stdout.readline(), "OK\n")
            tokens = list(TOKENS)
            self.assertEqual(leaf.query("example-model", tokens), {("example-worker", 0): 32})
            self.assertEqual(leaf.query("example-model", tokens[:16] + [1] * 16), {("example-worker", 0): 16})
            self.assertEqual(leaf.query("example-model", [1] * 32), {})
            self.assertEqual(leaf.query("another-model", tokens), {})
            engine.stdin.write("\n")
            engine.stdin.flush()
            self.assertEqual(engine.wait(60), 0)
            self.assertEqual(leaf.query("example-model", tokens), {}, "it said goodbye")

    def test_example_with_the_shared_library(self):
        prefix = self.install(shared=SHARED)
        program = self.folder / "example"
        run("gcc-12", *STRICT, "-o", program, EXAMPLE, *self.options(prefix))
        env = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
        self.expect_exact(program, env)  # found where it was installed

    def test_example_with_the_static_library(self):
        prefix = self.install(static=STATIC)
        program = self.folder / "example"
        run("gcc-12", *STRICT, "-o", program, EXAMPLE, *self.options(prefix, "--static"))
        self.expect_exact(program, dict(os.environ))

    def test_the_static_library_beside_the_shared_one(self):
        prefix = self.install(shared=SHARED, static=STATIC)
        program = self.folder / "example"
        run("gcc-12", *STRICT, "-o", program, EXAMPLE, *self.options(prefix, module="kvatlas_publisher_static"))
        self.assertNotIn("libkvatlas_publisher", run("readelf", "-d", program))
        self.expect_exact(program, dict(os.environ))

    def test_the_example_in_cpp(self):
        prefix = self.install(shared=SHARED, static=STATIC)
        program = self.folder / "example_engine"
        run("g++-12", "-std=c++20", "-o", program, CPP, *self.options(prefix, module="kvatlas_publisher_static"))
        with Leaf(LEAF) as leaf:
            self.assertEqual(run(program, leaf.grpc), "acknowledged; 6 blocks held\n")

    def test_the_examples_say_why_no_leaf_answered(self):
        prefix = self.install(shared=SHARED)
        program = self.folder / "example"
        run("gcc-12", *STRICT, "-o", program, EXAMPLE, *self.options(prefix))
        said = subprocess.run([program, "127.0.0.1:1"], capture_output=True, text=True, input="", check=False)
        self.assertEqual((said.returncode, said.stdout), (1, "DEADLINE_EXCEEDED\n"))
        self.assertIn("leaf 127.0.0.1:1: ", said.stderr)
        self.assertIn("Connection refused", said.stderr)
        said = subprocess.run([program, "127.0.0.1"], capture_output=True, text=True, input="", check=False)
        self.assertEqual(said.returncode, 2)
        self.assertIn("'127.0.0.1': expected HOST:PORT", said.stderr)

    def test_the_header_is_c_of_any_age_and_cpp(self):
        source = self.folder / "header.c"
        source.write_text("#include <kvatlas_publisher.h>\nint main(void) { return 0; }\n")
        for compiler in COMPILERS:
            for language, standard in (("c", "c99"), ("c", "c11"), ("c", "c17"), ("c++", "c++11"), ("c++", "c++20")):
                run(compiler, "-x", language, f"-std={standard}", "-pedantic", "-Wall", "-Wextra", "-Werror",
                    "-fsyntax-only", f"-I{Path(HEADER).parent}", source)

    def test_the_shared_library_shows_the_interface_and_nothing_else(self):
        shown = [line.split()[-1] for line in run("nm", "-D", "--defined-only", SHARED).splitlines()]
        functions = {name.partition("@")[0] for name in shown} - {"KVATLAS_PUBLISHER_1"}
        self.assertEqual([name for name in functions if not name.startswith("kvatlas_")], [])
        header = Path(HEADER).read_text(encoding="utf-8")
        for name in functions:
            self.assertIn(name + "(", header)
        self.assertEqual(header.count("KVATLAS_API ") - 1, len(functions))
        self.assertIn("libkvatlas_publisher.so.1", run("readelf", "-d", SHARED))

    def test_a_prefix_may_be_moved(self):
        prefix = self.install(shared=SHARED)
        moved = prefix.rename(self.folder / "moved")
        self.assertIn(f"-L{moved}/lib", [os.path.normpath(o) if o.startswith("-L") else o for o in self.options(moved)]
                      + ["-L" + os.path.normpath(o[2:]) for o in self.options(moved) if o.startswith("-L")])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
