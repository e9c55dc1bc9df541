"""Do the programs of the wheel run from a clean virtual environment? Usage: commands_wheel_test.py VENV WHEEL FILE... (by
commands_wheel_test.sh)"""

import re
import subprocess
import sys
import unittest
import zipfile
from pathlib import Path

VENV, WHEEL = map(Path, sys.argv[1:3])
PROGRAMS = [name for name in sys.argv[3:] if not name.endswith(".so")]
SITE = next(VENV.glob("lib/python3*/site-packages"))
TESTDATA = Path("frontend/prompt/text/testdata").resolve()


def run(*command, **more):
    # Elsewhere than in the repository, and with no environment of its own.
    return subprocess.run([str(part) for part in command], cwd="/", env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=60,
                          **more)


class CommandsWheelTest(unittest.TestCase):
    def test_every_program_says_its_version(self):
        for name in PROGRAMS:
            done = run(VENV / "bin" / name, "--version")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue(re.fullmatch(rf"{name} \d+\.\d+\.\d+.*\n", done.stdout), done.stdout)

    def test_the_module_is_the_command(self):
        self.assertEqual(run(VENV / "bin/python", "-m", "kvatlas", "--version").stdout, run(VENV / "bin/kvatlas", "--version").stdout)

    def test_the_demo_needs_nothing_else(self):
        done = run(VENV / "bin/kvatlas", "demo", "--once")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"3  turn 2: .*the engine had [1-9]\d* tokens cached")

    def test_serve_tells_that_it_has_no_engine(self):
        done = run(VENV / "bin/kvatlas", "serve")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--engine", done.stderr)

    def test_sentencepiece_is_found_beside_the_program(self):
        body = '{"model": "m", "prompt": "some text"}'
        model = next(TESTDATA.glob("**/tokenizer.model"))
        done = run(VENV / "bin/kvatlas", "tokenize", f"--models=m={model}", "--as=vllm", "--path=/v1/completions", input=body + "\n")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_its_name_says_the_glibc_that_its_files_demand(self):
        demanded = (2, 28)
        for file in (SITE / "kvatlas/lib").iterdir():
            said = run("objdump", "-T", file).stdout
            for number in re.findall(r"\(?GLIBC_(\d+\.\d+)\)?", said):
                demanded = max(demanded, tuple(map(int, number.split("."))))
        name = tuple(map(int, re.search(r"-py3-none-manylinux_(\d+)_(\d+)_x86_64\.whl$", WHEEL.name).groups()))
        self.assertGreaterEqual(name, demanded)
        self.assertLessEqual(name, (2, 36))

    def test_nothing_is_loaded_from_the_build(self):
        for file in (SITE / "kvatlas/lib").iterdir():
            loaded = run("ldd", file).stdout
            self.assertNotIn("bazel-out", loaded)
            self.assertNotIn("not found", loaded)

    def test_the_libraries_are_extras(self):
        with zipfile.ZipFile(WHEEL) as wheel:
            name = next(n for n in wheel.namelist() if n.endswith("/METADATA"))
            text = wheel.read(name).decode()
        for extra in ("publisher", "frontend"):
            self.assertRegex(text, rf'Requires-Dist: kvatlas-{extra}==\d+\.\d+\.\d+; extra == "{extra}"')


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
