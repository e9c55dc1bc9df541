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
from pathlib import Path


def home():
    """Where what was fetched is kept."""
    return Path(os.environ.get("KVATLAS_INTEROP_DIR", Path.home() / ".cache" / "kvatlas-interop"))


def prepare_python(name, packages):
    """The python of an environment that has these packages."""
    folder = home() / f"venv-{name}"
    ready = folder / "ready"
    wanted = "\n".join(packages)
    if not ready.exists() or ready.read_text() != wanted:
        print(f"installing {', '.join(packages)} under {folder}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(folder / "bin/python"), "-m", "pip", "install", "--quiet", *packages], check=True)
        ready.write_text(wanted)
    return folder / "bin/python"


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
