"""A small fleet of real processes for tests of the page: a hierarchy node, two leaves with two engines each, a frontend.

    with Fleet() as fleet:
        fleet.chat(3)                                   a client's turn, through the frontend's proxy
        fleet.kill("leaf-1")                            kill -9
        fleet.json("frontend", "/ui/fleet.json")

Binaries are those of a Bazel build: below the working directory of a test, or in bazel-bin.
"""

import ctypes
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import urllib.error
import urllib.request

from wait import await_until

READY_S = 60
PR_SET_PDEATHSIG = 1


def _binary(path):
    for root in (".", "bazel-bin"):
        if os.path.isfile(os.path.join(root, path)):
            return os.path.abspath(os.path.join(root, path))
    raise FileNotFoundError("%s is not built: bazel build //%s" % (path, ":".join(path.rsplit("/", 1))))


def _die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Process:
    """A service of ours, ready once it is started; started again, it takes the ports that it had."""

    def __init__(self, name, binary, args, log):
        self.name, self.binary, self.args, self.log = name, _binary(binary), args, log
        self.addresses, self.process, self.held = {}, None, []

    def start(self):
        args = []
        for arg in self.args:
            known = re.fullmatch(r"--(\w+)=127\.0\.0\.1:0", arg)
            if known and known[1] in self.addresses:
                arg = "--%s=%s" % (known[1], self.addresses[known[1]])
            args.append(arg)
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [self.binary] + args, stdout=subprocess.PIPE, stderr=log, preexec_fn=_die_with_parent)
        line = self.process.stdout.readline().decode()
        if " ready" not in line:
            with open(self.log, encoding="utf-8", errors="replace") as log:
                raise RuntimeError("%s did not start: %s" % (self.name, log.read()[-2000:]))
        self.addresses = dict(re.findall(r"(\w+)=(\S+:\d+)", line))

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()
            self.process = None
            self._hold_ports()

    def _hold_ports(self):
        """Bound and not listened on, they are given to no other process, and are there when this one is started again."""
        if self.held:
            return
        for address in self.addresses.values():
            host, port = address.rsplit(":", 1)
            held = socket.socket()
            self.held.append(held)
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind((host, int(port)))

    def release_ports(self):
        while self.held:
            self.held.pop().close()


class Fleet:
    """Cells "cell-0" and so on, workers "worker-0-1": cell, number in it. Begins when a first request was served."""

    def __init__(self, cells=2, workers=2, capacity=512, block_size=16, frontend_args=()):
        self.cells, self.workers, self.capacity, self.block_size = cells, workers, capacity, block_size
        self.frontend_args = list(frontend_args)
        self.processes = {}

    def __enter__(self):
        self.logs = tempfile.mkdtemp(prefix="kvatlas-page-")
        try:
            self._start_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in self.processes.values():
            process.kill()
            process.release_ports()
        shutil.rmtree(self.logs, ignore_errors=True)

    def _start(self, name, binary, *args):
        self.processes[name] = Process(name, binary, list(args), os.path.join(self.logs, name + ".log"))
        self.processes[name].start()

    def _start_all(self):
        any_port = ("--grpc=127.0.0.1:0", "--http=127.0.0.1:0")
        self._start("hierarchy", "hierarchy/kvatlas-hierarchy", *any_port, "--node=hierarchy")
        for cell in range(self.cells):
            self._start("leaf-%d" % cell, "indexer/leaf/kvatlas-leaf", *any_port, "--cell=cell-%d" % cell,
                        "--parents=" + self.address("hierarchy", "grpc"), "--lease_ttl=3s")
        for cell in range(self.cells):
            for worker in range(self.workers):
                name = "worker-%d-%d" % (cell, worker)
                self._start(name, "tools/testing/mock_engine/mock_engine", *any_port, "--worker=" + name, "--model=mock",
                            "--leaf=" + self.address("leaf-%d" % cell, "grpc"), "--capacity=%d" % self.capacity,
                            "--block_size=%d" % self.block_size)
        self._start("frontend", "frontend/kvatlas-frontend", *any_port, "--proxy=127.0.0.1:0", "--tokenize=engine",
                    "--hierarchy=" + self.address("hierarchy", "grpc"), "--block_size=%d" % self.block_size,
                    *self.frontend_args)
        # A frontend that has never met a worker has none to fall back to while its first questions are late.
        await_until(lambda: self.complete(0) == 200, lambda: "a first request is served: %s" % self.complete(0))

    def address(self, name, kind="http"):
        return self.processes[name].addresses[kind]

    def url(self, name, path="/ui/"):
        return "http://%s%s" % (self.address(name), path)

    def kill(self, name):
        self.processes[name].kill()

    def restart(self, name):
        self.processes[name].start()

    def json(self, name, path):
        with urllib.request.urlopen(self.url(name, path), timeout=READY_S) as answer:
            return json.load(answer)

    def prompt(self, client):
        return "Client %d: " % client + "what is already in the cache need not be computed again. " * 12

    def chat(self, client, **fields):
        """One request of a client; 200, or what is wrong in words."""
        return self._ask("chat/completions", {"messages": [{"role": "user", "content": self.prompt(client)}], **fields})

    def complete(self, client):
        return self._ask("completions", {"prompt": self.prompt(client)})

    def _ask(self, path, body):
        body = {"model": "mock", "max_tokens": 4, **body}
        request = urllib.request.Request(
            "http://%s/v1/%s" % (self.address("frontend", "proxy"), path), data=json.dumps(body).encode(),
            headers={"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=READY_S) as answer:
                answer.read()
                return answer.status
        except urllib.error.HTTPError as error:
            with error:
                return "%d: %s" % (error.code, error.read().decode(errors="replace"))
