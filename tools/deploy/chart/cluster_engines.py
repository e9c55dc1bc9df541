"""Engines as pods of a real API server: found by a leaf and by `kvatlas serve`, by the flags and the service account of an installed chart."""

import http.server
import json
import threading
import urllib.error
import urllib.request

import chart_files
import deploy_tools
from cluster_discovery import LOST, Process, await_that, flag_of, make_account

NAMESPACE = "check-engines"
MODEL = "llama-70b"


class Engine(http.server.BaseHTTPRequestHandler):
    """Answers as much as tells that it is one."""

    def do_GET(self):
        known = self.path == "/v1/models"
        body = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "vllm"}]} if known else {}).encode()
        self.send_response(200 if known else 404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Pods:
    """As their controllers would make them. No kubelet runs: their status is told for them."""

    def __init__(self, api):
        self.api = api
        self.path = f"/api/v1/namespaces/{NAMESPACE}/pods"

    def create(self, name, app, address, ready=False):
        self.api.request("POST", self.path, {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": app}},
            "spec": {"automountServiceAccountToken": False, "containers": [{"name": "vllm", "image": "vllm"}]}})
        self.set(name, address, ready)

    def set(self, name, address, ready):
        self.api.request("PATCH", f"{self.path}/{name}/status", {"status": {
            "phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}]}})

    def delete(self, name):
        self.api.request("DELETE", f"{self.path}/{name}?gracePeriodSeconds=0")


def workers_of(address):
    with urllib.request.urlopen(f"http://{address}/workers", timeout=30) as answer:
        return sorted(str(one["instance_id"]) for one in json.load(answer))


def check_role(api, account):
    """What the account may do: list and watch pods of its namespace, and nothing else."""
    token = (account / "token").read_text()

    def status(method, path):
        request = urllib.request.Request(api.url + path, method=method, headers={"Authorization": f"Bearer {token}"})
        try:
            with urllib.request.urlopen(request, timeout=30, context=api.tls) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code

    own = f"/api/v1/namespaces/{NAMESPACE}"
    may = [("GET", f"{own}/pods"), ("GET", f"{own}/pods?watch=1&timeoutSeconds=1")]
    may_not = [("GET", f"{own}/pods/a"), ("DELETE", f"{own}/pods/a"), ("GET", f"{own}/secrets"), ("GET", f"{own}/configmaps"),
               ("GET", "/api/v1/namespaces/default/pods"), ("GET", "/api/v1/pods"), ("GET", f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"),
               ("GET", f"/apis/inference.networking.k8s.io/v1/namespaces/{NAMESPACE}/inferencepools")]
    for method, path in may:
        if status(method, path) != 200:
            raise SystemExit(f"the Role does not let its account {method} {path}")
    for method, path in may_not:
        if status(method, path) != 403:
            raise SystemExit(f"the Role lets its account {method} {path}")
    print(f"the Role: {len(may)} requests that it is for pass, {len(may_not)} others are forbidden", flush=True)


def check_engines(checker, binaries, addresses, scratch):
    api = checker.api
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    servers = [http.server.ThreadingHTTPServer((address, 8000), Engine) for address in addresses]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    running = []

    def start(name, account, *arguments, words=()):
        binary = deploy_tools.find_binary(binaries, name)
        running.append(Process(binary, account, api, scratch / f"engines-{len(running)}.log", *arguments, words=words))
        return running[-1]

    try:
        api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}, NAMESPACE)
        checker.run_helm("install", "release", chart_files.CHART, "--namespace", NAMESPACE, "-f", chart_files.CHART / "values-gaie.yaml",
                         "--set", "gaie.selector.app=vllm")
        workers = flag_of(checker.objects_of(NAMESPACE), "StatefulSet", "release-kvatlas-leaf-a", "workers")
        account = make_account(api, scratch / "engines-account", "release-kvatlas", NAMESPACE)
        api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "other"}}, NAMESPACE)
        other = make_account(api, scratch / "engines-other-account", "other", NAMESPACE)
        leaf = start("kvatlas-leaf", account, "--grpc=127.0.0.1:0", workers)
        follow(api, leaf, workers, lambda: leaf.place("http"), addresses)
        check_role(api, account)
        refused = start("kvatlas-leaf", other, "--grpc=127.0.0.1:0", workers)
        await_that(lambda: "needs a Role with list and watch of pods" in refused.text(), "an account without the Role is told what it needs", refused)
        checker.run_helm("uninstall", "release", "--namespace", NAMESPACE)
        Pods(api).delete("d")
        checker.run_helm("install", "release", chart_files.CHART, "--namespace", NAMESPACE, "-f", chart_files.CHART / "values-serve.yaml")
        engine = flag_of(checker.objects_of(NAMESPACE), "Deployment", "release-kvatlas-frontend", "engine")
        (scratch / "again").mkdir()
        account = make_account(api, scratch / "again" / "account", "release-kvatlas", NAMESPACE)
        serve = start("kvatlas", account, engine, "--log_format=logfmt", *[f"--{port}=127.0.0.1:0" for port in ("listen", "grpc", "leaf_http", "leaf_grpc")], words=["serve"])
        follow(api, serve, engine, lambda: serve.place("leaf_http"), addresses)
        with urllib.request.urlopen(f"http://{serve.place('listen')}/v1/models", timeout=30) as answer:
            if json.load(answer)["data"][0]["id"] != MODEL:
                raise SystemExit("kvatlas serve does not pass requests on to the pods that it found")
        checker.run_helm("uninstall", "release", "--namespace", NAMESPACE)
        for process in running:
            process.stop()
    finally:
        for server in servers:
            server.shutdown()
        for process in running:
            if process.process.poll() is None:
                process.process.kill()
                process.process.wait()


def follow(api, process, flag, place, addresses):
    pods = Pods(api)

    def await_pods(*expected):
        await_that(lambda: workers_of(place()) == sorted(expected), f"{expected} are listened to", process)
        print(f"{flag}: {sorted(expected)}", flush=True)

    pods.create("a", "vllm", addresses[0])
    pods.create("of-another-app", "other", addresses[2], ready=True)
    pods.create("b", "vllm", addresses[1], ready=True)
    await_pods("b")
    pods.set("a", addresses[0], ready=True)
    await_pods("a", "b")
    pods.set("b", addresses[1], ready=False)
    await_pods("a")
    pods.create("c", "vllm", addresses[2], ready=True)
    await_pods("a", "c")
    pods.delete("c")
    await_pods("a")
    said = process.text().count(LOST)
    api.kill()
    await_that(lambda: process.text().count(LOST) > said, "it tells that the API server does not answer", process)
    await_pods("a")
    api.start()
    pods.create("d", "vllm", addresses[1], ready=True)
    await_pods("a", "d")
    print("over a kill -9 of the API server: known pods stayed, new ones were found", flush=True)
    for name in ("a", "b", "of-another-app"):
        pods.delete(name)
    await_pods("d")
