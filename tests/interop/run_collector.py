#!/usr/bin/env python3
"""Sends the traces of a real cluster, and of OpenTelemetry's own Python SDK at both ends of it, into a real OpenTelemetry Collector.

    bazel build //indexer/leaf:kvatlas-leaf //hierarchy:kvatlas-hierarchy //frontend:kvatlas-frontend //tools/testing/mock_engine:mock_engine
    tests/interop/run_collector.py --binaries bazel-bin

    client (SDK) ─▶ frontend's proxy ─┬─▶ hierarchy, leaf        all of them ─ OTLP ─▶ otelcol ─▶ spans, as text
                                      └─▶ engine (SDK)

What the collector understood must be one connected trace of each request: one root, every other span the child of one that is there and
that began before it, from the client through proxy, hierarchy and leaf to the engine. The client reads nothing of ours, the engine nothing
but the header `traceparent`. And the collector keeps connections on which little happens.

The collector is built from its Go modules by its own builder (Go, network access and some minutes the first time), the SDK comes from
PyPI; both are kept under `$KVATLAS_INTEROP_DIR` (by default ~/.cache/kvatlas-interop). Nothing but loopback is used afterwards. The
exit status is 1 if anything is not so. `--serve` starts the collector alone and prints its address, to try --otlp_endpoint by hand.
"""

import argparse
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path

import environment

BUILDER = "go.opentelemetry.io/collector/cmd/builder@v0.165.0"
VERSION = "0.165.0"
MANIFEST = f"""
dist: {{module: kvatlas.example/otelcol, name: otelcol, version: {VERSION}, output_path: "%s"}}
receivers: [{{gomod: go.opentelemetry.io/collector/receiver/otlpreceiver v{VERSION}}}]
exporters: [{{gomod: go.opentelemetry.io/collector/exporter/debugexporter v{VERSION}}}]
providers: [{{gomod: go.opentelemetry.io/collector/confmap/provider/fileprovider v1.71.0}}]
conf_resolver: {{default_uri_scheme: file}}
"""
CONFIG = """
receivers: {otlp: {protocols: {grpc: {endpoint: "%s"}, http: {endpoint: "%s"}}}}
exporters: {debug: {verbosity: %s, use_internal_logger: false}}
service:
  telemetry: {metrics: {level: none}, logs: {level: warn}}
  pipelines: {traces: {receivers: [otlp], exporters: [debug]}}
"""
SDK = ["opentelemetry-sdk==1.45.2", "opentelemetry-exporter-otlp-proto-http==1.45.2"]
MODEL = "mock"
WAIT_S = 60
PING_S = 10  # between processes of ours
NO_PARENT = ""
ARGUMENTS = None  # of the command line


# ---- The collector ----

def prepare_collector():
    """Its program."""
    folder = environment.home() / f"otelcol-{VERSION}"
    program = folder / "otelcol"
    if not program.exists():
        if not shutil.which("go"):
            raise RuntimeError("no Go to build the collector with: install it, or give --collector a program")
        print(f"building the OpenTelemetry Collector {VERSION} under {folder}", flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "manifest.yaml").write_text(MANIFEST % folder)
        subprocess.run(["go", "run", BUILDER, f"--config={folder / 'manifest.yaml'}"], check=True,
                       env={**os.environ, "CGO_ENABLED": "0"})
    return program


class Span:
    def __init__(self, service):
        self.service, self.fields, self.attributes = service, {}, {}

    def __getattr__(self, name):
        return self.fields[name.replace("_", " ").lower()]

    def __repr__(self):
        return f"{self.service}: {self.name} ({self.id}, child of {self.parent_id or 'none'})"


def spans_in(text):
    """What the exporter `debug` says, in detail; the last one may not be whole yet."""
    spans, service, place = [], "", None
    for line in text.splitlines():
        if re.match(r"ResourceSpans #", line):
            service, place = "", None
        elif line.startswith("Span #"):
            spans.append(Span(service))
            place = spans[-1].fields
        elif found := re.match(r" +-> ([\w.]+): \w+\((.*)\)$", line):
            if place is None and found[1] == "service.name":
                service = found[2]
            elif place is not None:
                spans[-1].attributes[found[1]] = found[2]
        elif place is not None and (found := re.match(r"    (\w[\w ]*?) *: ?(.*)$", line)):
            place[found[1].lower()] = found[2]
    return spans


class Collector:
    def __init__(self, program, verbosity="detailed"):
        self.folder = Path(tempfile.mkdtemp(prefix="kvatlas-otelcol-"))
        self.grpc, self.http = (f"127.0.0.1:{environment.free_port()}" for _ in range(2))
        (self.folder / "config.yaml").write_text(CONFIG % (self.grpc, self.http, verbosity))
        self.out = open(self.folder / "out", "wb")
        self.process = subprocess.Popen([str(program), f"--config=file:{self.folder / 'config.yaml'}"], stdout=self.out, stderr=self.out)
        give_up = time.monotonic() + WAIT_S
        while not self.listens():
            if self.process.poll() is not None or time.monotonic() > give_up:
                said = self.text()[-2000:]
                self.close()
                raise RuntimeError(f"the collector does not start: {said}")

    def listens(self):
        """Of HTTP; an empty batch is taken."""
        try:
            request = urllib.request.Request(f"http://{self.http}/v1/traces", b"{}", {"content-type": "application/json"})
            with urllib.request.urlopen(request, timeout=WAIT_S):
                return True
        except urllib.error.URLError:
            return False

    def text(self):
        return (self.folder / "out").read_text(errors="replace")

    def trace(self, trace_id):
        return [span for span in spans_in(self.text()) if span.fields.get("trace id") == trace_id]

    def close(self):
        self.process.terminate()
        self.process.wait()
        self.out.close()
        shutil.rmtree(self.folder)


# ---- Both ends, with OpenTelemetry's own SDK ----

def tracer_of(service, collector):
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"http://{collector.http}/v1/traces")))
    return provider.get_tracer("interop")


class Engine:
    """Answers completions, and goes on with the trace that its request came with."""

    def __init__(self, tracer):
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_POST(self):
                self.rfile.read(int(self.headers["content-length"]))
                context = TraceContextTextMapPropagator().extract({key.lower(): value for key, value in self.headers.items()})
                with tracer.start_as_current_span("llm_request", context=context, kind=SpanKind.SERVER):
                    body = json.dumps({"object": "text_completion", "model": MODEL, "choices": [{"index": 0, "text": "so"}],
                                       "usage": {"prompt_tokens": 32, "completion_tokens": 1, "total_tokens": 33}}).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = "http://127.0.0.1:%d" % self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class CollectorTest(unittest.TestCase):
    def setUp(self):
        self.collector = Collector(ARGUMENTS.collector or prepare_collector())
        self.addCleanup(self.collector.close)
        self.log = self.enterContext(tempfile.TemporaryFile("w+"))
        self.client = tracer_of("client", self.collector)
        engine = Engine(tracer_of("engine", self.collector))
        self.addCleanup(engine.close)
        traced = [f"--otlp_endpoint={self.collector.grpc}", "--trace_ratio=1"]
        http = "--http=127.0.0.1:0"
        node = self.start("hierarchy/kvatlas-hierarchy", http, "--node=top", *traced)
        leaf = self.start("indexer/leaf/kvatlas-leaf", http, "--cell=cell", f"--parents={node.addresses['grpc']}", *traced)
        # Who publishes for the engine, and answers nothing itself.
        self.start("tools/testing/mock_engine/mock_engine", "--worker=w", f"--model={MODEL}", f"--leaf={leaf.addresses['grpc']}", "--block_size=16",
                   "--capacity=64")
        self.frontend = self.start("frontend/kvatlas-frontend", http, "--proxy=127.0.0.1:0", f"--hierarchy={node.addresses['grpc']}",
                                   "--block_size=16", f"--engines=w={engine.url}", "--deadline=5s", *traced)
        self.until(lambda: self.complete({}) == 200, "a first request is served")

    def start(self, path, *arguments):
        process = environment.Process(str(ARGUMENTS.binaries / path), "--grpc=127.0.0.1:0", *arguments, log=self.log)
        self.addCleanup(process.close)
        return process

    def until(self, holds, what):
        give_up = time.monotonic() + WAIT_S
        while not (value := holds()):
            self.assertLess(time.monotonic(), give_up, what() if callable(what) else what)
        return value

    def complete(self, headers):
        request = urllib.request.Request(f"http://{self.frontend.addresses['proxy']}/v1/completions",
                                         json.dumps({"model": MODEL, "prompt": list(range(1, 33))}).encode(),
                                         {"content-type": "application/json", **headers})
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
                answer.read()
                return answer.status
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def wait_for_spans(self, trace_id, wanted):
        """Of a trace that has all of these."""
        def whole():
            spans = self.collector.trace(trace_id)
            return spans if wanted <= {(span.service, span.name) for span in spans} else None

        return self.until(whole, lambda: f"wanted {wanted}, the collector has {self.collector.trace(trace_id)}")

    def check_connected(self, spans):
        """One root, and each other span the child of one that is there; the root."""
        by_id = {span.id: span for span in spans}
        self.assertEqual(len(by_id), len(spans))
        roots = [span for span in spans if span.parent_id == NO_PARENT]
        self.assertEqual(len(roots), 1, spans)
        for span in spans:
            self.assertTrue(span.parent_id == NO_PARENT or span.parent_id in by_id, f"{span} in {spans}")
            self.assertLessEqual(span.start_time, span.end_time)
            if span.parent_id:
                self.assertLessEqual(by_id[span.parent_id].start_time, span.start_time, f"{span} in {spans}")
        return roots[0]

    def path_to(self, spans, service, name):
        """The names from the root to this span."""
        by_id = {span.id: span for span in spans}
        span = next(span for span in spans if (span.service, span.name) == (service, name))
        path = [span.name]
        while span.parent_id in by_id:
            span = by_id[span.parent_id]
            path.insert(0, span.name)
        return path

    OURS = {("kvatlas-frontend", "proxy"), ("kvatlas-frontend", "route"), ("kvatlas-frontend", "ask hierarchy"), ("kvatlas-frontend", "ask leaf"),
            ("kvatlas-hierarchy", "FindCells"), ("kvatlas-leaf", "FindOverlaps"), ("kvatlas-frontend", "engine"), ("engine", "llm_request")}

    def check_paths(self, spans, above):
        self.assertEqual(self.path_to(spans, "kvatlas-hierarchy", "FindCells"), above + ["proxy", "route", "ask hierarchy", "FindCells"])
        self.assertEqual(self.path_to(spans, "kvatlas-leaf", "FindOverlaps"), above + ["proxy", "route", "ask leaf", "FindOverlaps"])
        self.assertEqual(self.path_to(spans, "engine", "llm_request"), above + ["proxy", "engine", "llm_request"])

    def test_a_clients_trace_goes_through_all_processes_to_the_engine(self):
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        headers = {}
        with self.client.start_as_current_span("ask") as span:
            TraceContextTextMapPropagator().inject(headers)
            self.assertEqual(self.complete(headers), 200)
        trace_id = trace.format_trace_id(span.get_span_context().trace_id)
        spans = self.wait_for_spans(trace_id, self.OURS | {("client", "ask")})
        self.assertEqual(self.check_connected(spans).service, "client")
        self.check_paths(spans, ["ask"])
        proxy = next(span for span in spans if span.name == "proxy")
        self.assertEqual((proxy.kind, proxy.attributes["url.path"]), ("Server", "/v1/completions"))

    def test_a_request_without_a_context_is_a_trace_of_its_own(self):
        before = {span.trace_id for span in spans_in(self.collector.text()) if "name" in span.fields}
        self.assertEqual(self.complete({}), 200)
        proxy = self.until(lambda: next((span for span in spans_in(self.collector.text())
                                         if "kind" in span.fields and span.name == "proxy" and span.trace_id not in before), None), "a new trace")
        spans = self.wait_for_spans(proxy.trace_id, self.OURS)
        self.assertEqual(self.check_connected(spans).name, "proxy")
        self.check_paths(spans, [])

    def test_a_collector_never_turns_a_seldom_used_connection_away(self):
        # Only time shows it: the third ping within minutes would be refused.
        threading.Event().wait(3.5 * PING_S)
        self.assertEqual(self.complete({}), 200)
        self.log.seek(0)
        text = self.log.read()
        self.assertNotIn("too_many_pings", text)
        self.assertNotIn("spans are not taken", text)


def main():
    global ARGUMENTS
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", default="bazel-bin", type=lambda path: Path(path).resolve(), help="folder of Bazel's output")
    parser.add_argument("--collector", type=lambda path: str(Path(path).resolve()), help="a program that is there, with OTLP and `debug`")
    parser.add_argument("--serve", action="store_true", help="start the collector, print HOST:PORT, and stay until this ends")
    parser.add_argument("tests", nargs="*", help="only these, as Class or Class.test")
    ARGUMENTS = parser.parse_args()
    if ARGUMENTS.serve:
        collector = Collector(ARGUMENTS.collector or prepare_collector(), verbosity="basic")
        try:
            print(collector.grpc, flush=True)
            return collector.process.wait()
        finally:
            collector.close()
    try:
        import opentelemetry.sdk  # noqa: F401
    except ImportError:
        environment.run_again_with(environment.prepare_python("opentelemetry", SDK))
    unittest.main(argv=[sys.argv[0], *ARGUMENTS.tests], verbosity=2)


if __name__ == "__main__":
    sys.exit(main())
