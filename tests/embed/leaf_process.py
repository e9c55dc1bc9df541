"""A kvatlas-leaf as a process on free ports, for tests: `Leaf(binary).query(...)`."""

import http.client
import json
import re
import subprocess


class Leaf:
    def __init__(self, binary, *flags):
        self.process = subprocess.Popen([binary, "--grpc=127.0.0.1:0", "--http=127.0.0.1:0", *flags],
                                        stdout=subprocess.PIPE, text=True)
        ready = self.process.stdout.readline()
        found = re.search(r"grpc=(\S+) http=([^:\s]+):(\d+)", ready)
        if not found:
            self.process.kill()
            raise RuntimeError(f"{binary} is not ready: {ready!r}")
        self.grpc = found[1]
        self.http = http.client.HTTPConnection(found[2], int(found[3]), timeout=60)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.http.close()
        self.process.terminate()
        self.process.wait()
        self.process.stdout.close()

    def wait_for_nothing_pending(self):
        """Returns once nothing is on its way to any worker: also what frontends sent that have left weighs on no choice."""
        while True:
            self.http.request("GET", "/metrics")
            metrics = self.http.getresponse().read().decode()
            if not re.search(r"^kvatlas_leaf_pending_requests\{[^}]*\} [1-9]", metrics, re.MULTILINE):
                return

    def query(self, model, tokens, lora=None, salt=None):
        """{(worker, rank): leading tokens}; empty when the model was never announced."""
        body = {"model_name": model, "token_ids": list(tokens)}
        if lora:
            body["lora_name"] = lora
        if salt:
            body["cache_salt"] = salt
        self.http.request("POST", "/query", json.dumps(body), {"content-type": "application/json"})
        response = self.http.getresponse()
        text = response.read().decode()
        if response.status == 404:
            return {}
        if response.status != 200:
            raise RuntimeError(f"POST /query: {response.status} {text[:500]}")
        return {(worker, int(rank)): count for worker, ranks in json.loads(text)["scores"].items()
                for rank, count in ranks.items()}
