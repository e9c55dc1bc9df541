"""What do scripts of this folder have in common? A virtual environment for packages from PyPI, and our programs as processes.

    python = environment.prepare_python("openai", ["openai==3.54.0"])      # installed the first time, and when versions change
    leaf = environment.Process("bazel-bin/indexer/leaf/kvatlas-leaf", "--grpc=127.0.0.1:0")
    leaf.addresses["grpc"]
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# The engines that these scripts speak of.
VERSIONS = {"vllm": "0.33.0", "sglang": "0.5.23"}
# Of their wheels, what is unpacked.
WANTED = (".py", "METADATA", "LICENSE")
WANTED_BINARIES = ("rust_tree_core/",)


def home():
    """Where what was fetched is kept."""
    return Path(os.environ.get("KVATLAS_INTEROP_DIR", Path.home() / ".cache" / "kvatlas-interop"))


def prepare_python(name, packages, alone=()):
    """The python of an environment that has these packages; `alone`: those without what they depend on."""
    folder = home() / f"venv-{name}"
    ready = folder / "ready"
    wanted = "\n".join([*packages, *alone])
    if not ready.exists() or ready.read_text() != wanted:
        print(f"installing {', '.join(packages)} under {folder}", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--no-compile", *packages],
                       check=True, stdout=sys.stderr)
        if alone:
            subprocess.run([str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--no-compile", "--no-deps", *alone],
                           check=True, stdout=sys.stderr)
        ready.write_text(wanted)
    return folder / "bin/python"


def fetch_engine(kind):
    """The folder of an engine's sources: its wheel, without dependencies."""
    source = home() / f"{kind}-{VERSIONS[kind]}"
    if not source.exists():
        print(f"fetching {kind} {VERSIONS[kind]} into {home()}", file=sys.stderr, flush=True)
        home().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home()) as folder:
            subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, f"{kind}=={VERSIONS[kind]}"],
                           check=True, stdout=sys.stderr)
            with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as archive:
                names = [name for name in archive.namelist()
                         if name.endswith(WANTED) or any(part in name for part in WANTED_BINARIES)]
                archive.extractall(Path(folder) / "unpacked", names)
            (Path(folder) / "unpacked").rename(source)
    return source


def run_again_with(python):
    """Starts this script once more with that python; never returns."""
    if sys.executable == str(python):
        raise RuntimeError(f"{python} lacks what was installed for it: remove {Path(python).parents[1]}")
    os.execv(python, [str(python), *sys.argv])


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Process:
    """One of our programs, and the addresses in its ready line."""

    def __init__(self, *command, log=None):
        """`log`: a file for what it logs; None: where this script's errors go."""
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        ready = self.process.stdout.readline()
        self.addresses = dict(re.findall(r"(\w+)=(\S+:\d+)", ready))
        if "grpc" not in self.addresses:
            self.close()
            raise RuntimeError(f"{command[0]} is not ready: {ready!r}")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        self.process.terminate()
        self.process.wait()
        self.process.stdout.close()
