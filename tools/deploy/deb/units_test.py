#!/usr/bin/env python3
"""The package's units and configuration, without installing it. units_test.py BINARY..."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).parent
BINARIES = {}  # name: path
EXPOSURE_MAX = 3.0


def units():
    return sorted((HERE / "units").glob("*.service"))


def command_of(unit):
    return re.search(r"^ExecStart=(.*)$", unit.read_text(), re.M).group(1).split()


class ConfigurationTest(unittest.TestCase):
    def test_each_unit_has_its_file_and_each_file_its_unit(self):
        named = {pathlib.Path(argument.split("=")[1]).name for unit in units() for argument in command_of(unit)
                 if argument.startswith("--config=")}
        self.assertEqual(named, {path.name for path in (HERE / "conf").glob("*.toml")})
        self.assertEqual(len(named), 5)

    def test_binaries_take_their_files(self):
        with tempfile.TemporaryDirectory() as scratch:
            for unit in units():
                program, *arguments = command_of(unit)
                config = next(argument for argument in arguments if argument.startswith("--config="))
                text = (HERE / "conf" / pathlib.Path(config).name).read_text()
                file = pathlib.Path(scratch) / pathlib.Path(config).name
                file.write_text(text.replace("/var/lib/kvatlas/", scratch + "/"))
                for state in re.findall(r"^StateDirectory=kvatlas/(.*)$", unit.read_text(), re.M):
                    os.mkdir(os.path.join(scratch, state))
                words = [argument for argument in arguments if argument != config]
                checked = subprocess.run([BINARIES[pathlib.Path(program).name], *words, f"--config={file}", "--check"],
                                         capture_output=True, text=True)
                self.assertEqual(checked.returncode, 0, f"{unit.name}: {checked.stderr}")

    def test_a_mistake_in_a_file_is_refused(self):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write('cel = "a"\n')
            file.flush()
            checked = subprocess.run([BINARIES["kvatlas-leaf"], f"--config={file.name}", "--check"], capture_output=True, text=True)
            self.assertEqual(checked.returncode, 2)


@unittest.skipUnless(shutil.which("systemd-analyze"), "no systemd here")
class UnitsTest(unittest.TestCase):
    def setUp(self):
        # A root with the units and programs that they name.
        self.scratch = tempfile.TemporaryDirectory()
        root = pathlib.Path(self.scratch.name)
        self.folder = root / "units"
        self.folder.mkdir()
        for unit in units():
            text = unit.read_text()
            text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.M)
            (self.folder / unit.name).write_text(text)

    def tearDown(self):
        self.scratch.cleanup()

    def test_verify_has_nothing_to_say(self):
        for unit in sorted(self.folder.glob("*.service")):
            said = subprocess.run(["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", unit], capture_output=True, text=True)
            ours = [line for line in (said.stdout + said.stderr).splitlines() if unit.name in line]
            self.assertEqual(ours, [])

    def test_a_mistake_is_found(self):
        unit = self.folder / "kvatlas-leaf.service"
        unit.write_text(unit.read_text() + "\n[Service]\nProtectSystme=strict\n")
        said = subprocess.run(["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", unit], capture_output=True, text=True)
        self.assertIn("ProtectSystme", said.stdout + said.stderr)

    def test_exposure(self):
        for unit in sorted(self.folder.glob("*.service")):
            said = subprocess.run(["systemd-analyze", "security", "--offline=yes", unit], capture_output=True, text=True)
            exposure = re.search(r"exposure level for \S+: ([0-9.]+)", said.stdout)
            self.assertIsNotNone(exposure, said.stdout + said.stderr)
            self.assertLess(float(exposure.group(1)), EXPOSURE_MAX, unit.name)


if __name__ == "__main__":
    BINARIES = {pathlib.Path(path).name: path for path in sys.argv[1:]}
    unittest.main(argv=sys.argv[:1])
